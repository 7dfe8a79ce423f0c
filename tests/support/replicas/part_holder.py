"""A replica that serves parts on a real socket, and can cut answers, send wrong ones, or refuse them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidelock.csnlog.core.ids import PartId, ReplicaId
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import Peer
from tidelock.replication.core.part_frames import LackedPart, SentPart, encode
from tidelock.wire.peers import PartsRequest


class PartHolder:
    """A server of `/parts/<part>` with Range, and of `/parts` for many in one answer.

    Attributes:
        parts: The bytes of its parts.
        asked: Part and first byte of each request; all parts of a request for many.
        groups: The parts of each request for many.
        refuses_groups: The status for such a request, as of an older version, or 0.
        etags: Whether answers have an ETag.
        breaks_after: Bytes after which an answer is cut, or None; of one for many, bytes with their frames.
        refuses: Status of every answer, or 0.
        gate: While closed, requests wait before they are answered.
        gate_at: The first byte from which on a request for one part is never answered, or None.
        delay_s: Seconds before each answer.
    """

    def __init__(self, replica: str) -> None:
        self.replica = ReplicaId(replica)
        self.parts: dict[PartId, bytes] = {}
        self.asked: list[tuple[PartId, int]] = []
        self.groups: list[list[PartId]] = []
        self.refuses_groups = 0
        self.etags = True
        self.breaks_after: int | None = None
        self.refuses = 0
        self.gate_at: int | None = None
        self.delay_s = 0.0
        self.in_flight = self.in_flight_max = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._server: TestServer | None = None

    async def start(self) -> PartHolder:
        """Listen on a free port."""
        app = web.Application()
        app.router.add_get("/parts/{part}", self._get)
        app.router.add_post("/parts", self._post)
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
        with self._counted():
            return await self._answer(request)

    async def _post(self, request: web.Request) -> web.StreamResponse:
        with self._counted():
            return await self._answer_many(request)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            yield
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        part = PartId(request.match_info["part"])
        wanted = request.http_range
        start = wanted.start or 0
        self.asked.append((part, start))
        if self.gate_at is not None and start >= self.gate_at:
            self.gate.clear()
        await self._before_answer()
        data = self.parts.get(part)
        if self.refuses or data is None:
            return web.Response(status=self.refuses or 404, text="no")
        body = data[wanted.start : wanted.stop]
        headers = {"Content-Range": f"bytes {start}-{start + len(body) - 1}/{len(data)}"}
        if self.etags:
            headers["ETag"] = f'"{checksum(data)}"'
        response = web.StreamResponse(status=206, headers=headers)
        return await self._send(request, response, body)

    async def _answer_many(self, request: web.Request) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read(), type=PartsRequest).parts
        if self.refuses_groups:
            return web.Response(status=self.refuses_groups, text="no")
        self.groups.append(asked)
        self.asked += [(part, 0) for part in asked]
        await self._before_answer()
        if self.refuses:
            return web.Response(status=self.refuses, text="no")
        frames = [
            SentPart(part, self.parts[part]) if part in self.parts else LackedPart(part, "not held")
            for part in asked
        ]
        return await self._send(request, web.StreamResponse(), b"".join(map(encode, frames)))

    async def _before_answer(self) -> None:
        await self.gate.wait()
        await asyncio.sleep(self.delay_s)

    async def _send(
        self, request: web.Request, response: web.StreamResponse, body: bytes
    ) -> web.StreamResponse:
        """Send a body, or what of it comes before the connection breaks."""
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[: self.breaks_after])
        if self.breaks_after is not None and self.breaks_after < len(body):
            assert request.transport is not None
            request.transport.close()
        return response
