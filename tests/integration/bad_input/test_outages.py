"""An agent or ZooKeeper that does not answer: refused or unknown, in time, and nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.faults.refusals import ROWS, SCHEMA, Addresses, check_message, check_state, command, http
from tests.support.waiting import eventually
from tidelock import processes
from tidelock.client import Database, Decision, TransactionState, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    CommitUnknownError,
    LabelExistsError,
    NotCommittedError,
    NotEnoughReplicasError,
    RefusedError,
    StandbyError,
    TransactionClosedError,
    UnavailableError,
)
from tidelock.exits import Exit

SETTINGS = {
    "session_timeout_s": 2,
    "request_timeout_s": 2,
    "connect_timeout_s": 2,
    "commit_timeout_s": 3,
    "wait_bound_s": 1,
    "max_lag": 10,
    "blocked_after_s": 1,
}
#: How long a client waits for an agent that does not answer, in seconds.
PATIENCE_S = 3.0
STANDBY = "org.apache.hadoop.ipc.StandbyException"


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file exists r3 applies nothing."""
    return tmp_path_factory.mktemp("hold") / "apply"


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, hold: Path) -> LocalCluster:
    """Three replicas with a ZooKeeper of their own, which tests freeze; short timeouts."""
    faults = {"r3": f"replication.apply.before=pause:{hold}"}
    local = module_cluster(own_zookeeper=True, settings=SETTINGS, faults=faults)
    with local.connect() as db:
        db.create_table("t", SCHEMA)
    return local


@pytest.fixture
def db(local: LocalCluster) -> Iterator[Database]:
    """A client with little patience; at the end of a test all replicas have the same rows and take more."""
    with connect(local.urls, timeout_s=PATIENCE_S, query_timeout_s=60.0) as db:
        yield db
    with local.connect() as late:
        csn = late.insert("t", ROWS, wait="all").csn or 0
        rows = {replica: _rows(local, replica, csn) for replica in local.replicas}
    assert len(set(rows.values())) == 1, rows
    assert rows["r1"] % ROWS.num_rows == 0


def _rows(local: LocalCluster, replica: str, csn: int) -> int:
    with local.connect(replica) as one, one.snapshot(csn=csn) as snap:
        return snap.scan("t").count()


def states(local: LocalCluster) -> set[str]:
    """Return the states that the agents report."""
    return {row["state"] for row in local.status()["replicas"]}


@contextmanager
def frozen_zookeeper(local: LocalCluster) -> Iterator[None]:
    """Stop ZooKeeper with SIGSTOP: its connections stay and nothing is answered."""
    servers = local.zookeeper
    assert servers is not None
    process = servers.servers[0].process
    assert process is not None
    processes.send(process, signal.SIGSTOP)
    try:
        yield
    finally:
        processes.send(process, signal.SIGCONT)
        local.up()
        eventually(lambda: states(local) == {"serving"}, what="the return of all agents")


@contextmanager
def frozen_agent(local: LocalCluster, replica: str) -> Iterator[None]:
    """Stop an agent with SIGSTOP."""
    local.kill(replica, signal.SIGSTOP)
    try:
        yield
    finally:
        local.kill(replica, signal.SIGCONT)
        eventually(lambda: states(local) == {"serving"}, what="the return of all agents")


@pytest.mark.scenario("S23")
@pytest.mark.slow
def test_zookeeper_that_does_not_answer(local: LocalCluster, db: Database, tmp_path: Path) -> None:
    """Begin and commit are refused, known CSNs are read; when ZooKeeper answers again, all goes on."""
    rows = tmp_path / "rows.parquet"
    pq.write_table(ROWS, rows)
    db.insert("t", ROWS, wait="all")
    tx, snap = db.begin(fresh=True), db.snapshot()
    count = snap.scan("t").count()
    tx.insert("t", ROWS)
    with frozen_zookeeper(local):
        eventually(lambda: states(local) == {"suspended"}, what="the agents' notice")
        for call in (lambda: db.begin(fresh=True), lambda: db.create_table("other", SCHEMA)):
            with pytest.raises(UnavailableError, match="is suspended") as caught:
                call()
            assert caught.value.retriable
        with pytest.raises(StandbyError, match="cannot tell which CSN is the newest now"):
            db.snapshot()
        _reads_go_on(local, db, snap.csn, count)
        _vouches_for_nothing(Addresses.of(local, "r2"))
        assert snap.read("t").num_rows == count
        assert snap.sql("SELECT count(*) FROM t").column(0).to_pylist() == [count]
        assert tx.insert("t", ROWS).rows == ROWS.num_rows
        # The reason shows that the home has refused it, long before the client's time was over.
        with pytest.raises((NotEnoughReplicasError, NotCommittedError), match="rolled back") as refused:
            tx.commit(timeout_s=200)
        assert "within the commit timeout" in str(refused.value) or "suspended" in str(refused.value)
        check_state(tx, TransactionState.ROLLED_BACK)
        done = command("insert", "--url", local.url("r1"), "t", rows, "--timeout", 2)
        assert (done.returncode, done.stdout) == (Exit.UNAVAILABLE, "")
        assert "suspended" in done.stderr
    snap.close()
    assert db.outcome(tx.tid).decision is Decision.ABORTED
    assert db.read("t").num_rows == count


def _reads_go_on(local: LocalCluster, db: Database, csn: int, count: int) -> None:
    """At a CSN that is applied every replica serves every reader; above it each sends the reader on."""
    assert db.table("t", csn=csn)["rows"] == count
    for replica in local.replicas:
        folder = f"{Addresses.of(local, replica).data}/webhdfs/v1/snapshots"
        assert http("GET", f"{folder}/{csn}/default/t?op=LISTSTATUS").status == 200
        beyond = http("GET", f"{folder}/{csn + 100}/default/t?op=LISTSTATUS")
        assert (beyond.status, beyond.java_class) == (403, STANDBY)


def _vouches_for_nothing(peer: Addresses) -> None:
    """A peer that cannot prove its session stores no parts for others and does not read their pushes."""
    answer = http("POST", peer.api.replace("/api/v1", "/peer/v1/stage"), b"")
    assert answer.status == 503
    check_message(answer.error, UnavailableError, ["is suspended", "stores nothing for its peers now"])


@pytest.mark.scenario("S23")
def test_zookeeper_that_falls_silent_under_a_commit(local: LocalCluster, db: Database) -> None:
    """A commit without an answer is unknown within its timeout; later its outcome is known forever."""
    tx = db.begin(fresh=True)
    tx.insert("t", ROWS)
    with frozen_zookeeper(local):
        with pytest.raises(CommitUnknownError, match="outcome") as caught:
            tx.commit(timeout_s=2)
        assert caught.value.tid == tx.tid
        check_state(tx, TransactionState.SEALED)
        with pytest.raises(TransactionClosedError):
            tx.insert("t", ROWS)
    try:
        csn = tx.commit(timeout_s=60).csn
    except RefusedError:
        csn = None
    outcome = db.outcome(tx.tid)
    assert outcome.csn == csn
    assert outcome.decision is (Decision.ABORTED if csn is None else Decision.COMMITTED)


@pytest.mark.slow
def test_agent_that_does_not_start_without_zookeeper(local: LocalCluster, db: Database) -> None:
    """`up` shows the agent's one line of complaint, and starts the agent when ZooKeeper answers again."""
    local.stop("r3")
    with (
        frozen_zookeeper(local),
        pytest.raises(UnavailableError, match="no ZooKeeper server answered at") as caught,
    ):
        local.start("r3")
    assert str(local.log("r3")) in caught.value.message


@pytest.mark.parametrize(
    ("urls", "words"),
    [
        (["http://127.0.0.1:1"], r"127\.0\.0\.1:1 .*is it running"),
        (["http://127.0.0.1:1", "http://localhost:1"], r"127\.0\.0\.1:1, localhost:1 .*start the agents"),
    ],
    ids=["one", "two"],
)
@pytest.mark.slow
def test_agent_that_is_not_there(local: LocalCluster, urls: list[str], words: str) -> None:
    """If no program listens, the message names the addresses, and says what to do."""
    with pytest.raises(UnavailableError, match=words) as caught:
        connect(urls, timeout_s=PATIENCE_S)
    assert caught.value.retriable
    for arguments in (("--url", "http://127.0.0.1:1"), ("--zk", "127.0.0.1:1/nowhere")):
        done = command("tables", *arguments, "--timeout", 1)
        assert (done.returncode, done.stdout) == (Exit.UNAVAILABLE, "")
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.slow
def test_agent_that_does_not_answer(local: LocalCluster, db: Database) -> None:
    """A pinned client gets an error in time, another one goes on elsewhere; no commit is half done."""
    with connect(local.urls, replica="r2", timeout_s=PATIENCE_S, query_timeout_s=PATIENCE_S) as pinned:
        tx = pinned.begin(fresh=True)
        tx.insert("t", ROWS)
        snap = pinned.snapshot()
        reading = pinned.begin(fresh=True)
        with frozen_agent(local, "r2"):
            for call in (lambda: pinned.begin(fresh=True), lambda: snap.read("t"), lambda: reading.read("t")):
                with pytest.raises(UnavailableError, match="no whole answer from the agent at"):
                    call()
            check_state(reading, TransactionState.OPEN)  # a read may be repeated
            with pytest.raises(UnavailableError, match="may have carried out the request"):
                reading.insert("t", ROWS)
            check_state(reading, TransactionState.FAILED)
            with pytest.raises(CommitUnknownError):
                tx.commit(timeout_s=3)
            with db.begin() as elsewhere:
                assert elsewhere.holder != "r2"
        reading.rollback()
        result = tx.commit(timeout_s=60)
        assert db.outcome(tx.tid).csn == result.csn
        snap.close()


def _insert_often(db: Database, times: int) -> None:
    for _ in range(times):
        db.insert("t", ROWS)


@pytest.mark.slow
def test_stuck_replica_that_is_needed(local: LocalCluster, db: Database, hold: Path) -> None:
    """If fewer than `copies` replicas apply the log, commits are refused before it grows without a bound."""
    hold.touch()
    local.stop("r2")
    try:
        with local.connect("r1") as home, pytest.raises(NotCommittedError) as caught:
            _insert_often(home, 3 * SETTINGS["max_lag"])
        tid = str(caught.value.details["tid"])
        check_message(
            *(caught.value, NotCommittedError),
            [
                f"{tid} is not committed, and rolled back",
                "fewer than `copies` replicas make progress",
                "r3 is more than max_lag=10 CSNs behind",
                "see its phase in tidelock status",
                "begin again",
            ],
        )
        assert caught.value.retriable
        assert caught.value.http_status == 503
        assert db.outcome(tid).decision is Decision.ABORTED
    finally:
        hold.unlink()
        local.start("r2")
    csn = db.insert("t", ROWS, timeout_s=60).csn or 0
    eventually(lambda: local.status()["replicas"][2]["snapshot_csn"] >= csn, what="r3")


def test_label_whose_first_run_is_not_applied_here(local: LocalCluster, db: Database, hold: Path) -> None:
    """The second run learns the CSN of the first run although its own home has not applied that CSN yet."""
    label = "told late"
    with local.connect("r3") as third, ThreadPoolExecutor(1) as executor:
        again = third.begin(label)
        again.insert("t", ROWS)
        hold.touch()
        try:
            with local.connect("r1") as first:
                csn = first.insert("t", ROWS, label=label).csn
            late = executor.submit(again.commit)
            eventually(lambda: _state(local, again.tid) == "sealed", what="the commit that waits")
        finally:
            hold.unlink()
        with pytest.raises(LabelExistsError) as caught:
            late.result()
    check_message(caught.value, LabelExistsError, [f"label {label!r} was committed before, at CSN {csn}"])
    assert caught.value.details["csn"] == csn


def _state(local: LocalCluster, tid: str) -> str:
    home = tid.split("-")[1]
    return str(http("GET", f"{Addresses.of(local, home).api}/transactions/{tid}").json["state"])
