"""An agent that echoes small requests, over HTTP and channels, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Final, Self, TypeVar

from aiohttp import web
from aiohttp.test_utils import TestServer

from tidelock.wire import channel

T = TypeVar("T")
WAIT_S: Final = 20.0
#: Frames of a server: one with fewer bytes has its length in one byte; and the one that closes (1001).
_SHORT: Final = 126
_FAREWELL: Final = b"\x88\x02\x03\xe9"
#: Seconds from one ping to the next; the answer has to come within half of that, also on a busy machine.
_PING_S: Final = 1.0


class ChannelServer:
    """A context manager; the test chooses what becomes of requests over channels.

    Attributes:
        opens: Whether channels are opened; otherwise their route is unknown.
        silent: Whether handshakes get no answer.
        http: Requests over HTTP.
        opened: Channels that were opened.
        asked: Requests over channels.
        strays: Answers to requests that nobody has sent, before each answer.
        ping: Whether each answer waits for the answer to a ping.
        farewell: Whether each answer comes together with the end of its channel.
        leaves: Whether each channel ends as soon as it is open.
    """

    def __init__(self) -> None:
        self.opens, self.silent = True, False
        self.http = self.opened = 0
        self.asked: list[channel.Request] = []
        self.headers: list[str | None] = []
        self.strays = 0
        self.ping = self.farewell = self.leaves = False
        self._may_answer = asyncio.Event()
        self._sockets: set[web.WebSocketResponse] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="channel server", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._may_answer.set()
        self.call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the server's loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    @property
    def address(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self._server.port}"

    @property
    def live(self) -> int:
        """Channels that are open."""
        return len(self._sockets)

    def hold(self) -> None:
        """Keep requests over channels without an answer from now on."""
        self._loop.call_soon_threadsafe(self._may_answer.clear)

    def release(self) -> None:
        """Answer those that wait."""
        self._loop.call_soon_threadsafe(self._may_answer.set)

    def cut(self) -> None:
        """Break all channels."""

        async def cut() -> None:
            for socket in self._sockets:
                transport = socket.get_extra_info("transport") or socket._req.transport  # type: ignore[union-attr]
                transport.abort()  # type: ignore[union-attr]

        self.call(cut())

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/api/v1/echo", self._over_http)
        app.router.add_get("/api/v1/channel", self._open)
        self._server = TestServer(app)
        await self._server.start_server()

    async def _stop(self) -> None:
        self._may_answer.set()
        for socket in list(self._sockets):
            await socket.close()
        await self._server.close()

    async def _over_http(self, request: web.Request) -> web.Response:
        self.http += 1
        return web.Response(body=await request.read())

    async def _open(self, request: web.Request) -> web.StreamResponse:
        if self.silent:
            await asyncio.sleep(WAIT_S)
        if not self.opens:
            raise web.HTTPNotFound
        self.opened += 1
        self.headers.append(request.headers.get("Authorization"))
        pings = _PING_S if self.ping else None
        socket = web.WebSocketResponse(compress=False, timeout=0.1, heartbeat=pings)
        await socket.prepare(request)
        if self.leaves:
            await socket.close()
            return socket
        self._sockets.add(socket)
        try:
            async for message in socket:
                if not isinstance(message.data, bytes):
                    break
                asked = channel.decode_request(message.data)
                self.asked.append(asked)
                await self._may_answer.wait()
                if self.ping:
                    await asyncio.sleep(1.3 * _PING_S)
                for stray in range(self.strays):
                    await socket.send_bytes(channel.encode_answer(asked.number + 1 + stray, 200, b"stray"))
                answer = channel.encode_answer(asked.number, 200, asked.body)
                if self.farewell:
                    assert request.transport is not None
                    assert len(answer) < _SHORT
                    request.transport.write(b"\x82" + bytes([len(answer)]) + answer + _FAREWELL)
                    break
                await socket.send_bytes(answer)
        finally:
            self._sockets.discard(socket)
        return socket
