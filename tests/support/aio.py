"""Waiting for a condition inside an event loop, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.support.waiting import INTERVAL_S, TIMEOUT_S

T = TypeVar("T")


async def until(condition: Callable[[], T], *, what: str = "the condition") -> T:
    """Call `condition` in turns of the loop until its result is true; AssertionError if it never is."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT_S
    while not (result := condition()):
        if loop.time() > deadline:
            raise AssertionError(f"{what} did not come true in {TIMEOUT_S:.0f} s; last result: {result!r}")
        await asyncio.sleep(INTERVAL_S)
    return result


async def until_async(condition: Callable[[], Awaitable[T]], *, what: str = "the condition") -> T:
    """Like `until`, for a condition that is a coroutine."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT_S
    while not (result := await condition()):
        if loop.time() > deadline:
            raise AssertionError(f"{what} did not come true in {TIMEOUT_S:.0f} s; last result: {result!r}")
        await asyncio.sleep(INTERVAL_S)
    return result
