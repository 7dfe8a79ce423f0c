"""The log on a real ZooKeeper: many replicas commit while replies, requests, sessions and servers are lost.

After each test the same must hold: every acknowledged commit is in the log exactly once, at the CSN of its
answer; no refused commit is in the log; every follower has delivered the same records, in order and without
a gap (I1, I2, I4, I8, I17).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import pytest

from tests.support.aio import until, until_async
from tests.support.clusters.log_node import R1, R2, R3, LogNode, check_sequence, make_cluster, tids_of
from tests.support.faults.proxy import MULTI, Action, Proxy, nth_request
from tests.support.zookeeper.world import ZkWorld
from tidelock import zookeeper as embedded
from tidelock.csnlog.core.batch import LogLimits
from tidelock.csnlog.core.ids import Csn, Tid
from tidelock.csnlog.core.model import RecordKind
from tidelock.csnlog.core.results import Committed, Running
from tidelock.csnlog.core.store import Create
from tidelock.csnlog.log import LogState
from tidelock.errors import CommitUnknownError, FencedError, RefusedError, UnavailableError

REPLICAS = (R1, R2, R3)
#: A roll-over every fifty records.
SMALL_EPOCHS = LogLimits(epoch_limit=50, recheck_s=0.5, retry_s=0.02)


class History:
    """The answers that the clients of some replicas got."""

    def __init__(self) -> None:
        self.committed: dict[str, Csn] = {}
        self.refused: set[str] = set()
        self.unknown: set[str] = set()

    async def commit(self, node: LogNode, counter: int, *, timeout_s: float = 60.0) -> None:
        """Commit once and note the answer."""
        tid = str(node.tid(counter))
        try:
            self.committed[tid] = await node.commit(counter, timeout_s=timeout_s)
        except CommitUnknownError:
            self.unknown.add(tid)
        except (RefusedError, UnavailableError):
            self.refused.add(tid)

    async def client(self, node: LogNode, first: int, count: int, *, timeout_s: float = 60.0) -> None:
        """Commit one transaction after the other."""
        for counter in range(first, first + count):
            await self.commit(node, counter, timeout_s=timeout_s)

    async def client_until(self, enough: asyncio.Event, node: LogNode, first: int) -> None:
        """Commit one transaction after the other until a condition holds."""
        for counter in itertools.count(first):
            if enough.is_set():
                return
            await self.commit(node, counter)

    async def check(self, nodes: Sequence[LogNode]) -> Csn:
        """Wait until all followers are at the end, compare all answers with the log, and return the end."""
        end = await barrier(nodes[0])
        for node in nodes:
            await until(lambda node=node: node.reached >= end, what=f"{node.replica} at {end}")  # type: ignore[misc]
            check_sequence(node.delivered)
            assert node.delivered[: len(nodes[0].delivered)] == nodes[0].delivered[: len(node.delivered)]
        found = tids_of(nodes[0].delivered)
        assert all(len(csns) == 1 for csns in found.values())
        assert {tid: csns[0] for tid, csns in found.items() if tid in self.committed} == self.committed
        assert not self.refused & found.keys()
        assert found.keys() <= self.committed.keys() | self.unknown
        return end


async def barrier(node: LogNode) -> Csn:
    """A barrier, repeated while the connection is away."""
    for _ in range(200):
        try:
            return await node.log.barrier()
        except UnavailableError:
            await asyncio.sleep(0.05)
    raise AssertionError("no barrier came through")


async def expire(world: ZkWorld, node: LogNode) -> None:
    """Let the session of a node end on the server, and wait until it has another.

    The client may win the session back before the server ends it; then this is tried again. TypeError: the
    client is between two sessions.
    """
    session = node.store.session

    async def ended() -> bool:
        with contextlib.suppress(OSError, struct.error, TypeError):
            await world.expire(node.store)
        return node.store.session != session

    await until_async(ended, what="another session")


class Cluster:
    """Three replicas' logs on one ensemble, each with a session of its own."""

    def __init__(self, world: ZkWorld) -> None:
        self.world = world
        self.nodes: list[LogNode] = []
        self.stack = AsyncExitStack()

    async def add(self, replica: Any, limits: LogLimits = SMALL_EPOCHS, **store: Any) -> LogNode:
        """Start a replica's log."""
        if not self.world.stores:
            await make_cluster(await self.world.store(), REPLICAS)
        node = LogNode(await self.world.store(**store), replica, limits=limits)
        self.nodes.append(await self.stack.enter_async_context(node))
        return node

    async def __aenter__(self) -> Self:
        await self.world.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stack.aclose()
        await self.world.__aexit__(*error)


@pytest.fixture
async def cluster(zookeeper: str, zk_root: str) -> AsyncIterator[Cluster]:
    """A cluster on the session's ZooKeeper, without replicas yet."""
    async with Cluster(ZkWorld(zookeeper, zk_root)) as cluster:
        yield cluster


async def test_many_committers_and_roll_overs(cluster: Cluster) -> None:
    """Three replicas, 24 clients, a roll-over every fifty records: all followers read one log (F4)."""
    history = History()
    for replica in REPLICAS:
        await cluster.add(replica)
    # The eight clients of a replica share records, so it takes many commits to fill an epoch.
    clients = [history.client(node, 1000 * client, 60) for node in cluster.nodes for client in range(1, 9)]
    await asyncio.gather(*clients)
    await history.check(cluster.nodes)
    assert len(history.committed) == 1440
    kinds = [one.record.kind for one in cluster.nodes[0].delivered]
    assert kinds.count(RecordKind.END) >= 2
    for node in cluster.nodes:  # a busy machine may suspend one until ZooKeeper answers again
        assert node.states[-1] is LogState.FOLLOWING
        assert {*node.states} <= {LogState.FOLLOWING, LogState.SUSPENDED}


async def test_a_late_comer_reads_it_all(cluster: Cluster) -> None:
    """A replica that starts after all commits delivers the same sequence, across epochs."""
    history = History()
    one = await cluster.add(R1)
    await history.client(one, 1, 3)
    await asyncio.gather(*(history.client(one, 100 * n, 12) for n in range(1, 13)))
    two = await cluster.add(R2)
    await history.check([one, two])


@pytest.mark.scenario("S01", "S02")
@pytest.mark.parametrize("action", [Action.LOSE_REQUEST, Action.LOSE_REPLY, Action.DELIVER_LATE])
async def test_a_commit_whose_request_or_reply_is_lost(
    cluster: Cluster, zk_proxy: Proxy, action: Action
) -> None:
    """S01, S02 and F1 on a real server: the commit is acknowledged once, and no request lands later."""
    history = History()
    node = await cluster.add(R1, through=zk_proxy.address)
    witness = await cluster.add(R2)
    await history.commit(node, 1)
    for number in range(4):
        zk_proxy.hook(nth_request(1, action, opcode=MULTI, containing=b"/csn-"))
        commits = [history.commit(node, 10 * number + n) for n in range(2, 7)]
        await asyncio.gather(*commits)
        zk_proxy.hook(None)
        zk_proxy.release()
    counters = zk_proxy.counters
    assert counters.lost_requests + counters.lost_replies + counters.late_requests >= 4
    assert await history.check([node, witness])
    assert len(history.committed) == 21
    assert not history.refused


@pytest.mark.scenario("S33")
async def test_a_connection_that_breaks_all_the_time(cluster: Cluster, zk_proxy: Proxy) -> None:
    """S33: the connection is cut again and again during commits and roll-overs: each answer is true."""
    history = History()
    node = await cluster.add(R1, through=zk_proxy.address)
    witness = await cluster.add(R2)
    enough = asyncio.Event()
    work = asyncio.gather(
        *(history.client_until(enough, each, 100_000 * n) for each in (node, witness) for n in range(1, 5))
    )
    # Until some commits met a cut on their way, however fast they are: such a commit raises the fence.
    while zk_proxy.counters.cut < 20 or node.log.fence <= witness.log.fence:
        zk_proxy.cut()
        await asyncio.wait([work], timeout=0.1)
    enough.set()
    await work
    await history.check([node, witness])


@pytest.mark.scenario("S26")
async def test_sessions_that_expire_raise_the_fence_and_go_on(cluster: Cluster) -> None:
    """A new session raises the fence, the log goes on, and open commits are decided (F3)."""
    history = History()
    one, two = await cluster.add(R1), await cluster.add(R2)
    work = asyncio.gather(*(history.client(node, 1000 * n, 60) for node in (one, two) for n in range(1, 4)))
    for _ in range(3):
        before = one.log.fence
        await expire(cluster.world, one)

        async def raised(before: int = before) -> bool:
            return one.log.fence > before

        # A session that ends before it has raised the fence leaves the raise to the next session.
        await until_async(raised, what="a raised fence")
    await work
    await history.check([one, two])
    assert one.log.fence >= 4
    assert not history.unknown
    assert LogState.FENCED not in one.states


@pytest.mark.scenario("S03")
async def test_a_caller_that_gives_up_can_ask_later(cluster: Cluster, zk_proxy: Proxy) -> None:
    """I8: a caller that is cut off during its commit gets "unknown"; later any replica knows the outcome."""
    node = await cluster.add(R1, through=zk_proxy.address)
    other = await cluster.add(R2)
    await node.commit(1)
    zk_proxy.refuse()
    zk_proxy.hook(nth_request(1, Action.LOSE_REPLY, opcode=MULTI, containing=b"/csn-"))
    with pytest.raises(CommitUnknownError):
        await node.commit(2, timeout_s=1.0)
    found = await other.outcome(node.tid(2))
    assert found == Committed(Csn(3))
    zk_proxy.heal()
    assert await node.commit(2) == 3
    assert await other.outcome(node.tid(3)) == Running()


@pytest.mark.scenario("S07")
async def test_a_second_life_fences_the_first(cluster: Cluster) -> None:
    """F3d: the commits of the zombie are refused, and the log has no tid of it afterwards."""
    history = History()
    zombie = await cluster.add(R1)
    await history.client(zombie, 1, 3)
    successor = await cluster.add(R1)
    with pytest.raises(FencedError):
        await zombie.commit(9)
    await history.client(successor, 1, 3)
    assert zombie.log.state is LogState.FENCED
    await history.check([successor])
    outcome = await successor.outcome(Tid(Csn(1), R1, zombie.own.boot, 9))
    assert type(outcome).__name__ == "Aborted"


@pytest.mark.scenario("S36")
async def test_a_barrier_tells_of_every_acknowledged_commit(cluster: Cluster) -> None:
    """REALTIME: all commits that were acknowledged before the call are at or below its answer."""
    one, two = await cluster.add(R1), await cluster.add(R2)
    for n in range(1, 60):
        acknowledged = await two.commit(n)
        assert await one.log.barrier() >= acknowledged


async def test_fenced_writes_through_a_bad_connection(cluster: Cluster, zk_proxy: Proxy) -> None:
    """Ok and Refused are certain; after Unknown a read decides, since no request lands later (F3)."""
    node = await cluster.add(R1, through=zk_proxy.address)
    witness = await cluster.world.store()
    for number, action in enumerate((Action.LOSE_REQUEST, Action.LOSE_REPLY, Action.DELIVER_LATE) * 3):
        path = f"pins/p{number}"
        zk_proxy.hook(nth_request(1, action, opcode=MULTI, containing=path.encode()))
        before = node.log.fence
        result = await node.log.fenced((Create(path),))
        assert type(result).__name__ == "Unknown"
        assert node.log.fence > before
        there = await witness.exists(path)
        zk_proxy.release()
        zk_proxy.hook(None)
        await barrier(node)
        assert await witness.exists(path) == there


@pytest.mark.scenario("S29")
async def test_the_leader_of_three_is_killed_during_commits(
    ensemble: embedded.LocalZooKeeper, zk_root: str
) -> None:
    """S29: acknowledged commits survive the leader's death, no commit is there twice, followers agree."""
    history = History()
    async with Cluster(ZkWorld(ensemble.connect_string, zk_root)) as cluster:
        for replica in REPLICAS:
            await cluster.add(replica, session_timeout_s=6.0)
        work = asyncio.gather(
            *(history.client(node, 1000 * n, 80) for node in cluster.nodes for n in range(1, 4))
        )
        await until(lambda: len(history.committed) > 100)
        leader = await asyncio.to_thread(ensemble.leader)
        assert leader is not None
        await asyncio.to_thread(leader.kill)
        await work
        await history.check(cluster.nodes)
        assert len(history.committed) > 600
