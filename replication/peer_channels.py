"""Channels to the other agents: one WebSocket to each, for pushes (docs/protocol.md#channels)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiohttp import (
    ClientConnectionError,
    ClientSession,
    ClientWebSocketResponse,
    ClientWSTimeout,
    WSMsgType,
    WSServerHandshakeError,
)

from tidelock.wire import channel

#: How long a farewell may take (seconds); a peer that does not answer is left at once.
_CLOSE: Final = ClientWSTimeout(ws_close=0.1)


class NoChannelError(Exception):
    """The peer opens no channel: it is older, or refuses this agent."""


@dataclass(slots=True, eq=False, repr=False)
class PeerChannels:
    """Sends requests over channels and returns their answers.

    Attributes:
        session: Returns the session of the peers' connections.
        headers: The headers of each handshake.
        answer_bytes_max: Largest answer in bytes.
    """

    session: Callable[[], ClientSession]
    headers: Mapping[str, str]
    answer_bytes_max: int
    _peers: dict[str, _Peer] = field(default_factory=dict, init=False)

    async def ask(
        self, api: str, target: str, body: Sequence[bytes], *, timeout_s: float
    ) -> tuple[int, bytes]:
        """Send a request and return status and body of its answer.

        Args:
            api: Address of the peer.
            target: Path below the peer routes.
            body: The body, in pieces.
            timeout_s: How long to wait for the answer.

        Raises:
            NoChannelError: Nothing of the request has left.
            TimeoutError, ClientError, OSError: No answer; the peer may have carried it out.
        """
        peer = self._peer(api)
        if peer.refuses:
            raise NoChannelError
        try:
            async with asyncio.timeout(timeout_s):
                return await (await self._channel(api, peer)).ask(target, body)
        except WSServerHandshakeError as error:
            peer.refuses_until_s = time.monotonic() + channel.REFUSED_S
            raise NoChannelError from error
        except BaseException:
            # A channel whose peer is silent is not used again: what lies between may have forgotten it.
            peer.end()
            raise

    async def close(self) -> None:
        """Close all channels; requests under way fail."""
        ended = [task for peer in self._peers.values() if (task := peer.end()) is not None]
        await asyncio.gather(*ended, return_exceptions=True)

    def _peer(self, api: str) -> _Peer:
        found = self._peers.get(api)
        if found is None:
            self._peers = {known: peer for known, peer in self._peers.items() if not peer.unused}
            found = self._peers[api] = _Peer()
        return found

    async def _channel(self, api: str, peer: _Peer) -> _Channel:
        async with peer.opening:
            if peer.channel is None or peer.channel.ended:
                socket = await self.session().ws_connect(
                    f"http://{api}/peer/v1{channel.PATH}",
                    headers=self.headers,
                    max_msg_size=self.answer_bytes_max,
                    timeout=_CLOSE,
                )
                peer.channel = _Channel(socket)
            return peer.channel


@dataclass(slots=True, eq=False)
class _Peer:
    """The channel to one address, and whether one is opened there."""

    channel: _Channel | None = None
    refuses_until_s: float = 0.0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def refuses(self) -> bool:
        return time.monotonic() < self.refuses_until_s

    @property
    def unused(self) -> bool:
        return not (self.refuses or self.opening.locked()) and (self.channel is None or self.channel.ended)

    def end(self) -> asyncio.Task[None] | None:
        """Close the channel; the task ends with it."""
        ended = None if self.channel is None else self.channel.end()
        self.channel = None
        return ended


class _Channel:
    """One channel; answers may come in any order."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._waiting: dict[int, asyncio.Future[channel.Answer]] = {}
        self._reading = asyncio.create_task(self._read(), name="channel")

    @property
    def ended(self) -> bool:
        """Return whether the channel is closed."""
        return self._reading.done()

    async def ask(self, target: str, body: Sequence[bytes]) -> tuple[int, bytes]:
        """Send a request and return status and body of its answer; ClientError if the channel ends before."""
        self._number = number = (self._number + 1) % (1 << 32)
        coming: asyncio.Future[channel.Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = coming
        try:
            await self._socket.send_bytes(channel.encode_request(number, target, b"".join(body)))
            if self.ended:
                raise ClientConnectionError("the channel has ended")
            answer = await coming
        finally:
            del self._waiting[number]
        return answer.status, answer.body

    def end(self) -> asyncio.Task[None]:
        """Close the channel; the task ends with it."""
        self._reading.cancel()
        return self._reading

    async def _read(self) -> None:
        why = "the peer has closed the channel"
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.BINARY:
                    break
                answer = channel.decode_answer(message.data)
                coming = self._waiting.get(answer.number)
                if coming is not None and not coming.done():
                    coming.set_result(answer)
        except ValueError as error:
            why = str(error)
        finally:
            for coming in self._waiting.values():
                if not coming.done():
                    coming.set_exception(ClientConnectionError(why))
            await self._socket.close()
