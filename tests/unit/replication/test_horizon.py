"""The horizon: its bounds, expired pins, and races between replicas that raise it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clusters.log_node import R1, R2, R3, LogNode, make_cluster
from tests.support.rows import settings
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import NO_STAMP, Csn, ReplicaId, Tid
from tidelock.csnlog.core.model import PinState, Progress
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Create, Delete, Node, SetData
from tidelock.csnlog.core.visibility import PartVersions, visible
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, MemoryStore
from tidelock.replica_agent.snapshots.horizon import HorizonMover
from tidelock.replication.core.horizon_rules import Bound, PinWatch, bounds, collectable
from tidelock.replication.horizon import HorizonReading, end_below, end_expired, raise_horizon, read_horizon

TID = Tid(Csn(1), R1, 1, 1)
KEPT = Bound(Csn(50), "retention")
Q3 = Bound(Csn(3), "tag", "2026Q3")


def test_a_part_between_creation_and_removal_is_kept() -> None:
    """(rule horizon): created at 5, removed at 20; a snapshot at 10 sees it, whatever its creation says."""
    part = PartVersions(TID, Csn(5), TID, Csn(20))
    assert visible(part, Csn(10))
    assert not collectable(part.removal_csn, Csn(10))
    assert not collectable(part.removal_csn, Csn(19))
    assert collectable(part.removal_csn, Csn(20))
    assert not collectable(None, Csn(20))


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(0, 9))
def test_what_is_collected_is_seen_by_nobody(created: int, lived: int, horizon: int, above: int) -> None:
    """No snapshot at or above the horizon sees a part that may be deleted; lower ones are not promised."""
    part = PartVersions(TID, Csn(created), TID, Csn(created + lived))
    if collectable(part.removal_csn, Csn(horizon)):
        assert not visible(part, Csn(horizon + above))


def test_the_lowest_bound_counts() -> None:
    """Pins, tags, use and progress of replicas, and the retention are bounds; the lowest one is named."""
    progress = {R1: Progress(Csn(90), Csn(70)), R2: Progress(Csn(60), Csn(60))}
    assert bounds({"p": Csn(55)}, progress, kept=KEPT, tags={})[0] == KEPT
    assert bounds({"p": Csn(40)}, progress, kept=KEPT, tags={})[0] == Bound(Csn(40), "pin", "p")
    assert bounds({"p": Csn(40)}, progress, kept=KEPT, tags={"2026Q3": Csn(3)})[0] == Q3
    found = bounds({}, progress, kept=Bound(Csn(80), "asked"), tags={})
    assert [(one.csn, one.name) for one in found] == [(60, "r2"), (70, "r1"), (80, "")]
    assert (
        bounds({}, {R3: Progress(Csn(0), Csn(0))}, kept=KEPT, tags={})[0].name == "r3"
    )  # it was never started


def node(version: int, csn: int = 5, ttl_s: float = 10.0) -> Node:
    """A pin's znode."""
    return Node(codec.encode_pin(PinState(Csn(csn), ttl_s, R1)), version, 0, 0, NO_STAMP)


def test_a_pin_expires_when_its_version_does_not_change() -> None:
    """A pin expires by the observer's clock, counted from the first look at its version."""
    watch = PinWatch()
    assert watch.listed(["a", "b"], 100.0) == ["a", "b"]
    watch.read("a", node(0), 100.0)
    watch.read("b", node(3), 100.0)
    assert watch.listed(["a", "b", "c"], 109.0) == ["c"]
    watch.read("c", node(0), 109.0)
    assert watch.listed(["a", "b", "c"], 110.5) == ["a", "b"]
    watch.read("a", node(1), 110.6)  # renewed meanwhile
    watch.read("b", node(3), 110.6)
    assert watch.expired(110.5) == {"b": 3}
    watch.gone("b")
    assert watch.csns == {"a": 5, "c": 5}
    assert watch.listed(["c"], 111.0) == []
    assert watch.csns == {"c": 5}


def test_an_older_version_of_a_pin_says_nothing() -> None:
    """An older version, from a server that lags, neither renews the pin nor makes it older."""
    watch = PinWatch()
    watch.listed(["a"], 100.0)
    watch.read("a", node(4), 100.0)
    watch.listed(["a"], 111.0)
    watch.read("a", node(2), 111.0)
    assert watch.expired(111.0) == {"a": 4}  # the delete has that version, so a renewal saves it


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


class World:
    """Three replicas that have applied CSN 9; the first raises the horizon."""

    def __init__(self, store: MemoryStore, log: LogNode) -> None:
        self.store, self.log, self.clock, self.watch = store, log, Clock(), PinWatch()

    async def write(self, *ops: Create | SetData | Delete) -> None:
        """Write to ZooKeeper."""
        assert isinstance(await self.store.multi(ops), Ok)

    async def pin(self, name: str, csn: int, ttl_s: float = 10.0) -> None:
        """Pin a CSN."""
        data = codec.encode_pin(PinState(Csn(csn), ttl_s, R2))
        await self.write(Create(tree.pin(name), data), SetData(tree.PINS))

    async def look(self) -> HorizonReading:
        """Read the state of ZooKeeper once."""
        seen = await read_horizon(self.store, self.watch, self.clock)
        assert seen is not None
        return seen

    async def end_expired(self) -> None:
        """Delete the expired pins."""
        await end_expired(self.log.log.fenced, self.watch, (await self.look()).at)

    async def raise_to(self, seen: HorizonReading, csn: int) -> Csn | None:
        """Set the horizon."""
        return await raise_horizon(self.log.log.fenced, seen, Csn(csn))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A new cluster."""
    store = MemoryEnsemble().store("r1")
    await make_cluster(store, (R1, R2, R3))
    async with LogNode(store) as log:
        made = World(store, log)
        data = codec.encode_progress(Progress(Csn(9), Csn(9)))
        await made.write(*(SetData(tree.progress(ReplicaId(name)), data) for name in ("r1", "r2", "r3")))
        yield made


@pytest.mark.scenario("S73")
async def test_a_pin_that_comes_meanwhile_refuses_the_horizon(world: World) -> None:
    """A new pin refuses the horizon, listed or not; a released one does not."""
    await world.pin("r2-1-1", 5)
    seen = await world.look()
    await world.pin("r2-1-2", 3)
    assert await world.raise_to(seen, 5) is None
    seen = await world.look()
    await world.write(Delete(tree.pin("r2-1-2"), -1))
    assert await world.raise_to(seen, 3) == 3
    assert await world.raise_to(await world.look(), 2) == 3  # never back


async def test_two_that_raise_do_not_overtake_each_other(world: World) -> None:
    """Of two raises the later one is refused, and reads again."""
    first, second = await world.look(), await world.look()
    assert await world.raise_to(first, 7) == 7
    assert await world.raise_to(second, 6) is None
    assert (await world.look()).horizon == 7


async def test_a_renewed_pin_survives(world: World) -> None:
    """An expired pin is deleted with the version that was seen; a renewal in time comes first."""
    await world.pin("r2-1-1", 5)
    await world.pin("r2-1-2", 5)
    await world.look()
    world.clock.now += 11
    await world.write(SetData(tree.pin("r2-1-1"), codec.encode_pin(PinState(Csn(5), 10.0, R2))))
    await world.end_expired()
    names = await world.store.children(tree.PINS)
    assert isinstance(names, Ok)
    assert names.value == ("r2-1-1",)
    assert set(world.watch.csns) == {"r2-1-1"}


async def test_pins_below_end_by_order(world: World) -> None:
    """An operator's order ends the pins below; pins at the horizon or above stay."""
    for number, csn in enumerate((3, 5, 7)):
        await world.pin(f"r2-1-{number}", csn)
    await world.look()
    await end_below(world.log.log.fenced, world.watch, Csn(5))
    assert set(world.watch.csns.values()) == {5, 7}


async def test_a_struck_replica_holds_nothing_back_while_it_is_struck(world: World) -> None:
    """A struck replica does not hold the horizon; its session is checked, so it counts when it is back."""
    found = await world.store.get(tree.session(R3))
    assert isinstance(found, Ok)
    state = codec.decode_session(found.value.data)
    struck = state.__class__(boot=state.boot, disk=state.disk, nonce="x", state="struck")
    await world.write(SetData(tree.session(R3), codec.encode_session(struck)))
    seen = await world.look()
    assert set(seen.replicas.progress) == {R1, R2}
    await world.write(SetData(tree.session(R3), found.value.data))
    assert await world.raise_to(seen, 9) is None


class Busy:
    """A store of a cluster whose clients take pins: one comes behind each of the first lists of pins.

    Each request waits until all that were made before have been answered, as over a network.
    """

    def __init__(self, world: World, pins: int) -> None:
        self._world, self._pins = world, iter(range(pins))
        self._waiting: list[asyncio.Event] = []

    @property
    def session(self) -> Any:
        """The session of the store."""
        return self._world.store.session

    async def get(self, path: str) -> Any:
        """Read a znode."""
        await self._turn()
        return await self._world.store.get(path)

    async def children(self, path: str) -> Any:
        """List children; a pin is taken behind a list of pins."""
        await self._turn()
        found = await self._world.store.children(path)
        if path == tree.PINS and (number := next(self._pins, None)) is not None:
            await self._world.pin(f"r2-1-{100 + number}", 9)
        return found

    async def answers(self, work: Coroutine[Any, Any, Any]) -> int:
        """Do some work; return how many answers it waited for, one after the other."""
        task = asyncio.create_task(work)
        for count in itertools.count():
            for _ in range(100):
                await asyncio.sleep(0)
            if task.done():
                task.result()
                return count
            waiting, self._waiting = self._waiting, []
            for event in waiting:
                event.set()
        raise AssertionError

    async def _turn(self) -> None:
        self._waiting.append(event := asyncio.Event())
        await event.wait()


async def test_the_horizon_is_read_in_three_answers(world: World) -> None:
    """A pin that is taken while it is read refuses the move: under load pins are taken all the time."""
    await world.pin("r2-1-1", 9)
    busy = Busy(world, 0)
    assert await busy.answers(read_horizon(cast("Any", busy), world.watch, world.clock)) == 3


async def test_a_tag_holds_the_horizon_and_refuses_a_move_that_has_missed_it(world: World) -> None:
    """The maker of a tag sets the version of the pins, which the move checks: one sees the other (F6)."""
    before = await world.look()
    tags = codec.encode_tags({"2026Q3": Csn(4)})
    await world.write(Create(tree.TAGS, tags), SetData(tree.PINS))
    assert await world.raise_to(before, 8) is None
    seen = await world.look()
    assert (before.tags, seen.tags) == ({}, {"2026Q3": 4})
    assert await world.raise_to(seen, 4) == 4


async def test_a_move_that_pins_refuse_is_tried_again_in_the_same_turn(world: World) -> None:
    """Clients that take pins all the time once kept a horizon where it was for 41 minutes."""
    busy = Busy(world, 3)
    mover = HorizonMover(
        replica=R1,
        settings=settings(),
        store=cast("Any", busy),
        log=world.log.log,
        members=dict,
        tags=dict,
        records_kept=lambda: 100,
        retained=lambda _: Csn(8),
        clock=world.clock,
    )
    await busy.answers(mover.advance())
    assert (await world.look()).horizon == 8
