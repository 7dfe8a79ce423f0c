"""The group committer, first part: the multi, batches and their bounds, refusals, roll-over."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.machines.committing import ITEMS, LOST, ORDERS, R1, Bench, new_tree, proposal, records, tid
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.batch import LogLimits, Proposal
from tidelock.csnlog.core.committer_messages import (
    Cause,
    DeadlinePassed,
    DrawNonce,
    Followed,
    LinkChanged,
    ReadEpoch,
    Rejected,
    SendCommit,
    SendRaise,
    SendRollover,
    TickWanted,
    Undecided,
)
from tidelock.csnlog.core.ids import CSN_NONE, NO_STAMP, Csn, csn
from tidelock.csnlog.core.model import LabelState, RecordKind, TidRecord
from tidelock.csnlog.core.results import Committed, Ok, Reason, Refused
from tidelock.csnlog.core.store import Check, Create, Op, SetData, Written


def batch_of(bench: Bench) -> list[int]:
    """Return the counters of the transactions in the running commit."""
    assert isinstance(bench.request, SendCommit)
    return [int(item.tid.rpartition("-")[2]) for item in bench.request.plan.batch]


@pytest.fixture
def bench() -> Bench:
    """A machine at rest: connected, fence raised, epoch known."""
    made = Bench()
    made.serve_all()
    return made


def test_a_new_session_raises_the_fence_before_anything_is_read() -> None:
    """Reads of a session that has written nothing may be old (rule unknown), so it raises the fence first."""
    bench = Bench()
    bench.propose(proposal(1))
    seen = []
    while bench.request is not None and not bench.awaits(SendCommit):
        seen.append(type(bench.request))
        bench.serve()
    assert seen == [DrawNonce, SendRaise, ReadEpoch]
    assert bench.raised == [1]


def test_the_commit_multi_ends_with_the_record(bench: Bench) -> None:
    """The multi has the elements of the design, checks each table once, and ends with the record."""
    bench.propose(proposal(0))
    bench.propose(
        proposal(1, {ORDERS: 0, ITEMS: 0}),
        proposal(2, {ORDERS: 0}, label="nightly"),
        proposal(3, {}, ddl=(Create("tables/d.new", b"{}"),)),
    )
    bench.serve()
    assert batch_of(bench) == [1, 2, 3]
    session = codec.decode_session(bench.tree.get(tree.session(R1)).data)  # type: ignore[union-attr]
    assert (session.boot, session.state) == (1, "serving")
    expected: tuple[Op, ...] = (
        Check("replicas/r1/session", 1),
        Check("csn/epoch", 0),
        Check("tables/d.orders", 0),
        Check("tables/d.items", 0),
        Create(tree.label("nightly"), codec.encode_label(LabelState(tid(2)))),
        Create("tables/d.new", b"{}"),
        SetData("csn/head"),
    )
    ops = bench.ops()
    assert ops[:-1] == expected
    assert isinstance(ops[-1], Create)
    assert (ops[-1].path, ops[-1].sequential) == ("csn/0/csn-", True)
    bench.serve()
    number, record = records(bench.tree)[-1]
    assert (record.kind, record.home, [one.tid for one in record.tids]) == (
        RecordKind.COMMIT,
        R1,
        [tid(1), tid(2), tid(3)],
    )
    assert [bench.decision(n) for n in (0, 1, 2, 3)] == [Committed(Csn(2)), *[Committed(number)] * 3]
    assert bench.version(tree.HEAD) == 2


def test_a_tick_is_a_record_without_transactions(bench: Bench) -> None:
    """It is fenced as every record is, and one is enough however often it is asked for."""
    bench.tell(TickWanted())
    bench.tell(TickWanted())
    ops = bench.ops()
    assert ops[:-1] == (Check("replicas/r1/session", 1), Check("csn/epoch", 0), SetData("csn/head"))
    before = len(records(bench.tree))
    bench.serve()
    number, record = records(bench.tree)[-1]
    assert (len(records(bench.tree)), record.kind, record.tids) == (before + 1, RecordKind.COMMIT, ())
    assert bench.machine.end == number
    assert bench.request is None


def test_a_tick_gives_way_to_transactions(bench: Bench) -> None:
    """Their record moves the log's time as well."""
    bench.tell(LinkChanged(connected=False, session=1))
    bench.tell(TickWanted())
    bench.propose(proposal(1))
    bench.connect(1)
    assert batch_of(bench) == [1]
    bench.serve()
    assert bench.request is None


def test_a_tick_in_doubt_is_not_sent_again(bench: Bench) -> None:
    """It has no caller: the fence is raised, the log is read, and the next transaction goes on."""
    bench.tell(TickWanted())
    bench.apply(bench.ops())
    bench.answer_multi(LOST, session=0)
    before = len(records(bench.tree))
    while bench.request is not None:
        bench.serve()
    assert len(records(bench.tree)) == before
    bench.propose(proposal(1))
    bench.serve()
    assert bench.decision(1) == Committed(records(bench.tree)[-1][0])


def test_what_arrives_during_a_commit_makes_the_next_batch(bench: Bench) -> None:
    """While one multi is running, other transactions collect into the next batch, in order."""
    bench.propose(proposal(1))
    assert batch_of(bench) == [1]
    bench.propose(*(proposal(n) for n in range(2, 7)))
    bench.serve()
    assert batch_of(bench) == [2, 3, 4, 5, 6]
    bench.serve()
    assert bench.request is None
    assert bench.log() == {tid(1): [2], **{tid(n): [3] for n in range(2, 7)}}


def test_a_batch_has_at_most_so_many_tids() -> None:
    """batch_tids_max bounds a record."""
    bench = Bench(limits=LogLimits(batch_tids_max=3))
    bench.propose(*(proposal(n) for n in range(1, 8)))
    bench.serve_all()
    assert [len(record.tids) for _, record in records(bench.tree)[2:]] == [3, 3, 1]


def test_a_record_has_at_most_so_many_bytes() -> None:
    """record_bytes_max bounds a record, exactly to its written bytes."""
    items = [Proposal(TidRecord(tid(n), meta={"x": "y" * 100}), {}) for n in range(1, 10)]
    limit = codec.commit_bytes(R1, [len(codec.encode_tid(one.record)) for one in items[:4]])
    for bytes_max, expected in ((limit, [4, 4, 1]), (limit - 1, [3, 3, 3])):
        bench = Bench(limits=LogLimits(record_bytes_max=bytes_max))
        bench.propose(*items)
        bench.serve_all()
        assert [len(record.tids) for _, record in records(bench.tree)[2:]] == expected
        assert all(len(codec.encode_record(record)) <= bytes_max for _, record in records(bench.tree))


def test_a_multi_has_at_most_so_many_bytes() -> None:
    """multi_bytes_max bounds the elements too, not only the record."""
    ddl = [proposal(n, {}, ddl=(Create(f"tables/d.t{n}", b"x" * 1000),)) for n in range(1, 7)]
    bench = Bench(limits=LogLimits(multi_bytes_max=3000))
    bench.propose(*ddl)
    bench.serve_all()
    assert [len(record.tids) for _, record in records(bench.tree)[2:]] == [2, 2, 2]


@pytest.mark.parametrize(("limit", "bytes_max"), [("record_bytes_max", 600), ("multi_bytes_max", 700)])
def test_a_transaction_that_fits_no_record_is_refused(limit: str, bytes_max: int) -> None:
    """A transaction that is too large alone is refused before a request; the others go on (S10)."""
    bench = Bench(limits=replace(LogLimits(), **{limit: bytes_max}))
    large = Proposal(TidRecord(tid(1), meta={"x": "y" * 800}), {})
    bench.propose(large, proposal(2))
    bench.serve_all()
    decision = bench.decision(1)
    assert isinstance(decision, Rejected)
    assert (decision.cause, limit in decision.detail) == (Cause.TOO_LARGE, True)
    assert bench.decision(2) == Committed(Csn(2))


def test_the_queue_is_bounded() -> None:
    """Beyond queue_tids_max commits are refused at once (I16); waiting ones go on."""
    bench = Bench(limits=LogLimits(queue_tids_max=2), connect=False)
    bench.propose(*(proposal(n) for n in range(1, 4)))
    assert bench.verdicts == {tid(3): [Rejected(Cause.QUEUE_FULL, "2")]}
    bench.connect()
    bench.serve_all()
    assert set(bench.log()) == {tid(1), tid(2)}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (proposal(1, label="a"), proposal(2, label="a")),
        (proposal(1, ddl=(Create("tables/d.x"),)), proposal(2, ddl=(Create("tables/d.x"),))),
        (proposal(1, {ORDERS: 0}), proposal(2, {ORDERS: 0}, ddl=(SetData("tables/d.orders", b"{}"),))),
        (proposal(1, {ORDERS: 0}, ddl=(SetData("tables/d.orders", b"{}"),)), proposal(2, {ORDERS: 0})),
        (proposal(1, {ORDERS: 0}), proposal(2, {ORDERS: 1})),
        (proposal(1), proposal(2, head_version=0)),
        (proposal(1, head_version=0), proposal(2)),
    ],
)
def test_transactions_that_contradict_each_other_do_not_share_a_batch(
    first: Proposal, second: Proposal
) -> None:
    """Transactions that would refuse each other are sent one after the other; others may overtake them."""
    bench = Bench(connect=False)
    bench.propose(first, second, proposal(3, {ITEMS: 0}))
    bench.connect()
    bench.serve_until(SendCommit)
    assert batch_of(bench) == ([1] if first.head_version is not None else [1, 3])
    bench.serve()
    assert 2 in batch_of(bench)


def test_one_table_is_one_check_and_one_label_one_create(bench: Bench) -> None:
    """Different labels share a batch, equal versions share a check."""
    bench.propose(proposal(0))
    bench.propose(*(proposal(n, {ORDERS: 0}, label=f"l{n}") for n in range(1, 5)))
    bench.serve()
    kinds = [type(op) for op in bench.ops()]
    assert (kinds.count(Check), kinds.count(Create)) == (3, 5)


@pytest.mark.scenario("S13")
def test_a_transaction_is_proposed_twice_and_committed_once(bench: Bench) -> None:
    """commit() may be repeated while the first call waits or runs (S13)."""
    bench.propose(proposal(1), proposal(1), proposal(2), proposal(2))
    bench.serve_all()
    assert bench.log() == {tid(1): [2], tid(2): [3]}
    assert bench.verdicts == {tid(1): [Committed(Csn(2))], tid(2): [Committed(Csn(3))]}


# ------------------------------------------------------------------------------------------ refusals


def test_a_table_that_never_was_refuses_too(bench: Bench) -> None:
    """A failed check of a missing table counts as a changed table, not as a broken log."""
    bench.propose(proposal(1, {ORDERS.__class__("d.ghost"): 0}), proposal(2))
    bench.serve_all()
    assert bench.decision(1) == Rejected(Cause.TABLE_CHANGED, "tables/d.ghost")
    assert bench.decision(2) == Committed(Csn(2))


def test_a_change_of_a_table_checks_the_version_that_it_changes(bench: Bench) -> None:
    """The second change of one version is refused; each definition has a new version."""
    for n in (1, 2):
        bench.propose(proposal(n, {ORDERS: 0}, ddl=(SetData(tree.table(ORDERS), b"v1", 0),)))
    bench.serve_all()
    assert bench.decision(1) == Committed(Csn(2))
    assert bench.decision(2) == Rejected(Cause.TABLE_CHANGED, "tables/d.orders")
    assert bench.version(tree.table(ORDERS)) == 1


def test_a_request_that_the_store_finds_too_large_is_halved(bench: Bench) -> None:
    """A request above the store's own limit is halved; a single transaction above it is refused."""
    bench.propose(proposal(0))
    bench.propose(*(proposal(n) for n in range(1, 5)))
    bench.serve()
    sizes = []
    while bench.awaits(SendCommit):
        sizes.append(len(batch_of(bench)))
        if len(batch_of(bench)) > 1 or batch_of(bench) == [1]:
            bench.answer_multi(Refused(Reason.TOO_LARGE))
        else:
            bench.serve()
    assert sizes == [4, 2, 1, 1, 2, 1, 1]
    decision = bench.decision(1)
    assert isinstance(decision, Rejected)
    assert decision.cause is Cause.TOO_LARGE
    assert set(bench.log()) == {tid(n) for n in (0, 2, 3, 4)}


def test_without_a_connection_transactions_wait(bench: Bench) -> None:
    """A commit that was certainly not sent keeps its place in the queue."""
    bench.propose(proposal(1), proposal(2))
    bench.answer_multi(Refused(Reason.NOT_CONNECTED))
    bench.tell(LinkChanged(connected=False, session=1))
    bench.propose(proposal(3))
    assert bench.request is None
    bench.connect(session=1)
    assert batch_of(bench) == [1, 2, 3]
    bench.serve_all()
    assert bench.raised == [1]


@pytest.mark.scenario("S18")
@pytest.mark.parametrize("path", ["csn/0/csn--000000001", "csn/0/csn-2147483648", "elsewhere"])
def test_a_number_that_is_none_stops_the_log(bench: Bench, path: str) -> None:
    """Beyond its edge ZooKeeper gives numbers that repeat or are negative (Z1)."""
    bench.propose(proposal(1))
    bench.answer_multi(Ok((None, None, Written(1, NO_STAMP), path)))
    assert bench.halted
    assert not isinstance(bench.decision(1), Committed | Rejected)


# ----------------------------------------------------------------------------------------- roll-over


@pytest.mark.scenario("S18")
def test_an_epoch_ends_with_an_end_record() -> None:
    """At epoch_limit one multi closes the epoch and opens the next one (F4)."""
    bench = Bench(limits=LogLimits(epoch_limit=4))
    for n in range(1, 8):
        bench.propose(proposal(n))
        bench.serve_all()
    kinds = [(number, record.kind) for number, record in records(bench.tree)[2:]]
    assert kinds == [
        (csn(0, 2), RecordKind.COMMIT),
        (csn(0, 3), RecordKind.COMMIT),
        (csn(0, 4), RecordKind.END),
        *[(csn(1, n), RecordKind.COMMIT) for n in range(4)],
        (csn(1, 4), RecordKind.END),
        (csn(2, 0), RecordKind.COMMIT),
    ]
    assert bench.log()[tid(7)] == [csn(2, 0)]


def test_the_roll_over_multi() -> None:
    """Fence and epoch are checked: a fenced replica cannot close an epoch, and no epoch is closed twice."""
    bench = Bench(limits=LogLimits(epoch_limit=3))
    bench.propose(proposal(1))
    bench.serve_all()
    bench.propose(proposal(2))
    bench.serve_until(SendRollover)
    ops = bench.ops()
    assert ops[:2] == (Check("replicas/r1/session", 1), Check("csn/epoch", 0))
    assert ops[3:] == (Create("csn/1"), SetData("csn/epoch", b"1"))


def test_a_race_for_the_roll_over_is_lost_in_peace() -> None:
    """The epoch check refuses the second END; the loser reads the epoch and goes on there."""
    shared = new_tree()
    limits = LogLimits(epoch_limit=2)
    one, other = Bench(shared, limits=limits), Bench(shared, home=R1.__class__("r2"), limits=limits)
    for bench in (one, other):
        bench.serve_all()
        bench.tell(Followed(Csn(1)))
        bench.propose(proposal(1, home=bench.home))
        bench.serve_until(SendRollover)
    other.serve_all()
    one.serve_all()
    assert [record.kind for _, record in records(shared)[2:]] == [
        RecordKind.END,
        RecordKind.COMMIT,
        RecordKind.COMMIT,
    ]
    assert not one.halted


def test_a_commit_aimed_at_a_closed_epoch_is_sent_again(bench: Bench) -> None:
    """The epoch check refuses it; it certainly did not land, so it goes into the new epoch (Z1)."""
    bench.propose(proposal(1))
    other = Bench(bench.tree, home=R1.__class__("r2"), limits=LogLimits(epoch_limit=2))
    other.tell(Followed(Csn(1)))
    other.propose(proposal(1, home=other.home))
    other.serve_all()
    bench.serve_all()
    assert bench.decision(1) == Committed(csn(1, 1))


def test_the_end_is_the_largest_csn_known(bench: Bench) -> None:
    """Own commits and the follower's records move the end of the log forward, never back."""
    assert bench.machine.end == CSN_NONE
    bench.propose(proposal(1))
    bench.serve_all()
    assert bench.machine.end == 2
    bench.tell(Followed(Csn(9)))
    bench.tell(Followed(Csn(3)))
    assert bench.machine.end == 9


def test_a_deadline_before_sending_is_a_certain_refusal() -> None:
    """A transaction that was never sent is certainly not committed, and is not sent afterwards."""
    bench = Bench(connect=False)
    bench.propose(proposal(1), proposal(2))
    bench.tell(DeadlinePassed(tid(1)))
    assert bench.verdicts == {tid(1): [Rejected(Cause.DEADLINE)]}
    bench.connect()
    bench.serve_all()
    assert set(bench.log()) == {tid(2)}
    bench.tell(DeadlinePassed(tid(2)))
    assert bench.verdicts[tid(2)] == [Committed(Csn(2))]


# ------------------------------------------------------------------- a ZooKeeper that was set back


@pytest.mark.parametrize("known", [2, 7])
def test_a_csn_that_was_known_before_the_commit_stops_the_log(bench: Bench, known: int) -> None:
    """ZooKeeper was set back, and gives CSNs out again: the caller hears no success (I15, finding 4)."""
    bench.tell(Followed(Csn(known)))
    bench.propose(proposal(1))
    bench.serve_all()
    assert bench.log() == {tid(1): [2]}
    assert "a commit got CSN 2, and this replica had seen the log up to CSN" in bench.halted
    assert bench.decision(1) == Undecided()


def test_a_record_that_is_met_before_the_answer_to_its_commit_is_no_contradiction(bench: Bench) -> None:
    """The watch of a follower may be faster than the answer; what counts is what was known at the sending."""
    bench.propose(proposal(1))
    result = bench.apply(bench.ops())
    bench.tell(Followed(Csn(2), ((tid(1), Csn(2)),)))
    bench.answer_multi(result)
    assert (bench.halted, bench.decision(1)) == ("", Committed(Csn(2)))
