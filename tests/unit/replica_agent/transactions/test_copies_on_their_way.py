"""How long a commit waits for its copies: as long as bytes of them arrive (rule copies), in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.sim.loop import SimLoop
from tests.support.machines.copies_story import meta, rules
from tests.support.machines.names import HOME, tid
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.errors import NotEnoughReplicasError
from tidelock.replica_agent.transactions.ending.copies import CopyMaker
from tidelock.replication.core.copies import Copies
from tidelock.replication.core.model import CopyPlace, CountedCopies, Held

#: How long it waits without a byte, in virtual seconds.
PATIENCE_S = 30.0
TID = tid("t1")


class _Home:
    """A home that needs two copies. The peers r2 and r3 report when the test says so."""

    def __init__(self) -> None:
        silent: Any = SimpleNamespace(push=lambda *_: None, store=self.store)
        self.copies = CopyMaker(
            machine=Copies(HOME, rules(2, r2="d2", r3="d3")),
            stager=silent, pusher=silent, fetcher=silent, on_broken=lambda _: None,
        )  # fmt: skip

    async def store(self, *_: object) -> None:
        """Make rows durable (`Stager`)."""

    def make(self) -> asyncio.Future[CountedCopies]:
        """Begin to wait."""
        return asyncio.ensure_future(self.copies.make(TID, [meta("a")], [], PATIENCE_S))

    def report(self, peer: str, arrived: int | None) -> None:
        """Answer a push: so many bytes are there, or (None) all of them and durable."""
        held = (str(TID),) if arrived is None else ()
        coming = {} if arrived is None else {str(TID): arrived}
        self.copies.acknowledged(Held(ReplicaId(peer), f"d{peer[1:]}", 1, Csn(1), held, {}, coming))


Run = Callable[[Callable[[_Home], Awaitable[None]]], None]


@pytest.fixture
def run() -> Iterator[Run]:
    """Run a story in virtual time."""
    loop = SimLoop(lambda call, done: done.set_result(call()), 1e6)
    yield lambda story: loop.run_until_complete(story(_Home()))
    loop.close()


def test_a_commit_waits_as_long_as_bytes_arrive(run: Run) -> None:
    """Ten minutes, with less than the patience between two reports that say more than the one before."""

    async def story(home: _Home) -> None:
        waiting = home.make()
        for number in range(30):
            await asyncio.sleep(PATIENCE_S * 2 / 3)
            home.report("r2", 1000 * (number + 1))
        home.report("r2", None)
        assert (await waiting).holders == ("r1", "r2")

    run(story)


@pytest.mark.parametrize("arrived", [0, 1000], ids=["nothing came", "no more came"])
def test_a_commit_whose_copies_stand_still_is_refused(run: Run, arrived: int) -> None:
    """Reports that say the same again, or less, are no progress; the time counts from the last byte."""

    async def story(home: _Home) -> None:
        now = asyncio.get_running_loop().time
        begun = now()
        waiting = home.make()
        await asyncio.sleep(1.0)
        home.report("r2", arrived)
        came = now() if arrived else begun
        for _ in range(100):
            if waiting.done():
                break
            await asyncio.sleep(1.0)
            home.report("r2", arrived)
            home.report("r2", arrived // 2)
        with pytest.raises(NotEnoughReplicasError, match="no byte more came"):
            await waiting
        assert PATIENCE_S <= now() - came <= PATIENCE_S + 1.0

    run(story)


def test_bytes_at_a_peer_whose_copy_does_not_count_are_no_progress(run: Run) -> None:
    """It has another disk than the member list shows, is in the rack of the home, or drains."""

    async def story(home: _Home) -> None:
        now = asyncio.get_running_loop().time
        begun = now()
        waiting = home.make()
        in_rack = rules(2, 1, r2="d9", r3="d3")
        places = tuple(
            (one, CopyPlace(place.disk, HOME)) if one == "r3" else (one, place)
            for one, place in in_rack.places
        )
        home.copies.members(msgspec.structs.replace(in_rack, places=places))
        for number in range(1, 4):
            await asyncio.sleep(PATIENCE_S / 3)
            for peer in ("r2", "r3", "r4"):
                home.report(peer, 1000 * number)
        with pytest.raises(NotEnoughReplicasError):
            await waiting
        assert now() - begun < PATIENCE_S + 2

    run(story)


def test_a_transfer_that_begins_again_elsewhere_counts(run: Run) -> None:
    """Each peer is measured by itself: r2 dies at nine tenths, and r3 begins."""

    async def story(home: _Home) -> None:
        waiting = home.make()
        for peer, arrived in (("r2", 900), ("r3", 100), ("r3", 200), ("r3", None)):
            await asyncio.sleep(PATIENCE_S * 2 / 3)
            home.report(peer, arrived)
        assert (await waiting).holders == ("r1", "r3")

    run(story)
