"""The store in memory: it passes the suite of all stores, and its faults act as named."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.aio import until
from tests.support.zookeeper.store_suite import MULTI_BYTES_MAX, Counter, StoreSuite, World, done, node
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Check, Create, LinkState, SetData, Store
from tidelock.csnlog.testing.memory_store import (
    MemoryEnsemble,
    MemoryStore,
    RequestFault,
    StoreRequest,
    nth,
    random_faults,
)
from tidelock.csnlog.testing.memory_tree import Znode, ZnodeTree


class MemoryWorld:
    """An ensemble in memory."""

    root = ""

    def __init__(self) -> None:
        self.ensemble = MemoryEnsemble(multi_bytes_max=MULTI_BYTES_MAX)

    async def store(self) -> Store:
        """Return a connected store."""
        return self.ensemble.store()

    async def expire(self, store: Store) -> None:
        """Let the session of a store expire."""
        assert isinstance(store, MemoryStore)
        store.expire()


@pytest.mark.scenario("S08", "S10")
class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def world(self) -> World:
        """An empty ensemble."""
        return MemoryWorld()


async def reconnected(store: Store) -> None:
    """Let the loop turn until the connection is back."""
    await until(lambda: store.link is LinkState.CONNECTED)


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    """An ensemble without faults."""
    return MemoryEnsemble()


@pytest.fixture
async def store(ensemble: MemoryEnsemble) -> MemoryStore:
    """A store on the ensemble, with a znode `a` at version 0."""
    store = ensemble.store()
    await done(store, Create("a"))
    return store


@pytest.mark.parametrize(
    ("fault", "result", "applied", "same_session"),
    [
        (RequestFault.NOT_CONNECTED, Refused, False, True),
        (RequestFault.REQUEST_LOST, Unknown, False, True),
        (RequestFault.REPLY_LOST, Unknown, True, True),
        (RequestFault.LATE, Unknown, False, True),
        (RequestFault.EXPIRED, Unknown, False, False),
        (RequestFault.REPLY_LOST_EXPIRED, Unknown, True, False),
    ],
)
async def test_a_fault_does_what_it_is_called(
    ensemble: MemoryEnsemble,
    store: MemoryStore,
    fault: RequestFault,
    result: type,
    applied: bool,
    same_session: bool,
) -> None:
    """Each fault decides the answer, whether the write is applied, and which session goes on."""
    ensemble.plan = nth(1, fault)
    session = store.session
    answer = await store.multi((SetData("a", b"x", 0),))
    assert isinstance(answer, result)
    await reconnected(store)
    assert (store.session == session) is same_session
    assert (await node(store, "a")).data == (b"x" if applied else b"")
    assert isinstance(await store.multi((Create("b"),)), Ok)


async def test_a_read_with_a_fault_arms_no_watch(ensemble: MemoryEnsemble, store: MemoryStore) -> None:
    """A call that did not end Ok arms no watch."""
    watch = Counter()
    for fault in RequestFault:
        ensemble.plan = nth(1, fault, when=lambda call: call.kind == "get")
        assert not isinstance(await store.get("a", watch=watch), Ok)
        await reconnected(store)
    await done(store, SetData("a"))
    await asyncio.sleep(0)
    assert watch.fired == 0


async def test_a_late_request_lands_behind_others_and_own_reads(
    ensemble: MemoryEnsemble, store: MemoryStore
) -> None:
    """Own reads in the same session miss it, others overtake it, and their writes refuse it (F1)."""
    other = ensemble.store()
    ensemble.plan = nth(1, RequestFault.LATE)
    assert isinstance(await store.multi((SetData("a", b"late", 0),)), Unknown)
    ensemble.plan = None
    await reconnected(store)
    assert (await node(store, "a")).version == 0
    await done(other, SetData("a", b"other", 0))
    assert ensemble.late == 1
    assert ensemble.deliver_late() == 1
    assert (await node(store, "a")).data == b"other"


async def test_a_late_request_lands_before_the_next_write_of_its_session(
    ensemble: MemoryEnsemble, store: MemoryStore
) -> None:
    """The next write of a session lands after its late request, so a write is a barrier, a read is not."""
    ensemble.plan = nth(1, RequestFault.LATE)
    await store.multi((SetData("a", b"late", 0),))
    ensemble.plan = None
    await reconnected(store)
    assert await store.multi((Check("a", 0),)) == Refused(Reason.BAD_VERSION, 0)
    assert (await node(store, "a")).data == b"late"
    assert ensemble.late == 0


async def test_a_late_request_of_a_vanished_client_may_land_any_time(
    ensemble: MemoryEnsemble, store: MemoryStore
) -> None:
    """A request of a dead process may land after writes of its successor: hence the fence."""
    ensemble.plan = nth(1, RequestFault.LATE)
    await store.multi((Create("b"),))
    ensemble.plan = None
    store.suspend()
    successor = ensemble.store()
    await done(successor, SetData("a"))
    assert await successor.exists("b") == Ok(None)
    ensemble.deliver_late()
    assert isinstance(await successor.get("b"), Ok)


async def test_a_late_request_is_refused_when_its_session_has_ended(
    ensemble: MemoryEnsemble, store: MemoryStore
) -> None:
    """A request under way is refused when its session has ended."""
    ensemble.plan = nth(1, RequestFault.LATE)
    await store.multi((Create("b"),))
    ensemble.end_session(store.session)
    assert ensemble.deliver_late() == 0
    assert await ensemble.store().exists("b") == Ok(None)


async def test_a_cut_connection_comes_back_and_fires_the_watches(store: MemoryStore) -> None:
    """While it is down every call is refused; afterwards each armed watch has fired once."""
    watch = Counter()
    await node(store, "a", watch)
    await store.exists("b", watch=watch)
    session = store.session
    store.cut()
    assert store.link is LinkState.SUSPENDED
    assert await store.get("a") == Refused(Reason.NOT_CONNECTED)
    await reconnected(store)
    assert store.session == session
    assert watch.fired == 2


async def test_a_suspended_store_stays_down_until_it_is_resumed(
    ensemble: MemoryEnsemble, store: MemoryStore
) -> None:
    """A suspended store learns of the end of its session when it is resumed."""
    await done(store, Create("e", ephemeral=True))
    session = store.session
    store.suspend()
    for _ in range(5):
        await asyncio.sleep(0)
    assert store.link is LinkState.SUSPENDED
    ensemble.end_session(session)
    assert await ensemble.store().exists("e") == Ok(None)
    store.resume()
    await reconnected(store)
    assert store.session != session


async def test_a_call_in_a_session_that_has_ended_is_unknown(
    ensemble: MemoryEnsemble, store: MemoryStore
) -> None:
    """The client finds out by the call; it then has a new session."""
    session = store.session
    ensemble.end_session(session)
    assert isinstance(await store.multi((SetData("a"),)), Unknown)
    await reconnected(store)
    assert store.session != session
    assert (await node(store, "a")).version == 0


@pytest.mark.scenario("S18")
async def test_sequence_numbers_end_where_those_of_zookeeper_do() -> None:
    """After 2^31-1 creates fail, or get the same number again: hence epochs."""
    tree = ZnodeTree()
    tree._znodes["a"] = Znode(b"", creates=2**31 - 2)
    made = [tree.apply((Create(f"a/{prefix}-", sequential=True),), 0)[0] for prefix in ("s", "s", "s", "t")]
    assert made == [
        Ok(("a/s-2147483646",)),
        Ok(("a/s-2147483647",)),
        Refused(Reason.NODE_EXISTS),
        Ok(("a/t-2147483647",)),
    ]


async def test_random_faults_repeat_with_their_seed() -> None:
    """The same seed gives the same faults; every kind occurs, and about as often as the rate says."""

    def drawn(seed: int) -> list[RequestFault | None]:
        plan = random_faults(random.Random(seed), rate=0.5)
        return [plan(StoreRequest("s", number, "multi")) for number in range(400)]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)
    assert set(drawn(7)) == {None, *RequestFault}
    assert 120 < sum(fault is not None for fault in drawn(7)) < 280


async def test_a_plan_sees_every_request(ensemble: MemoryEnsemble, store: MemoryStore) -> None:
    """A plan gets store, number, kind, path and operations, so that a test can choose its request."""
    calls: list[StoreRequest] = []

    def plan(call: StoreRequest) -> None:
        calls.append(call)

    ensemble.plan = plan
    ops = (SetData("a"),)
    await store.multi(ops)
    await store.get("a")
    await store.exists("b")
    await store.children("")
    assert [(call.store, call.kind, call.path, call.ops) for call in calls] == [
        (store.name, "multi", "", ops),
        (store.name, "get", "a", ()),
        (store.name, "exists", "b", ()),
        (store.name, "children", "", ()),
    ]
    assert [call.number for call in calls] == [2, 3, 4, 5]


async def test_a_server_that_lags_shows_its_readers_the_past() -> None:
    """A lagging server shows no new state and fires no watch, until it catches up or its client writes."""
    ensemble = MemoryEnsemble(servers=2)
    writer = ensemble.store()
    ensemble.choose = lambda servers: servers[-1]
    reader = ensemble.store()
    await done(writer, Create("a"))
    ensemble.servers[1].lag()
    watch = Counter()
    await node(reader, "a", watch)
    await done(writer, SetData("a", b"1"), Create("b"))
    assert (await node(reader, "a")).data == b""
    assert await reader.exists("b") == Ok(None)
    assert watch.fired == 0
    await done(reader, Check("a", 1))
    assert (await node(reader, "a")).data == b"1"
    assert watch.fired == 1


async def test_a_client_never_reconnects_to_a_server_behind_what_it_has_seen() -> None:
    """In one session states never go back; a new session may begin with any state."""
    ensemble = MemoryEnsemble(servers=2)
    ensemble.choose = lambda servers: servers[-1]
    store = ensemble.store()
    ensemble.servers[1].lag()
    ensemble.plan = nth(1, RequestFault.REPLY_LOST)
    assert isinstance(await store.multi((Create("a"),)), Unknown)
    await reconnected(store)
    assert await store.exists("a") == Ok(None)  # the write is decided, and this server does not have it yet
    ensemble.servers[1].catch_up()
    await node(store, "a")
    ensemble.choose = lambda servers: servers[0]
    store.cut()
    await reconnected(store)
    await done(store, SetData("a", b"1"))
    ensemble.servers[1].lag()
    await done(store, SetData("a", b"2"))
    ensemble.choose = lambda servers: servers[-1]
    store.cut()
    await reconnected(store)
    assert (await node(store, "a")).data == b"2"
    store.expire()
    await reconnected(store)
    assert (await node(store, "a")).data == b"1"


async def test_an_answer_whose_connection_breaks_on_its_way_is_lost() -> None:
    """The write was applied, and no caller gets its answer."""
    turn = asyncio.Event()
    ensemble = MemoryEnsemble(turn=turn.wait)  # type: ignore[arg-type]
    store = ensemble.store()
    writing = asyncio.create_task(store.multi((Create("a"),)))
    await asyncio.sleep(0)
    store.cut()
    turn.set()
    assert isinstance(await writing, Unknown)
    await reconnected(store)
    assert (await node(store, "a")).version == 0


async def test_a_client_whose_process_is_gone_leaves_its_session(ensemble: MemoryEnsemble) -> None:
    """Its ephemeral znodes exist until the servers end the session."""
    store, other = ensemble.store(), ensemble.store()
    await done(store, Create("e", ephemeral=True))
    store.abandon()
    assert await store.get("e") == Refused(Reason.NOT_CONNECTED)
    assert isinstance(await other.get("e"), Ok)
    ensemble.end_session(store.session)
    assert await other.get("e") == Refused(Reason.NO_NODE)
