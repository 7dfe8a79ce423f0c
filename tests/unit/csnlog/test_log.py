"""The log of one replica, over the store in memory: errors, fenced writes, barriers, outcomes, states."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.aio import until
from tests.support.clusters.log_node import (
    LIMITS,
    R1,
    R2,
    R3,
    LogNode,
    check_sequence,
    make_cluster,
    memory,
    tids_of,
)
from tests.support.clusters.resolving import nothing
from tests.support.zookeeper.store_suite import plain
from tidelock.csnlog import faults
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, TableId, Tid, csn
from tidelock.csnlog.core.model import LogRecord, RecordKind, SessionState, TidRecord
from tidelock.csnlog.core.results import Aborted, Committed, Ok, Reason, Refused, Running, TooOld, Unknown
from tidelock.csnlog.core.store import Check, Create, Delete, Node, SetData
from tidelock.csnlog.log import LogLimits, LogState, Proposal
from tidelock.csnlog.reading import read_page
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, RequestFault, StoreRequest, nth
from tidelock.errors import (
    CommitUnknownError,
    CorruptError,
    FencedError,
    HeadMovedError,
    LabelExistsError,
    MembersChangedError,
    SnapshotTooOldError,
    TableChangedError,
    TableExistsError,
    TooLargeError,
    UnavailableError,
    UnknownTransactionError,
)

ORDERS = TableId("d.orders")


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    """An ensemble with a cluster of three replicas and one table."""
    ensemble = MemoryEnsemble()
    store = ensemble.store("setup")
    await make_cluster(store)
    await store.multi((Create(tree.table(ORDERS), b"{}"),))
    return ensemble


@pytest.fixture
async def node(ensemble: MemoryEnsemble) -> AsyncIterator[LogNode]:
    """The log of r1, at rest."""
    async with LogNode(ensemble.store("r1")) as node:
        await until(lambda: node.log.fence > node.own.fence)
        yield node


@pytest.fixture
async def other(ensemble: MemoryEnsemble) -> AsyncIterator[LogNode]:
    """The log of r2."""
    async with LogNode(ensemble.store("r2"), R2) as node:
        yield node


async def fence(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """Another replica raises the fence of this one."""
    state = SessionState(node.own.boot + 1, node.own.disk, "foreign", "fenced")
    store = ensemble.store()
    assert isinstance(
        await store.multi((SetData(tree.session(node.replica), codec.encode_session(state)),)), Ok
    )


# ------------------------------------------------------------------------------------------- commit


async def test_commits_get_csns_and_everybody_follows(node: LogNode, other: LogNode) -> None:
    """Commits of two replicas are in one log, each once, and both deliver the same sequence (I1, I2)."""
    csns = await asyncio.gather(*(one.commit(n) for one in (node, other) for n in range(1, 51)))
    end = await node.log.barrier()
    await until(lambda: node.reached == other.reached == end)
    assert node.delivered == other.delivered
    check_sequence(node.delivered)
    found = tids_of(node.delivered)
    assert [found[str(one.tid(n))] for one in (node, other) for n in range(1, 51)] == [[c] for c in csns]
    assert node.states == [LogState.FOLLOWING]


async def test_commits_of_one_turn_of_the_loop_share_a_record(node: LogNode) -> None:
    """Commits that are ready together are sent together."""
    assert len(set(await asyncio.gather(*(node.commit(n) for n in range(1, 21))))) == 1


async def test_roll_over_under_load(ensemble: MemoryEnsemble) -> None:
    """With twenty records to an epoch, commits go on across epochs and followers too (F4)."""
    limits = LogLimits(epoch_limit=20, recheck_s=0.1, retry_s=0.005)
    async with (
        LogNode(ensemble.store(), R1, limits=limits) as one,
        LogNode(ensemble.store(), R2, limits=limits) as two,
    ):

        async def client(node: LogNode, first: int) -> None:
            for n in range(first, first + 30):
                await node.commit(n)

        await asyncio.gather(*(client(node, 100 * n) for node in (one, two) for n in range(1, 3)))
        end = await one.log.barrier()
        await until(lambda: one.reached == two.reached == end)
    assert one.delivered == two.delivered
    check_sequence(one.delivered)
    assert sum(each.record.kind is RecordKind.END for each in one.delivered) >= 2
    assert all(len(csns) == 1 for csns in tids_of(one.delivered).values())
    assert len(tids_of(one.delivered)) == 120


@pytest.mark.parametrize(
    ("more", "error", "details"),
    [
        ({"tables": {ORDERS: 7}}, TableChangedError, {"table": "d.orders"}),
        ({"ddl": (Create(tree.table(ORDERS)),)}, TableExistsError, {"table": "d.orders"}),
        ({"label": "taken"}, LabelExistsError, {"label": "taken"}),
        ({"head_version": 0}, HeadMovedError, {}),
        ({"roster": 7}, MembersChangedError, {"version": 7}),
    ],
)
async def test_refusals_are_errors_and_leave_nothing_in_the_log(
    node: LogNode, more: dict[str, object], error: type[Exception], details: dict[str, object]
) -> None:
    """Each cause has its error with details, and the log has no record of it."""
    await node.log.commit(node.proposal(1, label="taken"), timeout_s=30)
    with pytest.raises(error) as caught:
        await node.log.commit(node.proposal(2, **more), timeout_s=30)  # type: ignore[arg-type]
    assert details.items() <= caught.value.details.items()  # type: ignore[attr-defined]
    await node.commit(3)
    await until(lambda: node.reached == 3)
    assert str(node.tid(2)) not in tids_of(node.delivered)


async def test_a_commit_checks_the_roster_that_its_copies_were_counted_at(node: LogNode) -> None:
    """It is refused once the roster has changed; others of its batch are committed (rule copies)."""
    found = await memory(node).get(tree.REPLICAS)
    assert isinstance(found, Ok)
    version = found.value.version
    await node.log.commit(node.proposal(1, roster=version), timeout_s=30)
    await memory(node).multi((SetData(tree.REPLICAS),))
    counted = (node.proposal(2, roster=version), node.proposal(3), node.proposal(4, roster=version + 1))
    ended = await asyncio.gather(
        *(node.log.commit(one, timeout_s=30) for one in counted), return_exceptions=True
    )
    assert [type(one) for one in ended] == [MembersChangedError, Committed, Committed]
    again = await node.log.commit(node.proposal(2, roster=version + 1), timeout_s=30)
    assert again.csn > ended[1].csn  # type: ignore[union-attr]


async def test_a_transaction_that_is_too_large(node: LogNode) -> None:
    """A transaction that is too large is refused before a request is sent."""
    large = Proposal(TidRecord(str(node.tid(1)), meta={"x": "y" * 500_000}), {})
    with pytest.raises(TooLargeError, match="record_bytes_max"):
        await node.log.commit(large, timeout_s=30)


async def test_without_a_connection_a_commit_is_refused_in_time(node: LogNode) -> None:
    """A commit that was not sent in time is certainly not committed; later commits succeed."""
    memory(node).suspend()
    assert node.log.state is LogState.SUSPENDED
    with pytest.raises(UnavailableError, match="in time"):
        await node.commit(1, timeout_s=0.01)
    memory(node).resume()
    assert await node.commit(2) == 2
    assert node.states == [LogState.FOLLOWING, LogState.SUSPENDED, LogState.FOLLOWING]


async def test_a_commit_that_is_sent_and_not_answered_in_time(node: LogNode) -> None:
    """The commit is unknown to its caller; the log finds the outcome for a repeated commit()."""
    with faults.armed("csnlog.commit.before", "pause"):
        with pytest.raises(CommitUnknownError) as caught:
            await node.commit(1, timeout_s=0.01)
        assert caught.value.tid == str(node.tid(1))
        assert node.log.deciding(node.tid(1))
    assert await node.commit(1) == 2
    await until(lambda: node.reached == 2)
    assert await node.commit(1) == 2
    assert tids_of(node.delivered) == {str(node.tid(1)): [2]}


async def test_a_commit_is_decided_once_its_record_is_met(node: LogNode) -> None:
    """A caller that asks between the record and the answer to its multi gets the CSN at once."""
    with faults.armed("csnlog.commit.after", "pause"):
        committing = asyncio.create_task(node.commit(1))
        await until(lambda: node.reached == 2)
        assert not node.log.deciding(node.tid(1))
        assert await asyncio.wait_for(node.log.decided(node.tid(1)), timeout=1.0) == Committed(Csn(2))
    assert await committing == 2


async def test_two_callers_of_one_commit_share_its_fate(node: LogNode) -> None:
    """commit() is idempotent by tid, also at the same time."""
    assert await asyncio.gather(*(node.commit(1) for _ in range(5))) == [2] * 5


async def test_a_cancelled_caller_leaves_nothing_behind(node: LogNode) -> None:
    """A commit that was not sent is dropped; a commit that was sent is still decided."""
    memory(node).suspend()
    task = asyncio.create_task(node.commit(1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    memory(node).resume()
    assert not node.log.deciding(node.tid(1))
    assert await node.commit(2) == 2
    await until(lambda: node.reached == 2)
    assert tids_of(node.delivered) == {str(node.tid(2)): [2]}


@pytest.mark.parametrize("point", ["csnlog.commit", "csnlog.rollover", "csnlog.raise"])
@pytest.mark.parametrize("fault", [".before=once", ".after=once", ".after=lost-reply"])
async def test_a_fault_point_costs_no_commit(ensemble: MemoryEnsemble, point: str, fault: str) -> None:
    """A fault before a write prevents it, a fault after it loses the reply. Both end in one CSN."""
    name, kind = (point + fault).split("=")
    limits = LogLimits(epoch_limit=4, recheck_s=0.1, retry_s=0.005)
    with faults.armed(name, kind):
        async with LogNode(ensemble.store(), limits=limits) as node:
            csns = [await node.commit(n) for n in range(1, 8)]
            await until(lambda: node.reached >= csns[-1])
        assert faults.fired(name) == 1
    check_sequence(node.delivered)
    assert tids_of(node.delivered) == {str(node.tid(n)): [csns[n - 1]] for n in range(1, 8)}


async def test_an_own_commit_is_delivered_without_being_read(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """The home knows its own record, and delivers it although the read for it fails."""
    await node.commit(1)
    await until(lambda: node.reached == 2)
    ensemble.plan = lambda call: RequestFault.REQUEST_LOST if call.kind == "get" else None
    await node.commit(2)
    await until(lambda: node.reached == 3)


# ------------------------------------------------------------------------------------ fenced writes


async def test_a_fenced_write_counts_without_its_fence_check(node: LogNode) -> None:
    """Values and the index of a refusal count without the check of the fence."""
    made = await node.log.fenced((Create("pins/1"), SetData("pins")))
    assert isinstance(made, Ok)
    assert plain(made.value) == ("pins/1", 1)
    assert await node.log.fenced((Check("pins", 1), Create("pins/1"))) == Refused(Reason.NODE_EXISTS, 1)
    assert await node.log.fenced((Check("nowhere", 1),)) == Refused(Reason.NO_NODE, 0)
    memory(node).suspend()
    assert await node.log.fenced(()) == Refused(Reason.NOT_CONNECTED, 0)


@pytest.mark.parametrize(
    "fault",
    [RequestFault.REQUEST_LOST, RequestFault.REPLY_LOST, RequestFault.LATE, RequestFault.REPLY_LOST_EXPIRED],
)
async def test_a_fenced_write_that_ends_unknown_lands_no_later(
    ensemble: MemoryEnsemble, node: LogNode, fault: RequestFault
) -> None:
    """Unknown is returned after a raise of the fence, so a read decides (F3)."""
    before = node.log.fence
    ensemble.plan = nth(1, fault)
    assert isinstance(await node.log.fenced((Create("pins/1"),)), Unknown)
    assert node.log.fence > before
    there = ensemble.tree.get("pins/1") is not None
    ensemble.deliver_late()
    assert (ensemble.tree.get("pins/1") is not None) == there
    assert isinstance(await node.log.fenced(()), Ok)


async def test_a_fenced_write_that_meets_a_raise_is_repeated(node: LogNode) -> None:
    """A write that the own, newer fence refuses was certainly not applied, so it is sent again."""
    memory(node).expire()
    results = await asyncio.gather(*(node.log.fenced((Create(f"pins/{n}"),)) for n in range(20)))
    assert all(isinstance(one, Ok | Unknown) or one == Refused(Reason.NOT_CONNECTED) for one in results)
    await until(lambda: node.log.state is LogState.FOLLOWING)
    assert isinstance(await node.log.fenced(()), Ok)


async def test_a_fenced_replica_writes_nothing_more(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """The first refused write finds the foreign nonce; then all writes are refused."""
    await fence(ensemble, node)
    with pytest.raises(FencedError):
        await node.log.fenced((Create("pins/1"),))
    assert ensemble.tree.get("pins/1") is None
    await until(lambda: node.log.state is LogState.FENCED)
    for work in (node.commit(1), node.log.barrier(), node.log.fenced(())):
        with pytest.raises(FencedError):
            await work
    assert (node.states[-1], "fence" in node.log.reason) == (LogState.FENCED, True)


async def test_a_foreign_fence_is_told_before_the_batch_in_doubt_is_decided(
    ensemble: MemoryEnsemble, node: LogNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing new is accepted at once; the commit in doubt is looked up later, and told as it is (I17)."""
    lost = nth(1, RequestFault.REPLY_LOST, lambda call: call.store == "r1" and SetData(tree.HEAD) in call.ops)

    def plan(call: StoreRequest) -> RequestFault | None:
        if fault := lost(call):  # it raises no fence before another replica does
            asyncio.get_running_loop().call_soon(memory(node).suspend)
        return fault

    ensemble.plan = plan
    readable, get = asyncio.Event(), node.store.get

    async def slow(path: str, *, watch: Callable[[], None] | None = None) -> Ok[Node] | Refused | Unknown:
        """The record of the commit is not read before the test allows it."""
        if path == tree.record(Csn(2)):
            await readable.wait()
        return await get(path, watch=watch)

    monkeypatch.setattr(node.store, "get", slow)
    commit = asyncio.create_task(node.commit(1))
    await until(lambda: ensemble.tree.get(tree.record(Csn(2))) is not None)
    await fence(ensemble, node)
    memory(node).resume()
    await until(lambda: node.log.state is LogState.FENCING)
    assert (commit.done(), node.log.reason) == (False, "another replica has raised the fence of this one")
    with pytest.raises(FencedError):
        await node.log.fenced(())
    with pytest.raises(FencedError):
        await node.commit(2)
    readable.set()
    assert await commit == Csn(2)
    await until(lambda: node.log.state is LogState.FENCED)
    assert node.states[-2:] == [LogState.FENCING, LogState.FENCED]


async def test_a_commit_of_a_fenced_replica_is_aborted(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """A commit of a fenced replica is refused, and was certainly not applied."""
    await fence(ensemble, node)
    with pytest.raises(FencedError):
        await node.commit(1)
    assert node.log.state is LogState.FENCED


async def test_a_second_life_fences_the_first(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """A zombie of the same replica cannot write once its successor has started (F3d)."""
    async with LogNode(ensemble.store(), R1) as successor:
        with pytest.raises(FencedError):
            await node.commit(1)
        assert await successor.commit(1) == 2


# ------------------------------------------------------------------------------------------ barrier


async def test_a_barrier_sees_what_was_acknowledged(node: LogNode, other: LogNode) -> None:
    """The barrier returns the largest CSN of any replica, even while nothing is delivered here."""
    node.taking.clear()
    end = max([await other.commit(n) for n in range(1, 40)])
    assert await node.log.barrier() == end
    assert node.log.end <= end
    node.taking.set()
    await until(lambda: node.reached == end)
    assert node.log.end == end


async def test_a_barrier_of_a_new_log(node: LogNode) -> None:
    """A new log ends at CSN 1."""
    assert await node.log.barrier() == 1


@pytest.mark.parametrize("fault", list(RequestFault))
async def test_a_barrier_under_faults(
    ensemble: MemoryEnsemble, node: LogNode, other: LogNode, fault: RequestFault
) -> None:
    """A barrier is repeated, or unavailable; it never returns an old end."""
    end = await other.commit(1)
    for n in range(1, 8):
        ensemble.plan = nth(n, fault, lambda call: call.store == "r1")
        try:
            assert await node.log.barrier() == end
        except UnavailableError:
            await until(lambda: node.log.state is LogState.FOLLOWING)


async def test_a_barrier_needs_a_connection(node: LogNode) -> None:
    """Without a connection the newest CSN is not known."""
    memory(node).suspend()
    with pytest.raises(UnavailableError, match="no connection"):
        await node.log.barrier()


# ------------------------------------------------------------------------------------------ outcome


async def test_outcomes_are_looked_for_in_their_order(
    ensemble: MemoryEnsemble, node: LogNode, other: LogNode
) -> None:
    """An outcome is committed if found anywhere, else too old, else aborted by its boot, else running."""
    assert await other.commit(1) == 2
    await until(lambda: node.reached == 2)
    nothing = Csn(0)

    async def outcome(tid: Tid, floor: Csn = nothing) -> object:
        return await node.outcome(tid, floor=floor)

    assert await outcome(other.tid(1)) == Committed(Csn(2))
    assert await outcome(other.tid(2)) == Running()
    assert await outcome(other.tid(2), Csn(1)) == Running()
    assert await outcome(other.tid(2), Csn(2)) == TooOld(Csn(2))
    assert await outcome(Tid(Csn(1), R2, other.own.boot - 1, 9)) == Aborted()
    assert await outcome(Tid(Csn(1), R3, 0, 1)) == Running()
    await fence(ensemble, other)
    assert await outcome(other.tid(2)) == Aborted()
    assert await outcome(other.tid(1), Csn(2)) == Committed(Csn(2))
    with pytest.raises(UnknownTransactionError, match="names replica r9, which this cluster does not have"):
        await outcome(Tid(Csn(1), R1.__class__("r9"), 1, 1))


async def test_an_outcome_is_found_before_it_is_applied(node: LogNode, other: LogNode) -> None:
    """A record in the log, received, or being delivered is committed, for any boot."""
    node.taking.clear()
    for n in range(1, 30):
        await other.commit(n)
    for n in range(1, 30):
        assert isinstance(await node.outcome(other.tid(n), known=nothing), Committed)
    assert node.delivered == []


async def test_an_outcome_needs_a_connection(node: LogNode, other: LogNode) -> None:
    """Without a connection the log cannot be read to its end, so the outcome is an error."""
    memory(node).suspend()
    with pytest.raises(UnavailableError):
        await node.outcome(other.tid(1))


# -------------------------------------------------------------------------------- records, life, end


async def test_pages_of_the_log(ensemble: MemoryEnsemble) -> None:
    """From ZooKeeper, after a CSN, across epochs, from the tail on."""
    limits = LogLimits(epoch_limit=6, read_ahead=4)
    async with LogNode(ensemble.store(), limits=limits) as node:
        for n in range(1, 13):
            await node.commit(n)
        await until(lambda: len(tids_of(node.delivered)) == 12)
        everything = await node.log.records(Csn(1), 1000)
        assert everything == node.delivered
        assert await node.log.records(Csn(1), 3) == everything[:3]
        assert await node.log.records(everything[4].csn, 2) == everything[5:7]
        assert await node.log.records(everything[-1].csn, 5) == []
        assert [one.record.kind for one in await node.log.records(Csn(0), 1)] == [RecordKind.GENESIS]
        store = ensemble.store()
        await store.multi((SetData(tree.TAIL, codec.encode_csn(csn(1, 2))),))
        assert (await node.log.records(Csn(0), 2))[0].csn == csn(1, 2)
        with pytest.raises(SnapshotTooOldError) as refused:
            await node.log.records(Csn(1), 2)
        assert refused.value.details == {"min_csn": csn(1, 2)}
        memory(node).suspend()
        with pytest.raises(UnavailableError):
            await node.log.records(Csn(1), 1)


async def test_a_restart_goes_on_behind_its_position(ensemble: MemoryEnsemble) -> None:
    """No record is delivered twice or skipped, also if the position is an END record."""
    limits = LogLimits(epoch_limit=4)
    async with LogNode(ensemble.store(), limits=limits) as first:
        for n in range(1, 10):
            await first.commit(n)
        await until(lambda: len(tids_of(first.delivered)) == 9)
    for index, one in enumerate(first.delivered):
        async with LogNode(ensemble.store(), limits=limits, position=one.csn) as again:
            rest = first.delivered[index + 1 :]
            await until(lambda again=again, rest=rest: len(again.delivered) >= len(rest))  # type: ignore[misc]
            assert again.delivered == rest


@pytest.mark.scenario("S35")
async def test_a_receiver_that_fails_stops_the_log(ensemble: MemoryEnsemble) -> None:
    """I15: records that could not be taken are not skipped."""

    class Failing(LogNode):
        async def deliver(self, records: list[LogRecord]) -> None:
            raise OSError("disk full")

    async with Failing(ensemble.store()) as node:
        await asyncio.gather(node.commit(1), return_exceptions=True)
        await until(lambda: node.log.state is LogState.STOPPED)
        assert "disk full" in node.log.reason
        with pytest.raises(UnavailableError, match="disk full"):
            await node.commit(2)


async def test_a_newer_record_stops_the_log(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """An older agent stops at what it cannot read, and says where."""
    await ensemble.store().multi((Create(tree.record_prefix(0), b'{"v":9}', sequential=True),))
    await until(lambda: node.log.state is LogState.STOPPED)
    assert node.log.reason.startswith("at CSN 2: ")
    assert "upgrade" in node.log.reason
    with pytest.raises(UnavailableError, match="ended"):
        await node.log.barrier()


async def test_a_page_with_a_broken_record(ensemble: MemoryEnsemble) -> None:
    """The error of a page names the broken record."""
    store = ensemble.store()
    await store.multi((Create(tree.record_prefix(0), b"nonsense", sequential=True),))
    with pytest.raises(CorruptError, match="CSN 2"):
        await read_page(store, Csn(1), 5, read_ahead=4)


async def test_a_replica_below_the_tail_is_too_late(ensemble: MemoryEnsemble, node: LogNode) -> None:
    """A replica below the tail must be cloned; it neither waits forever nor skips records."""
    for n in range(1, 6):
        await node.commit(n)
    store = ensemble.store()
    await store.multi((SetData(tree.TAIL, codec.encode_csn(Csn(5))),))
    await store.multi(tuple(Delete(tree.record(Csn(n)), 0) for n in range(5)))
    async with LogNode(ensemble.store(), R2) as late:
        await until(lambda: late.log.state is LogState.TOO_LATE)
        assert (late.states[-1], "clone" in late.log.reason) == (LogState.TOO_LATE, True)
        with pytest.raises(UnavailableError):
            await late.commit(1)


async def test_before_the_start_and_after_the_end(ensemble: MemoryEnsemble) -> None:
    """Fenced writes work before the start (a clone pins), commits do not; closing answers all callers."""
    async with LogNode(ensemble.store(), start=False) as node:
        assert isinstance(await node.log.fenced((Create("pins/1"),)), Ok)
        for work in (node.commit(1), node.log.barrier(), node.log.records(Csn(1), 1)):
            with pytest.raises(UnavailableError, match="not running"):
                await work
        await node.log.start(Csn(1))
        assert await node.commit(1) == 2
        memory(node).suspend()
        waiting = asyncio.create_task(node.commit(2))
        await asyncio.sleep(0)
        await node.log.close()
        with pytest.raises(UnavailableError, match="closing"):
            await waiting
        await node.log.close()
    with pytest.raises(UnavailableError):
        await node.commit(3)
    assert await node.commit(1) == 2


async def test_a_commit_that_is_under_way_at_the_end_stays_unknown(node: LogNode) -> None:
    """A commit that runs at the end of the log stays unknown, however often its caller asks."""
    with faults.armed("csnlog.commit.before", "pause"):
        waiting = asyncio.create_task(node.commit(1))
        await until(lambda: faults.hits("csnlog.commit.before"))
        await node.log.close()
    for again in (waiting, node.commit(1)):
        with pytest.raises(CommitUnknownError):
            await again


def test_the_tests_limits_are_those_of_an_agent() -> None:
    """The limits of tests differ from an agent's only in pauses."""
    assert (LIMITS.record_bytes_max, LIMITS.read_ahead) == (
        LogLimits().record_bytes_max,
        LogLimits().read_ahead,
    )
