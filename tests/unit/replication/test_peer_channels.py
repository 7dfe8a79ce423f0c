"""Channels to peers: one for all requests, answers in any order, and a new one after each fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientError, ClientSession, WSMessage, web
from aiohttp.test_utils import TestServer

from tests.support.aio import until
from tidelock.replication.peer_channels import NoChannelError, PeerChannels
from tidelock.wire import channel


class Echo:
    """A peer whose answers wait until the test has them sent."""

    def __init__(self) -> None:
        self.opened = 0
        self.asked: list[channel.Request] = []
        self.status = 0
        self.sockets: list[web.WebSocketResponse] = []
        app = web.Application()
        app.router.add_get("/peer/v1/channel", self._open)
        self.server = TestServer(app)

    @property
    def api(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.server.port}"

    async def _open(self, request: web.Request) -> web.StreamResponse:
        self.opened += 1
        if self.status:
            return web.Response(status=self.status)
        socket = web.WebSocketResponse(timeout=0.1)
        await socket.prepare(request)
        self.sockets.append(socket)
        async for message in socket:
            assert isinstance(message, WSMessage)
            self.asked.append(channel.decode_request(message.data))
        return socket

    async def answer(self, index: int) -> None:
        """Answer a request."""
        asked = self.asked[index]
        await self.sockets[-1].send_bytes(channel.encode_answer(asked.number, 200, asked.body))


@pytest.fixture
async def peer() -> AsyncIterator[Echo]:
    """A peer."""
    made = Echo()
    await made.server.start_server()
    yield made
    for socket in made.sockets:
        await socket.close()
    await made.server.close()


@pytest.fixture
async def channels() -> AsyncIterator[PeerChannels]:
    """The channels of an agent."""
    async with ClientSession() as session:
        made = PeerChannels(lambda: session, {}, 1 << 20)
        yield made
        await made.close()


def ask(
    channels: PeerChannels, peer: Echo, *body: bytes, timeout_s: float = 20.0
) -> asyncio.Task[tuple[int, bytes]]:
    """Send a request."""
    return asyncio.create_task(channels.ask(peer.api, "/stage", body, timeout_s=timeout_s))


async def answered(channels: PeerChannels, peer: Echo, body: bytes) -> tuple[int, bytes]:
    """Send a request, have it answered, and return status and body of the answer."""
    before = len(peer.asked)
    asked = ask(channels, peer, body)
    await until(lambda: len(peer.asked) > before)
    await peer.answer(before)
    return await asked


async def test_answers_come_in_any_order(channels: PeerChannels, peer: Echo) -> None:
    """Requests share one channel, and each gets its own answer."""
    first, second = ask(channels, peer, b"1", b"st"), ask(channels, peer, b"2nd")
    await until(lambda: len(peer.asked) == 2)
    for index in (1, 0):
        await peer.answer(index)
    assert [await first, await second] == [(200, b"1st"), (200, b"2nd")]
    assert peer.opened == 1


async def test_a_channel_that_the_peer_closes_fails_what_waits_and_is_opened_again(
    channels: PeerChannels, peer: Echo
) -> None:
    """The next request notices nothing."""
    lost = ask(channels, peer, b"lost")
    await until(lambda: len(peer.asked) == 1)
    await peer.sockets[0].close()
    with pytest.raises(ClientError):
        await lost
    found = await answered(channels, peer, b"x")
    assert (found, peer.opened) == ((200, b"x"), 2)


async def test_a_silent_peer_loses_its_channel(channels: PeerChannels, peer: Echo) -> None:
    """The time of a request is over, and what lies between the two may have forgotten the connection."""
    with pytest.raises(TimeoutError):
        await ask(channels, peer, b"x", timeout_s=0.1)
    found = await answered(channels, peer, b"y")
    assert (found, peer.opened) == ((200, b"y"), 2)


async def test_an_answer_that_is_cut_ends_the_channel(channels: PeerChannels, peer: Echo) -> None:
    """The request that it belongs to is not known."""
    lost = ask(channels, peer, b"x")
    await until(lambda: len(peer.asked) == 1)
    await peer.sockets[0].send_bytes(b"cut")
    with pytest.raises(ClientError, match="expected an answer"):
        await lost


@pytest.mark.parametrize("status", [404, 401, 500])
async def test_a_peer_that_opens_no_channel_is_asked_for_one_from_time_to_time(
    channels: PeerChannels, peer: Echo, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile nothing is sent."""
    peer.status = status
    for _ in range(2):
        with pytest.raises(NoChannelError):
            await ask(channels, peer, b"x")
    assert peer.opened == 1
    monkeypatch.setattr(channel, "REFUSED_S", 0.0)
    channels._peers.clear()  # its time is over
    with pytest.raises(NoChannelError):
        await ask(channels, peer, b"x")
    peer.status = 0
    found = await answered(channels, peer, b"x")
    assert (found, peer.opened) == ((200, b"x"), 3)


async def test_a_client_that_ends_fails_what_waits(channels: PeerChannels, peer: Echo) -> None:
    """No request waits forever."""
    lost = ask(channels, peer, b"x")
    await until(lambda: len(peer.asked) == 1)
    await channels.close()
    with pytest.raises(ClientError):
        await lost


async def test_addresses_of_before_are_forgotten(channels: PeerChannels, peer: Echo) -> None:
    """A peer that moves leaves nothing behind."""
    for port in range(1, 6):
        with pytest.raises(ClientError):
            await channels.ask(f"127.0.0.1:{port}", "/stage", [b"x"], timeout_s=20.0)
    found = await answered(channels, peer, b"x")
    assert found == (200, b"x")
    assert list(channels._peers) == [peer.api]
