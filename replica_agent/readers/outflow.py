"""The body of an answer on its way to a client: little is under way while the client may hang up."""

from __future__ import annotations

import asyncio
import socket

from aiohttp import web

from tidelock.replica_agent.readers.counters import ReaderCounters
from tidelock.replica_agent.readers.pacing import ahead


class Outflow:
    """Sends the body of one answer: in small steps at first, if the client may hang up.

    Attributes:
        sent: Bytes that were sent so far.
    """

    def __init__(
        self,
        request: web.Request,
        response: web.StreamResponse,
        counters: ReaderCounters,
        *,
        ahead_max: int,
        may_hang_up: bool,
    ) -> None:
        """Send to the client of a request, whose answer was begun.

        Args:
            request: The request.
            response: Its answer.
            counters: Where the bytes are counted.
            ahead_max: Most bytes that are under way; the size of the socket's send buffer, which it has now.
            may_hang_up: The client has not said how much it wants: few bytes are under way at first.
        """
        self._request = request
        self._response = response
        self._counters = counters
        self._ahead_max = ahead_max
        self._ahead = ahead_max
        self._paced = may_hang_up
        self.sent = 0
        if may_hang_up and request.transport is not None:
            # Otherwise the transport keeps 64 KiB itself before it says that the kernel takes no more.
            request.transport.set_write_buffer_limits(high=0)

    async def write(self, data: memoryview) -> None:
        """Send bytes; ConnectionError if the client hangs up.

        Returns when the kernel has all of them, or, once the client is known to read on, soon before.
        """
        at = 0
        while at < len(data):
            if self._paced:
                self._set_ahead(ahead(self.sent, self._ahead_max))
                if self._ahead == self._ahead_max:
                    self._run_free()
            piece = data[at : at + self._ahead]
            await self._response.write(piece)
            self._counters.add("bytes", len(piece))
            at += len(piece)
            self.sent += len(piece)
            if self._paced:
                await self._request.writer.drain()

    def _run_free(self) -> None:
        """Read and send at the same time from now on: the transport keeps some bytes itself again."""
        self._paced = False
        if self._request.transport is not None:
            self._request.transport.set_write_buffer_limits()

    async def require_client(self) -> None:
        """Raise ConnectionResetError if the client has hung up, which the event loop may not know yet."""
        await asyncio.sleep(0)
        if self._request.transport is None or self._request.transport.is_closing():
            raise ConnectionResetError("the client hung up")

    async def end(self) -> None:
        """End the answer; the next one on this connection finds the send buffer as this one has."""
        await self._response.write_eof()
        self._set_ahead(self._ahead_max)
        if self._paced:
            self._run_free()

    def _set_ahead(self, size: int) -> None:
        """Let the kernel take so many bytes before the client confirms them."""
        if size == self._ahead or self._request.transport is None:
            return
        found = self._request.transport.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        self._ahead = size
