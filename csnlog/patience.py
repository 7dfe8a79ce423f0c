"""Requests to ZooKeeper that a command of an operator repeats until they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.errors import UnavailableError

#: The result of a request to the store.
Answer = Ok[Any] | Refused | Unknown

#: Pause before a request is repeated, in seconds.
RETRY_S: Final = 0.1


async def answered(
    request: Callable[[], Awaitable[Answer]], patience_s: float
) -> tuple[Ok[Any] | Refused, bool]:
    """Repeat a request until it has an answer. Return it, and whether one before it may have been applied.

    Raises:
        UnavailableError: There was no answer for so long.
    """
    clock = asyncio.get_running_loop().time
    until, doubtful = clock() + patience_s, False
    while True:
        found = await request()
        match found:
            case Unknown():
                doubtful = True
            case Refused(reason=Reason.NOT_CONNECTED):
                pass
            case _:
                return found, doubtful
        if clock() >= until:
            raise UnavailableError(
                "ZooKeeper does not answer; check that it has a quorum, and run the command again"
            )
        await asyncio.sleep(RETRY_S)
