"""Channels of an agent: requests at once, answers in any order, errors as over HTTP, and a quiet end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType, web
from aiohttp.test_utils import TestClient, TestServer

from tests.support.aio import until
from tests.support.replicas.damage import malformed, no_damage, stopped_for_damage
from tests.unit.replica_agent.api.test_state_answers import Agent
from tidelock.errors import UnknownTableError
from tidelock.replica_agent.api.app import application
from tidelock.replica_agent.api.channel import Call, Channels
from tidelock.replica_agent.config.states import AgentState
from tidelock.wire import channel

REQUESTS_MAX = 4


class Echo(msgspec.Struct):
    """An answer of the test's target."""

    name: str
    query: dict[str, str]
    body: str


class Agency:
    """An application with one channel, whose target `/echo/{name}` waits for its gate."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.under_way: list[str] = []
        self.counted = 0
        targets = {("echo", "*"): self._echo, ("fail", "*"): self._fail, ("plain",): self._echo}
        self.channels = Channels(targets, REQUESTS_MAX, self._count, stopped_for_damage)

    def _count(self) -> None:
        self.counted += 1

    async def _echo(self, call: Call) -> Echo:
        self.under_way.append(call.name)
        if call.name in self.gates:
            await self.gates[call.name].wait()
        return Echo(call.name, dict(call.query), call.body.decode())

    async def _fail(self, call: Call) -> Echo:
        if call.name == "foreseen":
            raise UnknownTableError("there is no table x", table="x")
        if call.name == "catalog":
            raise malformed()
        raise RuntimeError("nobody has foreseen this")

    def hold(self, *names: str) -> None:
        """Let requests of these names wait."""
        for name in names:
            self.gates[name] = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[TestClient[Any, Any], ClientWebSocketResponse]]:
        """Serve, and open a channel."""

        async def close(_: web.Application) -> None:
            self.channels.close()

        app = web.Application()
        app.router.add_get("/channel", self.channels.serve)
        app.on_shutdown.append(close)
        async with TestClient(TestServer(app)) as client, client.ws_connect("/channel") as socket:
            yield client, socket


@pytest.fixture
def agency() -> Agency:
    """An agent with channels."""
    return Agency()


async def answer(socket: ClientWebSocketResponse) -> channel.Answer:
    """Return the next answer."""
    return channel.decode_answer(await socket.receive_bytes(timeout=20))


async def test_a_target_has_a_name_parameters_and_a_body(agency: Agency) -> None:
    """They arrive as over HTTP: names may be quoted."""
    async with agency.open() as (_, socket):
        await socket.send_bytes(channel.encode_request(7, "/echo/a%2Fb%20c?x=1&y=%C3%A9", b"rows"))
        found = await answer(socket)
        assert (found.number, found.status) == (7, 200)
        assert msgspec.json.decode(found.body) == {
            "name": "a/b c", "query": {"x": "1", "y": "\u00e9"}, "body": "rows",
        }  # fmt: skip
        await socket.send_bytes(channel.encode_request(8, "/plain", b""))
        assert msgspec.json.decode((await answer(socket)).body) == {"name": "", "query": {}, "body": ""}
        assert agency.counted == 2


async def test_answers_come_in_any_order(agency: Agency) -> None:
    """A request that takes long does not hold up those behind it."""
    agency.hold("slow")
    async with agency.open() as (_, socket):
        for number, name in enumerate(("slow", "quick", "quick")):
            await socket.send_bytes(channel.encode_request(number, f"/echo/{name}", b""))
        assert {(await answer(socket)).number for _ in range(2)} == {1, 2}
        agency.gates["slow"].set()
        assert (await answer(socket)).number == 0


async def test_a_channel_has_a_bound(agency: Agency) -> None:
    """Beyond it no further request is begun until one has ended."""
    names = [f"n{number}" for number in range(REQUESTS_MAX + 2)]
    agency.hold(*names)
    async with agency.open() as (_, socket):
        for number, name in enumerate(names):
            await socket.send_bytes(channel.encode_request(number, f"/echo/{name}", b""))
        await until(lambda: len(agency.under_way) == REQUESTS_MAX)
        await asyncio.sleep(0.1)
        assert agency.under_way == names[:REQUESTS_MAX]
        for name in names:
            agency.gates[name].set()
        assert {(await answer(socket)).number for _ in names} == set(range(len(names)))


@pytest.mark.parametrize(
    ("target", "status", "error"),
    [
        ("/fail/foreseen", 404, "UnknownTableError"),
        ("/fail/catalog", 503, "UnavailableError"),
        ("/fail/not", 500, "TidelockError"),
        ("/nowhere", 400, "BadRequestError"),
        ("/echo", 400, "BadRequestError"),
        ("/plain/x", 400, "BadRequestError"),
        ("/echo/x/y", 400, "BadRequestError"),
        ("", 400, "BadRequestError"),
    ],
)
async def test_errors_are_answered_as_over_http(agency: Agency, target: str, status: int, error: str) -> None:
    """With their status, and the channel goes on."""
    async with agency.open() as (_, socket):
        await socket.send_bytes(channel.encode_request(1, target, b""))
        found = await answer(socket)
        assert (found.number, found.status, msgspec.json.decode(found.body)["error"]) == (1, status, error)
        await socket.send_bytes(channel.encode_request(2, "/plain", b""))
        assert (await answer(socket)).status == 200


@pytest.mark.parametrize(
    ("message", "code"),
    [(b"cut", 1003), ("text", 1003), (bytes(channel.MESSAGE_BYTES_MAX + 1), 1009)],
    ids=["cut", "text", "large"],
)
async def test_what_is_no_request_ends_the_channel(agency: Agency, message: bytes | str, code: int) -> None:
    """It has no number, so it cannot be answered."""
    async with agency.open() as (_, socket):
        await (socket.send_str(message) if isinstance(message, str) else socket.send_bytes(message))
        found = await socket.receive(timeout=20)
        assert (found.type, socket.close_code) == (WSMsgType.CLOSE, code)


async def test_the_largest_body_is_taken(agency: Agency) -> None:
    """And a target of some length with it."""
    async with agency.open() as (_, socket):
        body = b"x" * channel.BODY_BYTES_MAX
        await socket.send_bytes(channel.encode_request(1, f"/echo/{'n' * 1000}", body))
        assert (await answer(socket)).status == 200


async def test_a_request_is_carried_out_though_its_client_has_gone(agency: Agency) -> None:
    """As over HTTP: the client asks for the outcome elsewhere."""
    agency.hold("x")
    done = asyncio.Event()
    asked = agency.channels.targets["echo", "*"]

    async def noted(call: Call) -> msgspec.Struct:
        found = await asked(call)
        done.set()
        return found

    agency.channels.targets = {("echo", "*"): noted}
    async with agency.open() as (_, socket):
        await socket.send_bytes(channel.encode_request(1, "/echo/x", b""))
        await until(lambda: agency.under_way == ["x"])
        await socket.close()
        agency.gates["x"].set()
        await asyncio.wait_for(done.wait(), 20)


async def test_an_agent_that_stops_answers_first(agency: Agency) -> None:
    """The requests under way get their answers, then the channel is closed; nothing new is begun."""
    agency.hold("x")
    async with agency.open() as (client, socket):
        await socket.send_bytes(channel.encode_request(1, "/echo/x", b""))
        await until(lambda: agency.under_way == ["x"])
        stopped = asyncio.create_task(client.server.close())
        await asyncio.sleep(0.05)
        await socket.send_bytes(channel.encode_request(2, "/echo/late", b""))
        await asyncio.sleep(0.05)
        agency.gates["x"].set()
        assert (await answer(socket)).number == 1
        assert (await socket.receive(timeout=20)).type is WSMsgType.CLOSE
        await stopped
        assert agency.under_way == ["x"]


async def test_a_request_of_http_is_told_what_is_expected() -> None:
    """A route that opens a channel takes the handshake of a WebSocket only."""
    app = application(Agent(AgentState.SERVING).services, no_damage)
    async with TestClient(TestServer(app)) as client:
        for path in ("/api/v1/channel", "/peer/v1/channel"):
            found = await client.get(path)
            told = await found.json()
            assert (found.status, told["error"]) == (400, "BadRequestError")
            assert "handshake of a WebSocket" in told["message"]
