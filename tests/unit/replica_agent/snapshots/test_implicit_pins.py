"""Implicit pins: one for each CSN, renewed while reads go on, and no more than needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import SnapshotTooOldError, UnknownTransactionError
from tidelock.replica_agent.snapshots.implicit_pins import ImplicitPins
from tidelock.replica_agent.snapshots.pinned import Pin


class World:
    """A clock, the pins that were written, and what clients have pinned; a CSN is pinned for 100 s."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.written: list[tuple[str, int]] = []
        self.lost: set[str] = set()
        self.clients: set[int] = set()
        self.own: set[int] = set()
        self.pins = ImplicitPins(
            cast("Any", self), ttl_s=100.0, most=3, pinned=self.pinned, clock=lambda: self.now
        )

    async def pinned(self, csn: Csn) -> bool:
        """Return whether a client has pinned a CSN."""
        return csn in self.clients

    def holds(self, csn: Csn) -> bool:
        """Return whether a client of this replica has pinned a CSN (`Snapshots`)."""
        return csn in self.own

    async def pin(self, csn: Csn, ttl_s: float) -> Pin:
        """Pin a CSN (`Snapshots`)."""
        if csn < 5:
            raise SnapshotTooOldError("too old", min_csn=5)
        assert ttl_s >= 125.0
        self.written.append(("pin", csn))
        return Pin(f"p{len(self.written)}", csn, ttl_s, self.now + ttl_s, granted=True)

    async def renew(self, pin_id: str) -> None:
        """Renew a pin (`Snapshots`)."""
        if pin_id in self.lost:
            raise UnknownTransactionError("lost")
        self.written.append(("renew", int(pin_id[1:])))

    async def read(self, csn: int, *, on: bool = False) -> None:
        """Read a CSN, or everything from it on, and finish the work that follows."""
        (self.pins.read_from if on else self.pins.read)(Csn(csn))
        await asyncio.gather(*self.pins._tasks)
        await asyncio.sleep(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Return a world without reads."""
    made = World()
    yield made
    await made.pins.close()


async def test_one_pin_for_all_reads(world: World) -> None:
    """It is renewed when a quarter of its time is over, and only while reads go on."""
    for _ in range(5):
        await world.read(7)
    assert world.written == [("pin", 7)]
    world.now += 24
    await world.read(7)
    assert len(world.written) == 1
    world.now += 2
    await world.read(7)
    await world.read(7)
    assert world.written[1:] == [("renew", 1)]


async def test_a_lost_pin_is_made_again(world: World) -> None:
    """Others saw no renewal, or an operator has ended it."""
    await world.read(7)
    world.lost.add("p1")
    world.now += 30
    await world.read(7)
    assert world.written == [("pin", 7), ("pin", 7)]


async def test_what_a_client_has_pinned_needs_none(world: World) -> None:
    """It is checked again after a while."""
    world.clients.add(7)
    await world.read(7)
    world.clients.clear()
    world.own.add(8)
    await world.read(8)
    await world.read(7)
    assert world.written == []
    world.now += 6
    await world.read(7)
    assert world.written == [("pin", 7)]


async def test_what_is_too_old_is_left(world: World) -> None:
    """One table's retention may serve it all the same; nobody asks ZooKeeper at each read."""
    await world.read(3)
    await world.read(3)
    assert world.written == []


async def test_who_follows_a_table_leaves_few_pins(world: World) -> None:
    """One for each quarter of their time, however often another CSN is read from; none is too far up."""
    await world.read(7, on=True)
    for csn in (8, 9, 10):
        world.now += 8
        await world.read(csn, on=True)
    assert world.written == [("pin", 7)]
    await world.read(6, on=True)
    world.now += 20
    await world.read(11, on=True)
    assert world.written[1:] == [("pin", 6)]
    world.now += 6
    await world.read(11, on=True)
    assert world.written[2:] == [("pin", 11)]


async def test_implicit_pins_are_bounded_in_number(world: World) -> None:
    """Further CSNs stay readable for the retention only, until some have expired."""
    for csn in (10, 11, 12, 13):
        await world.read(csn)
    assert [csn for _, csn in world.written] == [10, 11, 12]
    world.now += 201
    await world.read(13)
    assert world.written[-1] == ("pin", 13)
