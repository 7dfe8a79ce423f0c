"""Commits leave together while others are on their way, and never wait longer than the bound."""

from __future__ import annotations

import asyncio

from tidelock.replica_agent.transactions.ending.commit_batching import GroupCommitGate

LONG_S = 3600.0


class Station:
    """Commits that pass one `GroupCommitGate`, and those on their way."""

    def __init__(self, wait_max_s: float = LONG_S) -> None:
        self.gate = GroupCommitGate(wait_max_s)
        self.on_the_way: set[str] = set()
        self.left = {name: asyncio.Event() for name in "abcde"}
        self.arrivals = {name: asyncio.Event() for name in "abcde"}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def send(self, *names: str) -> None:
        """Begin commits in one iteration of the loop, and let everything happen that can."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self._travel(name))
        await self.settle()

    async def arrive(self, *names: str) -> None:
        """End commits, and let everything happen that can."""
        for name in names:
            self.arrivals[name].set()
        await self.settle()

    @staticmethod
    async def settle() -> None:
        """Let the loop turn until nothing moves without time or a new event."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def _travel(self, name: str) -> None:
        async with self.gate.batch():
            self.on_the_way.add(name)
            self.left[name].set()
            try:
                await self.arrivals[name].wait()
            finally:
                self.on_the_way.discard(name)


async def test_alone_it_leaves_at_once() -> None:
    """A commit without another one on its way does not wait."""
    station = Station()
    await station.send("a")
    assert station.on_the_way == {"a"}


async def test_the_next_batch_collects_until_the_whole_one_before_has_arrived() -> None:
    """Commits that arrive meanwhile leave together when the last one of the previous batch has ended."""
    station = Station()
    await station.send("a", "b")
    assert station.on_the_way == {"a", "b"}
    await station.send("c")
    await station.send("d")
    await station.arrive("a")
    assert station.on_the_way == {"b"}
    await station.arrive("b")
    assert station.on_the_way == {"c", "d"}
    await station.arrive("c", "d")
    await station.send("e")
    assert station.on_the_way == {"e"}


async def test_a_slow_batch_holds_back_for_a_bounded_time_only() -> None:
    """When the bound has passed the next batch leaves, and the slow one no longer counts."""
    station = Station(wait_max_s=0.001)
    await station.send("a")
    await station.send("b")
    await station.left["b"].wait()
    assert "a" in station.on_the_way
    await station.arrive("b")
    await station.send("c")
    assert station.on_the_way == {"a", "c"}


async def test_a_failed_journey_lets_the_next_batch_go() -> None:
    """A commit that is refused, or cancelled on its way, no longer delays others."""
    station = Station()
    await station.send("a")
    await station.send("b")
    station.tasks["a"].cancel()
    await station.settle()
    assert station.on_the_way == {"b"}


async def test_who_gives_up_waiting_is_forgotten() -> None:
    """A commit that is cancelled while it waits does not take part in a batch."""
    station = Station()
    await station.send("a")
    await station.send("b", "c")
    station.tasks["b"].cancel()
    await station.arrive("a")
    assert station.on_the_way == {"c"}
    await station.send("d")
    await station.arrive("c")
    assert station.on_the_way == {"d"}
