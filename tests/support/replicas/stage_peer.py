"""A peer that takes pushes, over a channel or HTTP; the test chooses its answers and their time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.replication.core import wire
from tidelock.replication.core.model import Held, Peer
from tidelock.wire import channel

Answer = Callable[[wire.StageRequest], Held | web.Response]


class StagePeer:
    """A peer that records its pushes and hints. While `gate` is closed, requests wait for their answers."""

    def __init__(self, replica: str, disk: str, *, opens_channels: bool = True) -> None:
        self.replica, self.disk = ReplicaId(replica), disk
        self.opens_channels = opens_channels
        self.channels = 0
        self._socket: web.WebSocketResponse | None = None
        self.pushes: list[wire.StageRequest] = []
        self.forgotten: list[str] = []
        self.dropped: list[str] = []
        self.hinted: list[str] = []
        self.holders: list[str] = []
        self.authorizations: set[str | None] = set()
        self.in_flight = self.in_flight_max = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.answer: Answer = self.holds_all
        self._server: TestServer | None = None

    async def start(self) -> StagePeer:
        """Listen on a free port."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/peer/v1/stage", self._stage)
        if self.opens_channels:
            app.router.add_get("/peer/v1/channel", self._open)
        app.router.add_post("/peer/v1/forget", self._forget)
        app.router.add_post("/peer/v1/hint", self._hint)
        self._server = TestServer(app)
        await self._server.start_server()
        return self

    async def stop(self) -> None:
        """Let waiting requests go, then close the port."""
        self.gate.set()
        if self._socket is not None:
            await self._socket.close()
        if self._server is not None:
            await self._server.close()

    @property
    def peer(self) -> Peer:
        """Return the entry of this peer in the member list."""
        assert self._server is not None
        return Peer(self.replica, f"127.0.0.1:{self._server.port}", "", self.disk)

    @property
    def tids(self) -> list[list[str]]:
        """Return the tids of each push."""
        return [[str(item.tid) for item in push.tids] for push in self.pushes]

    def holds_all(self, push: wire.StageRequest) -> Held:
        """Answer that all parts are durable here."""
        return self.held(*(str(item.tid) for item in push.tids))

    def held(self, *tids: str, refused: dict[str, str] | None = None) -> Held:
        """Return an answer of this peer."""
        return Held(self.replica, self.disk, 1, Csn(1), tids, refused or {})

    async def _stage(self, request: web.Request) -> web.StreamResponse:
        self.authorizations.add(request.headers.get("Authorization"))
        body = await request.read()
        assert request.content_length == len(body)  # a receiver refuses large bodies unread
        return await self._take(body)

    async def _open(self, request: web.Request) -> web.StreamResponse:
        self.channels += 1
        self.authorizations.add(request.headers.get("Authorization"))
        self._socket = socket = web.WebSocketResponse(compress=False, timeout=0.1)
        await socket.prepare(request)
        async for message in socket:
            asked = channel.decode_request(message.data)
            answer = await self._take(asked.body)
            assert isinstance(answer.body, bytes)
            await socket.send_bytes(channel.encode_answer(asked.number, answer.status, answer.body))
        return socket

    async def hang_up(self) -> None:
        """Close the channel."""
        assert self._socket is not None
        await self._socket.close()

    async def _take(self, body: bytes) -> web.Response:
        push = wire.decode(body)
        self.pushes.append(push)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            await self.gate.wait()
        finally:
            self.in_flight -= 1
        answer = self.answer(push)
        return answer if isinstance(answer, web.Response) else web.Response(body=msgspec.json.encode(answer))

    async def _forget(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.forgotten += body["tids"]
        self.dropped += body.get("parts", [])
        return web.json_response({})

    async def _hint(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.hinted.append(body["tid"])
        self.holders.append(body["holder"])
        return web.json_response({})
