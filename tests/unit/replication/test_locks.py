"""Removal locks over a store in memory: the first locker wins, under loss, delay, cancellation and kills."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.aio import until, until_async
from tests.support.clusters.lock_node import ORDERS, LockNode, part_ask, refused, wide_ask
from tests.support.clusters.log_node import R2, make_cluster
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.csnlog.core.store import Create, Delete
from tidelock.csnlog.testing.memory_store import (
    MemoryEnsemble,
    MemoryStore,
    RequestFault,
    StoreRequest,
    is_multi,
    nth,
)
from tidelock.errors import (
    SerializationConflictError,
    TooLargeError,
    TransactionClosedError,
    UnavailableError,
    UpgradeNeededError,
)
from tidelock.replication.core.lock_rules import KeyRange, LockAsk, OnePartition, WholeTable

TAIL_NEVER = Csn(0)


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    """An ensemble with a cluster of three replicas."""
    ensemble = MemoryEnsemble()
    await make_cluster(ensemble.store("setup"))
    return ensemble


@pytest.fixture
async def r1(ensemble: MemoryEnsemble) -> AsyncIterator[LockNode]:
    """The locks of r1."""
    async with LockNode(ensemble.store("r1")) as node:
        await until(lambda: node.log.fence > node.own.fence)
        yield node


@pytest.fixture
async def r2(ensemble: MemoryEnsemble) -> AsyncIterator[LockNode]:
    """The locks of r2."""
    async with LockNode(ensemble.store("r2"), R2) as node:
        await until(lambda: node.log.fence > node.own.fence)
        yield node


# ------------------------------------------------------------------------------------------------ who wins


async def test_the_first_locker_wins(r1: LockNode, r2: LockNode) -> None:
    """The second locker learns at once who holds which part, and gets nothing of its request."""
    await r1.take(1, part_ask(1, 2))
    error = await refused(r2, 1, part_ask(0, 2, 3))
    assert error.details == {"table": ORDERS, "part": "r9-1-2", "holder": str(r1.tid(1)), "merge": False}
    assert await r1.stand() == [f"r9-1-1 {r1.tid(1)}", f"r9-1-2 {r1.tid(1)}"]
    assert (r1.locks.held, r2.locks.held) == (2, 0)


async def test_disjoint_parts_both_win(r1: LockNode, r2: LockNode) -> None:
    """Locks of different parts in one table and partition are taken at once."""
    await asyncio.gather(r1.take(1, part_ask(1, 2)), r2.take(1, part_ask(3, 4)))
    assert len(await r1.stand()) == 4


async def test_more_parts_than_fit_one_request(ensemble: MemoryEnsemble, r1: LockNode, r2: LockNode) -> None:
    """In multis of at most 1,000 in the order of the ids, each with the mark; all go on a conflict."""
    await r2.take(1, part_ask(99_999))
    sent: list[StoreRequest] = []
    ensemble.plan = sent.append
    await refused(r1, 1, part_ask(*range(10_000, 12_500), 99_999))
    makes = [call for call in sent if any(isinstance(op, Create) for op in call.ops)]
    assert [sum(isinstance(op, Create) for op in call.ops) for call in makes] == [1000, 1000, 501]
    assert all(tree.lock_dir(ORDERS) in {op.path for op in call.ops} for call in makes)
    deletes = [sum(isinstance(op, Delete) for op in call.ops) for call in sent if is_multi(call)]
    assert sum(deletes) == 2000
    assert max(deletes) == 1000
    assert await r1.stand() == [f"r9-1-99999 {r2.tid(1)}"]


@pytest.mark.parametrize("wide", [WholeTable(), OnePartition("y=1"), OnePartition("")])
async def test_a_wide_lock_and_a_part(r1: LockNode, r2: LockNode, wide: WholeTable | OnePartition) -> None:
    """The second locker loses, in both orders; other partitions do not matter."""
    await r1.take(1, part_ask(1, path="y=1"))
    error = await refused(r2, 1, wide_ask(wide))
    assert (error.details["part"], error.details["holder"]) == ("r9-1-1", str(r1.tid(1)))
    await r1.roll_back(1)
    await r2.take(1, wide_ask(wide))
    error = await refused(r1, 2, part_ask(2, path="y=1"))
    assert error.details["holder"] == str(r2.tid(1))
    assert "part" not in error.details
    if wide == OnePartition("y=1"):
        await r1.take(3, part_ask(3, path="y=2"))
    else:
        await refused(r1, 3, part_ask(3, path="y=2"))


async def test_at_once_one_of_two_wins(r1: LockNode, r2: LockNode) -> None:
    """Of a part and its table, requested at once, exactly one is locked, in many rounds."""
    for counter in range(1, 40):
        asks = (r1.take(counter, part_ask(1)), r2.take(counter, wide_ask(WholeTable())))
        ends = await asyncio.gather(*asks, return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["NoneType", "SerializationConflictError"]
        for node in (r1, r2):
            await node.roll_back(counter)
    assert not await r1.stand()


async def test_ranges_of_keys_conflict_where_they_overlap(r1: LockNode, r2: LockNode) -> None:
    """Ranges that overlap conflict, others do not, and neither do ranges with parts and tables."""
    await r1.take(1, part_ask(1))
    await asyncio.gather(r1.take(2, wide_ask(KeyRange(1, 5))), r2.take(1, wide_ask(KeyRange(6, 9))))
    error = await refused(r2, 2, wide_ask(KeyRange(4, 4)))
    assert error.details["keys"] == [1, 5]


async def test_locks_of_other_partitions_are_read_once(
    ensemble: MemoryEnsemble, r1: LockNode, r2: LockNode
) -> None:
    """A part stays in its partition under any holder; the holder is read again only where it matters."""
    await r2.take(1, part_ask(*range(1, 41), path="y=2"))
    sent: list[StoreRequest] = []
    ensemble.plan = sent.append
    counts = []
    for counter in (1, 2):
        sent.clear()
        await r1.take(counter, wide_ask(OnePartition(f"y=1/m={counter}")))
        counts.append(sum(call.kind == "get" and "/r9-1-" in call.path for call in sent))
    assert counts == [40, 0]
    await r2.roll_back(1)
    await r2.take(2, part_ask(7, path="y=2"))
    error = await refused(r1, 3, wide_ask(OnePartition("y=2")))
    assert error.details["holder"] == str(r2.tid(2))


async def test_what_is_held_is_not_locked_again(ensemble: MemoryEnsemble, r1: LockNode) -> None:
    """A later statement of the same transaction locks what is new only; a wide lock covers parts."""
    await r1.take(1, part_ask(1))
    await r1.take(1, part_ask(1, 2))
    await r1.take(1, wide_ask(WholeTable()))
    sent: list[StoreRequest] = []
    ensemble.plan = sent.append
    await r1.take(1, part_ask(3))
    assert not sent
    assert r1.locks.held == 3
    await r1.roll_back(1)
    assert not await r1.stand()


@pytest.mark.parametrize("scope", [WholeTable(), OnePartition("y=1")])
async def test_what_is_held_in_another_table_covers_nothing(
    r1: LockNode, r2: LockNode, scope: WholeTable | OnePartition
) -> None:
    """Tables have partitions of the same name; each is locked by itself."""
    await r1.take(1, wide_ask(scope))
    lines = LockAsk(TableId("default.lines"), {}, (scope,))
    await r1.take(1, lines)
    error = await refused(r2, 1, lines)
    assert (error.details["table"], error.details["holder"]) == (lines.table, str(r1.tid(1)))


async def test_a_failed_take_keeps_what_was_held_before(r1: LockNode, r2: LockNode) -> None:
    """A failed call gives back only its own locks."""
    await r1.take(1, part_ask(1))
    await r2.take(1, part_ask(2))
    await refused(r1, 1, part_ask(1, 3, 2))
    assert await r1.stand() == [f"r9-1-1 {r1.tid(1)}", f"r9-1-2 {r2.tid(1)}"]


# ------------------------------------------------------------------------------------------- who is committed


async def test_what_the_statement_sees_is_in_nobodys_way(r1: LockNode, r2: LockNode) -> None:
    """A removal that is committed up to `at` hinders no wide lock; one above it does, and says its CSN."""
    await r1.take(1, part_ask(1))
    await r1.take(2, wide_ask(OnePartition("y=1")))
    first, second = await r1.commit_removal(1), await r1.commit_removal(2)
    await until(lambda: r2.reached >= second)
    error = await refused(r2, 1, wide_ask(WholeTable()), at=first)
    assert error.details["csn"] == second
    await r2.take(1, wide_ask(WholeTable()), at=second)
    error = await refused(r2, 2, part_ask(1), at=second)
    assert error.details["csn"] == first


async def test_locks_of_a_committed_removal_stay_until_the_tail(r1: LockNode, r2: LockNode) -> None:
    """They stay until the tail passes, or a replica that lags would get the lock and miss the removal."""
    await r1.take(1, part_ask(1, 2))
    csn = await r1.commit_removal(1)
    await r1.locks.release(r1.tid(1))
    await r1.locks.sweep(csn)
    assert len(await r1.stand()) == 2
    await refused(r2, 1, part_ask(1))
    await r1.locks.sweep(Csn(csn + 1))
    assert not await r1.stand()
    assert r1.locks.held == 0


# ------------------------------------------------------------------------------------------------- waiting


async def test_a_statement_waits_for_a_compaction(ensemble: MemoryEnsemble, r2: LockNode) -> None:
    """A statement waits for a running compaction, not for a committed one; a compaction never waits."""
    async with LockNode(ensemble.store("r1"), limits={"compaction_lock_wait_s": 20.0}) as r1:
        await r2.take(1, part_ask(1), merge=True)
        await refused(r1, 1, part_ask(1), merge=True)
        waiting = asyncio.create_task(r1.take(2, part_ask(1)))
        await until(lambda: r2.tid(1) in r1.asked)
        assert not waiting.done()
        await r2.roll_back(1)
        await waiting
        await r2.take(2, part_ask(2), merge=True)
        csn = await r2.commit_removal(2)
        error = await refused(r1, 3, part_ask(2))
        assert (error.details["merge"], error.details["csn"]) == (True, csn)


async def test_a_bounded_wait_for_anybody(r1: LockNode, r2: LockNode) -> None:
    """A bounded wait for any holder is possible on request."""
    await r1.take(1, part_ask(1))
    await refused(r2, 1, part_ask(1), wait_s=0.01)
    waiting = asyncio.create_task(r2.take(2, part_ask(1), wait_s=20.0))
    await until(lambda: len(r2.asked) > 1)
    await r1.roll_back(1)
    await waiting


async def test_a_rollback_ends_a_wait(r1: LockNode, r2: LockNode) -> None:
    """A take that runs when its transaction is given back keeps nothing."""
    await r1.take(1, part_ask(1))
    waiting = asyncio.create_task(r2.take(1, part_ask(1), wait_s=20.0))
    await until(lambda: r2.asked)
    await r2.roll_back(1)
    with pytest.raises(SerializationConflictError):
        await waiting
    await r1.roll_back(1)
    taking = asyncio.create_task(r2.take(2, part_ask(1)))
    await asyncio.sleep(0)
    await r2.roll_back(2)
    with pytest.raises(TransactionClosedError):
        await taking
    assert not await r1.stand()
    assert r2.locks.held == 0


# -------------------------------------------------------------------------------------------------- bounds


async def test_locks_of_a_transaction_are_bounded(r1: LockNode) -> None:
    """Nothing is taken beyond the bound, and the error says what to do."""
    await r1.take(1, part_ask(1))
    with pytest.raises(TooLargeError, match="locks_max=5000") as raised:
        await r1.take(1, part_ask(*range(2, 5002)))
    assert raised.value.details == {"limit": 5000, "found": 5001}
    assert len(await r1.stand()) == 1


async def test_locks_of_a_table_are_bounded(ensemble: MemoryEnsemble, r1: LockNode) -> None:
    """The bound of a table holds for locks of parts and for wide ones."""
    await r1.take(1, part_ask(1, 2))
    async with LockNode(ensemble.store("r2"), R2, limits={"table_locks_max": 3}) as r2:
        for ask in (part_ask(3), wide_ask(OnePartition("y=1"))):
            with pytest.raises(TooLargeError, match="table_locks_max=3"):
                await r2.take(1, ask)


# --------------------------------------------------------------------------------------------- lost answers

DOUBTFUL = [
    RequestFault.REQUEST_LOST,
    RequestFault.REPLY_LOST,
    RequestFault.LATE,
    RequestFault.EXPIRED,
    RequestFault.REPLY_LOST_EXPIRED,
]


@pytest.mark.parametrize("fault", [RequestFault.NOT_CONNECTED, *DOUBTFUL])
@pytest.mark.parametrize("ask", [part_ask(1, 2), wide_ask(WholeTable())], ids=["parts", "wide"])
async def test_any_request_of_a_take_may_fail(
    ensemble: MemoryEnsemble, r1: LockNode, r2: LockNode, fault: RequestFault, ask: LockAsk
) -> None:
    """After any failed request the lock is made once in the end, and given back in the end."""
    requests = 0

    def count(call: StoreRequest) -> None:
        nonlocal requests
        requests += call.store == "r1"

    ensemble.plan = count
    await r1.take(1, ask)
    await r1.roll_back(1)
    assert requests > 5
    for number in range(1, requests + 1):
        counter = number + 1
        ensemble.plan = nth(number, fault, lambda call: call.store == "r1")
        await r1.take(counter, ask)
        await refused(r2, counter, ask)
        await r1.roll_back(counter)
        ensemble.deliver_late()
        await r1.locks.sweep(TAIL_NEVER)
        assert not await r2.stand()
        assert r1.locks.held == 0


@pytest.mark.parametrize("fault", DOUBTFUL)
async def test_a_cancelled_take_leaves_nothing(
    ensemble: MemoryEnsemble, r1: LockNode, r2: LockNode, fault: RequestFault
) -> None:
    """The request of a cancelled take may land later; the lock is then deleted."""
    sent = asyncio.Event()

    def makes_the_locks(call: StoreRequest) -> bool:
        makes = any(op.path.endswith("r9-1-1") for op in call.ops)
        if makes:
            sent.set()
        return makes

    await r2.take(1, part_ask(9))  # makes the directories, so that the first request of the test makes locks
    ensemble.plan = nth(1, fault, makes_the_locks)
    taking = asyncio.create_task(r1.take(1, part_ask(1, 2)))
    await sent.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await r1.roll_back(1)
    ensemble.deliver_late()
    await until_async(lambda: swept(r1), what="nothing held")
    assert await r2.stand() == [f"r9-1-9 {r2.tid(1)}"]
    await r2.take(1, part_ask(1, 2))


async def swept(node: LockNode) -> bool:
    """Return whether nothing is left after a sweep."""
    await node.locks.sweep(TAIL_NEVER)
    return node.locks.held == 0


async def test_what_cannot_be_given_back_goes_later(ensemble: MemoryEnsemble, r2: LockNode) -> None:
    """Without a connection a rollback ends at once, a statement after its wait; locks are deleted later."""
    store = ensemble.store("r1")
    async with LockNode(store, limits={"connect_wait_s": 0.1}) as r1:
        await r1.take(1, part_ask(1))
        store.suspend()
        await r1.roll_back(1)
        assert r1.locks.held == 1
        with pytest.raises(UnavailableError):
            await r1.take(2, part_ask(2))
        store.resume()
        await until_async(lambda: swept(r1), what="nothing held")
        assert not await r2.stand()


async def test_what_is_locked_is_told_as_a_hint(r1: LockNode, r2: LockNode) -> None:
    """The hint has the locked parts of all holders, without wider locks, at once or not at all."""
    assert await r2.locks.locked_parts(ORDERS) == set()
    await r1.take(1, part_ask(1, 2))
    await r1.take(1, wide_ask(WholeTable()))
    assert await r2.locks.locked_parts(ORDERS) == {"r9-1-1", "r9-1-2"}
    assert isinstance(r2.store, MemoryStore)
    r2.store.suspend()
    with pytest.raises(UnavailableError):
        await r2.locks.locked_parts(ORDERS)
    r2.store.resume()


async def test_an_own_leftover_is_taken_by_the_next(r1: LockNode, r2: LockNode) -> None:
    """An own leftover lock is taken over by the next statement, without a sweep."""
    await r1.take(1, part_ask(1))
    assert isinstance(r1.store, MemoryStore)
    r1.store.suspend()
    await r1.roll_back(1)
    r1.store.resume()
    await until(lambda: r1.store.session)
    await r1.take(2, part_ask(1))
    assert await r2.stand() == [f"r9-1-1 {r1.tid(2)}"]


async def test_a_lock_that_nobody_can_read_is_not_ignored(ensemble: MemoryEnsemble, r1: LockNode) -> None:
    """A newer version has made it: who would have to judge it stops, the list leaves it out."""
    await r1.take(1, part_ask(1))
    strange = Create(tree.lock(ORDERS, PartId("r9-1-2")), b'{"v":2,"tid":"1-r2-1-1","colour":"red"}')
    await ensemble.store("newer").multi((strange,))
    for ask in (part_ask(2), wide_ask(WholeTable())):
        with pytest.raises(UpgradeNeededError):
            await r1.take(2, ask)
    assert len(await r1.locks.listed()) == 1
