"""Replicas that are asked to stop, one after the other, or all killed at once, and come back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.disks import lose_disk
from tests.support.histories.evidence import lives, nothing_left, verify
from tests.support.histories.workload import Workload
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import READY_TIMEOUT_S
from tidelock import processes
from tidelock.client import CommitResult, Database, Decision
from tidelock.cluster import LocalCluster, process_groups
from tidelock.cluster.agent_log import last_error
from tidelock.errors import UnavailableError
from workloads.agents import ask
from workloads.history import CallEnd

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
    shared.environment_of.clear()
    shared.up()


def test_a_new_disk_serves_from_where_the_old_one_was(local: LocalCluster) -> None:
    """A replica with a new disk waits for its former CSN, says so, and goes on by itself."""
    with local.connect("r1") as db:
        db.create_table("kept", ROWS.schema)
        with db.begin(fresh=True) as tx:
            for _ in range(3):
                tx.insert("kept", ROWS)
            csn = tx.commit(wait="all").csn or 0
        eventually(lambda: told(local, "r3") >= csn, what="the progress of r3")
        lose_disk(local, "r3")
        local.environment_of["r3"]["TIDELOCK_CATCH_UP_WAIT_S"] = "0.1"
        others = [process for replica in ("r1", "r2") if (process := local.process(replica))]
        for process in others:
            assert process_groups.send(process, signal.SIGSTOP)
        log = local.log("r3")
        begun = log.stat().st_size
        with ThreadPoolExecutor(1) as executor:
            starting = executor.submit(local.start, "r3", timeout_s=READY_TIMEOUT_S)
            try:
                eventually(
                    lambda: (
                        f"it serves from CSN {csn} on, when it has all parts" in str(last_error(log, begun))
                    ),
                    what="the reason why r3 waits",
                )
                with pytest.raises(UnavailableError, match="is not ready after 0 s"):
                    local.start("r3", timeout_s=0.0)
            finally:
                for process in others:
                    process_groups.send(process, signal.SIGCONT)
            starting.result()
    with local.connect("r3") as db, db.snapshot() as snap:
        assert snap.csn >= csn
        assert snap.read("kept").num_rows == 3 * ROWS.num_rows


def told(local: LocalCluster, replica: str) -> int:
    """Return the oldest CSN in use at a replica, as ZooKeeper has it; its snapshot CSN if nothing is open."""
    return next(int(one["oldest"]) for one in ask(local, "r1", "/status")["replicas"] if one["id"] == replica)


@pytest.mark.slow
def test_all_replicas_killed_under_load(local: LocalCluster, tmp_path: Path) -> None:
    """After the kill all acknowledged commits are there, and unknown ones are decided."""
    with Workload(local, tmp_path, "all", writers=(*REPLICAS, *REPLICAS), hoppers=1, readers=("r3",)) as load:
        load.more_commits(5, *REPLICAS)
        with ThreadPoolExecutor(len(REPLICAS)) as executor:
            assert all(executor.map(local.kill, REPLICAS))
        local.up()
        load.more_commits(5, *REPLICAS)
    assert len(lives(verify(load, commits=30))) == 2 * len(REPLICAS)


def test_sigterm_lets_a_running_commit_end(local: LocalCluster, tmp_path: Path) -> None:
    """The running commit is answered and stays, new work is refused meanwhile, then all processes end."""
    hold, journal = tmp_path / "hold", tmp_path / "journal"
    armed = f"csnlog.commit.before=pause:{hold}"
    local.environment_of["r1"] = {"TIDELOCK_FAULTS": armed, "TIDELOCK_FAULTS_JOURNAL": str(journal)}
    local.kill("r1")
    local.start("r1")
    process = local.process("r1")
    assert process is not None
    with local.connect("r1") as db:
        db.create_table("drained", ROWS.schema)
        running, idle = db.begin(fresh=True), db.begin(fresh=True)
        running.insert("drained", ROWS)
        hold.touch()
        results: list[CommitResult] = []
        committing = threading.Thread(target=lambda: results.append(running.commit()))
        committing.start()
        eventually(journal.exists, what="the commit at its fault point")
        processes.send(process, signal.SIGTERM)
        eventually(lambda: refused(db), what="a refused begin")
        with pytest.raises(UnavailableError, match="stopping"):
            idle.insert("drained", ROWS)
        assert not results
        assert processes.alive(process)
        hold.unlink()
        committing.join()
        (result,) = results
    eventually(lambda: list(process_groups._members(process)) == [], what="the end of r1")
    with local.connect("r2") as db, db.snapshot(min_csn=result.csn) as snap:
        assert snap.read("drained") == ROWS
    local.environment_of.clear()
    local.start("r1")
    with local.connect("r2") as db:
        assert db.outcome(idle.tid).decision is Decision.ABORTED
    nothing_left(local.data_dir("r1"))


def refused(db: Database) -> bool:
    """Return whether the agent refuses new transactions because it stops."""
    try:
        db.begin(fresh=True).rollback()
    except UnavailableError as error:
        return "stopping" in error.message
    return False


@pytest.mark.slow
def test_a_rolling_restart_leaves_no_doubt(local: LocalCluster, tmp_path: Path) -> None:
    """One replica after the other drains and starts again: every commit that was asked for is answered."""
    # A client whose connection broke learns the outcome when its home is back; a start may take that long.
    with Workload(
        local,
        tmp_path,
        "rolling",
        writers=(*REPLICAS, None, None),
        hoppers=1,
        readers=(None,),
        timeout_s=READY_TIMEOUT_S,
    ) as load:
        for replica in REPLICAS:
            load.more_commits(3, *REPLICAS)
            local.stop(replica)
            local.start(replica)
        load.more_commits(3, *REPLICAS)
    history = verify(load, commits=36)
    assert history.ended(CallEnd.INFO) == []
    assert len(lives(history)) == 2 * len(REPLICAS)
