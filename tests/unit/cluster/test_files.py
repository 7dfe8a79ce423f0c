"""The files of a local cluster, and the last error of an agent's log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidelock.cluster import LocalCluster
from tidelock.cluster.agent_log import TAIL_BYTES, last_error
from tidelock.cluster_layout import ClusterLayout
from tidelock.errors import BadRequestError, ConfigError, UnavailableError


def test_ports_are_chosen_once(tmp_path: Path) -> None:
    """A cluster that is opened again has the same replicas, ports and settings."""
    made = LocalCluster.create(tmp_path, replicas=2, zk="127.0.0.1:2181/x", epoch_limit=50)
    again = LocalCluster.create(tmp_path)
    assert again.layout == made.layout == LocalCluster.open(tmp_path).layout
    assert made.replicas == ["r1", "r2"]
    assert len({made.url("r1"), made.url("r2")}) == 2
    assert (made.layout.copies, made.layout.epoch_limit, made.zk) == (2, 50, "127.0.0.1:2181/x")


def test_members_with_hosts_of_their_own_come_and_go(tmp_path: Path) -> None:
    """A member may have another host; once a founder is gone, those that are left join the cluster."""
    first = ClusterLayout.choose(replicas=2, copies=None, zk="h:1/x", epoch_limit=None)
    later = first.with_replica("r9", host="10.0.0.9").without("r1")
    assert [(one.id, one.joins) for one in later.replicas] == [("r2", True), ("r9", True)]
    assert later.replicas[1].address.startswith("10.0.0.9:")
    later.save(tmp_path)
    assert ClusterLayout.open(tmp_path) == later


def test_a_layout_without_hosts_is_read(tmp_path: Path) -> None:
    """A file of an earlier version names no hosts: all replicas listen on the loopback address."""
    fields = {"format": 1, "copies": 1, "replicas": [{"id": "r1", "api": 20_001, "data": 20_002}]}
    (tmp_path / "cluster.json").write_text(json.dumps(fields))
    assert LocalCluster.open(tmp_path).urls == ["http://127.0.0.1:20001"]


def test_single_replica_keeps_one_copy(tmp_path: Path) -> None:
    """By default a commit has two copies, or one copy if the cluster has a single replica."""
    assert LocalCluster.create(tmp_path / "one", replicas=1).layout.copies == 1
    assert LocalCluster.create(tmp_path / "three").layout.copies == 2


@pytest.mark.parametrize("asked", [{"replicas": 3}, {"copies": 1}, {"zk": "h:1/y"}, {"epoch_limit": 5}])
def test_cluster_of_another_shape(tmp_path: Path, asked: dict[str, object]) -> None:
    """An existing cluster is not changed by other values; the error names the value."""
    LocalCluster.create(tmp_path, replicas=2)
    with pytest.raises(ConfigError, match=f"has {next(iter(asked))}="):
        LocalCluster.create(tmp_path, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("asked", [{"replicas": 0}, {"replicas": 2, "copies": 3}, {"copies": 0}])
def test_an_impossible_cluster_is_refused_before_any_write(tmp_path: Path, asked: dict[str, int]) -> None:
    """An impossible cluster is refused before a file is written."""
    with pytest.raises(ConfigError):
        LocalCluster.create(tmp_path, **asked)  # type: ignore[arg-type]
    assert ClusterLayout.load(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "replicas": [{}], "copies": 1}']
)
def test_a_damaged_layout_is_named_with_the_next_step(tmp_path: Path, text: str) -> None:
    """The error of a damaged layout names the file and the remedy."""
    (tmp_path / "cluster.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cluster\.json is damaged"):
        LocalCluster.open(tmp_path)


def test_layout_of_another_version(tmp_path: Path) -> None:
    """A layout of another format is refused, not changed."""
    (tmp_path / "cluster.json").write_text(json.dumps({"format": 2}), encoding="utf-8")
    with pytest.raises(ConfigError, match="another version"):
        LocalCluster.open(tmp_path)


def test_a_folder_without_a_cluster_is_said_to_be_one(tmp_path: Path) -> None:
    """The error of a folder without a cluster says so."""
    with pytest.raises(ConfigError, match="there is no cluster"):
        LocalCluster.open(tmp_path / "missing")


def test_cluster_that_was_never_started(tmp_path: Path) -> None:
    """Status and end of a cluster that never ran are not errors; its ZooKeeper has no address yet."""
    cluster = LocalCluster.create(tmp_path, replicas=2)
    status = cluster.status()
    assert [(row["id"], row["state"], row["pid"]) for row in status["replicas"]] == [
        ("r1", "down", None),
        ("r2", "down", None),
    ]
    assert status["zookeeper"] == {"connect": None, "embedded": True, "state": "down", "pid": None}
    assert not cluster.kill("r1")
    cluster.down()
    with pytest.raises(UnavailableError, match="never started"):
        _ = cluster.zk
    with pytest.raises(BadRequestError, match="r1, r2"):
        cluster.pid("r9")


def test_last_error_of_a_log(tmp_path: Path) -> None:
    """The last error event, else the last line, is returned; lines before the start position are ignored."""
    log = tmp_path / "agent.log"
    assert last_error(log) is None
    log.write_text("", encoding="utf-8")
    assert last_error(log) is None
    event = {"event": "agent_cannot_run", "level": "error", "reason": "no ZooKeeper"}
    fault = {"event": "stopped", "level": "error", "exception": "Traceback\n  ...\nValueError: x"}
    lines = [json.dumps(event), json.dumps({"event": "bye", "level": "info"}), "[1, 2]"]
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert last_error(log) == "agent_cannot_run: no ZooKeeper"
    begin = log.stat().st_size
    with log.open("a", encoding="utf-8") as file:
        file.write("tidelock agent: replica: Field required\n\n")
    assert last_error(log, begin) == "tidelock agent: replica: Field required"
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(fault) + "\n" + "x\n" * TAIL_BYTES)
    assert last_error(log) == "x"
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(fault) + "\n")
    assert last_error(log) == "stopped: ValueError: x"
