"""The end of a boot: no background task goes on once the agent has cancelled it (rule restart)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.support.rows import settings
from tidelock.errors import DiskFullError
from tidelock.replica_agent.lifecycle.agent import Agent
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
    tasks._horizon = SimpleNamespace(advance=advance)
    tasks._collection = SimpleNamespace(run=collect)
    task = asyncio.create_task(tasks._move_horizon())
    await moving.wait()
    task.cancel()
    await asyncio.wait([task], timeout=30)
    assert task.cancelled()
    assert not collected
