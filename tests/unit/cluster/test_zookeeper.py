"""The setup of an embedded ZooKeeper: files, ports, class path; no server is started."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

from tidelock import ports, zookeeper
from tidelock.errors import ConfigError
from tidelock.ports import free_ports
from tidelock.zookeeper import Options


def settings(server: zookeeper.ZooKeeperServer) -> dict[str, str]:
    """Return the settings in zoo.cfg."""
    text = (server.folder / "zoo.cfg").read_text(encoding="utf-8")
    return dict(line.split("=", 1) for line in text.splitlines())


def test_one_server_listens_on_loopback_without_members(tmp_path: Path) -> None:
    """A single server has a port on the loopback address, forced writes, and no members."""
    options = Options(tick_time_ms=300, heap_mb=99, jvm=("-XX:TieredStopAtLevel=1",))
    created = zookeeper.create(tmp_path / "zk", options=options)
    (server,) = created.servers
    found = settings(server)
    assert created.connect_string == server.address == f"127.0.0.1:{server.port}"
    assert found["clientPort"] == str(server.port)
    assert found["clientPortAddress"] == "127.0.0.1"
    assert found["tickTime"] == "300"
    assert found["forceSync"] == "yes"
    assert found["admin.enableServer"] == "false"
    assert not any(name.startswith("server.") for name in found)
    assert (server.folder / "jvm.options").read_text(encoding="utf-8") == "-Xmx99m\n-XX:TieredStopAtLevel=1\n"


def test_a_wanted_port_is_that_of_the_first_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients find ZooKeeper at its usual port; a second ensemble has another one."""
    [wanted] = free_ports(1)
    monkeypatch.setattr(ports, "_RESERVATIONS", ports.Reservations(tmp_path / "reserved"))
    first, second = (zookeeper.create(tmp_path / name, wanted=[wanted]) for name in ("one", "other"))
    assert first.servers[0].port == wanted != second.servers[0].port


def test_three_servers_know_each_other_on_distinct_ports(tmp_path: Path) -> None:
    """Three servers know each other by their numbers; all nine ports differ."""
    created = zookeeper.create(tmp_path / "zk", size=3)
    members = [{k: v for k, v in settings(s).items() if k.startswith("server.")} for s in created.servers]
    assert members[0] == members[1] == members[2]
    assert list(members[0]) == ["server.1", "server.2", "server.3"]
    ports = [port for member in members[0].values() for port in member.split(":")[1:]]
    assert len({*ports, *(str(server.port) for server in created.servers)}) == 9
    myids = [(server.folder / "data" / "myid").read_text(encoding="utf-8") for server in created.servers]
    assert myids == ["1\n", "2\n", "3\n"]


def test_what_is_there_stays(tmp_path: Path) -> None:
    """A second creation returns the servers of the first one, whose ports clients know."""
    created = zookeeper.create(tmp_path / "zk", size=3)
    assert zookeeper.create(tmp_path / "zk", size=3, options=Options(tick_time_ms=1)) == created
    assert zookeeper.load(tmp_path / "zk") == created
    assert settings(created.servers[0])["tickTime"] == "2000"


def test_another_size_is_refused(tmp_path: Path) -> None:
    """An ensemble cannot change its size, and the message names the existing size."""
    zookeeper.create(tmp_path / "zk")
    with pytest.raises(ConfigError, match=r"holds 1 ZooKeeper server\(s\), not 3"):
        zookeeper.create(tmp_path / "zk", size=3)


def test_a_half_made_ensemble_is_completed(tmp_path: Path) -> None:
    """A folder without an ensemble, or with an incomplete one, has none; creation completes it."""
    assert zookeeper.load(tmp_path / "zk") is None
    created = zookeeper.create(tmp_path / "zk")
    (created.folder / "connect").write_text("", encoding="utf-8")
    assert zookeeper.load(tmp_path / "zk") is None
    assert len(zookeeper.create(tmp_path / "zk").servers) == 1


def test_a_server_that_was_never_started(tmp_path: Path) -> None:
    """A server that was never started is not alive, does not answer, and can be stopped."""
    created = zookeeper.create(tmp_path / "zk")
    (server,) = created.servers
    assert not server.alive
    assert server.ask("ruok") is None
    assert server.mode() is None
    assert created.leader() is None
    created.stop()
    created.kill()


def test_class_path_names_each_jar_once() -> None:
    """The class path has exactly one jar for each name (and not `zookeeper-jute` for `zookeeper`)."""
    jars = zookeeper.class_path()
    assert all(jar.is_file() for jar in jars)
    assert len(jars) == len(zookeeper._JARS) == len(set(jars))
    assert jars[0].name.removeprefix("zookeeper-")[0].isdecimal()


def test_missing_pyspark_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PySpark the message says what is missing, and names the alternatives."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"tidelock\[spark\].*--zk"):
        zookeeper.class_path()


def test_missing_jar_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PySpark without a required jar is refused with the jar's name."""
    (tmp_path / "jars").mkdir()
    for name in zookeeper._JARS[1:]:
        (tmp_path / "jars" / f"{name}-1.2.jar").touch()
    spec = importlib.machinery.ModuleSpec("pyspark", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(ConfigError, match="has no zookeeper in"):
        zookeeper.class_path()


def test_servers_listen_where_they_are_told(tmp_path: Path) -> None:
    """Each server has an address of its own, in its settings, in those of the others, and for clients."""
    hosts = ["10.0.0.2", "10.0.0.3", "10.0.0.4"]
    created = zookeeper.create(tmp_path / "zk", size=3, hosts=hosts)
    assert [server.host for server in created.servers] == hosts
    assert [address.partition(":")[0] for address in created.connect_string.split(",")] == hosts
    for server in created.servers:
        written = settings(server)
        assert (written["clientPortAddress"], written["clientPort"]) == (server.host, str(server.port))
        assert [written[f"server.{one}"].partition(":")[0] for one in (1, 2, 3)] == hosts
    assert zookeeper.load(tmp_path / "zk") == created
