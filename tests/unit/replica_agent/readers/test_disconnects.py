"""A caller that hangs up is noticed by the server that works for it, also behind a forwarding process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from tests.support.aio import until
from tidelock.errors import TidelockError
from tidelock.replica_agent.readers.disconnects import is_waiting
from tidelock.replica_agent.readers.forward import Forward
from tidelock.replica_agent.readers.paths import parse_target


class Protocol:
    """The protocol process: each request waits for the gate, and notes whether its caller still waits."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.under_way: list[web.Request] = []
        self.waited: list[bool] = []

    async def answer(self, request: web.Request) -> web.Response:
        """Answer when the gate is open."""
        self.under_way.append(request)
        await self.gate.wait()
        self.waited.append(is_waiting(request))
        return web.json_response({"boolean": True}, status=201)


@pytest.fixture
async def protocol() -> Protocol:
    """Return a protocol process with a closed gate."""
    return Protocol()


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    """Serve as the agent does, which ends no handler when its caller hangs up; gives ``host:port``."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    yield f"{host}:{port}"
    await runner.cleanup()


@pytest.fixture
async def url(protocol: Protocol) -> AsyncIterator[str]:
    """Return the URL of a request to a reader process in front of the protocol process."""
    async with served(protocol.answer) as api:
        forward = Forward(api)

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                return await forward.handle(request, parse_target(request.raw_path))
            except TidelockError as error:
                return web.Response(status=error.http_status)

        async with served(handle) as data:
            yield f"http://{data}/webhdfs/v1/x?op=DELETE"
        protocol.gate.set()
        assert forward._session is not None
        await forward._session.close()


async def test_an_answer_takes_its_time(protocol: Protocol, url: str) -> None:
    """An answer is not ended as long as its caller waits."""
    async with aiohttp.ClientSession() as session:
        asked = asyncio.create_task(session.delete(url))
        await until(lambda: protocol.under_way)
        protocol.gate.set()
        answer = await asked
        assert (answer.status, await answer.read()) == (201, b'{"boolean": true}')
    assert protocol.waited == [True]


async def test_a_caller_that_hangs_up(protocol: Protocol, url: str) -> None:
    """The protocol process notices that its caller hung up, and completes the work that it has begun."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_read=0.05)) as session:
        with pytest.raises(TimeoutError):
            await session.delete(url)
    await until(lambda: not is_waiting(protocol.under_way[0]))
    protocol.gate.set()
    await until(lambda: protocol.waited)
    assert protocol.waited == [False]
