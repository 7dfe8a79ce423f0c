"""Full collections of objects: made when one is due and few tasks are under way, at no other time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.aio import until
from tidelock.replica_agent.config import object_collection as module


class Collector:
    """The collector of this process, with a count that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due, self.looked, self.collected = 0, 0, 0
        monkeypatch.setattr(gc, "get_count", self._count)
        monkeypatch.setattr(gc, "collect", self._collect)
        monkeypatch.setattr(module, "_LOOK_S", 0.001)

    def _count(self) -> tuple[int, int, int]:
        self.looked += 1
        return 0, 0, self.due

    def _collect(self) -> int:
        self.collected, self.due = self.collected + 1, 0
        return 0


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """The collector; its thresholds are as before when the test has ended."""
    before = gc.get_threshold()
    yield Collector(monkeypatch)
    gc.set_threshold(*before)


@contextlib.asynccontextmanager
async def running(collector: Collector) -> AsyncIterator[None]:
    """Let it look, and wait until it has looked again."""
    task = asyncio.create_task(module.collect_in_quiet_moments())
    await until(lambda: collector.looked > 2)
    yield
    task.cancel()


async def test_one_that_is_due_is_made(collector: Collector) -> None:
    """And none before."""
    async with running(collector):
        assert collector.collected == 0
        assert gc.get_threshold() == module._THRESHOLDS
        collector.due = module._DUE
        await until(lambda: collector.collected == 1)


async def test_a_crowd_is_not_held_up(collector: Collector) -> None:
    """It is made when the crowd has gone."""
    gone = asyncio.Event()
    crowd = [asyncio.create_task(gone.wait()) for _ in range(module._FEW_TASKS)]
    collector.due = module._DUE
    async with running(collector):
        assert collector.collected == 0
        gone.set()
        await asyncio.gather(*crowd)
        await until(lambda: collector.collected == 1)
