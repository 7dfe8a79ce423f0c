"""Waiting for a CSN: callers are woken when it is applied, a few in each iteration of the event loop."""

from __future__ import annotations

import asyncio

from tidelock.csnlog.core.ids import Csn
from tidelock.replica_agent.storage.csn_waiters import _PER_TURN, CsnWaiters


async def test_a_crowd_is_woken_in_turns() -> None:
    """All are woken, and other work of the loop goes on in between."""
    waiters = CsnWaiters(Csn(1))
    woken: list[int] = []

    async def wait(number: int) -> None:
        assert await waiters.wait(Csn(2), 60.0)
        woken.append(number)

    crowd = [asyncio.create_task(wait(number)) for number in range(3 * _PER_TURN + 1)]
    await asyncio.sleep(0)
    waiters.advance(Csn(2))
    most = seen = 0
    while len(woken) < len(crowd):
        await asyncio.sleep(0)
        most, seen = max(most, len(woken) - seen), len(woken)
    await asyncio.gather(*crowd)
    assert most == _PER_TURN
    assert woken == list(range(len(crowd)))


async def test_those_that_wait_for_more_are_not_woken() -> None:
    """Each is woken by its own CSN, whatever is woken in turns before it."""
    waiters = CsnWaiters(Csn(1))
    crowd = [asyncio.create_task(waiters.wait(Csn(2), 60.0)) for _ in range(2 * _PER_TURN)]
    last = asyncio.create_task(waiters.wait(Csn(3), 60.0))
    await asyncio.sleep(0)
    waiters.advance(Csn(2))
    assert await asyncio.gather(*crowd) == [True] * len(crowd)
    assert not last.done()
    waiters.advance(Csn(3))
    assert await last


async def test_one_that_has_waited_long_enough_gives_up() -> None:
    """It says so, and holds up nobody."""
    waiters = CsnWaiters(Csn(1))
    assert not await waiters.wait(Csn(2), 0.01)
    waiters.advance(Csn(2))
    assert await waiters.wait(Csn(2), 0.01)
