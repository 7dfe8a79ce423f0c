"""The turnstile: requests of a crowd begin a few at a time."""

from __future__ import annotations

import asyncio
from collections import Counter

from tidelock.replica_agent.api.turnstile import Turnstile


async def crowd(turnstile: Turnstile, count: int) -> list[tuple[int, int]]:
    """Let so many callers enter at once; return the iteration of the loop and the number of each in order."""
    loop, passed, iteration = asyncio.get_running_loop(), list[tuple[int, int]](), 0

    def next_iteration() -> None:
        nonlocal iteration
        iteration += 1
        ticking[0] = loop.call_soon(next_iteration)

    async def enter(number: int) -> None:
        await turnstile.enter()
        passed.append((iteration, number))

    ticking = [loop.call_soon(next_iteration)]
    await asyncio.gather(*map(enter, range(count)))
    ticking[0].cancel()
    return passed


async def test_a_crowd_enters_a_few_at_a_time() -> None:
    """No iteration of the loop lets more through than a turn has room for, and none overtakes another."""
    passed = await crowd(Turnstile(per_turn=4), 50)
    assert [number for _, number in passed] == list(range(50))
    assert max(Counter(iteration for iteration, _ in passed).values()) == 4


async def test_callers_of_an_empty_turnstile_do_not_wait() -> None:
    """As long as a turn has room, a caller enters in the iteration in which it comes, after a crowd, too."""
    turnstile = Turnstile(per_turn=4)
    for _ in range(2):
        assert len({iteration for iteration, _ in await crowd(turnstile, 4)}) == 1
        await crowd(turnstile, 50)
        for _ in range(4):  # the turns of the crowd are over
            await asyncio.sleep(0)


async def test_callers_that_give_up_take_no_place() -> None:
    """A request that was cancelled while it waited delays nobody behind it."""
    turnstile = Turnstile(per_turn=1)
    first, *gone, last = (asyncio.create_task(turnstile.enter()) for _ in range(7))
    await first
    for task in gone:
        task.cancel()
    await last
    assert all(task.cancelled() for task in gone)
