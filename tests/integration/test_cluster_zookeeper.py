"""Agents whose way to ZooKeeper fails: lost requests and replies, lost sessions, a frozen or dead server."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory, start_through
from tests.support.faults.proxy import MULTI, Action, Hook, Proxy, nth_request
from tests.support.faults.refusals import http
from tests.support.histories.evidence import alive, data_address, read_log, verify
from tests.support.histories.workload import Workload
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import OPTIONS, READY_TIMEOUT_S
from tidelock import processes
from tidelock import zookeeper as embedded
from tidelock.client import Decision, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import UnavailableError
from tidelock.replication.core.digest import checksum
from tidelock.zookeeper import LocalZooKeeper
from workloads.agents import ask
from workloads.history import CallEnd

REPLICAS = ("r1", "r2", "r3")
SETTINGS = {**QUICK, "session_timeout_s": 3, "request_timeout_s": 3, "commit_timeout_s": 30}
ROWS = pa.table({"k": [1, 2, 3]})
#: A path that only the multi of a commit contains.
COMMIT = b"/csn/0/csn-"
NAMES = itertools.count()


@pytest.fixture(scope="module")
def proxy(zookeeper: str) -> Iterator[Proxy]:
    """The proxy between r1 and ZooKeeper."""
    with Proxy(zookeeper) as made:
        yield made


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory, proxy: Proxy) -> LocalCluster:
    """A cluster whose r1 reaches ZooKeeper through the proxy."""
    local = module_cluster(settings=SETTINGS, start=False)
    start_through(local, "r1", proxy.address)
    local.up()
    return local


@pytest.fixture
def local(shared: LocalCluster, proxy: Proxy) -> Iterator[LocalCluster]:
    """The cluster, without faults before and after the test."""
    proxy._set(proxy.late.clear)  # so that a request that is to be late waits for the release of this test
    yield shared
    proxy.heal()
    proxy.release()
    eventually(lambda: state(shared, "r1") == "serving", what="r1 that serves")


def state(local: LocalCluster, replica: str) -> str:
    """Return the state that an agent reports."""
    return str(ask(local, replica, "/status")["state"])


def new_table(local: LocalCluster) -> str:
    """Make a table that no other test uses."""
    name = f"t{next(NAMES)}"
    with local.connect("r1") as db:
        db.create_table(name, ROWS.schema)
    return name


@pytest.mark.scenario("S01", "S02")
@pytest.mark.parametrize("action", [Action.LOSE_REQUEST, Action.LOSE_REPLY, Action.DELIVER_LATE])
def test_a_commit_whose_connection_breaks(local: LocalCluster, proxy: Proxy, action: Action) -> None:
    """Cut before, during or after the commit is applied: all transactions end with the CSN in the log."""
    table = new_table(local)
    before = faults(proxy)
    with contextlib.ExitStack() as clients:
        # All have asked for their commits when the connection breaks: a suspended agent takes no statement.
        transactions = [clients.enter_context(local.connect("r1")).begin(fresh=True) for _ in range(6)]
        for tx in transactions:
            tx.insert(table, ROWS)
        proxy.hook(nth_request(1, action, containing=COMMIT, opcode=MULTI))
        with ThreadPoolExecutor(len(transactions)) as executor:
            results = list(executor.map(Transaction.commit, transactions))
    assert faults(proxy) == before + 1
    proxy.release()  # the fence is higher when the late request arrives
    with local.connect("r1") as db:
        results.append(db.insert(table, ROWS, wait="all"))
    places = [(tid.tid, record.csn) for record in read_log(local.zk) for tid in record.record.tids]
    for result in results:
        assert [csn for tid, csn in places if tid == result.tid] == [result.csn]
        for replica in REPLICAS:
            with local.connect(replica) as db:
                outcome = db.outcome(result.tid)
                assert (outcome.decision, outcome.csn) == (Decision.COMMITTED, result.csn)
                with db.snapshot(min_csn=result.csn) as snap:
                    assert snap.scan(table).count() >= ROWS.num_rows
    with local.connect("r3") as db, db.snapshot(min_csn=results[-1].csn) as snap:
        assert snap.scan(table).count() == len(results) * ROWS.num_rows


def faults(proxy: Proxy) -> int:
    """Return how many requests and replies the proxy has lost or delayed."""
    counters = proxy.counters
    return counters.lost_requests + counters.lost_replies + counters.late_requests


@pytest.mark.slow
def test_a_connection_that_breaks_again_and_again(local: LocalCluster, proxy: Proxy, tmp_path: Path) -> None:
    """All replicas commit while every tenth multi of r1, or its reply, is lost."""
    before = faults(proxy)
    with Workload(local, tmp_path, "flaky", writers=("r1", "r1", "r1", "r2", "r3"), readers=("r1",)) as load:
        proxy.hook(every(10, (Action.LOSE_REPLY, Action.LOSE_REQUEST)))
        load.more_commits(25, "r1")
        while faults(proxy) < before + 4:  # the busier the machine, the more commits share a multi
            load.more_commits(5, "r1")
        proxy.heal()
        load.more_commits(3, *REPLICAS)
    verify(load, commits=30)


def every(n: int, actions: tuple[Action, ...]) -> Hook:
    """Return a hook that takes these actions in turn, one for every n-th multi."""
    seen = itertools.count(1)
    turn = itertools.cycle(actions)

    def hook(frame: bytes) -> Action:
        if int.from_bytes(frame[4:8], "big") != MULTI or next(seen) % n:
            return Action.PASS
        return next(turn)

    return hook


@pytest.mark.scenario("S24", "S26")
def test_a_replica_without_zookeeper(local: LocalCluster, proxy: Proxy, tmp_path: Path) -> None:
    """Without a session a replica takes no work and serves known CSNs; with a new one it goes on."""
    with Workload(local, tmp_path, "cut", writers=(*REPLICAS, *REPLICAS), readers=("r2",)) as load:
        load.more_commits(5, *REPLICAS)
        with local.connect("r1") as db, db.snapshot() as snap:
            known = snap.scan(load.tables[0]).count()
            proxy.black_hole()
            eventually(lambda: state(local, "r1") == "suspended", what="a suspended r1")
            with pytest.raises(UnavailableError, match="suspended"):
                db.begin(fresh=True)
            with pytest.raises(UnavailableError, match="suspended"):
                db.snapshot()
            assert snap.scan(load.tables[0]).count() == known
            eventually(lambda: not alive(local, "r2", "r1"), what="the end of r1's session")
            load.more_commits(5, "r2", "r3")
            assert state(local, "r1") == "suspended"
        proxy.heal()
        load.more_commits(5, *REPLICAS)
        eventually(lambda: alive(local, "r2", "r1"), what="a new sign of life of r1")
    verify(load, commits=40)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalZooKeeper]:
    """One ZooKeeper server of this test alone."""
    made = embedded.create(tmp_path / "zookeeper", options=OPTIONS)
    try:
        made.start(timeout_s=READY_TIMEOUT_S)
        yield made
    finally:
        made.kill()


@pytest.mark.scenario("S23")
@pytest.mark.slow
def test_a_frozen_zookeeper_stops_commits_but_no_reads(
    cluster: ClusterFactory, server: LocalZooKeeper, tmp_path: Path
) -> None:
    """No begin or commit succeeds meanwhile, snapshots are read; after the thaw all commits are decided."""
    local = cluster(zk=server.connect_string, settings=SETTINGS)
    (process,) = (one.process for one in server.servers)
    assert process is not None
    with Workload(local, tmp_path, "ice", writers=(*REPLICAS, *REPLICAS), timeout_s=4.0) as load:
        load.more_commits(5, *REPLICAS)
        with local.connect("r1") as db, db.snapshot() as snap:
            rows = snap.read(load.tables[0]).num_rows
            processes.send(process, signal.SIGSTOP)
            for replica in REPLICAS:
                eventually(
                    lambda replica=replica: state(local, replica) == "suspended",  # type: ignore[misc]
                    what=f"a suspended {replica}",
                )
                with local.connect(replica) as other, pytest.raises(UnavailableError, match="suspended"):
                    other.begin(fresh=True)
            acknowledged = load.commits()
            for replica in REPLICAS:
                assert read_by_http(local, replica, snap.csn, load.tables[0]) == rows
            assert snap.read(load.tables[0]).num_rows == rows
            assert load.commits() == acknowledged
            processes.send(process, signal.SIGCONT)
        load.more_commits(5, *REPLICAS)
    history = verify(load, commits=30)
    assert history.ended(CallEnd.INFO) + history.ended(CallEnd.FAIL)


def read_by_http(local: LocalCluster, replica: str, csn: int, table: str) -> int:
    """Get all parts of a table at a CSN, and return the number of their rows."""
    parts = ask(local, replica, f"/parts?csn={csn}&table={table}")
    for part in parts:
        url = f"http://{data_address(local, replica)}/snapshots/{csn}/{part['file']}"
        assert checksum(http("GET", url).data) == part["checksum"]
    return sum(part["rows"] for part in parts)


@pytest.mark.scenario("S29")
@pytest.mark.slow
def test_the_leader_of_three_is_killed(
    cluster: ClusterFactory, ensemble: LocalZooKeeper, tmp_path: Path
) -> None:
    """Killed twice during commits: acknowledged commits are in the log once, unknown ones are decided."""
    local = cluster(zk=ensemble.connect_string, settings=SETTINGS)
    with Workload(local, tmp_path, "lead", writers=(*REPLICAS, *REPLICAS, None), readers=("r2",)) as load:
        for _ in range(2):
            load.more_commits(5, *REPLICAS)
            eventually(lambda: ensemble.leader() is not None, what="a leader")
            leader = ensemble.leader()
            assert leader is not None
            leader.kill()
            load.more_commits(5, *REPLICAS)
            ensemble.start(timeout_s=READY_TIMEOUT_S)
    verify(load, commits=60)
