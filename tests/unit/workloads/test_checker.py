"""The checker of histories: a sound history passes, and each invariant has bad ones that it flags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidelock.csnlog.core.ids import csn
from workloads.checker import INVARIANTS, SHOWN, check
from workloads.history import (
    Balance,
    CallEnd,
    CallHistory,
    Download,
    Listing,
    Logged,
    LoggedPart,
    LogLine,
    Recorder,
    ReportedOutcome,
    TablesRead,
    Write,
    count_ok,
    load,
    parse,
    tids_per_csn,
)

A, B = "default.a", "default.b"
ROWS = (1, 2)
BALANCED = Balance(5, 1, -5, 2)
REPLICAS = ("r1", "r2")
#: Of each committed write: its CSN. The second epoch begins behind CSN 5.
COMMITTED = {"w1-1": 2, "w2-1": 3, "w1-2": 4, "w2-3": csn(1, 0)}
LAST = csn(1, 0)
#: At LAST two parts of table b are compacted into one.
COMPACTED = ("p-w1-1-b", "p-w2-1-b")
MERGED = LoggedPart(B, "p-merged", "p=x", 4, 300, "sum of two")
COMPACTION = Logged("tid compaction", (MERGED,), COMPACTED, compaction=True)
#: Bad histories: the invariant that is violated, how a bad one is made of the sound one, and its name.
BAD: list[tuple[str, Callable[[CallHistory], CallHistory]]] = []

Bend = Callable[[CallHistory], CallHistory]


def bad(invariant: str) -> Callable[[Bend], Bend]:
    """Register a function that makes a bad history of the sound one."""

    def register(bend: Bend) -> Bend:
        BAD.append((invariant, bend))
        return bend

    return register


def parts_of(key: str) -> tuple[LoggedPart, LoggedPart]:
    """The parts that a write adds."""
    return LoggedPart(A, f"p-{key}-a", "", 1, 100, f"sum of {key} a"), LoggedPart(
        B, f"p-{key}-b", "p=x", 2, 200, f"sum of {key} b"
    )


def listing(replica: str, at: int, table: str) -> Listing:
    """The list that has to be shown."""
    parts = [part for key, number in COMMITTED.items() if number <= at for part in parts_of(key)]
    if at >= LAST:
        parts = [MERGED, *(part for part in parts if part.part not in COMPACTED)]
    return Listing(replica, at, table, frozenset(part for part in parts if part.table == table))


def write(key: str, end: CallEnd, asked_ns: int | None, **fields: Any) -> Write:
    """A write of process w<n> that takes 10 ns for its commit."""
    tid = None if asked_ns is None else f"tid {key}"
    ended_ns = (asked_ns or 0) + 10
    return Write(key, key[:2], ROWS, end, tid, asked_ns=asked_ns, ended_ns=ended_ns, **fields)


def read(process: str, ns: int, replica: str, at: int, *, exact: bool = False) -> TablesRead:
    """A read that finds what it has to find."""
    rows = {key: BALANCED for key, number in COMMITTED.items() if number <= at}
    return TablesRead(process, ns, replica, at, rows, exact)


def sound() -> CallHistory:
    """Two writers, one reader on both replicas, a rolled back, a refused and two unknown transactions."""
    return CallHistory(
        writes=(
            write("w1-1", CallEnd.OK, 100, snapshot=1, csn=2),
            write("w2-1", CallEnd.OK, 200, snapshot=2, csn=3),
            write("w2-2", CallEnd.FAIL, None, error="rolled back"),
            write("w1-2", CallEnd.OK, 300, snapshot=2, csn=4),
            write("w1-3", CallEnd.FAIL, 350, snapshot=4, error="NotEnoughReplicasError"),
            write("w2-3", CallEnd.INFO, 400, snapshot=3),  # committed
            write("w1-4", CallEnd.INFO, 450, snapshot=4),  # aborted
        ),
        reads=(
            read("reader", 150, "r1", 2),
            read("reader", 250, "r2", 3),
            read("reader", 260, "r2", 2, exact=True),
            read("reader", 500, "r1", LAST),
            read("other", 600, "r2", LAST),
        ),
        listings=tuple(
            listing(replica, at, table) for at in (3, LAST) for replica in REPLICAS for table in (A, B)
        ),
        downloads=tuple(
            Download(replica, LAST, part.part, part.checksum, part.checksum)
            for replica in REPLICAS
            for part in parts_of("w1-1")
        ),
        outcomes=tuple(
            ReportedOutcome(replica, f"tid {key}", outcome, at)
            for replica in REPLICAS
            for key, outcome, at in (
                ("w1-1", "committed", 2),
                ("w1-3", "aborted", None),
                ("w2-3", "committed", LAST),
                ("w1-4", "aborted", None),
            )
        ),
        log=(
            LogLine(1),
            LogLine(2, (Logged("tid w1-1", parts_of("w1-1")),)),
            LogLine(3, (Logged("tid w2-1", parts_of("w2-1")),)),
            LogLine(4, (Logged("tid w1-2", parts_of("w1-2")),)),
            LogLine(5, end=True),
            LogLine(LAST, (Logged("tid w2-3", parts_of("w2-3")), COMPACTION)),
        ),
    )


def with_write(history: CallHistory, key: str, **fields: Any) -> CallHistory:
    """The history with another end of a write."""
    writes = (replace(write, **fields) if write.key == key else write for write in history.writes)
    return replace(history, writes=tuple(writes))


def with_read(history: CallHistory, index: int, **rows: Balance | None) -> CallHistory:
    """The history with other rows in a read: ``w1_1=None`` takes those of w1-1 away."""
    changed = {name.replace("_", "-"): balance for name, balance in rows.items()}
    before = history.reads[index]
    after = {key: balance for key, balance in {**before.rows, **changed}.items() if balance is not None}
    return replace(history, reads=_put(history.reads, index, replace(before, rows=after)))


def with_listing(
    history: CallHistory, index: int, *, add: LoggedPart | None = None, drop: str = ""
) -> CallHistory:
    """The history with a part more or less in a list."""
    before = history.listings[index]
    parts = {part for part in before.parts if part.part != drop} | ({add} if add else set())
    assert parts != before.parts
    return replace(history, listings=_put(history.listings, index, replace(before, parts=frozenset(parts))))


def _put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return tuple(item if number == index else old for number, old in enumerate(items))


@bad("I1 UNIQUE")
def a_tid_at_two_csns(history: CallHistory) -> CallHistory:
    """A retried create has made two records."""
    again = LogLine(csn(1, 1), (Logged("tid w1-1", parts_of("w1-1")),))
    return replace(history, log=(*history.log, again))


@bad("I1 UNIQUE")
def a_tid_twice_in_a_record(history: CallHistory) -> CallHistory:
    """A batch holds a transaction twice."""
    (twice,) = history.log[1].tids
    return replace(history, log=_put(history.log, 1, LogLine(2, (twice, twice))))


@bad("I1 UNIQUE")
def a_csn_given_twice(history: CallHistory) -> CallHistory:
    """Two records bear one number."""
    return replace(history, log=(*history.log, LogLine(LAST)))


@bad("I1 UNIQUE")
def two_csns_told_of_a_tid(history: CallHistory) -> CallHistory:
    """One replica tells another CSN than the writer was told."""
    return replace(
        history, outcomes=_put(history.outcomes, 0, ReportedOutcome("r1", "tid w1-1", "committed", 3))
    )


@bad("I2 MONOTONE")
def a_later_commit_with_a_smaller_csn(history: CallHistory) -> CallHistory:
    """w2-1 was asked for after w1-2 had been acknowledged."""
    return with_write(history, "w2-1", asked_ns=320, ended_ns=330)


@bad("I2 MONOTONE")
def a_gap_in_the_log(history: CallHistory) -> CallHistory:
    """A record is missing."""
    return replace(history, log=history.log[:2] + history.log[3:])


@bad("I2 MONOTONE")
def an_epoch_without_end(history: CallHistory) -> CallHistory:
    """The next epoch begins without an END record."""
    return replace(history, log=_put(history.log, 4, LogLine(5)))


@bad("I3 ATOMIC")
def one_table_only(history: CallHistory) -> CallHistory:
    """A read finds the rows of table a and not those of table b."""
    return with_read(history, 0, w1_1=Balance(5, 1, 0, 0))


@bad("I3 ATOMIC")
def a_row_missing_that_counts_nothing(history: CallHistory) -> CallHistory:
    """The sums are right and one row of two is missing."""
    return with_read(history, 0, w1_1=Balance(5, 1, -5, 1))


@bad("I3 ATOMIC")
def one_part_of_two_listed(history: CallHistory) -> CallHistory:
    """A replica lists the part of one table and not that of the other, at one CSN."""
    return with_listing(history, 0, drop="p-w2-1-a")


@bad("I4 DURABLE")
def an_acknowledged_write_missing(history: CallHistory) -> CallHistory:
    """A read at a larger CSN does not find it."""
    return with_read(history, 3, w1_2=None)


@bad("I4 DURABLE")
def an_acknowledged_write_not_in_the_log(history: CallHistory) -> CallHistory:
    """The record is gone."""
    return replace(history, log=_put(history.log, 3, LogLine(4)))


@bad("I4 DURABLE")
def a_part_of_the_log_not_listed(history: CallHistory) -> CallHistory:
    """A replica's list lacks a part."""
    return with_listing(history, 6, drop="p-w1-1-a")


@bad("I5 NODIRTY")
def a_refused_write_visible(history: CallHistory) -> CallHistory:
    """A refused transaction has left rows."""
    return with_read(history, 3, w1_3=BALANCED)


@bad("I5 NODIRTY")
def a_write_rolled_back_visible(history: CallHistory) -> CallHistory:
    """A transaction that never asked for its commit has left rows."""
    return with_read(history, 3, w2_2=BALANCED)


@bad("I5 NODIRTY")
def an_aborted_unknown_visible(history: CallHistory) -> CallHistory:
    """The commit ended unknown, the log does not have it, and its rows are there."""
    return with_read(history, 3, w1_4=BALANCED)


@bad("I5 NODIRTY")
def rows_before_their_csn(history: CallHistory) -> CallHistory:
    """A read at CSN 2 finds what was committed at 3."""
    return with_read(history, 0, w2_1=BALANCED)


@bad("I5 NODIRTY")
def rows_of_nobody(history: CallHistory) -> CallHistory:
    """A read finds a key that nobody wrote."""
    return with_read(history, 0, x=BALANCED)


@bad("I5 NODIRTY")
def a_part_of_nobody_listed(history: CallHistory) -> CallHistory:
    """A list has a part that no record adds."""
    return with_listing(history, 0, add=LoggedPart(A, "p-x", "", 1, 1, "x"))


@bad("I6 SNAPSHOT")
def two_reads_at_one_csn_differ(history: CallHistory) -> CallHistory:
    """The same CSN, read on two replicas."""
    return with_read(history, 4, w1_1=Balance(6, 1, -6, 2))


@bad("I6 SNAPSHOT")
def a_repeated_list_differs(history: CallHistory) -> CallHistory:
    """The same replica lists another checksum the second time."""
    before = history.listings[0]
    part = min(before.parts)
    changed = before.parts - {part} | {part._replace(checksum="x")}
    return replace(history, listings=(*history.listings, replace(before, parts=changed)))


@bad("I7 NOCONFLICT")
def a_part_removed_twice(history: CallHistory) -> CallHistory:
    """Two transactions have removed the same part."""
    again = LogLine(csn(1, 1), (Logged("tid other", (), COMPACTED[:1]),))
    return replace(history, log=(*history.log, again))


@bad("I7 NOCONFLICT")
def a_part_removed_before_it_was_there(history: CallHistory) -> CallHistory:
    """A transaction removes a part that only a later one adds."""
    return replace(history, log=_put(history.log, 1, LogLine(2, (*history.log[1].tids, COMPACTION))))


@bad("I5 NODIRTY")
def a_removed_part_still_listed(history: CallHistory) -> CallHistory:
    """Compaction has replaced it: its rows would be there twice."""
    part = next(part for part in parts_of("w1-1") if part.part in COMPACTED)
    return with_listing(history, 5, add=part)


@bad("I9 HONEST")
def a_listed_part_with_other_bytes(history: CallHistory) -> CallHistory:
    """The bytes of a listed part are not those of its checksum."""
    return replace(history, downloads=_put(history.downloads, 1, Download("r1", LAST, "p", "x", "y")))


@bad("I10 AGREE")
def replicas_list_different_parts(history: CallHistory) -> CallHistory:
    """r2 lists a part more than r1."""
    return with_listing(history, 2, add=LoggedPart(A, "p-x", "", 1, 1, "x"))


@bad("I11 MONOREAD")
def a_session_that_goes_back(history: CallHistory) -> CallHistory:
    """A reader that has seen CSN 3 is given 2, without having asked for it."""
    return replace(history, reads=_put(history.reads, 2, read("reader", 260, "r2", 2)))


@bad("I11 MONOREAD")
def a_transaction_below_the_own_commit(history: CallHistory) -> CallHistory:
    """A writer begins at a CSN below that of its last commit."""
    return with_write(history, "w1-2", snapshot=1)


@bad("I17 TRUTHFUL")
def acknowledged_at_another_csn(history: CallHistory) -> CallHistory:
    """The writer was told 3, the log has it at 2."""
    return with_write(history, "w1-1", csn=3)


@bad("I17 TRUTHFUL")
def acknowledged_without_csn(history: CallHistory) -> CallHistory:
    """The writer was told that it had committed nothing."""
    return with_write(history, "w1-1", csn=None)


@bad("I17 TRUTHFUL")
def refused_and_committed(history: CallHistory) -> CallHistory:
    """The writer was told that it certainly is not committed."""
    return with_write(history, "w1-2", end=CallEnd.FAIL, csn=None)


@bad("I17 TRUTHFUL")
def replicas_contradict_each_other(history: CallHistory) -> CallHistory:
    """One replica says that the transaction is aborted."""
    return replace(history, outcomes=_put(history.outcomes, 2, ReportedOutcome("r1", "tid w2-3", "aborted")))


@bad("I17 TRUTHFUL")
def an_unknown_that_stays_unknown(history: CallHistory) -> CallHistory:
    """A replica cannot tell."""
    return replace(history, outcomes=_put(history.outcomes, 3, ReportedOutcome("r1", "tid w1-4", "running")))


@bad("I17 TRUTHFUL")
def an_unknown_that_one_replica_was_not_asked_about(history: CallHistory) -> CallHistory:
    """r2 has not answered."""
    return replace(history, outcomes=history.outcomes[:-1])


@bad("I17 TRUTHFUL")
def a_commit_of_nobody(history: CallHistory) -> CallHistory:
    """The log has a transaction that no client has asked for."""
    record = LogLine(csn(1, 1), (Logged("tid of nobody", (LoggedPart(A, "p-x", "", 1, 1, "x"),)),))
    return replace(history, log=(*history.log, record))


def test_a_sound_history_passes() -> None:
    """Nothing is flagged where nothing is wrong."""
    assert check(sound()) == []


@pytest.mark.parametrize(("invariant", "bend"), BAD, ids=lambda item: getattr(item, "__name__", str(item)))
def test_a_bad_history_is_flagged(invariant: str, bend: Bend) -> None:
    """The invariant that is violated is among those that are named."""
    assert invariant in {violation.invariant for violation in check(bend(sound()))}


def test_each_invariant_has_a_bad_history() -> None:
    """No check could be empty without a test that fails."""
    assert {invariant for invariant, _ in BAD} == set(INVARIANTS)


def test_few_violations_stand_for_many() -> None:
    """A broken cluster does not fill the screen."""
    history = sound()
    downloads = [Download("r1", LAST, f"p{number}", "x", "y") for number in range(100)]
    assert len(check(replace(history, downloads=tuple(downloads)))) == SHOWN


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Every kind of line comes back; a call without its end is unknown; lines for people are passed over."""
    with Recorder(tmp_path / "history.jsonl") as recorder:
        recorder.note("invoke", "write", "w1", key="ü-1", rows=ROWS)
        recorder.note("invoke", "commit", "w1", key="ü-1", tid="t1", snapshot=1)
        recorder.note(CallEnd.OK, "write", "w1", key="ü-1", tid="t1", csn=2)
        recorder.note("invoke", "write", "w1", key="ü-2", rows=ROWS)
        recorder.note(CallEnd.FAIL, "write", "w1", key="ü-2", error="StandbyError")
        recorder.note("invoke", "write", "w2", key="ü-3", rows=ROWS)
        recorder.note("invoke", "commit", "w2", key="ü-3", tid="t3", snapshot=1)
        recorder.note("invoke", "read", "reader")
        recorder.note(CallEnd.FAIL, "read", "reader", error="StandbyError")
        recorder.note(
            CallEnd.OK, "read", "reader", replica="r1", csn=2, rows=[["ü-1", *BALANCED]], exact=True
        )
        recorder.note(CallEnd.OK, "parts", "end", replica="r1", csn=2, table=A, parts=[["p", "", 1, 2, "c"]])
        recorder.note(CallEnd.OK, "bytes", "end", replica="r1", csn=2, part="p", listed="c", found="c")
        recorder.note(CallEnd.OK, "outcome", "end", replica="r1", tid="t3", outcome="aborted")
        adds = ["t1", [[A, "p", "", 1, 2, "c"]]]
        recorder.note(CallEnd.OK, "log", "end", records=[[2, True, [adds, ["t2", [], ["p"], True]]]])
    history = load(tmp_path / "history.jsonl")
    first, second, third = history.writes
    assert (first.end, first.tid, first.snapshot, first.csn) == (CallEnd.OK, "t1", 1, 2)
    assert 0 < (first.asked_ns or 0) < first.ended_ns
    assert (second.end, second.tid, second.asked_ns, second.error) == (
        CallEnd.FAIL,
        None,
        None,
        "StandbyError",
    )
    assert (third.end, third.tid, third.ended_ns) == (CallEnd.INFO, "t3", 0)
    (found,) = history.reads
    assert (found.csn, found.exact, found.rows) == (2, True, {"ü-1": BALANCED})
    part = LoggedPart(A, "p", "", 1, 2, "c")
    assert history.listings == (Listing("r1", 2, A, frozenset({part})),)
    assert history.downloads == (Download("r1", 2, "p", "c", "c"),)
    assert history.outcomes == (ReportedOutcome("r1", "t3", "aborted"),)
    logged = (Logged("t1", (part,)), Logged("t2", (), ("p",), compaction=True))
    assert history.log == (LogLine(2, logged, end=True),)


def test_a_line_of_something_else_is_refused() -> None:
    """A misspelt line must not pass for one that says nothing."""
    with pytest.raises(ValueError, match="no line of a history"):
        parse([{"type": "ok", "f": "reed"}])


def test_a_write_of_many_keys_is_a_write_of_each(tmp_path: Path) -> None:
    """All keys of a transaction have its tid, its snapshot and its end, and each its own rows."""
    with Recorder(tmp_path / "history") as recorder:
        recorder.note("invoke", "write", "w", keys=["1", "2"], rows=[[1, 3], [1, 1]])
        for tid in ("t1", "t2"):  # the first one was certainly not committed, and is sent again
            recorder.note("invoke", "commit", "w", keys=["1", "2"], tid=tid, snapshot=7)
        assert count_ok(recorder.path) == 0
        recorder.note(CallEnd.OK, "write", "w", keys=["1", "2"], tid="t2", csn=8)
        assert count_ok(recorder.path) == 1
    writes = load(recorder.path).writes
    assert [(write.key, write.rows) for write in writes] == [("1", (1, 3)), ("2", (1, 1))]
    assert {(write.end, write.tid, write.snapshot, write.csn) for write in writes} == {
        (CallEnd.OK, "t2", 7, 8)
    }


def test_a_history_of_several_files_is_one(tmp_path: Path) -> None:
    """Its processes may have written to files of their own."""
    for name in ("one", "other"):
        with Recorder(tmp_path / name) as recorder:
            recorder.note("invoke", "write", name, key=name, rows=ROWS)
    found = load(tmp_path / "one", tmp_path / "other")
    assert [write.key for write in found.writes] == ["one", "other"]


def test_tids_per_csn_is_an_average_over_the_csns() -> None:
    """Transactions that share a CSN count together; without any there is no average."""
    assert tids_per_csn([5, 5, 5, 7]) == pytest.approx(2.0)
    assert tids_per_csn([]) == pytest.approx(0.0)
