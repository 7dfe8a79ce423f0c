"""Detection of HTTP clients that have hung up before their answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import web

T = TypeVar("T")

#: Seconds between two checks whether a waiting client is still connected.
_LOOK_S = 0.5


def is_waiting(request: web.Request) -> bool:
    """Return whether a client has not hung up."""
    return request.transport is not None and not request.transport.is_closing()


async def while_waiting(request: web.Request, work: Coroutine[Any, Any, T]) -> T:
    """Run work for a client, and cancel the work when the client has hung up.

    Raises:
        ConnectionResetError: The client has hung up.
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
