"""Replicas that are killed, frozen, or too few, while clients work."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.refusals import http
from tests.support.histories.evidence import alive, data_address, lives, nothing_left, verify
from tests.support.histories.workload import Workload
from tests.support.waiting import eventually
from tidelock.client import Database, Decision, Transaction, TransactionState
from tidelock.cluster import LocalCluster
from tidelock.errors import NotEnoughReplicasError
from tidelock.replication.core.digest import checksum
from workloads.agents import ask

REPLICAS = ("r1", "r2", "r3")
ROWS = pa.table({"k": [1, 2, 3]})


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(settings=QUICK)


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, with all replicas up before and after the test."""
    shared.up()
    yield shared
    for replica in shared.replicas:
        shared.kill(replica, signal.SIGCONT)
    shared.up()


@pytest.mark.scenario("S71")
@pytest.mark.slow
def test_a_replica_killed_under_load_catches_up(local: LocalCluster, tmp_path: Path) -> None:
    """Unpinned clients go on elsewhere, pinned ones wait; the replica catches up when it is back."""
    with Workload(
        local,
        tmp_path,
        "killed",
        writers=(*REPLICAS, *REPLICAS, None, None),
        hoppers=1,
        readers=("r1", "r2", None),
    ) as load:
        load.more_commits(5, *REPLICAS)
        local.kill("r1")  # where the clients without a replica of their own are
        load.more_commits(15, "r2", "r3")
        assert local.pid("r1") is None
        local.start("r1")
        load.more_commits(5, *REPLICAS)
    history = verify(load, commits=45)
    assert len({boot for home, boot in lives(history) if home == "r1"}) == 2


@pytest.mark.scenario("S25")
@pytest.mark.slow
def test_a_frozen_replica_goes_on_where_the_others_are(local: LocalCluster, tmp_path: Path) -> None:
    """A replica that was stopped for longer than its ZooKeeper session publishes nothing stale."""
    with Workload(
        local, tmp_path, "frozen", writers=(*REPLICAS, *REPLICAS), readers=("r1", "r3"), timeout_s=5.0
    ) as load:
        load.more_commits(5, *REPLICAS)
        local.kill("r3", signal.SIGSTOP)
        eventually(lambda: not alive(local, "r1", "r3"), what="the end of r3's session")
        load.more_commits(10, "r1", "r2")
        local.kill("r3", signal.SIGCONT)
        load.more_commits(5, *REPLICAS)
        load.more_reads(2, "r3")
    verify(load, commits=50)
    eventually(lambda: alive(local, "r1", "r3"), what="a new sign of life of r3")


@pytest.mark.scenario("S45")
@pytest.mark.slow
def test_too_few_replicas_refuse_commits_and_serve_snapshots(local: LocalCluster) -> None:
    """With two of three replicas down a commit is refused in time and leaves nothing; reads go on."""
    with local.connect("r1") as db:
        db.create_table("few", ROWS.schema)
        committed = db.insert("few", ROWS, wait="all")
        with db.snapshot() as before:
            local.kill("r2")
            local.kill("r3")
            refused = not_enough(db)
            nothing_left(local.data_dir("r1"))
            assert before.read("few") == ROWS
            with db.snapshot() as now:
                assert now.csn >= (committed.csn or 0)
                assert now.read("few") == ROWS
                (part,) = ask(local, "r1", f"/parts?csn={now.csn}&table=few")
                url = f"http://{data_address(local, 'r1')}/snapshots/{now.csn}/{part['file']}"
                assert checksum(http("GET", url).data) == part["checksum"]
        local.up()
        assert db.insert("few", ROWS).csn == db.seen_csn
        for replica in REPLICAS:
            with local.connect(replica) as other:
                assert other.outcome(refused.tid).decision is Decision.ABORTED
                with other.snapshot(min_csn=db.seen_csn) as snap:
                    assert snap.scan("few").count() == 2 * ROWS.num_rows
            nothing_left(local.data_dir(replica))


def not_enough(db: Database) -> Transaction:
    """Run a transaction that does not get its copies, and return it."""
    tx = db.begin(fresh=True)
    tx.insert("few", ROWS)
    with pytest.raises(NotEnoughReplicasError, match="1 of 2 durable copies"):
        tx.commit()
    assert tx.state is TransactionState.ROLLED_BACK
    return tx
