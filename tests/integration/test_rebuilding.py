"""A tree in ZooKeeper that is made again out of the catalogs of the replicas, with real agents."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import require_clean_audit
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import READY_TIMEOUT_S
from tidelock import java
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import LabelExistsError, NoSuchCsnError, TidelockError, UnavailableError
from tidelock.zookeeper import LocalZooKeeper, ZooKeeperServer

ROWS = pa.table({"k": [1, 2, 3]})
#: Seconds for one run of the command.
TIMEOUT_S = 120.0
REPLICAS = ("r1", "r2", "r3")
SLOW = pytest.mark.slow


def rebuilt(
    local: LocalCluster,
    *more: object,
    replicas: tuple[str, ...] = REPLICAS,
    code: int = 0,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run the command over the data directories of some replicas; return what it prints."""
    sources = [text for replica in replicas for text in ("--from", str(local.data_dir(replica)))]
    command = ["-m", "tidelock.cli", "admin", "rebuild-zookeeper", *sources, "--zk", local.zk]
    done = subprocess.run(
        [sys.executable, *command, *map(str, more)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def carried_out(local: LocalCluster, *, replicas: tuple[str, ...] = REPLICAS) -> dict[str, Any]:
    """Carry the command out as an operator does: look at the report, then confirm it. Return the report."""
    report: dict[str, Any] = json.loads(rebuilt(local, "--json", replicas=replicas))
    told = rebuilt(local, "--json", "--confirm", report["cluster_id"], replicas=replicas)
    done: dict[str, Any] = json.loads(told)
    assert done["incarnation"]
    return report


def once(db: Database) -> None:
    """Run a job that counts once."""
    with db.begin(label="once") as tx:
        tx.insert("t", ROWS)
        tx.commit()


def put_back(local: LocalCluster, backup: Path | None) -> None:
    """End ZooKeeper, replace its data folder by a copy or by nothing, and start it again."""
    servers = local.zookeeper
    assert servers is not None
    servers.kill()
    data = servers.servers[0].folder / "data"
    if backup is None:
        for folder in data.glob("version-2"):
            shutil.rmtree(folder)
    else:
        shutil.rmtree(data)
        shutil.copytree(backup, data)
    servers.start(timeout_s=READY_TIMEOUT_S)


@pytest.fixture
def local(cluster: ClusterFactory) -> LocalCluster:
    """A cluster with some history."""
    local = cluster(own_zookeeper=True, settings={**QUICK, "log_keep_records": 1, "horizon_interval_s": 0.2})
    with_history(local)
    return local


def with_history(local: LocalCluster) -> None:
    """Make two tables, with labels, a removal, and 6 rows in one of them on all replicas."""
    with local.connect("r1") as db:
        db.create_table("t", ROWS.schema)
        db.create_table("u", ROWS.schema)
        db.insert("u", ROWS)
        once(db)
        db.truncate("u")
        db.insert("t", ROWS, wait="all")


def all_start(local: LocalCluster, *replicas: str) -> None:
    """Start agents and wait until they serve."""
    for replica in replicas:
        local.start(replica, timeout_s=READY_TIMEOUT_S)


def require_whole(local: LocalCluster, rows: int) -> None:
    """Check rows, labels and new commits on all replicas."""
    for replica in REPLICAS:
        with local.connect(replica) as db:
            assert len(db.read("t")) == rows
            assert len(db.read("u")) == 0
            with pytest.raises(LabelExistsError):
                once(db)
    with local.connect("r2") as db:
        db.create_table("v", ROWS.schema)
        db.insert("t", ROWS, wait="all")
    for replica in REPLICAS:
        with local.connect(replica) as db:
            assert len(db.read("t")) == rows + 3
    require_clean_audit(local)


def test_an_emptied_zookeeper_is_made_again(local: LocalCluster) -> None:
    """All replicas go on with what they have applied; one that was behind clones the rest. Tags stay."""
    local.kill("r3")
    with local.connect("r1") as db:
        tag = db.tag("before")
        last = db.insert("t", ROWS)
    with local.connect("r2") as db, db.snapshot(csn=last.csn) as snap:
        assert len(snap.read("t")) == 9
    for replica in ("r1", "r2"):
        local.kill(replica)
    put_back(local, None)
    with pytest.raises(UnavailableError, match="ZooKeeper"):
        local.start("r1", timeout_s=READY_TIMEOUT_S)
    report = carried_out(local)
    assert report["csn"] == last.csn
    assert list(report["clones"]) == ["r3"]
    all_start(local, *REPLICAS)
    with local.connect("r1") as db:
        outcome = db.outcome(last.tid)
        assert outcome.csn == last.csn
        assert db.tags() == [tag]
        assert len(db.read("t", csn="before")) == 6
        assert last.csn is not None
        assert db.tag("before", move=True).csn > last.csn
    require_whole(local, rows=9)


@SLOW
def test_a_backup_of_before_is_replaced(local: LocalCluster, tmp_path: Path) -> None:
    """ZooKeeper is set back; the commits since then are in the catalogs, and come back."""
    servers = local.zookeeper
    assert servers is not None
    backup = shutil.copytree(servers.servers[0].folder / "data", tmp_path / "backup")
    with local.connect("r1") as db:
        db.insert("t", ROWS, wait="all")
    for replica in REPLICAS:
        local.kill(replica)
    put_back(local, backup)
    with pytest.raises(UnavailableError, match="ZooKeeper"):
        local.start("r1", timeout_s=READY_TIMEOUT_S)
    carried_out(local)
    all_start(local, *REPLICAS)
    require_whole(local, rows=9)


@pytest.mark.slow
def test_replicas_that_are_not_given_are_refused(local: LocalCluster) -> None:
    """A replica that was left out may have applied other records, so it must not follow the new log."""
    for replica in REPLICAS:
        local.kill(replica)
    put_back(local, None)
    report = carried_out(local, replicas=("r1", "r2"))
    assert report["removed"] == []  # no transaction names it
    with pytest.raises(UnavailableError, match="its tree was made again without this replica"):
        local.start("r3", timeout_s=READY_TIMEOUT_S)
    all_start(local, "r1", "r2")
    with local.connect("r2") as db:
        db.insert("t", ROWS)
        assert len(db.read("t")) == 9


@pytest.mark.slow
def test_nothing_is_changed_without_a_word(local: LocalCluster) -> None:
    """The report alone leaves ZooKeeper as it is; agents that run, and wrong confirmations, are refused."""
    assert "another agent runs on" in rebuilt(local, code=2)
    for replica in REPLICAS:
        local.kill(replica)
    text = rebuilt(local)
    assert "Nothing was changed" in text
    assert "Not proved" in text
    assert "expected --confirm" in rebuilt(local, "--confirm", "another", code=2)
    all_start(local, *REPLICAS)
    require_whole(local, rows=6)


@SLOW
def test_a_replica_that_starts_later_goes_on(local: LocalCluster) -> None:
    """The epoch that the rebuild has closed counts with its records, so nobody is struck for it."""
    for replica in REPLICAS:
        local.kill(replica)
    put_back(local, None)
    last = carried_out(local)["csn"]
    all_start(local, "r1", "r2")
    with local.connect("r1") as db:
        db.insert("t", ROWS)
        held = {one["id"]: one["held_records"] for one in db.status()["replicas"]}
        assert db.time_of(last) <= db.time_of(last + 1)
        with pytest.raises(NoSuchCsnError, match="the epoch of the log ends before it"):
            db.time_of(last + 2)
    assert 0 < held["r3"] < 100
    all_start(local, "r3")
    with local.connect("r3") as db:
        assert len(db.read("t")) == 9


@SLOW
def test_a_replica_whose_clone_did_not_begin_is_enough(local: LocalCluster) -> None:
    """It has noted a tail and a horizon behind its own position, and still serves what it has applied."""
    local.kill("r3")
    with local.connect("r1") as db:
        at = db.status()["end_csn"]
        db.membership.strike("r3")
        for _ in range(5):
            db.insert("t", ROWS)
        eventually(lambda: db.status()["tail"] > at, what="a tail behind what r3 has applied")
    for replica in ("r1", "r2"):
        local.kill(replica)
    with pytest.raises(UnavailableError):  # it waits for a peer that it can clone from
        local.start("r3", timeout_s=1.0)
    eventually(lambda: "clone_waits" in local.log("r3").read_text(), what="a clone that waits")
    local.kill("r3")
    put_back(local, None)
    report = json.loads(rebuilt(local, "--copies", 1, "--json", replicas=("r3",)))
    rebuilt(local, "--copies", 1, "--confirm", report["cluster_id"], replicas=("r3",))
    all_start(local, "r3")
    with local.connect("r3") as db:
        assert len(db.read("t")) == 6
        assert len(db.read("u")) == 0


@pytest.mark.parametrize(
    ("moment", "cut"),
    [
        pytest.param("before", 1, marks=SLOW),  # nothing is written yet
        pytest.param("before", 4, marks=SLOW),
        pytest.param("before", 6, marks=SLOW),
        pytest.param("after", 1, marks=SLOW),
        pytest.param("after", 4, marks=SLOW),
        pytest.param("after", 6, marks=SLOW),
    ],
)
def test_a_run_that_was_killed_is_run_again(local: LocalCluster, moment: str, cut: int) -> None:
    """No agent starts on half a tree, and the next run makes the whole one."""
    for replica in REPLICAS:
        local.kill(replica)
    put_back(local, None)
    report = json.loads(rebuilt(local, "--json"))
    crash = {"TIDELOCK_FAULTS": f"rebuild.write.{moment}=crash@{cut}"}
    rebuilt(local, "--confirm", report["cluster_id"], code=-signal.SIGKILL, environment=crash)
    with pytest.raises(UnavailableError):
        local.start("r1", timeout_s=READY_TIMEOUT_S)
    carried_out(local)
    all_start(local, *REPLICAS)
    require_whole(local, rows=6)


@pytest.fixture
def on_three(cluster: ClusterFactory, ensemble: LocalZooKeeper) -> LocalCluster:
    """The same cluster on an ensemble of three servers."""
    local = cluster(zk=ensemble.connect_string, settings=QUICK)
    with_history(local)
    return local


def serving(local: LocalCluster, replica: str) -> bool:
    """Return whether an agent serves."""
    with local.connect(replica) as db:
        return bool(db.status()["state"] == "serving")


def zxid(server: ZooKeeperServer) -> str:
    """Return the newest write that a server has."""
    answer = server.ask("srvr") or ""
    return next((line for line in answer.splitlines() if line.startswith("Zxid: ")), "")


def lose_majority(ensemble: LocalZooKeeper) -> None:
    """End all servers; the first two lose their disks, and the third is set up to run alone."""
    ensemble.kill()
    *lost, third = ensemble.servers
    for server in lost:
        shutil.rmtree(server.folder / "data" / "version-2")
    config = third.folder / "zoo.cfg"
    lines = config.read_text(encoding="utf-8").splitlines()
    alone = [line for line in lines if not line.startswith("server.")]
    config.write_text("".join(f"{line}\n" for line in alone), encoding="utf-8")
    third.start(java.find())
    ensemble.wait_ready(timeout_s=READY_TIMEOUT_S, servers=[third])


@SLOW
def test_the_server_that_is_left_has_the_newest_state(
    on_three: LocalCluster, ensemble: LocalZooKeeper
) -> None:
    """Two of three servers lost their disks, and nothing is to be rebuilt: the agents go on by themselves."""
    eventually(lambda: len({zxid(server) for server in ensemble.servers}) == 1, what="equal servers")
    lose_majority(ensemble)
    eventually(lambda: [serving(on_three, replica) for replica in REPLICAS] == [True] * 3, what="all serve")
    require_whole(on_three, rows=6)


@SLOW
def test_the_server_that_is_left_is_behind(on_three: LocalCluster, ensemble: LocalZooKeeper) -> None:
    """Agents that live are refused by it and say so, no agent starts on it, and the tree is made again."""
    ensemble.servers[2].kill()
    with on_three.connect("r1") as db:
        last = db.insert("t", ROWS, wait="all")
        lose_majority(ensemble)
        eventually(lambda: "holds an older state" in db.status()["reason"], what="the reason")
        with pytest.raises(TidelockError):
            db.insert("t", ROWS, timeout_s=1.0)
    for replica in REPLICAS:
        on_three.kill(replica)
    with pytest.raises(UnavailableError, match="ZooKeeper"):
        on_three.start("r1", timeout_s=READY_TIMEOUT_S)
    assert carried_out(on_three)["csn"] == last.csn
    all_start(on_three, *REPLICAS)
    require_whole(on_three, rows=9)
