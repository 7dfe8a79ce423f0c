"""Replicas come and go while clients write: growing, shrinking, moving, strikes, and second agents.

Deaths in the middle of a change are in test_membership_kills.py.
"""

from __future__ import annotations

import dataclasses
import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.disks import lose_disk
from tests.support.clusters.writers import SCHEMA, Writers, row, rows_at
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import READY_TIMEOUT_S
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.cluster_layout import ReplicaPorts
from tidelock.errors import ConfigError, MembershipError, UnavailableError
from tidelock.ports import free_ports

#: The members of a cluster that has moved to new machines.
NEW = ("r4", "r5", "r6")


def states(db: Database) -> dict[str, str]:
    """Return the state of each replica's session."""
    return {one["id"]: one["member"] for one in db.status()["replicas"]}


@pytest.mark.slow
def test_three_replicas_become_five_and_three_new_ones_stay(cluster: ClusterFactory) -> None:
    """A cluster moves to new machines under load: no write is refused, and no row is lost."""
    local = cluster(settings=QUICK)
    with local.connect() as db:
        db.create_table("t", SCHEMA)
        writers = Writers(local.urls, 2)
        with writers.running():
            writers.go_on()
            for replica in ("r4", "r5"):
                local.add_replica(replica)
                local.start(replica, timeout_s=READY_TIMEOUT_S)
                writers.go_on()
            assert db.membership.set_copies(3)["copies"] == 3
            writers.go_on()
            for replica in ("r1", "r2"):
                _leave(local, db, replica)
                if replica == "r2":
                    assert db.membership.set_copies(2)["copies"] == 2
                assert db.membership.remove(replica)["states"][replica] == "removed"
                writers.go_on()
            _leave(local, db, "r3")
            assert db.membership.replace("r3", "r6")["states"]["r3"] == "removed"
            local.layout = local.layout.with_replica("r6")
            local.start("r6", timeout_s=READY_TIMEOUT_S)
            writers.go_on()
        assert [error.message for error in writers.refused] == []
        assert states(db) == dict.fromkeys(("r1", "r2", "r3"), "removed") | dict.fromkeys(NEW, "serving")
        newest = db.insert("t", row(-1), wait="all").csn or 0
    for replica in NEW:
        with local.connect(replica) as db:
            eventually(functools.partial(_has, db, newest), what="the newest CSN")
        assert rows_at(local, replica) >= {*writers.acknowledged, -1}


def _leave(local: LocalCluster, db: Database, replica: str) -> None:
    """Drain a replica and stop it, as an operator does before he takes it out."""
    db.membership.drain(replica)
    eventually(functools.partial(_drained, db, replica), what="a drained replica")
    local.stop(replica)


def _has(db: Database, csn: int) -> bool:
    return bool(db.status()["snapshot_csn"] >= csn)


def _drained(db: Database, replica: str) -> bool:
    shown = db.membership.status_of(replica)
    return shown["state"] == "draining" and not shown["open_transactions"]


@pytest.mark.scenario("S44", "S75")
@pytest.mark.slow
def test_a_replica_that_stays_down_does_not_fill_zookeeper(cluster: ClusterFactory) -> None:
    """It is struck, and the records after its place are deleted (finding 3, I16)."""
    local = cluster(settings=QUICK | {"max_records": 60, "log_keep_records": 10, "horizon_interval_s": 0.2})
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        local.kill("r3")
        for key in range(150):
            db.insert("t", row(key))
        bounds = db.status()["strike"]
        assert (bounds["records"], bounds["timeout_s"]) == (60, 3600.0)
        eventually(lambda: states(db)["r3"] == "struck", what="the strike")
        end = db.status()["end_csn"]
        eventually(lambda: db.log(0)[0]["csn"] > end - 40, what="deleted records")
        assert len(db.log(0)) <= 60
        held = {one["id"]: one["held_records"] for one in db.status()["replicas"]}
        assert held["r3"] == 0
        with pytest.raises(MembershipError, match="without r2, found 1"):
            db.membership.strike("r2")
        db.insert("t", row(-1))


def test_an_agent_does_not_join_a_cluster_that_it_did_not_mean(cluster: ClusterFactory) -> None:
    """A mistyped root is that of another cluster: an agent that would make one is refused without --join."""
    local = cluster(replicas=2, settings=QUICK)
    with local.connect() as db:
        db.membership.add("r3")
        before = states(db)
        api, data = free_ports(2)
        ports = ReplicaPorts("r3", api, data)
        local.layout = dataclasses.replace(local.layout, replicas=(*local.layout.replicas, ports))
        db.membership.add("r4")
        with pytest.raises(UnavailableError, match=r"found one of r1, r2, r3, r4 at this root.*--join"):
            local.start("r3")
        assert states(db) == before | {"r4": "stopped"}


def _twin(local: LocalCluster, folder: Path, **settings: object) -> LocalCluster:
    """Return the same cluster as another folder has it: its agents have the same ids, and empty disks."""
    folder.mkdir()
    ports = free_ports(2 * len(local.replicas))
    replicas = tuple(
        ReplicaPorts(replica, ports[2 * number], ports[2 * number + 1])
        for number, replica in enumerate(local.replicas)
    )
    layout = dataclasses.replace(local.layout, replicas=replicas, zk=local.zk)
    environment = local.environment | {
        f"TIDELOCK_{name.upper()}": str(value) for name, value in settings.items()
    }
    return local.__class__(folder, layout, environment=environment)


@pytest.mark.parametrize("living", [True, False])
def test_a_new_folder_takes_no_root_that_has_a_cluster(
    cluster: ClusterFactory, tmp_path: Path, living: bool
) -> None:
    """Two teams use one root: the second one is refused, also while the agents of the first are stopped."""
    local = cluster(replicas=2, settings=QUICK)
    with local.connect() as db:
        db.create_table("t", SCHEMA)
        db.insert("t", row(1), wait="all")
        disks = {one["disk"] for one in db.status()["replicas"]}
    if not living:
        for replica in local.replicas:
            local.stop(replica)
    other = LocalCluster.create(tmp_path / "other", replicas=2, zk=local.zk)
    try:
        for _ in range(2):  # the folder is still new
            with pytest.raises(ConfigError, match=r"a cluster of r1, r2 is at 127.* another root"):
                other.up()
    finally:
        for replica in other.replicas:
            other.kill(replica)
    local.up()
    with local.connect() as db:
        assert {one["disk"] for one in db.status()["replicas"]} == disks
        assert db.read("t").num_rows == 1


@pytest.mark.scenario("S49")
def test_an_agent_with_another_disk_does_not_take_a_living_id(
    cluster: ClusterFactory, tmp_path: Path
) -> None:
    """It is refused with the address of the living agent; told to, it takes the id, and that agent ends."""
    local = cluster(replicas=2, settings=QUICK)
    with local.connect() as db:
        db.create_table("t", SCHEMA)
        [before] = {one["disk"] for one in db.status()["replicas"] if one["id"] == "r1"}
    other = _twin(local, tmp_path / "other")
    address = local.url("r1").removeprefix("http://")
    with pytest.raises(
        UnavailableError, match=f"found one on disk {before} at .*{address.rpartition(':')[2]}"
    ):
        other.start("r1", timeout_s=READY_TIMEOUT_S)
    with local.connect("r1") as db:
        db.insert("t", row(1))
    taking = _twin(local, tmp_path / "taking", replace_disk=True)
    try:
        taking.start("r1", timeout_s=READY_TIMEOUT_S)
        eventually(lambda: local.pid("r1") is None, what="the end of the agent on the former disk")
        log = local.log("r1").read_text(encoding="utf-8")
        assert "another agent runs as r1 on disk" in log
        assert taking.url("r1").rpartition(":")[2] in log
        assert rows_at(taking, "r1") == {1}
    finally:
        taking.kill("r1")


def test_an_empty_folder_takes_no_id_that_exists_unless_it_is_told_to(
    cluster: ClusterFactory, tmp_path: Path
) -> None:
    """Agents that are started by hand with the root of a cluster at rest: they say whose id it is."""
    local = cluster(replicas=2, settings=QUICK)
    with local.connect() as db:
        db.create_table("t", SCHEMA)
        db.insert("t", row(1), wait="all")
        [disk] = {one["disk"] for one in db.status()["replicas"] if one["id"] == "r1"}
    for replica in local.replicas:
        local.stop(replica)
    other = _twin(local, tmp_path / "other")
    with pytest.raises(
        UnavailableError, match=rf"found one on disk {disk} at .* no sign of life.*--replace-d"
    ):
        other.start("r1", timeout_s=READY_TIMEOUT_S)
    lose_disk(local, "r1")
    del local.environment_of["r1"]
    with pytest.raises(UnavailableError, match=r"this data folder is disk .*--replace-disk"):
        local.up()
    local.up(replace_disks=["r1"])
    assert rows_at(local, "r1") == {1}


@pytest.mark.slow
def test_of_two_folders_that_clone_under_one_id_one_wins(cluster: ClusterFactory, tmp_path: Path) -> None:
    """Both have the order to take the id. The one that loses it says who has it, and never gets it back."""
    local = cluster(replicas=2, settings=QUICK | {"log_keep_records": 1, "horizon_interval_s": 0.2})
    with local.connect("r1") as db:
        db.create_table("t", SCHEMA)
        db.insert("t", row(1))
        db.truncate("t")
        db.insert("t", row(2), wait="all")
        eventually(lambda: db.raise_horizon()["horizon"] > 2, what="the history is given up")
    for replica in local.replicas:
        local.kill(replica)  # nobody sends a catalog: the clones wait
    first, second = (_twin(local, tmp_path / name, replace_disk=True) for name in ("first", "second"))
    with ThreadPoolExecutor(2) as threads:
        losing = threads.submit(first.start, "r2", timeout_s=READY_TIMEOUT_S)
        eventually(lambda: "clone_waits" in _logged(first), what="the clone of the first one")
        try:
            winning = threads.submit(second.start, "r2", timeout_s=READY_TIMEOUT_S)
            with pytest.raises(UnavailableError, match=r"found one on disk .* at .*never gets it back"):
                losing.result()
            assert second.url("r2").rpartition(":")[2] in _logged(first)
            local.start("r1")
            winning.result()
            for _ in range(2):  # a supervisor starts it again
                with pytest.raises(UnavailableError, match=r"never gets it back"):
                    first.start("r2", timeout_s=READY_TIMEOUT_S)
            assert rows_at(second, "r2") == {2}
        finally:
            for one in (first, second):
                one.kill("r2")


def _logged(local: LocalCluster) -> str:
    log = local.log("r2")
    return log.read_text(encoding="utf-8") if log.exists() else ""
