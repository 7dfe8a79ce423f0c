"""Signs of life: interim answers while a reader process works, none once the answer has begun."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
import urllib3
from aiohttp import web

from tidelock.read_route import SILENCE_S
from tidelock.replica_agent.readers import signs
from tidelock.replica_agent.readers.link import ANSWER_GRACE_S

READ_WAIT_S = 1.0
#: With `SIGN_S` as below.
MOST = 8


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs come one right behind the other."""
    monkeypatch.setattr(signs, "SIGN_S", 0.01)
    monkeypatch.setattr(signs, "BEYOND_WAIT_S", MOST * 0.01 - READ_WAIT_S)


@contextlib.asynccontextmanager
async def served(gate: asyncio.Event) -> AsyncIterator[tuple[str, int]]:
    """A server that answers when the gate is open; give its host and port."""

    async def handle(request: web.Request) -> web.StreamResponse:
        with signs.during(request, READ_WAIT_S):
            await gate.wait()
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"first")
            for _ in range(MOST):  # a sign would fall into the body now
                await asyncio.sleep(signs.SIGN_S)
            await response.write(b"last")
            return response

    app = web.Application()
    app.on_response_prepare.append(signs.end_before_answer)
    app.router.add_route("*", "/", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][:2]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def asked(request: str, gate: asyncio.Event) -> AsyncIterator[asyncio.StreamReader]:
    """Send a request to such a server; give what it sends."""
    async with served(gate) as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(request.encode() + b"Host: x\r\nConnection: close\r\n\r\n")
            yield reader
        finally:
            writer.close()


async def test_clients_in_python_read_over_signs() -> None:
    """Those of replicas, which fetch parts, and of tasks; the next request on the connection as well."""
    gate = asyncio.Event()
    async with served(gate) as (host, port), aiohttp.ClientSession() as session:
        with urllib3.HTTPConnectionPool(host, port, maxsize=1) as pool:
            for _ in range(2):
                asyncio.get_running_loop().call_later(MOST * signs.SIGN_S / 2, gate.set)
                async with session.get(f"http://{host}:{port}/") as answer:
                    assert await answer.read() == b"firstlast"
                gate.clear()
                asyncio.get_running_loop().call_later(MOST * signs.SIGN_S / 2, gate.set)
                told = await asyncio.to_thread(pool.request, "GET", "/", retries=False)
                assert (told.status, told.data) == (200, b"firstlast")
                gate.clear()


async def test_signs_come_before_the_answer_and_not_in_it() -> None:
    """They have no header and no body, and end when the status line is sent."""
    gate = asyncio.Event()
    async with asked("GET / HTTP/1.1\r\n", gate) as reader:
        for _ in range(3):
            assert await reader.readexactly(len(signs.SIGN)) == signs.SIGN
        gate.set()
        rest = await reader.read()
    while rest.startswith(signs.SIGN):
        rest = rest.removeprefix(signs.SIGN)
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"100 Continue" not in rest
    assert b"first" in rest
    assert b"last" in rest


async def test_a_read_that_takes_too_long_falls_silent() -> None:
    """So that the client goes on to another replica."""
    gate = asyncio.Event()
    async with asked("GET / HTTP/1.1\r\n", gate) as reader:
        for _ in range(MOST):
            assert await reader.readexactly(len(signs.SIGN)) == signs.SIGN
        for _ in range(MOST):
            await asyncio.sleep(signs.SIGN_S)
        gate.set()
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("request_line", ["GET / HTTP/1.0\r\n", "PUT / HTTP/1.1\r\nContent-Length: 0\r\n"])
async def test_requests_that_get_no_sign(request_line: str) -> None:
    """HTTP/1.0 knows no interim answers; who writes waits for as long as it takes."""
    gate = asyncio.Event()
    async with asked(request_line, gate) as reader:
        for _ in range(MOST):
            await asyncio.sleep(signs.SIGN_S)
        gate.set()
        assert b"100 Continue" not in await reader.read()


def test_signs_last_until_the_slowest_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader process answers after `read_wait_s` and a grace: its client is there still."""
    monkeypatch.undo()
    for read_wait_s in (0.1, 1.0, 10.0):
        last_s = round((read_wait_s + signs.BEYOND_WAIT_S) / signs.SIGN_S) * signs.SIGN_S
        assert last_s + SILENCE_S > read_wait_s + ANSWER_GRACE_S
