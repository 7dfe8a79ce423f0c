"""outcome(tid) on real agents: after each death and lost message every replica gives the same true answer.

I8 and I17 (rule outcome): a replica asks the session of the home, then reads the log to its end, then its own
catalog. A home that has been silent for `fence_timeout_s` is fenced by the replica that needs an outcome.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.client_process import ROWS, ClientProcess
from tests.support.clusters.cluster import QUICK, ClusterFactory, restored
from tests.support.clusters.truncation import truncate
from tests.support.faults.lab import Gates
from tests.support.faults.proxy import Direction, Proxy
from tests.support.faults.refusals import Addresses, http
from tests.support.histories.evidence import nothing_left
from tests.support.waiting import eventually
from tidelock.client import Decision, TransactionState, connect
from tidelock.client.writes.decide import decide
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    CommitUnknownError,
    FencedError,
    NotCommittedError,
    TidelockError,
    TransactionClosedError,
)
from tidelock.wire.transactions import CommitRequest
from workloads.agents import ask

REPLICAS = ("r1", "r2", "r3")
HOME, PEER = "r1", "r2"
BEFORE, AFTER = "csnlog.commit.before", "csnlog.commit.after"
SETTINGS = {
    **QUICK,
    "session_timeout_s": 3,
    "fence_timeout_s": 1,
    "clean_interval_s": 0.2,
}
TABLE = "t"


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """Gates at which the home can be killed: before its record is sent, and before it answers."""
    return Gates(
        tmp_path_factory.mktemp("gates"), {HOME: {BEFORE: "crash", AFTER: "crash"}, PEER: {AFTER: "pause"}}
    )


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory, gates: Gates) -> LocalCluster:
    """One cluster for the module, with the table."""
    made = module_cluster(
        settings=SETTINGS, environment_of={replica: gates.environment(replica) for replica in (HOME, PEER)}
    )
    with made.connect() as db:
        db.create_table(TABLE, ROWS.schema)
        db.insert(TABLE, ROWS, wait="all")
    return made


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster with all replicas up, and nothing left over after the test."""
    with restored(shared):
        yield shared


def outcome(cluster: LocalCluster, replica: str, tid: str) -> tuple[str, int | None]:
    """Return the outcome of a transaction by one replica."""
    answer = ask(cluster, replica, f"/outcomes/{tid}")
    return answer["outcome"], answer.get("csn")


def outcomes(cluster: LocalCluster, tid: str, *replicas: str) -> set[tuple[str, int | None]]:
    """Return the outcomes of a transaction by these replicas, or by all."""
    return {outcome(cluster, replica, tid) for replica in replicas or REPLICAS}


def rows(cluster: LocalCluster, csn: int | None = None) -> int:
    """Return the number of rows of the table, at a CSN or at the newest."""
    with cluster.connect() as db, db.snapshot(csn) as snap:
        return snap.scan(TABLE).count()


def test_an_outcome_is_the_same_from_any_replica(local: LocalCluster) -> None:
    """Committed with CSN and time, aborted, running: the same from each replica, and by each client."""
    with local.connect(HOME) as db:
        committed, rolled_back, still_open, empty = (db.begin() for _ in range(4))
        for tx in (committed, rolled_back, still_open):
            tx.insert(TABLE, ROWS)
        done = committed.commit(wait="all")
        rolled_back.rollback()
        assert empty.commit().csn is None
        told = []
        for replica in REPLICAS:
            with local.connect(replica) as other:
                told.append([other.outcome(tx.tid) for tx in (committed, rolled_back, still_open, empty)])
        assert told[1:] == told[:-1]
        decisions = [one.decision for one in told[0]]
        # An empty transaction leaves no record, so it looks like one that was rolled back.
        assert decisions == [Decision.COMMITTED, Decision.ABORTED, Decision.RUNNING, Decision.ABORTED]
        assert (told[0][0].csn, told[0][0].time) == (done.csn, done.time)
        still_open.rollback()


def test_a_commit_whose_answer_is_lost(local: LocalCluster) -> None:
    """The client asks again and gets the CSN of the commit; so does a repeated HTTP request."""
    before = rows(local)
    with Proxy(local.url(HOME).removeprefix("http://")) as proxy:
        with connect(f"http://{proxy.address}", replica=HOME) as db:
            tx = db.begin()
            tx.insert(TABLE, ROWS)
            proxy.lose_reply()
            done = tx.commit()
            assert proxy.counters.lost_replies == 1
            assert tx.state is TransactionState.COMMITTED
            assert tx.commit() == done
        again = f"{Addresses.of(local, HOME).api}/transactions/{tx.tid}/commit"
        with ThreadPoolExecutor(4) as executor:
            answers = list(executor.map(lambda _: http("POST", again, {}).json, range(4)))
    assert {answer["csn"] for answer in answers} == {done.csn}
    assert outcomes(local, tx.tid) == {("committed", done.csn)}
    assert rows(local, done.csn) == before + ROWS.num_rows


def test_a_commit_whose_answer_is_not_lost_but_late(local: LocalCluster, gates: Gates) -> None:
    """ZooKeeper's answer is delayed: the home finds its own record in the log, and answers from it.

    Compare ClickHouse's 04141, where the transaction stays in an unknown state. Here no client sees a
    difference: the record makes the commit visible, and the record answers it.
    """
    with local.connect(PEER) as db:
        tx = db.begin()
        tx.insert(TABLE, ROWS)
        with gates.open(PEER, AFTER):
            done = tx.commit()
            assert outcomes(local, tx.tid) == {("committed", done.csn)}
        assert tx.commit() == done


def test_the_client_is_killed_between_commit_and_answer(local: LocalCluster) -> None:
    """The answer never arrives, since its client is dead; every replica knows the outcome."""
    before = rows(local)
    with (
        Proxy(local.url(HOME).removeprefix("http://")) as proxy,
        ClientProcess(f"http://{proxy.address}", HOME, TABLE) as client,
    ):
        assert outcomes(local, client.tid) == {("running", None)}
        proxy.black_hole(Direction.TO_CLIENT)
        client.commit()
        eventually(lambda: outcome(local, HOME, client.tid)[0] == "committed", what="the commit")
        client.kill()
        ((decision, csn),) = outcomes(local, client.tid)
    assert decision == "committed"
    assert rows(local, csn) == before + ROWS.num_rows


@pytest.mark.scenario("S05")
@pytest.mark.parametrize(
    "client_dies", [pytest.param(False, marks=pytest.mark.slow, id="home"), pytest.param(True, id="both")]
)
def test_killed_with_the_record_in_the_log(local: LocalCluster, gates: Gates, client_dies: bool) -> None:
    """Committed: the other replicas say so while the home is dead, and the home when it is back."""
    with ClientProcess(local.url(HOME), HOME, TABLE) as client:
        with gates.open(HOME, AFTER):
            client.commit()
            eventually(lambda: local.pid(HOME) is None, what="the death of the home")
        if client_dies:
            client.kill()
        ((decision, csn),) = outcomes(local, client.tid, "r2", "r3")
        assert decision == "committed"
        local.start(HOME)
        if not client_dies:
            assert client.told() == str(csn)  # a client that is pinned to the home has waited for it
    assert outcomes(local, client.tid) == {("committed", csn)}
    answer = http("POST", f"{Addresses.of(local, HOME).api}/transactions/{client.tid}/commit", {})
    assert answer.json["csn"] == csn


@pytest.mark.scenario("S05")
def test_killed_before_the_record_was_sent(local: LocalCluster, gates: Gates) -> None:
    """Home and client die: aborted, after a peer has found the home silent for long enough and fenced it.

    Before that the answer is "running" (test_fault_points.py, without a fence). The peers delete the
    transaction's parts while the home is still dead; when it is back it finds that it was fenced, and gives
    the same answer.
    """
    before = rows(local)
    with ClientProcess(local.url(HOME), HOME, TABLE) as client:
        with gates.open(HOME, BEFORE):
            client.commit()
            eventually(lambda: local.pid(HOME) is None, what="the death of the home")
        client.kill()
    told = partial(outcome, local, "r3", client.tid)
    eventually(lambda: told() == ("aborted", None), what="the fence of the home")
    assert outcomes(local, client.tid, "r2", "r3") == {("aborted", None)}
    for replica in ("r2", "r3"):
        nothing_left(local.data_dir(replica))
    local.start(HOME)
    assert outcomes(local, client.tid) == {("aborted", None)}
    with local.connect(HOME) as db:
        boot, boot_before = (int(tid.split("-")[2]) for tid in (db.begin().tid, client.tid))
        assert boot > boot_before + 1  # one raise was the fence of the peer
        csn = db.insert(TABLE, ROWS).csn
    assert rows(local, csn) == before + ROWS.num_rows


@pytest.mark.scenario("S25")
@pytest.mark.slow
def test_a_frozen_home_is_fenced_and_later_refused(local: LocalCluster) -> None:
    """A home that is frozen for too long is fenced; after the thaw its transactions are refused."""
    with local.connect(HOME) as db:
        tx, other = db.begin(lease="10m"), db.begin(lease="10m")
        for one in (tx, other):
            one.insert(TABLE, ROWS)
        local.kill(HOME, signal.SIGSTOP)
        with connect([local.url(PEER)]) as anybody:  # asks the home first, and gets an answer without it
            eventually(
                lambda: anybody.outcome(tx.tid).decision is Decision.ABORTED, what="the fence of the home"
            )
        local.kill(HOME, signal.SIGCONT)
        with pytest.raises((FencedError, TransactionClosedError, NotCommittedError)):
            tx.commit()
        assert tx.state is TransactionState.ROLLED_BACK
        eventually(partial(_serves, local, HOME), what="the next life of the home")
        with pytest.raises(TidelockError):
            other.insert(TABLE, ROWS)
    assert outcomes(local, tx.tid) == {("aborted", None)}
    assert outcomes(local, other.tid) == {("aborted", None)}  # the fence has ended all of that boot


def _serves(cluster: LocalCluster, replica: str) -> bool:
    try:
        status: dict[str, Any] = ask(cluster, replica, "/status")
    except TidelockError:
        return False
    return bool(status["state"] == "serving")


def test_kept_when_the_log_is_truncated(local: LocalCluster) -> None:
    """When the records are deleted, the catalogs keep the outcomes, also after a restart of all replicas."""
    with local.connect(HOME) as db:
        committed = [db.insert(TABLE, ROWS) for _ in range(3)]
        aborted = db.begin(fresh=True)
        aborted.insert(TABLE, ROWS)
        aborted.rollback()
        last = db.insert(TABLE, ROWS, wait="all")
    assert last.csn is not None
    truncate(local.zk, last.csn)
    assert ask(local, PEER, "/log?from_csn=0")[0]["csn"] == last.csn  # a tick may follow
    expected = [(one.tid, {("committed", one.csn)}) for one in committed]
    expected.append((aborted.tid, {("aborted", None)}))
    assert [(tid, outcomes(local, tid)) for tid, _ in expected] == expected
    for replica in REPLICAS:
        local.kill(replica)
    local.up()
    assert [(tid, outcomes(local, tid)) for tid, _ in expected] == expected
    again = f"{Addresses.of(local, HOME).api}/transactions/{committed[0].tid}/commit"
    assert http("POST", again, {}).json["csn"] == committed[0].csn


@pytest.mark.scenario("S83")
def test_too_old_is_told_below_the_floor_of_outcomes(local: LocalCluster, gates: Gates) -> None:
    """Below a replica's floor of kept outcomes it answers "too old", not "aborted"; others still know.

    A transaction that was undecided when the floor passed it is decided, and leaves nothing behind.
    """
    with local.connect(HOME) as db, ClientProcess(local.url(HOME), HOME, TABLE) as undecided:
        old = db.insert(TABLE, ROWS, wait="all")
        with gates.open(HOME, BEFORE):
            undecided.commit()
            eventually(lambda: local.pid(HOME) is None, what="the death of the home")
    local.stop("r3")
    local.environment_of["r3"] = {
        "TIDELOCK_OUTCOME_RETENTION_S": "0.1",
        "TIDELOCK_FENCE_TIMEOUT_S": "600",
        "TIDELOCK_REFUSED_TIMEOUT_S": "0",
    }
    local.start("r3")
    with local.connect(PEER) as db:
        floor = db.insert(TABLE, ROWS, wait="all").csn
        newer = db.begin(min_csn=floor)
    told = partial(outcome, local, "r3", old.tid)
    eventually(lambda: told() == ("too_old", None), what="the end of the retention on r3")
    assert ask(local, "r3", f"/outcomes/{old.tid}")["floor"] >= (old.csn or 0)
    assert ask(local, "r3", f"/explain/{old.tid}")["outcome"] == "too_old"
    assert outcome(local, PEER, old.tid) == ("committed", old.csn)
    assert outcome(local, "r3", newer.tid) == ("running", None)
    with local.connect("r3") as third:
        assert third.outcome(old.tid).decision is Decision.TOO_OLD
    local.start(HOME)
    eventually(lambda: outcome(local, "r3", undecided.tid)[0] == "too_old", what="r3 that sees the next life")
    nothing_left(local.data_dir("r3"))
    assert outcomes(local, undecided.tid, HOME, PEER) == {("aborted", None)}
    assert outcomes(local, old.tid, HOME, PEER) == {("committed", old.csn)}
    del local.environment_of["r3"]


@pytest.mark.scenario("S83")
@pytest.mark.slow
def test_a_commit_that_nobody_can_tell_any_more(module_cluster: ClusterFactory) -> None:
    """A client that asks after the retention gets "unknown", never "aborted"."""
    local = module_cluster(replicas=1, settings={**SETTINGS, "outcome_retention_s": 0.1})
    with local.connect() as db:
        db.create_table(TABLE, ROWS.schema)
        tx = db.begin()
        tx.insert(TABLE, ROWS)
        tx.commit()
        db.insert(TABLE, pa.table({"k": [4]}))
        local.kill("r1")
        local.start("r1")
        eventually(lambda: db.outcome(tx.tid).decision is Decision.TOO_OLD, what="the end of the retention")
        home = db._connection.members.find("r1")
        with pytest.raises(CommitUnknownError, match="older than the outcomes that replicas keep"):
            decide(
                db._connection, home, tx.tid, CommitRequest(), timeout_s=20.0
            )  # a client without an answer
        assert db.read(TABLE).num_rows == ROWS.num_rows + 1
