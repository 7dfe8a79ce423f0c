"""A real ZooKeeper that is set back to a copy of its data folder, under agents that live or start again.

Without a comparison of records a living replica acknowledges a commit at a CSN that it has passed, and never
shows it; one that starts again takes the other history on top of its own. All replicas say that they serve.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.refusals import http
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import READY_TIMEOUT_S
from tidelock.cluster import LocalCluster
from tidelock.errors import TidelockError, UnavailableError

ROWS = pa.table({"k": [1, 2, 3]})


def set_back(local: LocalCluster, backup: Path) -> None:
    """End ZooKeeper, put a copy of its data folder back, and start it again."""
    servers = local.zookeeper
    assert servers is not None
    servers.kill()
    data = servers.servers[0].folder / "data"
    shutil.rmtree(data)
    shutil.copytree(backup, data)
    servers.start(timeout_s=READY_TIMEOUT_S)


def logged(local: LocalCluster, replica: str) -> str:
    """Return the log of an agent."""
    return local.log(replica).read_text(encoding="utf-8")


@pytest.mark.scenario("S21")
@pytest.mark.slow
def test_no_replica_takes_another_history_on_top_of_its_own(cluster: ClusterFactory, tmp_path: Path) -> None:
    """Finding 4: the replica that lives stops and acknowledges nothing; its next start is refused."""
    local = cluster(replicas=2, own_zookeeper=True, settings=QUICK)
    with local.connect("r1") as db:
        db.create_table("t", ROWS.schema)
        db.insert("t", ROWS, wait="all")
        servers = local.zookeeper
        assert servers is not None
        backup = shutil.copytree(servers.servers[0].folder / "data", tmp_path / "backup")
        local.kill("r2")
        for number in range(3):
            db.create_table(f"a{number}", ROWS.schema)
    set_back(local, backup)
    local.start("r2", timeout_s=READY_TIMEOUT_S)
    with local.connect("r2") as db:
        for number in range(12):
            db.create_table(f"b{number}", ROWS.schema)
    acknowledged: list[object] = []
    with contextlib.suppress(TidelockError), local.connect("r1") as db:
        acknowledged.append(db.insert("t", ROWS))
    assert acknowledged == []
    eventually(lambda: local.pid("r1") is None, what="the end of r1")
    assert "ZooKeeper holds an" in logged(local, "r1")
    before = len(logged(local, "r1"))
    with pytest.raises(UnavailableError, match="ZooKeeper holds another history"):
        local.start("r1", timeout_s=READY_TIMEOUT_S)
    assert "replica r1 must not be started" in logged(local, "r1")[before:]
    with local.connect("r2") as db:
        names = [table["name"] for table in db.tables()]
        assert not any(name.startswith("default.a") for name in names)
        assert local.status()["replicas"][1]["state"] == "serving"


@pytest.mark.scenario("S21")
@pytest.mark.slow
def test_a_suspended_replica_says_that_zookeeper_was_set_back(
    cluster: ClusterFactory, tmp_path: Path
) -> None:
    """Servers refuse a client that has seen more than they have: status, log and readiness say so."""
    local = cluster(replicas=2, own_zookeeper=True, settings=QUICK)
    servers = local.zookeeper
    assert servers is not None
    backup = shutil.copytree(servers.servers[0].folder / "data", tmp_path / "backup")
    newest = shutil.copytree(backup, tmp_path / "newest", dirs_exist_ok=True)
    with local.connect("r1") as db:
        for number in range(20):
            db.create_table(f"t{number}", ROWS.schema)
        local.kill("r2")
        servers.kill()
        shutil.rmtree(newest)
        shutil.copytree(servers.servers[0].folder / "data", newest)
        set_back(local, backup)

        def reason() -> str:
            found = db.status()
            assert found["state"] == "suspended"
            return str(found["reason"])

        eventually(lambda: "ZooKeeper holds an older state" in reason(), what="the reason")
        assert "rebuild-zookeeper" in reason()
        assert "zookeeper_set_back" in logged(local, "r1")
        answer = http("GET", f"{local.url('r1')}/readyz")
        assert answer.status == 503
        assert answer.json["reason"] == reason()
        with pytest.raises(TidelockError):
            db.insert("t0", ROWS, timeout_s=1.0)
        # With the newest state it goes on, as if nothing had been.
        set_back(local, newest)
        eventually(lambda: db.status()["state"] == "serving", what="r1 serves")
        assert db.status()["reason"] == ""
        local.start("r2", timeout_s=READY_TIMEOUT_S)
        db.insert("t0", ROWS, wait="all")
