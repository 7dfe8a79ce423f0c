"""The store on a real ZooKeeper: the suite of all stores, and the faults of a real network."""

from __future__ import annotations

import asyncio
import functools
import random
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.aio import until, until_async
from tests.support.faults.proxy import MULTI, Action, Direction, Proxy, nth_request
from tests.support.zookeeper.servers import OPTIONS, READY_TIMEOUT_S, running
from tests.support.zookeeper.store_suite import Counter, StoreSuite, done, node, plain
from tests.support.zookeeper.world import SESSION_TIMEOUT_S, ZkWorld
from tidelock import processes
from tidelock import zookeeper as embedded
from tidelock.csnlog.core.batch import KIB, LogLimits
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Check, Create, LinkState, SetData, Written
from tidelock.csnlog.zookeeper import kazoo_bridge, kazoo_store, session_monitor
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import ConfigError, UnavailableError
from tidelock.replica_agent.config.settings import AgentSettings


@pytest.fixture
async def world(zookeeper: str, zk_root: str) -> AsyncIterator[ZkWorld]:
    """A world on the session's ZooKeeper."""
    async with ZkWorld(zookeeper, zk_root) as world:
        yield world


@pytest.mark.scenario("S08", "S10")
class TestZkStore(StoreSuite):
    """The suite of all stores, on the real store."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[embedded.LocalZooKeeper]:
    """A server of this test alone, which it may freeze."""
    with running(embedded.create(tmp_path / "server", options=OPTIONS)) as servers:
        yield servers


@pytest.fixture
async def lone(server: embedded.LocalZooKeeper, zk_root: str) -> AsyncIterator[ZkWorld]:
    """A world on the server of this test."""
    async with ZkWorld(server.connect_string, zk_root) as world:
        yield world


def freeze(server: embedded.LocalZooKeeper) -> None:
    """Stop the server's process: its connections stay, and nothing is answered."""
    process = server.servers[0].process
    assert process is not None
    assert processes.send(process, signal.SIGSTOP)


def thaw(server: embedded.LocalZooKeeper) -> None:
    """Let it go on."""
    process = server.servers[0].process
    assert process is not None
    assert processes.send(process, signal.SIGCONT)


@pytest.mark.slow
async def test_the_shipped_heap_outlives_the_largest_requests(tmp_path: Path, zk_root: str) -> None:
    """A server keeps its last 500 requests in memory, beside the records that a replica may hold back."""
    limits, held = LogLimits(), AgentSettings.model_fields["max_records_bytes"].default
    held += AgentSettings.model_fields["log_keep_bytes"].default
    data = bytes(limits.multi_bytes_max - 16 * KIB)
    with running(embedded.create(tmp_path / "shipped")) as servers:
        async with ZkWorld(servers.connect_string, zk_root) as world:
            store = await world.store(multi_bytes_max=limits.multi_bytes_max)
            for number in range(held // len(data)):
                await done(store, Create(f"held{number}", data))
            await done(store, Create("last"))
            for _ in range(600):
                await done(store, SetData("last", data))
        assert servers.servers[0].alive


async def test_the_time_of_a_stamp_is_wall_clock_in_milliseconds(world: ZkWorld) -> None:
    """ZooKeeper's ctime is Unix time in ms; a replica compares it with the time that a home has written."""
    store = await world.store()
    await done(store, Create("a"))
    (written,) = await done(store, SetData("a"))
    assert isinstance(written, Written)
    now_ms = time.time_ns() // 1_000_000
    for stamp in (written.stamp, (await node(store, "a")).created):
        assert abs(stamp.time_ms - now_ms) < 3_600_000


# ------------------------------------------------------------------------------------------ the network


@pytest.mark.parametrize(("action", "applied"), [(Action.LOSE_REPLY, True), (Action.LOSE_REQUEST, False)])
async def test_a_multi_whose_reply_or_request_is_lost_is_unknown(
    world: ZkWorld, zk_proxy: Proxy, action: Action, applied: bool
) -> None:
    """The caller cannot know which of the two was lost; the store comes back in the same session."""
    store, other = await world.store(through=zk_proxy.address), await world.store()
    await done(store, Create("a"))
    session = store.session
    zk_proxy.hook(nth_request(1, action, opcode=MULTI))
    assert isinstance(await store.multi((SetData("a", b"x", 0),)), Unknown)
    await until(lambda: store.link is LinkState.CONNECTED)
    assert store.session == session
    assert (await node(other, "a")).version == int(applied)
    assert zk_proxy.counters.lost_replies + zk_proxy.counters.lost_requests == 1
    assert plain(await done(store, SetData("a"))) == (1 + applied,)


async def test_all_requests_on_their_way_are_unknown_when_the_connection_breaks(
    world: ZkWorld, zk_proxy: Proxy
) -> None:
    """No caller waits for an answer that cannot come; armed watches fire when the link is back."""
    store, other = await world.store(through=zk_proxy.address), await world.store()
    await done(store, Create("a"))
    watch = Counter()
    await node(store, "a", watch)
    zk_proxy.black_hole(Direction.TO_CLIENT)
    calls: list[asyncio.Task[Any]] = []
    calls += [asyncio.create_task(store.multi((SetData("a", str(n).encode()),))) for n in range(50)]
    calls += [asyncio.create_task(store.get("a")) for _ in range(50)]

    async def applied() -> bool:
        return (await node(other, "a")).version == 50

    await until_async(applied, what="all writes at the server")
    assert watch.fired == 0
    zk_proxy.cut()
    assert all(isinstance(result, Unknown) for result in await asyncio.gather(*calls))
    assert watch.fired == 0
    zk_proxy.heal()
    await until(lambda: watch.fired == 1, what="the watch after the reconnect")
    assert store.link is LinkState.CONNECTED


async def test_while_there_is_no_connection_calls_are_refused_and_not_kept(
    world: ZkWorld, zk_proxy: Proxy
) -> None:
    """Refused calls are not queued: they are not applied when the link is back."""
    store = await world.store(through=zk_proxy.address)
    await done(store, Create("a"))
    zk_proxy.refuse()
    zk_proxy.cut()
    await until(lambda: store.link is LinkState.SUSPENDED)
    for _ in range(100):
        assert await store.multi((SetData("a"),)) == Refused(Reason.NOT_CONNECTED)
        assert await store.get("a") == Refused(Reason.NOT_CONNECTED)
    zk_proxy.heal()
    await until(lambda: store.link is LinkState.CONNECTED)
    assert (await node(store, "a")).version == 0


async def test_a_request_without_answer_in_time_is_unknown(world: ZkWorld, zk_proxy: Proxy) -> None:
    """The own timeout ends the wait, not the request: it was applied, and the link is still up."""
    store = await world.store(through=zk_proxy.address, request_timeout_s=0.3, session_timeout_s=30.0)
    other = await world.store()
    await done(store, Create("a"))
    zk_proxy.black_hole(Direction.TO_CLIENT)
    assert isinstance(await store.multi((SetData("a", b"x"),)), Unknown)
    assert store.link is LinkState.CONNECTED
    assert (await node(other, "a")).data == b"x"
    zk_proxy.heal()
    assert plain(await done(store, SetData("a", b"y", 1))) == (2,)


async def test_a_cancelled_caller_leaves_nothing_behind(world: ZkWorld, zk_proxy: Proxy) -> None:
    """The answer to a cancelled caller is dropped; more callers than places may be cancelled."""
    store = await world.store(through=zk_proxy.address)
    await done(store, Create("a"))
    zk_proxy.black_hole(Direction.TO_CLIENT)
    callers = [asyncio.create_task(store.get("a")) for _ in range(kazoo_store._IN_FLIGHT_MAX + 20)]
    await asyncio.sleep(0)
    for caller in callers:
        caller.cancel()
    assert all(isinstance(result, asyncio.CancelledError) for result in await _settled(callers))
    zk_proxy.heal()
    assert (await node(store, "a")).version == 0
    await until(lambda: len(store._in_flight) == 0)


async def _settled(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_silent_server_is_left_for_another_in_the_same_session(
    world: ZkWorld, zookeeper: str
) -> None:
    """At the own deadline the connection is cut although it is open; the next server saves the session.

    Requests go on all the time: under load kazoo alone would never check that the server answers.
    """
    with Proxy(zookeeper) as one, Proxy(zookeeper) as two:
        store = await world.store(through=f"{one.address},{two.address}")
        await done(store, Create("a"), Create("e", ephemeral=True))
        session = store.session
        links: list[LinkState] = []
        store.on_change(lambda: links.append(store.link))
        used, spare = (one, two) if one.counters.connections else (two, one)
        used.black_hole()
        while LinkState.SUSPENDED not in links:
            await asyncio.wait({asyncio.create_task(store.get("a"))}, timeout=0.02)
        await until(lambda: store.link is LinkState.CONNECTED)
        assert spare.counters.connections > 0
        assert used.counters.cut == 0
        assert store.session == session
        assert (await node(store, "e")).owner_session == session


async def test_a_black_hole_until_the_session_expires(world: ZkWorld, zk_proxy: Proxy) -> None:
    """The own clock suspends the link, then the server ends the session, then a new one begins."""
    store, other = await world.store(through=zk_proxy.address, session_timeout_s=1.0), await world.store()
    await done(store, Create("e", ephemeral=True), Create("a"))
    session = store.session
    watch = Counter()
    await node(store, "a", watch)
    zk_proxy.black_hole()
    await until(lambda: store.link is LinkState.SUSPENDED)

    async def gone() -> bool:
        return await other.exists("e") == Ok(None)

    await until_async(gone, what="the expiry at the server")
    assert store.link is LinkState.SUSPENDED
    assert store.session == session
    assert watch.fired == 0
    zk_proxy.heal()
    await until(lambda: store.link is LinkState.CONNECTED)
    assert store.session != session
    assert watch.fired == 1


async def test_flapping_connections_lose_and_double_nothing(world: ZkWorld, zk_proxy: Proxy) -> None:
    """Every Ok was applied once, no refusal was applied, and no thread is left over (S33)."""
    store = await world.store(through=zk_proxy.address)
    await done(store, Create("log"))
    results: dict[str, object] = {}

    async def write(writer: int) -> None:
        for n in range(60):
            name = f"{writer}-{n}"
            await until(lambda: store.link is LinkState.CONNECTED)
            results[name] = await store.multi((Create(f"log/{name}-", name.encode(), sequential=True),))

    threads = threading.active_count()
    writers = [asyncio.create_task(write(writer)) for writer in range(4)]
    while not all(writer.done() for writer in writers):
        zk_proxy.cut()
        await asyncio.wait(writers, timeout=0.05)
    await asyncio.gather(*writers)
    await until(lambda: store.link is LinkState.CONNECTED)
    listed = await store.children("log")
    assert isinstance(listed, Ok)
    there = [name.rpartition("-")[0] for name in listed.value]
    assert len(there) == len(set(there)), "a request was applied twice"
    assert {name for name, result in results.items() if isinstance(result, Ok)} <= set(there)
    assert not {name for name, result in results.items() if isinstance(result, Refused)} & set(there)
    assert zk_proxy.counters.cut > 0
    assert threading.active_count() <= threads


# ------------------------------------------------------------------------------------------ the server


async def test_a_frozen_server_suspends_the_link_and_nothing_is_kept(
    server: embedded.LocalZooKeeper, lone: ZkWorld
) -> None:
    """Requests under way are Unknown, later ones are refused and never applied; a thaw ends that."""
    store = await lone.store()
    await done(store, Create("a"))
    freeze(server)
    try:
        on_their_way = [asyncio.create_task(store.multi((SetData("a"),))) for _ in range(10)]
        assert all(isinstance(result, Unknown) for result in await asyncio.gather(*on_their_way))
        await until(lambda: store.link is LinkState.SUSPENDED)
        assert await store.multi((Create("b"),)) == Refused(Reason.NOT_CONNECTED)
    finally:
        thaw(server)
    await until(lambda: store.link is LinkState.CONNECTED)
    assert await store.exists("b") == Ok(None)


async def test_close_ends_although_the_server_is_frozen(
    server: embedded.LocalZooKeeper, lone: ZkWorld
) -> None:
    """The server cannot answer the end of the session; close() waits for a moment and gives up."""
    store = await lone.store(request_timeout_s=0.2)
    freeze(server)
    await store.close()
    assert store.link is LinkState.SUSPENDED


async def test_a_server_that_was_started_again_is_found_again(
    server: embedded.LocalZooKeeper, lone: ZkWorld
) -> None:
    """A restart keeps the session and its ephemerals: they live on the server's disk."""
    store = await lone.store(session_timeout_s=20.0)
    await done(store, Create("e", ephemeral=True))
    session = store.session
    server.kill()
    await until(lambda: store.link is LinkState.SUSPENDED)
    server.start(timeout_s=READY_TIMEOUT_S)

    async def found() -> bool:  # a server that has just started may drop its first connections
        answer = await store.get("e")
        return isinstance(answer, Ok) and answer.value.owner_session == session

    await until_async(found)
    assert store.session == session


# ------------------------------------------------------------------------------------------ the own clock


async def test_the_link_is_suspended_by_the_clock_alone(
    world: ZkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped for long does not rely on its session, not even in its first step."""
    store = await world.store()
    await done(store, Create("a"))
    stopped_s = SESSION_TIMEOUT_S * 0.7

    class Clock:
        monotonic = staticmethod(lambda: time.monotonic() + stopped_s)

    links = [store.link]
    for module in (kazoo_bridge, session_monitor, kazoo_store):
        monkeypatch.setattr(module, "time", Clock)
    links.append(store.link)
    assert links == [LinkState.CONNECTED, LinkState.SUSPENDED]
    assert await store.get("a") == Refused(Reason.NOT_CONNECTED)
    await until(lambda: store.link is LinkState.CONNECTED, what="a proof of life that is younger")


async def test_an_idle_link_is_probed(world: ZkWorld, zk_proxy: Proxy) -> None:
    """A link without requests is probed over its connection."""
    store = await world.store(through=zk_proxy.address)
    deadline_s = store._clock.deadline_s
    await until(lambda: store._clock.deadline_s > deadline_s)
    assert store.link is LinkState.CONNECTED
    assert zk_proxy.counters.connections == 1


async def test_answers_that_refuse_are_proofs_of_life(world: ZkWorld) -> None:
    """A follower that waits for a record gets only NO_NODE, for hours: these answers prove the session."""
    store = await world.store(session_timeout_s=20.0)
    deadline_s = store._clock.deadline_s
    assert await store.get("none") == Refused(Reason.NO_NODE)
    assert store._clock.deadline_s > deadline_s
    deadline_s = store._clock.deadline_s
    assert await store.multi((Check("none", 0),)) == Refused(Reason.NO_NODE, 0)
    assert store._clock.deadline_s > deadline_s


@pytest.mark.parametrize(("asked_s", "granted_s"), [(0.1, 1.0), (4.0, 4.0), (10_000.0, None)])
async def test_the_granted_session_timeout_is_read_back(
    world: ZkWorld, asked_s: float, granted_s: float | None
) -> None:
    """The server limits the requested timeout; the deadline counts from the granted one."""
    store = await world.store(session_timeout_s=asked_s)
    assert store.session_timeout_s == (granted_s or OPTIONS.session_timeout_max_ms / 1000)


# ------------------------------------------------------------------------------------------ open and close


async def test_opening_where_nobody_listens_says_so() -> None:
    """The message names the address and what to check."""
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        port = placeholder.getsockname()[1]
        with pytest.raises(UnavailableError, match=rf"127\.0\.0\.1:{port} within 0.5 s; check"):
            await ZkWorld(f"127.0.0.1:{port}", "/t").store(connect_timeout_s=0.5)


async def test_opening_where_somebody_else_listens_says_so() -> None:
    """A listener that never answers is no ZooKeeper; the wait has the same bound."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"{port} within"):
            await ZkWorld(f"127.0.0.1:{port}", "/t").store(connect_timeout_s=0.5, request_timeout_s=0.1)


async def test_a_server_that_accepts_and_never_answers_is_left_for_another(
    zookeeper: str, zk_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A starting server does that sometimes; the wait for it must be far shorter than the session timeout."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        monkeypatch.setattr(random, "shuffle", lambda servers: servers.sort(key=lambda it: it[2] != port))
        async with ZkWorld(zookeeper, zk_root) as world:
            both = f"127.0.0.1:{port},{zookeeper}"
            store = await world.store(through=both, session_timeout_s=12.0, connect_timeout_s=5.9)
            assert store.link is LinkState.CONNECTED
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(4)


def test_a_connect_string_that_is_none_is_refused_at_once() -> None:
    """A bad connect string is refused before a request is sent."""
    with pytest.raises(ConfigError, match="connect string"):
        ZkStore("zk1:2181", session_timeout_s=1, request_timeout_s=1, multi_bytes_max=1)


async def test_a_deep_root_is_made_by_whoever_comes_first(zookeeper: str, zk_root: str) -> None:
    """Several stores that open at once below a root that does not exist all find one."""
    async with ZkWorld(zookeeper, f"{zk_root}/deep/er") as world:
        stores = await asyncio.gather(*(world.store() for _ in range(4)))
        await done(stores[0], Create("a"))
        assert [await store.exists("a") for store in stores] == [await stores[0].exists("a")] * 4


async def test_a_root_that_may_not_be_made_is_named(world: ZkWorld) -> None:
    """No client may write /zookeeper/config; the error names the path."""
    store = await world.store()
    store._root = "/zookeeper/config/below"
    with pytest.raises(ConfigError, match="/zookeeper/config/below of the connect string"):
        await store._ensure_root()
    assert await store.multi((Create("x"),)) == Refused(Reason.NO_NODE, 0)
    store._root = "/zookeeper/config"
    assert await store.multi((Check("", -1), Create("x"))) == Refused(Reason.DENIED, 1)


async def test_a_client_that_fails_inside_is_started_again(
    world: ZkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that kazoo cannot parse ends its thread; the store goes on with a new session."""
    store = await world.store()
    session = store.session
    handler = store._handler

    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("an answer that nobody understands")

    monkeypatch.setattr(handler, "select", fail)
    await until(lambda: store.link is LinkState.CONNECTED and store.session != session)
    await done(store, Create("a"))


def _has_fired(watch: Counter, times: int) -> bool:
    return watch.fired == times


async def test_watches_that_are_armed_again_do_not_pile_up(world: ZkWorld, zk_proxy: Proxy) -> None:
    """A reader that re-reads a quiet znode for days holds one watch, also over reconnects."""
    store = await world.store(through=zk_proxy.address)
    await done(store, Create("a"))
    watch = Counter()
    for _ in range(3):
        for _ in range(20):
            await node(store, "a", watch)
            await store.get("none", watch=watch)
        assert [len(armed) for armed in store._client._data_watchers.values() if armed] == [1]
        assert len(store._watches) == 1
        fired = watch.fired
        zk_proxy.cut()
        await until(functools.partial(_has_fired, watch, fired + 1))
