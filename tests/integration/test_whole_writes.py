"""Transactions of one request on real agents: written once, whatever is lost, late, doubled or killed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.client_process import ROWS
from tests.support.clusters.cluster import QUICK, ClusterFactory, restored, serving_boot
from tests.support.faults.lab import Gates
from tests.support.faults.proxy import Direction, Proxy
from tests.support.faults.refusals import Addresses, Answer, http, stream
from tests.support.waiting import eventually
from tidelock.client import Database, Decision, TransactionState, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    DuplicateKeyError,
    LabelExistsError,
    NoAnswerError,
    SchemaMismatchError,
    TooLargeError,
    TransactionClosedError,
    UnknownTableError,
    UnknownTransactionError,
)
from tidelock.wire.writes import TableRows, WriteHead, encode
from workloads.agents import ask

HOME, PEER = "r1", "r2"
BEFORE, AFTER, STAGE = "csnlog.commit.before", "csnlog.commit.after", "agent.stage.before"
RESERVED_S = 8.0
SETTINGS = {
    **QUICK,
    "session_timeout_s": 3,
    "fence_timeout_s": 1,
    "clean_interval_s": 0.2,
    "tids_reserved_s": RESERVED_S,
    "tids_reserved_once_max": 100,
    "tids_reserved_max": 300,
    "write_bytes_max": 100_000,
}


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """Gates at which the home can be killed or held."""
    faults = {HOME: {BEFORE: "crash", AFTER: "crash"}, PEER: {STAGE: "pause"}}
    return Gates(tmp_path_factory.mktemp("gates"), faults)


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory, gates: Gates) -> LocalCluster:
    """One cluster for the module, with two tables."""
    made = module_cluster(
        settings=SETTINGS, environment_of={replica: gates.environment(replica) for replica in (HOME, PEER)}
    )
    with made.connect() as db:
        for table in ("t", "u"):
            db.create_table(table, ROWS.schema)
            db.insert(table, ROWS, wait="all")
    return made


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster with all replicas up, and nothing left over after the test."""
    with restored(shared):
        yield shared


def rows(db: Database) -> tuple[int, int]:
    """Return the number of rows of both tables at one CSN."""
    with db.begin(fresh=True) as tx:
        return tx.scan("t").count(), tx.scan("u").count()


def reserved(local: LocalCluster, home: str = HOME, count: int = 1) -> str:
    """Reserve tids at a home; return the first."""
    answer = http("POST", f"{Addresses.of(local, home).api}/tids", {"count": count})
    assert answer.status == 201, answer.json
    return str(answer.json["first"])


def body(tid: str, *tables: str, **head: Any) -> bytes:
    """Return the body of a write of the same rows into each table."""
    data = stream(ROWS)
    return encode(
        WriteHead(tid, tuple(TableRows(table, len(data)) for table in tables), **head), [data] * len(tables)
    )


def send(local: LocalCluster, content: bytes, home: str = HOME) -> Answer:
    """Send a write to a home."""
    return http("POST", f"{Addresses.of(local, home).api}/commits", content)


def test_two_tables_at_one_csn(local: LocalCluster) -> None:
    """All rows are visible from one CSN on, at every replica; the home shows one finished transaction."""
    with local.connect(HOME) as db:
        before = rows(db)
        done = db.write({"t": ROWS, "u": ROWS}, meta={"run": 1}, wait="all")
        assert done.csn is not None
        shown = ask(local, HOME, f"/transactions/{done.tid}")
        assert (shown["state"], shown["csn"], shown["tables"]) == (
            "committed",
            done.csn,
            ["default.t", "default.u"],
        )
        assert shown["rows"] == 2 * ROWS.num_rows
        for replica in local.replicas:
            with local.connect(replica) as other:
                assert rows(other) == (before[0] + ROWS.num_rows, before[1] + ROWS.num_rows)
                assert other.outcome(done.tid).csn == done.csn
                with other.snapshot(done.csn - 1) as earlier:
                    assert earlier.scan("t").count() == before[0]


def test_a_table_that_another_replica_has_just_created(local: LocalCluster) -> None:
    """The client has seen its definition, so the home waits until it has it too."""
    with connect([local.url(HOME), local.url(PEER)]) as db:
        db.create_table("young", ROWS.schema)
        db._connection.members.note(db._connection.members.find(HOME), NoAnswerError("silent"))
        assert f"-{HOME}-" not in db.write({"young": ROWS}).tid


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_what_is_lost_is_written_once(local: LocalCluster, lost: str) -> None:
    """The connection breaks before or after the home has got the request: the rows are there once."""
    with (
        Proxy(local.url(HOME).removeprefix("http://")) as proxy,
        connect(f"http://{proxy.address}", replica=HOME) as db,
    ):
        for _ in range(2):
            db.write({"t": ROWS})  # a tid is left for the next one
        before = rows(db)
        if lost == "reply":
            proxy.lose_reply()
        else:
            proxy.lose_request()
        done = db.write({"t": ROWS, "u": ROWS})
        assert proxy.counters.lost_replies + proxy.counters.lost_requests == 1
        assert rows(db) == (before[0] + ROWS.num_rows, before[1] + ROWS.num_rows)
        assert db.outcome(done.tid).csn == done.csn


@pytest.mark.scenario("S13")
def test_copies_of_one_request_are_one_transaction(local: LocalCluster) -> None:
    """The same request, eight times at once and once more later, has one answer."""
    tid = reserved(local)
    with local.connect(HOME) as db, ThreadPoolExecutor(8) as threads:
        before = rows(db)
        answers = list(threads.map(lambda _: send(local, body(tid, "t", "u")), range(8)))
        answers.append(send(local, body(tid, "t", "u")))
        assert {(answer.status, answer.json["csn"]) for answer in answers} == {(200, db.outcome(tid).csn)}
        assert rows(db) == (before[0] + ROWS.num_rows, before[1] + ROWS.num_rows)


@pytest.mark.scenario("S14")
def test_a_tid_with_another_content_adds_nothing(local: LocalCluster) -> None:
    """A used tid is answered with what became of it; the other rows and the other table never enter."""
    tid = reserved(local)
    with local.connect(HOME) as db:
        before = rows(db)
        first = send(local, body(tid, "t")).json["csn"]
        again = send(local, body(tid, "t", "u", "t"))
        assert (again.status, again.json["csn"]) == (200, first)
        assert rows(db) == (before[0] + ROWS.num_rows, before[1])
        assert (db.outcome(tid).decision, db.outcome(tid).csn) == (Decision.COMMITTED, first)


def test_the_commit_of_a_write_that_is_being_staged(local: LocalCluster, gates: Gates) -> None:
    """A client that asks for the commit meanwhile waits for the whole transaction, not for half of it."""
    tid = reserved(local, PEER)
    commit = f"{Addresses.of(local, PEER).api}/transactions/{tid}/commit"
    with local.connect(PEER) as db, ThreadPoolExecutor(2) as threads:
        before = rows(db)
        with gates.open(PEER, STAGE):
            written = threads.submit(send, local, body(tid, "t", "u"), PEER)
            gates.await_hit(PEER, STAGE)
            assert http("POST", commit, {"timeout_s": 0.3}).json["error"] == "CommitUnknownError"
            assert db.outcome(tid).decision is Decision.RUNNING
            asked = threads.submit(http, "POST", commit, {})
        assert written.result().json == asked.result().json
        assert rows(db) == (before[0] + ROWS.num_rows, before[1] + ROWS.num_rows)


def test_a_killed_write_leaves_nothing(local: LocalCluster, gates: Gates) -> None:
    """Another client kills the transaction while its rows are staged."""
    tid = reserved(local, PEER)
    with local.connect(PEER) as db, ThreadPoolExecutor(1) as threads:
        before = rows(db)
        with gates.open(PEER, STAGE):
            written = threads.submit(send, local, body(tid, "t", "u"), PEER)
            gates.await_hit(PEER, STAGE)
            db.kill(tid)
            assert isinstance(written.result().error, TransactionClosedError)
        assert send(local, body(tid, "t"), PEER).json["error"] == "TransactionClosedError"
        assert (rows(db), db.outcome(tid).decision) == (before, Decision.ABORTED)


def test_a_rollback_calls_the_request_off(local: LocalCluster, gates: Gates) -> None:
    """Another thread rolls a transaction back while its only request is carried out: it is not sent again."""
    with local.connect(PEER) as db, ThreadPoolExecutor(1) as threads:
        before = rows(db)
        tx = db.begin()
        tx.insert("t", ROWS)
        with gates.open(PEER, STAGE):
            committed = threads.submit(tx.commit)
            gates.await_hit(PEER, STAGE)
            tx.rollback()
            with pytest.raises(TransactionClosedError):
                committed.result()
        assert tx.state is TransactionState.ROLLED_BACK
        assert (rows(db), db.outcome(tx.tid).decision) == (before, Decision.ABORTED)


def test_several_inserts_into_a_table_in_one_request(local: LocalCluster) -> None:
    """The rows of all of them are there, at one CSN."""
    with local.connect(HOME) as db:
        before = rows(db)
        with db.begin() as tx:
            for table in ("t", "u", "t"):
                tx.insert(table, ROWS)
        assert rows(db) == (before[0] + 2 * ROWS.num_rows, before[1] + ROWS.num_rows)
        assert ask(local, HOME, f"/transactions/{tx.tid}")["rows"] == 3 * ROWS.num_rows


@pytest.mark.parametrize("asked", [HOME, PEER])
def test_an_outcome_that_was_told_holds(local: LocalCluster, asked: str) -> None:
    """The outcome of a reserved tid is told as aborted, and its request is refused then."""
    tid = reserved(local)
    with local.connect(asked) as db:
        before = rows(db)
        assert db.outcome(tid).decision is Decision.ABORTED
        assert isinstance(send(local, body(tid, "t")).error, UnknownTransactionError)
        assert (rows(db), db.outcome(tid).decision) == (before, Decision.ABORTED)


@pytest.mark.scenario("S83")
@pytest.mark.slow
def test_the_end_of_a_reservation(local: LocalCluster) -> None:
    """Tids of a reservation that is over are refused; a client that was idle meanwhile notices nothing."""
    fields, _, counter = reserved(local, count=100).rpartition("-")
    tids = (f"{fields}-{number}" for number in range(int(counter), int(counter) + 100))
    with local.connect(HOME) as db:
        for _ in range(2):
            db.write({"t": ROWS})
        assert isinstance(send(local, body(next(tids), "nowhere")).error, UnknownTableError)
        time.sleep(RESERVED_S)
        assert isinstance(send(local, body(next(tids), "nowhere")).error, UnknownTransactionError)
        before = rows(db)
        assert db.write({"t": ROWS}).csn
        assert rows(db) == (before[0] + ROWS.num_rows, before[1])


def test_the_bounds_of_reservations(local: LocalCluster) -> None:
    """Too many at once are refused; beyond the most reserved ones the oldest end."""
    answer = http("POST", f"{Addresses.of(local, HOME).api}/tids", {"count": 101})
    assert isinstance(answer.error, BadRequestError)
    assert "1..100 (tids_reserved_once_max)" in answer.error.message
    first = reserved(local, count=100)
    kept = [reserved(local, count=100) for _ in range(3)][-1]
    assert isinstance(send(local, body(first, "nowhere")).error, UnknownTransactionError)
    assert isinstance(send(local, body(kept, "nowhere")).error, UnknownTableError)


def test_refused_rows_leave_nothing(local: LocalCluster) -> None:
    """If the rows of one table are refused, no row of any table is kept, and the refusal is repeated."""
    tid = reserved(local)
    with local.connect(HOME) as db:
        before = rows(db)
        with pytest.raises(UnknownTableError, match="no_such"):
            db.write({"t": ROWS, "no_such": ROWS})
        with pytest.raises(SchemaMismatchError):
            db.write({"t": ROWS, "u": pa.table({"other": [1]})})
        for _ in range(2):
            assert isinstance(send(local, body(tid, "t", "no_such")).error, UnknownTableError)
        assert rows(db) == before
        assert db.outcome(tid).decision is Decision.ABORTED


def test_a_label_counts_once(local: LocalCluster) -> None:
    """Of many runs under one label one is committed; the others hear its CSN."""

    def run(replica: str) -> tuple[int | None, bool]:
        with local.connect(replica) as db:
            try:
                return db.write({"t": ROWS}, label="once").csn, True
            except LabelExistsError as error:
                return error.details["csn"], False

    with local.connect(HOME) as db, ThreadPoolExecutor(6) as threads:
        before = rows(db)
        ends = list(threads.map(run, [*local.replicas] * 2))
        assert sorted(won for _, won in ends) == [False] * 5 + [True]
        assert len({csn for csn, _ in ends}) == 1
        assert rows(db) == (before[0] + ROWS.num_rows, before[1])


@pytest.mark.parametrize(
    ("content", "error", "word"),
    [
        (b"", BadRequestError, "length of a head"),
        (b"\0\0\0\x02{}", BadRequestError, "tid"),
        (body("no tid", "t"), BadRequestError, "no tid"),
        (body("1-r1-1-1", "t", wait="never"), BadRequestError, "never"),
        (body("1-r1-1-1", "t")[:-1], BadRequestError, "by their lengths"),
        (body("1-r1-1-1", "t") + b"x", BadRequestError, "by their lengths"),
        (bytes(100_001), TooLargeError, "write_bytes_max=100000"),
    ],
    ids=["empty", "no tid", "bad tid", "wait", "cut", "long", "large"],
)
def test_a_bad_body_is_refused(
    local: LocalCluster, content: bytes, error: type[Exception], word: str
) -> None:
    """Each is refused with what was found."""
    answer = send(local, content)
    assert isinstance(answer.error, error), answer.json
    assert word in answer.error.message


def test_rows_that_are_cut(local: LocalCluster) -> None:
    """A stream without its end is refused, though its length is right."""
    data = stream(ROWS)[:-8]
    tid = reserved(local)
    answer = send(local, encode(WriteHead(tid, (TableRows("t", len(data)),)), [data]))
    assert isinstance(answer.error, BadRequestError)
    assert "its end is missing" in answer.error.message
    with local.connect(HOME) as db:
        assert db.outcome(tid).decision is Decision.ABORTED


def test_unique_and_derived_tables(local: LocalCluster) -> None:
    """A key that exists is refused, also one of the same transaction; derived rows come with the others."""
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    with local.connect(HOME) as db:
        db.create_table("keys", schema, properties={"unique_key": "k"})
        db.create_table("doubled", schema, derived_from="keys", derived_sql="select 2 * k as k from inserted")
        db.write({"keys": pa.table({"k": [1, 2]}, schema=schema)})
        with pytest.raises(DuplicateKeyError):
            db.write({"t": ROWS, "keys": pa.table({"k": [2]}, schema=schema)})
        db.write({"keys": pa.table({"k": [3]}, schema=schema)})
        assert sorted(db.read("keys")["k"].to_pylist()) == [1, 2, 3]
        assert sorted(db.read("doubled")["k"].to_pylist()) == [2, 4, 6]


@pytest.mark.parametrize("point", [BEFORE, AFTER])
def test_the_home_is_killed_in_the_middle(local: LocalCluster, gates: Gates, point: str) -> None:
    """The client goes on with another replica, and the rows are there once."""
    with connect([local.url(HOME), local.url(PEER)], timeout_s=60) as db:
        before = rows(db)
        with gates.open(HOME, point):
            done = db.write({"t": ROWS, "u": ROWS})
            eventually(lambda: local.pid(HOME) is None)
        assert rows(db) == (before[0] + ROWS.num_rows, before[1] + ROWS.num_rows)
        assert (f"-{HOME}-" in done.tid) == (point == AFTER)


@pytest.mark.slow
def test_a_frozen_home_is_not_waited_for_long(local: LocalCluster) -> None:
    """The client asks others what became of it; the frozen home, when it wakes, does not carry it out."""
    with connect([local.url(HOME), local.url(PEER)], timeout_s=30) as db:
        for _ in range(2):
            db.write({"t": ROWS})
        before = rows(db)
        boot = serving_boot(local, HOME)
        local.kill(HOME, signal.SIGSTOP)
        done = db.write({"t": ROWS})
        local.kill(HOME, signal.SIGCONT)
        assert f"-{HOME}-" not in done.tid
        eventually(lambda: serving_boot(local, HOME) > boot, what="the home to serve again in its next boot")
        assert rows(db) == (before[0] + ROWS.num_rows, before[1])


def test_writers_at_all_homes(local: LocalCluster) -> None:
    """Twelve clients write beside each other: every acknowledged row is there once, at both tables."""
    with local.connect(HOME) as db:
        before = rows(db)
        csns: list[int | None] = []
        lock = threading.Lock()

        def run(replica: str) -> None:
            with local.connect(replica) as own:
                for _ in range(10):
                    done = own.write({"t": ROWS, "u": ROWS})
                    with lock:
                        csns.append(done.csn)

        with ThreadPoolExecutor(12) as threads:
            list(threads.map(run, [*local.replicas] * 4))
        assert len(csns) == 120
        assert None not in csns
        added = 120 * ROWS.num_rows
        assert rows(db) == (before[0] + added, before[1] + added)


def test_a_slow_body_holds_nothing(local: LocalCluster) -> None:
    """A client that takes its time to send the body holds nothing at the home."""
    tid = reserved(local)
    with Proxy(local.url(HOME).removeprefix("http://")) as proxy, ThreadPoolExecutor(1) as threads:
        proxy.delay(Direction.TO_SERVER, 0.5)
        written = threads.submit(http, "POST", f"http://{proxy.address}/api/v1/commits", body(tid, "t"))
        assert all(shown["tid"] != tid for shown in ask(local, HOME, "/transactions"))
        assert written.result().status == 200
