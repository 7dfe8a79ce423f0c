"""Transactions that have ended, limits of transactions, and commits that are refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.support.faults.refusals import (
    LIMITS,
    ROWS,
    Addresses,
    Ground,
    check_message,
    http,
    nothing_open,
    stream,
)
from tests.support.waiting import eventually
from tidelock.client import Decision, Transaction, TransactionState
from tidelock.errors import (
    BadRequestError,
    LabelExistsError,
    LeaseExpiredError,
    NoSuchCsnError,
    SnapshotClosedError,
    TidelockError,
    TooLargeError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
)


def statements(tx: Transaction, table: str) -> list[Callable[[], object]]:
    """All calls that a transaction refuses when it has ended."""
    return [lambda: tx.insert(table, ROWS), lambda: tx.read(table), lambda: tx.scan(table).count()]


def test_after_a_commit_only_its_repetition_is_taken(ground: Ground) -> None:
    """After a commit only commit() is taken again, with the same result, at the home too."""
    tx = ground.db.begin()
    tx.insert(ground.table, ROWS)
    done = tx.commit()
    for statement in (*statements(tx, ground.table), tx.rollback):
        with pytest.raises(TransactionClosedError, match=f"{tx.tid} is committed; begin a new one") as caught:
            statement()
        assert caught.value.details == {"tid": tx.tid, "state": "committed"}
    assert tx.commit() == done
    home = f"{Addresses.of(ground.cluster, tx.holder).api}/transactions/{tx.tid}"
    for route, body in ((f"/rows/{ground.table}", stream(ROWS)), ("/rollback", b"")):
        answer = http("POST", home + route, body)
        assert answer.status == 409
        check_message(answer.error, TransactionClosedError, ["is committed"])
    assert http("POST", f"{home}/commit", b"{}").json["csn"] == done.csn
    ground.rows += ROWS.num_rows
    ground.check_intact()


def test_after_a_rollback_only_its_repetition_is_taken(ground: Ground) -> None:
    """After a rollback only rollback() is taken again, without harm, at the home as well."""
    tx = ground.db.begin(fresh=True)
    tx.insert(ground.table, ROWS)
    tx.rollback()
    for statement in (*statements(tx, ground.table), tx.commit):
        with pytest.raises(TransactionClosedError, match=f"{tx.tid} is rolled_back; begin a new one"):
            statement()
    tx.rollback()
    home = f"{Addresses.of(ground.cluster, tx.holder).api}/transactions/{tx.tid}"
    for route, body in ((f"/rows/{ground.table}", stream(ROWS)), ("/commit", b"{}")):
        answer = http("POST", home + route, body)
        assert answer.status == 409
        check_message(answer.error, TransactionClosedError, ["rolled"])
    assert http("POST", f"{home}/rollback").json["state"] == "rolled_back"
    assert ground.db.outcome(tx.tid).decision is Decision.ABORTED
    ground.check_intact()


def test_a_closed_snapshot_says_so_and_reads_nothing(ground: Ground) -> None:
    """A closed snapshot reads nothing more and says so; closing it twice does no harm."""
    snap = ground.db.snapshot()
    snap.close()
    snap.close()
    for read in (lambda: snap.read(ground.table), lambda: snap.sql("SELECT 1"), snap.tables):
        with pytest.raises(SnapshotClosedError, match=f"has closed the snapshot at CSN {snap.csn}"):
            read()
    pin = http("POST", f"{Addresses.of(ground.cluster, 'r1').api}/snapshots/r1-1-999999/renew")
    assert pin.status == 404
    check_message(pin.error, UnknownTransactionError, ["holds no snapshot r1-1-999999", "take a new one"])


def test_statements_after_an_expired_lease_are_told_why(ground: Ground) -> None:
    """A program that does not renew its lease loses its rows; the error of every later statement says why."""
    api = Addresses.of(ground.cluster, "r2").api
    tid = http("POST", f"{api}/transactions", {"lease_s": 0.2}).json["tid"]
    own = f"{api}/transactions/{tid}"
    assert http("POST", f"{own}/rows/{ground.table}", stream(ROWS)).status in {200, 409}
    eventually(lambda: http("GET", own).json["state"] == "rolled_back", what="the end of the lease")
    for route, body in ((f"/rows/{ground.table}", stream(ROWS)), ("/commit", b"{}")):
        answer = http("POST", own + route, body)
        assert answer.status == 409
        check_message(
            *(answer.error, LeaseExpiredError),
            ["no sign of life for its lease of 0.2 s", "was rolled back", "begin a new one"],
        )
    read = http("POST", f"{api}/query", {"tid": tid, "table": ground.table})
    check_message(read.error, LeaseExpiredError, [tid])
    assert http("POST", f"{own}/heartbeat").json["state"] == "rolled_back"
    assert http("POST", f"{own}/rollback").json["state"] == "rolled_back"
    assert ground.db.outcome(tid).decision is Decision.ABORTED
    ground.check_intact()


def test_expired_lease_of_the_client(ground: Ground) -> None:
    """A `with` block whose lease ran out unnoticed does not end as if it had committed."""
    tx = ground.db.begin(lease="2s")
    tx.insert(ground.table, ROWS)
    ground.db._connection.leases.remove(tx)  # as in a program that hangs
    own = f"{Addresses.of(ground.cluster, tx.holder).api}/transactions/{tx.tid}"
    eventually(lambda: http("GET", own).json["state"] == "rolled_back", what="the end of the lease")
    with pytest.raises(LeaseExpiredError, match="no sign of life"):
        tx.commit()
    assert tx.state is TransactionState.ROLLED_BACK
    ground.check_intact()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"lease": 0}, BadRequestError, ["lease_s=0", "lease_max_s", "above 0"]),
        ({"lease": -1}, BadRequestError, ["lease_s=-1"]),
        ({"lease": "2h"}, BadRequestError, ["lease_s=7200", "0..3600", "lease_max_s"]),
        ({"lease": "soon"}, BadRequestError, ["expected a duration", "'60s'", "found 'soon'"]),
        ({"lease": float("inf")}, BadRequestError, ["not JSON compliant"]),
        ({"label": ""}, BadRequestError, ["the label is empty"]),
        ({"label": "ü" * 129}, TooLargeError, ["label has 258 bytes", "label_bytes_max=256", "shorten it"]),
        ({"label": "\ud800"}, BadRequestError, ["JSON is malformed"]),
        ({"meta": {"a": "x" * 1024}}, TooLargeError, ["meta has 1032 bytes", "meta_bytes_max=1024"]),
        ({"meta": {"a": object()}}, BadRequestError, ["of type object"]),
        ({"min_csn": 1 << 40}, NoSuchCsnError, [f"there is no CSN {1 << 40}", "the log ends at"]),
    ],
)
def test_begin_with_bad_arguments_makes_no_transaction(
    ground: Ground, arguments: dict[str, Any], error: type[TidelockError], words: list[str]
) -> None:
    """A begin with a bad argument makes no transaction."""
    with ground.refuses(error, *words):
        ground.db.begin(**arguments)
    nothing_open(ground.cluster)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", ["truncated"]),
        (b"[]", ["Expected `object`, got `array`"]),
        (b"\xff\xfe", ["malformed"]),
        ({"colour": "red"}, ["unknown field `colour`"]),
        ({"lease_s": "60s"}, ["lease_s is str, expected float | null"]),
        ({"min_csn": 1.5}, ["min_csn is float, expected int | null"]),
        ({"isolation": "dirty"}, ["isolation='dirty' is not offered", "use one of snapshot, read_committed"]),
    ],
)
def test_bad_bodies_of_begin_are_told_by_field(ground: Ground, body: object, words: list[str]) -> None:
    """A body that is not JSON, or has another form, is refused; the error names the wrong field."""
    answer = http("POST", f"{Addresses.of(ground.cluster, 'r1').api}/transactions", body)
    assert answer.status == 400
    check_message(answer.error, BadRequestError, words)
    nothing_open(ground.cluster)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"wait": "never"}, ["wait='never' is not one of all, copies, home"]),
        ({"timeout_s": 0}, ["timeout_s=0.0 is not above 0"]),
        ({"timeout_s": -1}, ["timeout_s=-1.0 is not above 0"]),
        (b"nonsense", ["malformed"]),
    ],
)
def test_bad_bodies_of_commit_do_not_begin_it(ground: Ground, body: object, words: list[str]) -> None:
    """A commit request with a bad body does not begin the commit; the correct request commits once."""
    api = Addresses.of(ground.cluster, "r1").api
    own = f"{api}/transactions/{http('POST', f'{api}/transactions').json['tid']}"
    http("POST", f"{own}/rows/{ground.table}", stream(ROWS))
    answer = http("POST", f"{own}/commit", body)
    assert answer.status == 400
    check_message(answer.error, BadRequestError, words)
    assert http("GET", own).json["state"] == "open"
    csn = http("POST", f"{own}/commit", {"wait": "all"}).json["csn"]
    assert http("POST", f"{own}/commit", {}).json["csn"] == csn
    ground.rows += ROWS.num_rows
    ground.db.snapshot(min_csn=csn).close()
    ground.check_intact()


@pytest.mark.parametrize("tid", ["x", "1-r1-1", "1-R1-1-1", "-1-r1-1-1", "1-r1-1-1-1", "1-r1-1-0x1"])
def test_what_is_no_tid(ground: Ground, tid: str) -> None:
    """Text that is no transaction id is refused; the error shows the form of one."""
    api = Addresses.of(ground.cluster, "r1").api
    for method, route in (("POST", f"/transactions/{tid}/commit"), ("GET", f"/outcomes/{tid}")):
        answer = http(method, api + route)
        assert answer.status == 400
        check_message(answer.error, BadRequestError, ["<snapshot csn>-<replica>-<boot>-<counter>"])
    with pytest.raises(TidelockError):
        ground.db.outcome(tid)


def test_transactions_that_are_of_another_replica_or_of_none(ground: Ground) -> None:
    """Only the home can end a transaction; another replica says so, and still knows the outcome."""
    with ground.cluster.connect("r1") as first:
        tx = first.begin()
        tx.insert(ground.table, ROWS)
        other = f"{Addresses.of(ground.cluster, 'r2').api}/transactions/{tx.tid}"
        for route, body in ((f"/rows/{ground.table}", stream(ROWS)), ("/commit", b"{}"), ("/rollback", b"")):
            answer = http("POST", other + route, body)
            assert answer.status == 404
            check_message(
                answer.error, UnknownTransactionError, ["its home is another replica", "outcome(tid)"]
            )
        assert ground.db.outcome(tx.tid).decision is Decision.RUNNING
        tx.rollback()
    with pytest.raises(UnknownTransactionError, match="names replica r77"):
        ground.db.outcome("1-r77-1-1")
    with pytest.raises(UnknownTransactionError, match="names no transaction that r1 has begun"):
        ground.db.outcome("1-r1-1-999999")
    for replica in ("r1", "r2"):  # r1 asks itself, the other one asks ZooKeeper
        answer = http("GET", f"{Addresses.of(ground.cluster, replica).api}/outcomes/1-r1-999-1")
        assert answer.status == 404
        check_message(
            answer.error,
            UnknownTransactionError,
            ["names boot 999 of replica r1, whose last boot is", "check the tid"],
        )
    ground.check_intact()


def test_too_many_transactions_leave_the_open_ones_alone(ground: Ground) -> None:
    """A replica has a bound on open transactions; reaching it does not affect the open ones."""
    limit = LIMITS["transactions_max"]
    with ground.cluster.connect("r1") as first:
        open_ones = [first.begin(fresh=True) for _ in range(limit)]
        with pytest.raises(UnavailableError) as caught:
            first.begin(fresh=True)
        words = [f"{limit} transactions are open", f"transactions_max={limit}", "commit or roll back some"]
        check_message(caught.value, UnavailableError, words)
        assert caught.value.retriable
        with ground.db.begin() as elsewhere:  # a client that is not pinned goes on to another replica
            assert elsewhere.holder != "r1"
        open_ones[0].insert(ground.table, ROWS)
        open_ones[0].commit()
        ground.rows += ROWS.num_rows
        for tx in open_ones[1:]:
            tx.rollback()
    ground.check_intact()


def test_label_that_was_committed(ground: Ground) -> None:
    """A second run of a load changes nothing and gets the CSN of the first run, through any replica."""
    label = f"load of {ground.table}"
    first = ground.db.insert(ground.table, ROWS, label=label).csn
    ground.rows += ROWS.num_rows
    for replica in ground.cluster.replicas:
        with ground.cluster.connect(replica) as db, pytest.raises(LabelExistsError) as caught:
            db.insert(ground.table, ROWS, label=label)
        check_message(
            *(caught.value, LabelExistsError),
            [f"label {label!r} was committed before, at CSN {first}", "take another label"],
        )
        assert caught.value.details["csn"] == first
    ground.check_intact()


def test_runs_of_one_label_at_once(ground: Ground) -> None:
    """Of runs through all replicas at once one is committed; the others get its CSN."""
    label = f"race of {ground.table}"
    runs = 2 * len(ground.cluster.replicas)
    start = threading.Barrier(runs, timeout=60)

    def run(index: int) -> tuple[bool, int]:
        replica = ground.cluster.replicas[index % len(ground.cluster.replicas)]
        with ground.cluster.connect(replica) as db, db.begin(label) as tx:
            tx.insert(ground.table, ROWS)
            start.wait()
            try:
                return True, int(tx.commit().csn or 0)
            except LabelExistsError as error:
                return False, int(error.details["csn"])

    with ThreadPoolExecutor(runs) as executor:
        ended = list(executor.map(run, range(runs)))
    assert sum(won for won, _ in ended) == 1
    assert len({csn for _, csn in ended}) == 1
    ground.rows += ROWS.num_rows
    ground.check_intact()


def test_a_statement_after_the_seal(ground: Ground) -> None:
    """A commit request cuts an insert that still comes in: rows that arrive later are refused, not lost."""
    tx = ground.db.begin()
    tx.insert(ground.table, ROWS)
    reached, go_on = threading.Event(), threading.Event()

    def batches() -> Any:
        yield ROWS.to_batches()[0]
        reached.set()
        go_on.wait(60)
        yield ROWS.to_batches()[0]

    with ThreadPoolExecutor(1) as executor:
        late = executor.submit(
            tx.insert, ground.table, pa.RecordBatchReader.from_batches(ROWS.schema, batches())
        )
        assert reached.wait(60)
        tx.commit()
        go_on.set()
        with pytest.raises(TidelockError):
            late.result()
    assert tx.state is TransactionState.COMMITTED
    ground.rows += ROWS.num_rows
    ground.check_intact()
