"""A replica that serves parts on a real socket, and can cut answers, send wrong ones, or refuse them."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.test_utils import TestServer

from tidelock.csnlog.core.ids import PartId, ReplicaId
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import Peer


class PartHolder:
    """A server of `/parts/<part>` with Range.

    Attributes:
        parts: The bytes of its parts.
        asked: Part and first byte of each request.
        etags: Whether answers have an ETag.
        breaks_after: Bytes after which an answer is cut, or None.
        refuses: Status of every answer, or 0.
        gate: While closed, requests wait before they are answered.
    """

    def __init__(self, replica: str) -> None:
        self.replica = ReplicaId(replica)
        self.parts: dict[PartId, bytes] = {}
        self.asked: list[tuple[PartId, int]] = []
        self.etags = True
        self.breaks_after: int | None = None
        self.refuses = 0
        self.in_flight = self.in_flight_max = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._server: TestServer | None = None

    async def start(self) -> PartHolder:
        """Listen on a free port."""
        app = web.Application()
        app.router.add_get("/parts/{part}", self._get)
        self._server = TestServer(app)
        await self._server.start_server()
        return self

    async def stop(self) -> None:
        """Let waiting requests go, then close the port."""
        self.gate.set()
        if self._server is not None:
            await self._server.close()

    @property
    def peer(self) -> Peer:
        """Return the entry of this replica in the member list."""
        assert self._server is not None
        return Peer(self.replica, "", f"127.0.0.1:{self._server.port}", f"d-{self.replica}")

    async def _get(self, request: web.Request) -> web.StreamResponse:
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            return await self._answer(request)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        part = PartId(request.match_info["part"])
        wanted = request.http_range
        start = wanted.start or 0
        self.asked.append((part, start))
        await self.gate.wait()
        data = self.parts.get(part)
        if self.refuses or data is None:
            return web.Response(status=self.refuses or 404, text="no")
        body = data[wanted.start : wanted.stop]
        headers = {"Content-Range": f"bytes {start}-{start + len(body) - 1}/{len(data)}"}
        if self.etags:
            headers["ETag"] = f'"{checksum(data)}"'
        response = web.StreamResponse(status=206, headers=headers)
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[: self.breaks_after])
        if self.breaks_after is not None and self.breaks_after < len(body):
            assert request.transport is not None
            request.transport.close()
        return response
