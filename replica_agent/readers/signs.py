"""Signs of life of a reader process that works on an answer: interim answers, `100 Continue`.

A client that can ask another replica wants to know soon whether this one is frozen, and must not take one for
it that waits for a CSN or for its disk. So a reader process says now and then that it works on the answer.
The clients wait for the next byte only, for `tidelock.read_route.SILENCE_S`. Every client of HTTP/1.1
has to read over any number of interim answers (RFC 9110, 15.2); of all of them Java's and Python's read over
this one only. No header is in it. It says nothing about the answer, which may be an error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

from aiohttp import HttpVersion11, web

#: Seconds between two signs. A client's patience holds three, so that a busy process may be late with two.
SIGN_S: Final = 0.4
#: Beyond the time for which a read waits for its CSN, signs are sent for so long, in seconds. After that a
#: replica is so slow that another one may well be faster.
BEYOND_WAIT_S: Final = 1.0
SIGN: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Signs:
    """The signs of one request; for the event loop's thread.

    Args:
        request: The request.
        most: Number of signs after which the process falls silent.
    """

    def __init__(self, request: web.Request, most: int) -> None:
        """Begin: the first sign is sent after `SIGN_S`."""
        self._request = request
        self._left = most
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(SIGN_S, self._send)

    def end(self) -> None:
        """Send no more: the answer begins, or there will be none. A second call does nothing."""
        self._timer.cancel()

    def _send(self) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return
        transport.write(SIGN)
        self._left -= 1
        if self._left > 0:
            self._timer = self._loop.call_later(SIGN_S, self._send)


#: The signs of the request that a task works on.
_running: ContextVar[Signs | None] = ContextVar("_running", default=None)


@contextlib.contextmanager
def during(request: web.Request, read_wait_s: float) -> Iterator[None]:
    """Send signs while the block works on the answer to a read, until the answer begins.

    Args:
        request: The request. One that changes something gets none: its client waits for as long as it takes.
        read_wait_s: How long a read waits for its CSN.
    """
    if request.method != "GET" or request.version < HttpVersion11:
        yield
        return
    signs = Signs(request, round((read_wait_s + BEYOND_WAIT_S) / SIGN_S))
    before = _running.set(signs)
    try:
        yield
    finally:
        _running.reset(before)
        signs.end()


async def end_before_answer(_request: web.BaseRequest, _response: web.StreamResponse) -> None:
    """End the signs of a request; for `on_response_prepare`, which runs before the status line is sent."""
    if (signs := _running.get()) is not None:
        signs.end()
