"""Whether who has asked over HTTP still waits for the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import web

T = TypeVar("T")

#: How often it is looked whether a caller that waits is still there.
_LOOK_S = 0.5


def is_waiting(request: web.Request) -> bool:
    """Tell whether a caller has not hung up."""
    return request.transport is not None and not request.transport.is_closing()


async def while_waiting(request: web.Request, work: Coroutine[Any, Any, T]) -> T:
    """Do something for a caller, and end it when that has hung up.

    Raises:
        ConnectionResetError: It has.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_LOOK_S)
            if not is_waiting(request):
                raise ConnectionResetError("the client hung up")
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return task.result()
