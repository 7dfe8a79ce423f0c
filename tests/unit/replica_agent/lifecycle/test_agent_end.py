"""The end of a boot: no background task goes on once the agent has cancelled it (rule restart)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.rows import settings
from tidelock.csnlog.log import LogState
from tidelock.errors import DiskFullError, StandbyError, UnavailableError
from tidelock.replica_agent.config.states import AgentAction, AgentState
from tidelock.replica_agent.lifecycle.agent import Agent, BootEnd
from tidelock.replica_agent.lifecycle.background import BackgroundTasks


async def test_a_boot_ends_although_a_cancelled_task_fails_otherwise() -> None:
    """A background task whose clean-up fails ends too; before, it went on, and the boot never ended."""
    agent, working, runs = Agent(settings()), asyncio.Event(), 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        assert runs == 1, "the task goes on"
        working.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise DiskFullError("no room to clean up") from None

    task = asyncio.create_task(agent._repeat("work", 0.0, work))
    await working.wait()
    task.cancel()
    await asyncio.wait([task], timeout=30)
    assert task.done()
    assert task.exception() is None


async def test_the_end_of_a_boot_begins_no_garbage_collection() -> None:
    """A cancelled move of the horizon ends at once: a collection would make a fenced replica start later."""
    collected: list[int] = []
    moving = asyncio.Event()

    async def advance() -> None:
        moving.set()
        await asyncio.Event().wait()

    async def at_once() -> None:
        """Do nothing."""

    async def collect() -> None:
        collected.append(1)

    tasks: Any = BackgroundTasks.__new__(BackgroundTasks)
    tasks._snapshots = SimpleNamespace(forget_ended=at_once)
    tasks._condition = SimpleNamespace(allows=lambda _: True)
    tasks._tags = SimpleNamespace(end_expired=at_once)
    tasks._horizon = SimpleNamespace(advance=advance)
    tasks._collection = SimpleNamespace(run=collect)
    task = asyncio.create_task(tasks._move_horizon())
    await asyncio.wait_for(moving.wait(), 30)
    task.cancel()
    await asyncio.wait([task], timeout=30)
    assert task.cancelled()
    assert not collected


async def test_an_unforeseen_error_of_work_that_runs_once_stops_the_agent() -> None:
    """No caller waits for such work: its error was seen by nobody, and the agent went on (I15)."""
    agent = Agent(settings())

    async def broken() -> None:
        raise OSError("input/output error")

    with capture_logs() as logs:
        agent.spawn("repair", broken())
        assert await asyncio.wait_for(agent.until_ended(), 30) is BootEnd.STOPPED
    assert (agent.condition.state, agent.condition.reason) == (
        AgentState.STOPPED,
        "repair: input/output error",
    )
    assert [line["log_level"] for line in logs if line["event"] == "stopped"] == ["error"]
    await agent.close()


async def test_an_agent_that_cannot_drain_ends_all_the_same() -> None:
    """SIGTERM ended nothing when the readers could not be told to finish: the agent never ended."""
    agent = Agent(settings())

    async def drain(_: float) -> None:
        raise OSError("broken pipe")

    agent._local = SimpleNamespace(readers=SimpleNamespace(drain=drain))  # type: ignore[assignment]
    with capture_logs() as logs:
        agent.ask_to_stop()
        assert await asyncio.wait_for(agent.until_ended(), 30) is BootEnd.ASKED
    assert [line["reason"] for line in logs if line["event"] == "not_drained"] == ["OSError('broken pipe')"]
    await agent.close()


async def test_an_agent_whose_fence_is_lost_accepts_nothing_at_once() -> None:
    """Its boot ends later: a batch in doubt is looked up first, and its callers wait for the truth."""
    agent = Agent(settings())
    agent.log_state(LogState.FOLLOWING, "")
    agent._caught_up = True
    agent.log_state(LogState.FOLLOWING, "")
    agent.condition.require(AgentAction.BEGIN)
    agent.log_state(LogState.FENCING, "another replica has raised the fence of this one")
    for action in (AgentAction.BEGIN, AgentAction.INSERT, AgentAction.COMMIT, AgentAction.ACK):
        with pytest.raises(UnavailableError, match="fenced"):
            agent.condition.require(action)
    with pytest.raises(StandbyError, match="fenced"):
        agent.condition.require(AgentAction.READ)
    assert not agent._ended.done()
    await agent.close()
