"""A replica fences another's boot: the decided outcomes, races, and boots that cannot be fenced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import MappingProxyType
from typing import Any, cast

import pytest

from tests.support.aio import until
from tests.support.clusters.boots import shown
from tests.support.clusters.log_node import R1, R2, R3, LogNode, make_cluster
from tests.support.clusters.resolving import nothing
from tests.support.rows import settings
from tidelock.csnlog.cluster.bootstrap import keep_alive
from tidelock.csnlog.cluster.members import MemberView
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.fence import seize
from tidelock.csnlog.core.ids import NO_STAMP, ReplicaId
from tidelock.csnlog.core.model import ClusterState, MemberState, SessionState
from tidelock.csnlog.core.results import Aborted, Committed, Running
from tidelock.csnlog.core.store import Node
from tidelock.csnlog.log import LogState
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, MemoryStore, RequestFault, StoreRequest, nth
from tidelock.errors import CorruptError, FencedError, UnavailableError
from tidelock.replica_agent.replicas.membership import Membership


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    """An ensemble with a cluster of three replicas."""
    ensemble = MemoryEnsemble()
    await make_cluster(ensemble.store("setup"))
    return ensemble


@pytest.fixture
async def node(ensemble: MemoryEnsemble) -> AsyncIterator[LogNode]:
    """The log of r1."""
    async with LogNode(ensemble.store("r1")) as node:
        await until(lambda: node.log.fence > node.own.fence)
        yield node


@pytest.fixture
async def frozen(ensemble: MemoryEnsemble) -> AsyncIterator[LogNode]:
    """The log of r2, which does not know that its ZooKeeper session has ended: its sign of life is gone."""
    async with LogNode(ensemble.store("r2"), R2) as node:
        await until(lambda: node.log.fence > node.own.fence)
        store = store_of(node)
        store.suspend()
        ensemble.end_session(store.session)
        yield node


def store_of(node: LogNode) -> MemoryStore:
    """A node's store."""
    assert isinstance(node.store, MemoryStore)
    return node.store


async def test_a_silent_life_is_decided(ensemble: MemoryEnsemble, node: LogNode, frozen: LogNode) -> None:
    """A transaction of a silent boot is running before the fence and aborted after it, for good."""
    tid = frozen.tid(1)
    assert await node.outcome(tid) == Running()
    version = await node.log.fence_out(R2, tid.boot)
    state, node_version = await shown(ensemble.store(), R2)
    assert version == node_version
    assert (state.boot, state.disk, state.state) == (tid.boot + 1, frozen.own.disk, "fenced")
    assert await node.outcome(tid) == Aborted()
    store_of(frozen).resume()
    with pytest.raises(FencedError):
        await frozen.commit(1)
    await until(lambda: frozen.log.state is LogState.FENCED)
    assert await node.outcome(tid) == Aborted()


async def test_a_boot_that_is_gone_is_fenced_beside_its_sign_of_life(
    ensemble: MemoryEnsemble, node: LogNode
) -> None:
    """A killed process leaves its sign of life for the time of its session. A fence by proof ignores it."""
    async with LogNode(ensemble.store("r2"), R2) as killed:
        tid = killed.tid(1)
        assert await node.log.fence_out(R2, tid.boot) is None
        assert await node.outcome(tid) == Running()
        assert await node.log.fence_out(R2, tid.boot, gone=True) is not None
        assert await node.outcome(tid) == Aborted()
        with pytest.raises(FencedError):
            await killed.commit(1)
        assert await node.log.fence_out(R2, tid.boot, gone=True) is None, "that boot has ended"


async def test_what_it_has_committed_stays_committed(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """A record that landed before the fence is found, whether or not it is applied here."""
    node.taking.clear()
    async with LogNode(ensemble.store("r2"), R2) as other:
        csn = await other.commit(1)
        tid = other.tid(1)
    ensemble.end_session(store_of(other).session)
    assert await node.log.fence_out(R2, tid.boot)
    assert await node.outcome(tid, known=nothing) == Committed(csn)
    node.taking.set()


@pytest.mark.scenario("S06")
async def test_a_commit_on_its_way_lands_no_more(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """A multi that is delivered after the fence was raised is refused: "aborted" stays true (I8)."""
    async with LogNode(ensemble.store("r2"), R2) as other:
        await until(lambda: other.log.fence > other.own.fence)
        late = nth(1, RequestFault.LATE, lambda call: call.store == "r2" and call.kind == "multi")

        def plan(call: StoreRequest) -> RequestFault | None:
            if fault := late(call):  # it cannot raise its own fence, which would deliver the multi
                asyncio.get_running_loop().call_soon(store_of(other).suspend)
            return fault

        ensemble.plan = plan
        commit = asyncio.create_task(other.commit(1))
        await until(lambda: ensemble.late)
        ensemble.end_session(store_of(other).session)
        assert await node.log.fence_out(R2, other.own.boot)
        assert await node.outcome(other.tid(1)) == Aborted()
        ensemble.deliver_late()
        assert await node.outcome(other.tid(1)) == Aborted()
        store_of(other).resume()
        with pytest.raises(FencedError):
            await commit


async def test_of_several_one_fences(ensemble: MemoryEnsemble, node: LogNode, frozen: LogNode) -> None:
    """One of several replicas raises the fence, and the others find it raised."""
    async with LogNode(ensemble.store("r3"), R3) as third:
        done = await asyncio.gather(
            *(one.log.fence_out(R2, frozen.own.boot) for one in (node, third, node, third))
        )
    assert len(done) - done.count(None) == 1
    state, _ = await shown(ensemble.store(), R2)
    assert state.boot == frozen.own.boot + 1
    assert not await node.log.fence_out(R2, frozen.own.boot)


async def test_a_living_replica_is_left_alone(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """A replica with a sign of life is not fenced, nor is a boot that has ended or is yet to come."""
    async with LogNode(ensemble.store("r2"), R2) as other:
        await keep_alive(other.store, other.own)
        await until(lambda: other.log.fence > other.own.fence)  # its own raise at the start of its session
        before = await shown(ensemble.store(), R2)
        assert not await node.log.fence_out(R2, other.own.boot)
        assert await shown(ensemble.store(), R2) == before
    ensemble.end_session(store_of(other).session)
    for boot in (other.own.boot - 1, other.own.boot + 1):
        assert not await node.log.fence_out(R2, boot)
    assert not await node.log.fence_out(ReplicaId("r9"), 1)


@pytest.mark.parametrize("fault", [RequestFault.REQUEST_LOST, RequestFault.REPLY_LOST, RequestFault.LATE])
async def test_a_raise_of_unknown_end_lands_no_later(
    ensemble: MemoryEnsemble, node: LogNode, frozen: LogNode, fault: RequestFault
) -> None:
    """After an unknown end the raise is reported as not done; later outcomes do not change."""
    ensemble.plan = nth(1, fault, lambda call: call.store == "r1" and call.kind == "multi")
    assert not await node.log.fence_out(R2, frozen.own.boot)
    told = await node.outcome(frozen.tid(1))
    ensemble.deliver_late()
    assert await node.outcome(frozen.tid(1)) == told
    assert (await node.log.fence_out(R2, frozen.own.boot) is not None) == (told == Running())
    assert await node.outcome(frozen.tid(1)) == Aborted()


async def test_who_cannot_write_fences_nobody(
    ensemble: MemoryEnsemble, node: LogNode, frozen: LogNode
) -> None:
    """A replica that is fenced or without a connection cannot fence: the write checks its own fence."""
    store_of(node).suspend()
    with pytest.raises(UnavailableError):
        await node.log.fence_out(R2, frozen.own.boot)
    store_of(node).resume()
    await until(lambda: node.log.state is LogState.FOLLOWING)
    async with LogNode(ensemble.store("successor"), R1):
        with pytest.raises(FencedError):
            await node.log.fence_out(R2, frozen.own.boot)
    state, _ = await shown(ensemble.store(), R2)
    assert state.boot == frozen.own.boot


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("serving", "fenced"),
        ("stopped", "fenced"),
        ("fenced", "fenced"),
        ("struck", "struck"),
        ("removed", "removed"),
    ],
)
def test_what_an_operator_has_said_of_a_replica_stays(before: str, after: str) -> None:
    """A raise of the fence keeps the operator's states "struck" and "removed"."""
    data = codec.encode_session(SessionState(3, "d", "n", before))
    change = seize(tree.session(R2), Node(data, 7, 0, 0, NO_STAMP), 3, "mine")
    assert change is not None
    assert (change.version, codec.decode_session(change.data)) == (7, SessionState(4, "d", "mine", after))


def test_a_session_that_cannot_be_read_is_not_overwritten() -> None:
    """An unreadable session znode is of a newer version, or damaged, so it is not overwritten."""
    with pytest.raises(CorruptError):
        seize(tree.session(R2), Node(b"nonsense", 7, 0, 0, NO_STAMP), 3, "mine")


def test_silence_is_counted_from_the_moment_it_was_seen() -> None:
    """A sign of life ends the silence; no other change of the view restarts it."""
    clock = [100.0]
    view: dict[ReplicaId, MemberView] = {}
    unused = cast("Any", None)
    members = type("Fixed", (), {"snapshot": staticmethod(lambda: MappingProxyType(view))})()
    membership = Membership(
        replica=R1, cluster=ClusterState("c", 1, 2, 1000), settings=settings(), members=members,
        client=unused, waiters=unused, clock=lambda: clock[0], clocks=unused,
    )  # fmt: skip

    def see(*, alive: bool, fence: int = 1) -> None:
        view[R2] = MemberView(MemberState(), SessionState(1, "d", "n", "serving"), fence, alive, None)
        membership.changed()

    assert membership.silent_s(R2) == 0
    see(alive=True)
    clock[0] += 5
    assert membership.silent_s(R2) == 0
    see(alive=False)
    clock[0] += 5
    see(alive=False, fence=2)
    clock[0] += 2
    assert membership.silent_s(R2) == 7
    see(alive=True)
    assert membership.silent_s(R2) == 0
