"""Channels: small requests and their answers over one WebSocket, at the least cost.

The headers of a request of HTTP cost an agent more than the rows of a small transaction; a message of a
WebSocket costs a fifth of that (docs/protocol.md#channels). What a request does is the same both ways: each
target calls the method that the HTTP route of the same path calls. All requests of a channel have the rights
of the one that opened it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec
from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import Damage, decoded, encode, failure
from tidelock.replica_agent.api.peer import PeerRoutes
from tidelock.replica_agent.api.transactions import TransactionRoutes
from tidelock.replica_agent.services.status import StatusService
from tidelock.wire import channel
from tidelock.wire.transactions import CommitRequest

#: A side that has vanished without a word is noticed after one and a half of this (seconds).
_HEARTBEAT_S: Final = 300.0
#: How long an agent that stops waits for the answer to its farewell (seconds). Nothing depends on it.
_CLOSE_S: Final = 0.1


class Call(msgspec.Struct, frozen=True):
    """A request of a channel, as its handler gets it.

    Attributes:
        name: What the target names, e.g. a table; "" where it names nothing.
        query: The parameters.
        body: The body.
    """

    name: str
    query: Mapping[str, str]
    body: bytes


#: The handlers by the segments of their targets, with "*" for the second one, which is a name.
Targets = Mapping[tuple[str, ...], Callable[[Call], Awaitable[msgspec.Struct]]]


@dataclass(slots=True, eq=False, repr=False)
class Channels:
    """Serves channels until the application stops."""

    targets: Targets
    #: Requests of one channel that are carried out at once; beyond it the channel is not read.
    requests_max: int
    #: Called for each request.
    counted: Callable[[], object]
    #: Called with each error of a request that is none of Tidelock's own.
    damage: Damage
    _reading: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """Answer the requests of a channel until one side closes it."""
        socket = web.WebSocketResponse(
            timeout=_CLOSE_S,
            heartbeat=_HEARTBEAT_S,
            compress=False,
            max_msg_size=channel.MESSAGE_BYTES_MAX,
        )
        if not socket.can_prepare(request):
            raise BadRequestError(
                f"GET {request.path} expects the handshake of a WebSocket; send requests of HTTP to their "
                "own routes"
            )
        await socket.prepare(request)
        under_way: set[asyncio.Task[None]] = set()
        reading = asyncio.create_task(self._read(socket, under_way), name="channel")
        self._reading.add(reading)
        try:
            await asyncio.wait({reading})
            if under_way:  # as over HTTP, a request is carried out even if nobody waits for its answer
                await asyncio.wait(under_way)
        finally:
            reading.cancel()
            self._reading.discard(reading)
        await socket.close(code=WSCloseCode.GOING_AWAY)
        return socket

    def close(self) -> None:
        """Read no further requests."""
        for reading in self._reading:
            reading.cancel()

    async def _read(self, socket: web.WebSocketResponse, under_way: set[asyncio.Task[None]]) -> None:
        room = asyncio.Semaphore(self.requests_max)

        def ended(task: asyncio.Task[None]) -> None:
            under_way.discard(task)
            room.release()

        async for message in socket:
            try:
                asked = _request(message)
            except ValueError as error:  # without its number, it cannot be answered
                await socket.close(code=WSCloseCode.UNSUPPORTED_DATA, message=str(error).encode()[:100])
                return
            await room.acquire()
            task = asyncio.create_task(self._answer(socket, asked), name="request of a channel")
            under_way.add(task)
            task.add_done_callback(ended)

    async def _answer(self, socket: web.WebSocketResponse, asked: channel.Request) -> None:
        self.counted()
        try:
            status, answer = 200, await self._carry_out(asked)
        except Exception as error:
            status, answer = failure(error, f"{asked.target.partition('?')[0]} of a channel", self.damage)
        with contextlib.suppress(ConnectionError):  # the other side has hung up
            await socket.send_bytes(channel.encode_answer(asked.number, status, encode(answer)))

    async def _carry_out(self, asked: channel.Request) -> Any:
        path, _, query = asked.target.partition("?")
        first, *more = path.removeprefix("/").split("/")
        handler = self.targets.get((first, "*", *more[1:]) if more else (first,))
        if handler is None:
            raise BadRequestError(f"{path!a} is no target of a channel; docs/protocol.md lists them")
        name = unquote(more[0]) if more else ""
        return await handler(Call(name, dict(parse_qsl(query)) if query else {}, asked.body))


def _request(message: WSMessage) -> channel.Request:
    if message.type is not WSMsgType.BINARY:
        raise ValueError("expected binary messages")
    return channel.decode_request(bytes(message.data))


@dataclass(slots=True, eq=False, repr=False)
class ChannelRoutes:
    """Handlers of the routes that open channels."""

    clients: Channels
    peers: Channels

    @classmethod
    def of(
        cls, transactions: TransactionRoutes, peers: PeerRoutes, status: StatusService, damage: Damage
    ) -> ChannelRoutes:
        """Return the routes; each target does what the route of HTTP does."""
        clients: Targets = {
            ("commits",): lambda call: transactions.answer_write(call.body),
            ("landings", "*"): lambda call: transactions.answer_land(call.name, call.query, call.body),
            ("transactions", "*", "commit"): lambda call: transactions.answer_commit(
                call.name, decoded(call.body, CommitRequest, "a commit")
            ),
        }
        pushes: Targets = {("stage",): lambda call: peers.answer_stage(call.body)}
        bound = status.settings.channel_requests_max
        return cls(
            Channels(clients, bound, lambda: status.metrics.channel_requests.labels("client").inc(), damage),
            Channels(pushes, bound, lambda: status.metrics.channel_requests.labels("peer").inc(), damage),
        )

    async def open(self, request: web.Request) -> web.WebSocketResponse:
        """Open a WebSocket for small requests of a client: commits, landings (docs/protocol.md#channels)."""
        return await self.clients.serve(request)

    async def open_to_peer(self, request: web.Request) -> web.WebSocketResponse:
        """Open a WebSocket for the pushes of a peer (docs/protocol.md#channels)."""
        return await self.peers.serve(request)

    async def close(self, _app: web.Application) -> None:
        """Read no further requests. Those that are being carried out get their answers."""
        for channels in (self.clients, self.peers):
            channels.close()
