"""The files of a local cluster, and the last error of an agent's log."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.support.clusters.base_ports import free_base_port
from tidelock import ports
from tidelock.cluster import LocalCluster
from tidelock.cluster.agent_log import TAIL_BYTES, last_error
from tidelock.cluster_layout import BASE_PORT_MAX, DATA_OFFSET, ClusterLayout
from tidelock.errors import BadRequestError, ConfigError, NoConnectionError, UnavailableError
from tidelock.ports import HOST, PORTS, Reservations


def test_ports_are_chosen_once(tmp_path: Path) -> None:
    """A cluster that is opened again has the same replicas, ports and settings."""
    made = LocalCluster.create(tmp_path, replicas=2, zk="127.0.0.1:2181/x", epoch_limit=50)
    again = LocalCluster.create(tmp_path)
    assert again.layout == made.layout == LocalCluster.open(tmp_path).layout
    assert made.replicas == ["r1", "r2"]
    assert len({made.url("r1"), made.url("r2")}) == 2
    assert (made.layout.copies, made.layout.epoch_limit, made.zk) == (2, 50, "127.0.0.1:2181/x")


def listening(port: int = 0) -> socket.socket:
    """Return a socket that listens, on any free port by default."""
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind((HOST, port))
    taken.listen()
    return taken


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A base port after which the ports of five replicas are free; other tests reserve in other files."""
    monkeypatch.setattr(ports, "_RESERVATIONS", Reservations(tmp_path / "reserved"))
    return free_base_port(5)


def test_a_cluster_with_a_base_port_takes_the_ports_after_it(tmp_path: Path, base: int) -> None:
    """The ports of a page are those of every reader's cluster, also for a replica that joins later."""
    layout = LocalCluster.create(tmp_path, base_port=base).layout
    assert [(one.id, one.api, one.data) for one in layout.replicas] == [
        (f"r{number + 1}", base + number, base + DATA_OFFSET + number) for number in range(3)
    ]
    grown = layout.with_replica("r4")
    assert (grown.replicas[-1].api, grown.replicas[-1].data) == (base + 3, base + DATA_OFFSET + 3)
    assert grown.without("r2").with_replica("r5").replicas[-1].api == base + 4


def test_a_taken_port_is_replaced_by_a_free_one(tmp_path: Path, base: int) -> None:
    """Where another cluster runs, only the ports that it has are others."""
    with listening(base + 1):
        layout = LocalCluster.create(tmp_path, base_port=base).layout
    first, second, third = layout.replicas
    assert (first.api, third.api) == (base, base + 2)
    assert second.api in PORTS
    assert [one.data - base - DATA_OFFSET for one in layout.replicas] == [0, 1, 2]


def test_two_clusters_at_once_share_no_port(tmp_path: Path, base: int) -> None:
    """The second one is laid out while no server of the first one listens yet."""
    layouts = [LocalCluster.create(tmp_path / name, base_port=base).layout for name in ("one", "other")]
    taken = [port for layout in layouts for one in layout.replicas for port in (one.api, one.data)]
    assert len(set(taken)) == 12
    assert layouts[0].replicas[0].api == base


def test_without_a_base_port_a_cluster_takes_any_free_ports(tmp_path: Path) -> None:
    """Tests start many clusters at once, so none of them asks for the same ports."""
    for name, base in (("default", None), ("zero", 0)):
        layout = LocalCluster.create(tmp_path / name, base_port=base).layout
        assert all(port in PORTS for one in layout.replicas for port in (one.api, one.data))


@pytest.mark.parametrize("base", [-1, BASE_PORT_MAX + 1])
def test_a_base_port_out_of_range_is_refused(tmp_path: Path, base: int) -> None:
    """The error names the range, and no file is written."""
    with pytest.raises(ConfigError, match=f"from 1 to {BASE_PORT_MAX}, or 0 .*found {base}"):
        LocalCluster.create(tmp_path, base_port=base)
    assert ClusterLayout.load(tmp_path) is None


def test_an_agent_is_not_started_where_another_server_listens(tmp_path: Path) -> None:
    """The other server might be an agent of another cluster, which would be held for this one."""
    cluster = LocalCluster.create(tmp_path, replicas=1, zk="127.0.0.1:1/x")
    port = cluster.layout.replicas[0].data
    with listening(port), pytest.raises(UnavailableError, match=f"expected port {port} to be free for r1"):
        cluster.start("r1")
    assert cluster.process("r1") is None


def test_a_replica_that_is_down_is_not_looked_for_at_its_port(tmp_path: Path) -> None:
    """Another cluster may listen there meanwhile; a client of this one must not meet it."""
    cluster = LocalCluster.create(tmp_path, replicas=2)
    with listening(cluster.layout.replicas[0].api):
        for replica in (None, "r1"):
            with pytest.raises(NoConnectionError, match="tidelock up --data-dir"):
                cluster.connect(replica)


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


@pytest.mark.parametrize(
    "asked", [{"replicas": 3}, {"copies": 1}, {"zk": "h:1/y"}, {"epoch_limit": 5}, {"base_port": 9000}]
)
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
