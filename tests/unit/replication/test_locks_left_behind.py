"""Removal locks whose holders are dead, fenced or in their next boot: their deletion, and its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from tests.support.aio import until
from tests.support.clusters.lock_node import ORDERS, LockNode, killed, part_ask, refused, wide_ask
from tests.support.clusters.log_node import R1, R2, R3, make_cluster
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.codec import encode_csn, encode_lock
from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.model import LockState
from tidelock.csnlog.core.store import Create, SetData
from tidelock.csnlog.testing.memory_store import MemoryEnsemble
from tidelock.errors import FencedError
from tidelock.replication.core.lock_rules import LockAsk, OnePartition, WholeTable

TAIL_NEVER = Csn(0)


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    """An ensemble with a cluster of three replicas."""
    ensemble = MemoryEnsemble()
    await make_cluster(ensemble.store("setup"))
    return ensemble


@pytest.fixture
async def r2(ensemble: MemoryEnsemble) -> AsyncIterator[LockNode]:
    """The locks of a replica that is alive."""
    async with LockNode(ensemble.store("r2"), R2) as node:
        yield node


async def test_a_fenced_replica_takes_and_gives_back_nothing(ensemble: MemoryEnsemble, r2: LockNode) -> None:
    """No lock may be assumed held; a delete that the fenced replica sends has no effect."""
    store = ensemble.store("r1")
    async with LockNode(store) as r1:
        await r1.take(1, part_ask(1))
        store.suspend()
        ensemble.end_session(store.session)
        r2.silent.add(R1)
        await r2.take(1, part_ask(1))
        store.resume()
        await r1.locks.release(r1.tid(1))
        with pytest.raises(FencedError):
            await r1.take(2, part_ask(2))
    assert await r2.stand() == [f"r9-1-1 {r2.tid(1)}"]


@pytest.mark.parametrize("ask", [part_ask(7), wide_ask(WholeTable())], ids=["part", "table"])
async def test_a_lock_of_a_dead_replica_is_evicted(
    ensemble: MemoryEnsemble, r2: LockNode, ask: LockAsk
) -> None:
    """A statement that meets it evicts all locks of the holder in the table, after a long silence."""
    async with LockNode(ensemble.store("r1")) as dead:
        await dead.take(1, part_ask(*range(1, 9)))
        await dead.take(2, wide_ask(OnePartition("y=1")))
        await killed(ensemble, dead)
    error = await refused(r2, 1, ask)
    assert error.details["holder"] in {str(dead.tid(1)), str(dead.tid(2))}
    r2.silent.add(R1)
    await r2.take(1, ask)
    assert {line.split()[1] for line in await r2.stand()} == {str(r2.tid(1))}


async def test_a_sweeper_that_died_half_way_is_followed_by_another(ensemble: MemoryEnsemble) -> None:
    """A sweeper that died had fenced the holder; the next one fences it again, for a version of its own."""
    async with (
        LockNode(ensemble.store("r1")) as dead,
        LockNode(ensemble.store("r2"), R2) as first,
        LockNode(ensemble.store("r3"), R3) as second,
    ):
        await dead.take(1, part_ask(1))
        await killed(ensemble, dead)
        await until(lambda: first.log.fence > first.own.fence)
        assert await first.log.fence_out(R1, dead.own.boot)
        await killed(ensemble, first)
        await refused(second, 1, part_ask(1))
        second.silent.add(R1)
        await second.take(1, part_ask(1))


async def test_of_two_sweepers_one_deletes(ensemble: MemoryEnsemble, r2: LockNode) -> None:
    """Of two sweepers one deletes; each lock has one holder in the end, and the dead holder has none."""
    async with (
        LockNode(ensemble.store("r1")) as dead,
        LockNode(ensemble.store("r3"), R3, silent={R1}) as r3,
    ):
        await dead.take(1, part_ask(*range(1, 9)))
        await killed(ensemble, dead)
        r2.silent.add(R1)
        ends = await asyncio.gather(
            r2.take(1, part_ask(1, 2)), r3.take(1, part_ask(2, 1)), return_exceptions=True
        )
        assert sum(end is None for end in ends) <= 1
        for node in (r2, r3):
            await node.roll_back(1)
            await node.locks.sweep(TAIL_NEVER)
        assert not await r2.stand()


async def test_what_a_dead_replica_has_committed_stays(ensemble: MemoryEnsemble, r2: LockNode) -> None:
    """Locks of committed removals stay until the tail has passed; then any replica deletes them."""
    async with LockNode(ensemble.store("r1")) as dead:
        await dead.take(1, part_ask(1))
        await dead.take(2, part_ask(2))
        csn = await dead.commit_removal(1)
        await killed(ensemble, dead)
    r2.silent.add(R1)
    await until(lambda: r2.reached >= csn)
    error = await refused(r2, 1, part_ask(1))
    assert error.details["csn"] == csn
    await r2.locks.sweep(csn)
    assert await r2.stand() == [f"r9-1-1 {dead.tid(1)}"]
    await pass_tail(ensemble, Csn(csn + 1))
    await r2.locks.sweep(Csn(csn + 1))
    assert not await r2.stand()


@pytest.mark.parametrize("home", [R1, ReplicaId("r7")], ids=["another_boot", "another_replica"])
async def test_a_lock_of_no_transaction_is_kept_and_logged_once(
    ensemble: MemoryEnsemble, r2: LockNode, home: ReplicaId
) -> None:
    """It is unknown whether its holder may still commit; the other locks of silent replicas are deleted."""
    stranger = Tid(Csn(1), home, 99, 1)
    async with LockNode(ensemble.store("r1")) as dead:
        await dead.take(1, part_ask(1))
        await killed(ensemble, dead)
    path = f"{tree.lock_dir(ORDERS)}/r9-1-2"
    await ensemble.store("stranger").multi((Create(path, encode_lock(LockState(str(stranger)))),))
    r2.silent |= {R1, home}
    with capture_logs() as logged:
        for _ in range(3):
            await r2.locks.sweep(TAIL_NEVER)
    assert await r2.stand() == [f"r9-1-2 {stranger}"]
    warnings = [line for line in logged if line["log_level"] == "warning"]
    assert [(line["event"], line["tid"]) for line in warnings] == [("lock_of_no_transaction", str(stranger))]


async def pass_tail(ensemble: MemoryEnsemble, tail: Csn) -> None:
    """Move csn/tail; the records stay."""
    await ensemble.store("tail").multi((SetData(tree.TAIL, encode_csn(tail)),))


async def test_the_next_life_deletes_what_the_former_has_left(ensemble: MemoryEnsemble, r2: LockNode) -> None:
    """Uncommitted locks are deleted at once, committed ones when the tail has passed them."""
    async with LockNode(ensemble.store("r1")) as former:
        await former.take(1, part_ask(1))
        await former.take(2, part_ask(2))
        await former.take(3, wide_ask(OnePartition("y=1")))
        csn = await former.commit_removal(1)
        await killed(ensemble, former)
    async with LockNode(ensemble.store("r1 again")) as r1:
        await refused(r2, 1, part_ask(2))
        await r1.take(1, part_ask(2))
        assert r1.locks.held == 3
        await until(lambda: r1.reached >= csn)
        await r1.locks.sweep(csn)
        assert {line.split()[0] for line in await r2.stand()} == {"r9-1-1", "r9-1-2"}
        await r1.locks.sweep(Csn(csn + 1))
        assert await r2.stand() == [f"r9-1-2 {r1.tid(1)}"]
