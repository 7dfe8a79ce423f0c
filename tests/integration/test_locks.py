"""Removal locks on a real ZooKeeper: the first locker wins, also with lost replies, deaths and next boots."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.aio import until
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.lock_node import LockNode, part_ask, wide_ask
from tests.support.clusters.log_node import R1, R2, R3, make_cluster
from tests.support.faults.proxy import MULTI, Action, Proxy, nth_request
from tests.support.waiting import eventually
from tests.support.zookeeper.world import ZkWorld
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import SerializationConflictError, TidelockError
from tidelock.replication.core.lock_rules import OnePartition, WholeTable


@pytest.fixture
async def world(zookeeper: str, zk_root: str) -> AsyncIterator[ZkWorld]:
    """A cluster on the session's ZooKeeper, without replicas yet."""
    async with ZkWorld(zookeeper, zk_root) as world:
        await make_cluster(await world.store())
        yield world


async def test_the_first_locker_wins(world: ZkWorld) -> None:
    """Three replicas lock parts, partitions and tables at once: overlapping locks never have two owners."""
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(LockNode(await world.store(multi_bytes_max=1 << 19), replica))
            for replica in (R1, R2, R3)
        ]
        asks = [part_ask(1, 2, path="y=1"), wide_ask(OnePartition("y=1")), wide_ask(WholeTable())]
        for counter, order in enumerate(itertools.permutations(asks), 1):
            takes = (node.take(counter, ask) for node, ask in zip(nodes, order, strict=True))
            ends = await asyncio.gather(*takes, return_exceptions=True)
            assert ends.count(None) <= 1
            assert all(end is None or isinstance(end, SerializationConflictError) for end in ends)
            for node in nodes:
                await node.roll_back(counter)
        await asyncio.gather(*(node.take(99, part_ask(n)) for n, node in enumerate(nodes)))
        many = part_ask(*range(100, 2600))
        await nodes[0].take(100, many)
        with pytest.raises(SerializationConflictError):
            await nodes[1].take(100, wide_ask(WholeTable()))
        await nodes[0].roll_back(100)
        assert len(await nodes[2].stand()) == 3


@pytest.mark.parametrize("action", [Action.LOSE_REQUEST, Action.LOSE_REPLY, Action.DELIVER_LATE])
async def test_a_lost_request_or_reply(world: ZkWorld, zk_proxy: Proxy, action: Action) -> None:
    """After a lost reply the fence is raised and the lock is read: it is made once, and later deleted."""
    async with AsyncExitStack() as stack:
        store = await world.store(through=zk_proxy.address)
        r1 = await stack.enter_async_context(LockNode(store))
        r2 = await stack.enter_async_context(LockNode(await world.store(), R2))
        await r1.take(1, part_ask(9))
        for counter in (2, 3):
            zk_proxy.hook(nth_request(1, action, opcode=MULTI, containing=b"/r9-1-1"))
            await r1.take(counter, part_ask(1, 2))
            with pytest.raises(SerializationConflictError):
                await r2.take(counter, part_ask(2))
            zk_proxy.hook(nth_request(1, action, opcode=MULTI, containing=b"/r9-1-1"))
            await r1.roll_back(counter)
            zk_proxy.hook(None)
            zk_proxy.release()
            await r1.locks.sweep(Csn(0))
            assert await r2.stand() == [f"r9-1-9 {r1.tid(1)}"]
    counters = zk_proxy.counters
    assert counters.lost_requests + counters.lost_replies + counters.late_requests == 4


async def test_a_dead_owner_and_its_next_life(world: ZkWorld) -> None:
    """A dead owner's locks are evicted by others or deleted by its next boot; its committed removals stay."""
    async with AsyncExitStack() as stack:
        r2 = await stack.enter_async_context(LockNode(await world.store(), R2))
        store = await world.store()
        async with LockNode(store) as dead:
            await dead.take(1, part_ask(1))
            await dead.take(2, part_ask(2, 3))
            csn = await dead.commit_removal(1)
            await dead.log.close()
            await store.close()
        with pytest.raises(SerializationConflictError):
            await r2.take(1, part_ask(3))
        r2.silent.add(R1)
        await r2.take(1, part_ask(3))
        await until(lambda: r2.reached >= csn)
        r1 = await stack.enter_async_context(LockNode(await world.store()))
        await until(lambda: r1.reached >= csn)
        await r1.locks.sweep(csn)
        assert sorted(await r2.stand()) == [f"r9-1-1 {dead.tid(1)}", f"r9-1-3 {r2.tid(1)}"]
        await r1.locks.sweep(Csn(csn + 1))
        assert await r2.stand() == [f"r9-1-3 {r2.tid(1)}"]


# ------------------------------------------------------------------------------------------------- processes

SCHEMA = pa.schema([("p", pa.int64()), ("id", pa.int64())])
SETTINGS = QUICK | {
    "fence_timeout_s": 1,
    "lock_sweep_interval_s": 0.5,
    "clean_interval_s": 1,
    "log_keep_records": 1,
    "horizon_interval_s": 0.5,
}


def locked_by(local: LocalCluster, replica: str) -> list[str]:
    """Return the wide locks that transactions of a replica hold."""
    return [name for name in locked(local) if f"-{replica}-" in name]


def locked(local: LocalCluster) -> list[str]:
    """Return the names of all locks in ZooKeeper."""

    async def read() -> list[str]:
        store = ZkStore(local.zk, session_timeout_s=10.0, request_timeout_s=30.0, multi_bytes_max=1 << 19)
        await store.open()
        try:
            found: list[str] = []
            for table in await _children(store, tree.LOCKS):
                name = TableId(table)
                found += await _children(store, tree.lock_dir(name))
                found += await _children(store, tree.wide_dir(name))
            return [one for one in found if one != tree.WIDE]
        finally:
            await store.close()

    return asyncio.run(read())


async def _children(store: ZkStore, path: str) -> tuple[str, ...]:
    found = await store.children(path)
    return found.value if isinstance(found, Ok) else ()


def fill(db: Database) -> int:
    """Make a table with a row in each of three partitions; return the CSN at which all replicas show it."""
    db.create_table("t", SCHEMA, partition_by=["p"], properties={"compaction": "off"})
    csn = db.insert("t", pa.table([[1, 2, 3], [1, 2, 3]], SCHEMA), wait="all").csn
    assert csn is not None
    return csn


def truncates(db: Database, csn: int) -> bool:
    """Return whether a transaction that sees a CSN can remove all rows."""
    with contextlib.suppress(SerializationConflictError), db.begin(min_csn=csn) as tx:
        tx.truncate("t")
    return tx.state == "committed"


def nothing_is_left(local: LocalCluster, db: Database) -> None:
    """Require that the rows are gone on all replicas, and in the end all locks."""
    with db.snapshot() as newest:
        for replica in local.replicas:
            with local.connect(replica) as other, other.snapshot(min_csn=newest.csn) as snap:
                assert snap.read("t").num_rows == 0
    db.insert("t", pa.table([[1], [1]], SCHEMA))  # the tail keeps the last record
    eventually(lambda: not locked(local), what="no lock left")


@pytest.mark.slow
def test_an_owner_that_is_killed(cluster: ClusterFactory) -> None:
    """Removals that meet the dead owner's lock are refused, until the owner has been silent for long."""
    local = cluster(settings=SETTINGS)
    r1, r2 = (local.connect(replica) for replica in local.replicas[:2])
    csn = fill(r1)
    dead = r1.begin(min_csn=csn)
    dead.drop_partition("t", {"p": 1})
    dead.delete("t", "id = 2")
    with pytest.raises(SerializationConflictError) as refused, r2.begin(min_csn=csn) as tx:
        tx.delete("t", "id = 1")
    assert refused.value.details["holder"] == str(dead.tid)
    local.kill("r1")
    eventually(lambda: truncates(r2, csn), what="the locks of the dead replica evicted")
    local.start("r1")
    nothing_is_left(local, r2)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["before", "after"])
def test_an_owner_that_dies_while_it_locks(cluster: ClusterFactory, tmp_path: Path, side: str) -> None:
    """Whether its lock was made or not, others remove the rows, and its next boot has nothing to do."""
    armed = tmp_path / "armed"
    local = cluster(settings=SETTINGS, faults={"r1": f"replication.lock.{side}=crash:{armed}"})
    r1, r2 = (local.connect(replica) for replica in local.replicas[:2])
    csn = fill(r1)
    r2.delete("t", "id = 3", wait="all")  # makes the directories, so the next request of r1 makes a lock
    armed.touch()
    with pytest.raises(TidelockError), r1.begin(min_csn=csn) as tx:
        tx.truncate("t")
    armed.unlink()
    assert bool(locked_by(local, "r1")) == (side == "after")
    eventually(lambda: truncates(r2, csn), what="the locks of the dead replica evicted")
    local.start("r1")
    nothing_is_left(local, r2)
