"""A merge and the connection of its agent: it cannot commit without ZooKeeper, so it must not cost disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.aio import until
from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import CommitUnknownError, UnavailableError
from tidelock.replica_agent.compaction import runner as module
from tidelock.replica_agent.compaction.planner import Group
from tidelock.replica_agent.compaction.runner import Runner
from tidelock.replica_agent.config.states import AgentState, Condition
from tidelock.replica_agent.transactions.transaction import TxState

TABLE = TableId("default.t")
GROUP = cast("Group", SimpleNamespace(path="", parts=("r1-1-1", "r1-1-2"), rows=2))


class Merging:
    """A runner whose sort takes as long as the test wants; it counts what was begun and rolled back."""

    def __init__(self) -> None:
        self.begun = self.ended = self.touched = self.rolled_back = self.committed = 0
        self.sorted = asyncio.Event()
        #: So many calls return before the commit is decided.
        self.undecided = 0
        self.ended_unknown = False
        self.now_s = 0.0
        self.condition = Condition("r1", AgentState.SERVING)
        world = cast("Any", self)
        self.runner = Runner(
            settings=settings(session_timeout_s=10),
            reader=world,
            transactions=world,
            staging=world,
            commits=world,
            sql=world,
            waiters=world,
            condition=self.condition,
            clock=lambda: self.now_s,
        )
        self.reached = Csn(9)
        self.files = SimpleNamespace(room=SimpleNamespace(admit=lambda *_: None))

    def begin(self, *_: object, **__: object) -> object:
        """Begin a transaction."""
        self.begun += 1
        return SimpleNamespace(
            tid=SimpleNamespace(snapshot=Csn(9)),
            staged=SimpleNamespace(removed={}),
            state=TxState.SEALED,
            ending=SimpleNamespace(commit_task=SimpleNamespace(done=lambda: self.ended_unknown)),
        )

    def compactable(self, *_: object) -> list[tuple[str]]:
        """Return the parts that can be merged."""
        return [(part,) for part in GROUP.parts]

    @asynccontextmanager
    async def mutate(self, _: object) -> AsyncIterator[object]:
        """Sort in another process."""
        try:
            await self.sorted.wait()
            yield SimpleNamespace(pieces=lambda: None, affected=SimpleNamespace(floats=None))
        finally:
            self.ended += 1

    async def stage(self, *_: object, **__: object) -> tuple[int, int]:
        """Stage the rows."""
        return GROUP.rows, 1

    def touch(self, _: object) -> None:
        """Keep the transaction open."""
        self.touched += 1

    async def looks(self) -> None:
        """Wait until the runner has looked at the present state."""
        enough = self.touched + 2
        await until(lambda: self.touched >= enough)

    async def commit(self, *_: object, **__: object) -> object:
        """Commit it."""
        self.committed += 1
        if self.committed <= self.undecided:
            raise CommitUnknownError("its copies are on their way")
        return SimpleNamespace(csn=Csn(10))

    async def roll_back(self, _: object) -> None:
        """Roll it back."""
        self.rolled_back += 1


@pytest.fixture
def merging(monkeypatch: pytest.MonkeyPatch) -> Merging:
    """A runner that looks at the state of its agent without a pause."""
    monkeypatch.setattr(module, "_LOOK_S", 0.001)
    return Merging()


@pytest.mark.parametrize("state", [AgentState.SUSPENDED, AgentState.STOPPING])
async def test_no_merge_begins_while_the_log_is_not_followed(merging: Merging, state: AgentState) -> None:
    """A group that has waited for its place is left to a later time."""
    merging.condition.state = state
    with pytest.raises(UnavailableError, match=state.value):
        await asyncio.wait_for(merging.runner.run(TABLE, GROUP), 30)
    assert merging.begun == 0


async def test_a_merge_is_given_up_when_the_suspension_lasts(merging: Merging) -> None:
    """Also one that still sorts: its process is ended and nothing of it remains."""
    running = asyncio.create_task(merging.runner.run(TABLE, GROUP))
    await merging.looks()
    merging.condition.state = AgentState.SUSPENDED
    merging.now_s += 9.5
    await merging.looks()
    assert not running.done()
    merging.now_s += 1.0
    with pytest.raises(UnavailableError, match="suspended"):
        await asyncio.wait_for(running, 30)
    assert (merging.ended, merging.rolled_back, merging.committed) == (1, 1, 0)


async def test_a_merge_outlives_short_suspensions(merging: Merging) -> None:
    """Two short ones do not add up."""
    running = asyncio.create_task(merging.runner.run(TABLE, GROUP))
    for _ in range(2):
        await merging.looks()
        merging.condition.state = AgentState.SUSPENDED
        merging.now_s += 8.0
        await merging.looks()
        merging.condition.state = AgentState.SERVING
    merging.sorted.set()
    assert await asyncio.wait_for(running, 30) == 10
    assert (merging.rolled_back, merging.committed) == (0, 1)


async def test_a_merge_waits_for_copies_that_take_long(merging: Merging) -> None:
    """Each call of the commit has a limit, and the commit goes on; only an agent that stops gives it up."""
    merging.sorted.set()
    merging.undecided = 3
    assert await asyncio.wait_for(merging.runner.run(TABLE, GROUP), 30) == 10
    assert (merging.rolled_back, merging.committed) == (0, 4)


async def test_a_merge_whose_commit_has_ended_unknown_is_left(merging: Merging) -> None:
    """The next boot learns what became of it."""
    merging.sorted.set()
    merging.undecided, merging.ended_unknown = 3, True
    with pytest.raises(CommitUnknownError):
        await asyncio.wait_for(merging.runner.run(TABLE, GROUP), 30)
    assert (merging.rolled_back, merging.committed) == (1, 1)


async def test_a_merge_ends_with_its_agent(merging: Merging) -> None:
    """An agent that is asked to stop does not wait for a sort."""
    running = asyncio.create_task(merging.runner.run(TABLE, GROUP))
    await merging.looks()
    merging.condition.state = AgentState.STOPPING
    with pytest.raises(UnavailableError, match="stopping"):
        await asyncio.wait_for(running, 30)
    assert (merging.ended, merging.rolled_back) == (1, 1)
