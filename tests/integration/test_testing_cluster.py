"""Every handle of a cluster for tests has its effect, with processes and with containers."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from demo.containers import images
from tests.support.faults import ability
from tests.support.project import pages, source
from tests.support.waiting import eventually
from tidelock import processes
from tidelock.client import Database
from tidelock.errors import ConfigError, TidelockError
from tidelock.processes import Identity
from tidelock.testing import CLIENTS, Cluster, Node, commands, labelled, leftovers, namespaces
from tidelock.testing.cuts import INTERFACE
from tidelock.testing.owners import LABEL, owner_of
from workloads.child import Child

# Thirteen servers on a machine that other tests share; the first test with containers builds two images.
pytestmark = pytest.mark.timeout(1200)

SCHEMA: Final = pa.schema([pa.field("n", pa.int64(), nullable=False)])
ROWS: Final = pa.table({"n": [1, 2, 3]}, SCHEMA)
#: Settings of the agents: clocks are compared often. Sessions are long enough for a very busy machine.
SETTINGS: Final = {"clock_check_interval_s": 0.3, "reader_workers": 1, "scrub_bytes_per_s": 0}
DISK_BYTES: Final = 256 << 20
#: How long a server may need, in seconds, on a busy machine.
TIMEOUT_S: Final = 180.0
#: How long a packet that is not dropped may take between two nodes of this machine, in seconds.
_REACHED_S: Final = 5.0
_numbers: Final = itertools.count(1)


def commits(cluster: Cluster, replica: str) -> tuple[str, int]:
    """Make a table and commit rows at one replica, as soon as it can; return the table and the CSN."""
    table = f"t{next(_numbers)}"

    def done() -> int | None:
        try:
            with cluster.connect(replica) as db:
                if all(one["name"] != table for one in db.tables()):
                    db.create_table(table, SCHEMA)
                return db.insert(table, ROWS).csn
        except TidelockError:
            return None

    csn = eventually(done, timeout_s=TIMEOUT_S, what=f"a commit at {replica}")
    assert csn is not None
    return table, csn


def shows(cluster: Cluster, replica: str, table: str, csn: int) -> bool:
    """Return whether a replica shows the rows that were committed at a CSN."""
    try:
        with cluster.connect(replica) as db:
            return count(db, table, csn) == len(ROWS)
    except TidelockError:
        return False


def count(db: Database, table: str, csn: int) -> int:
    """The number of rows of a table at a CSN."""
    with db.snapshot(csn=csn) as snap:
        return snap.scan(table).count()


def settled(cluster: Cluster) -> None:
    """Wait until all replicas show what the first one commits now."""
    table, csn = commits(cluster, cluster.replicas[0])
    for replica in cluster.replicas:
        eventually(
            partial(shows, cluster, replica, table, csn), timeout_s=TIMEOUT_S, what=f"{replica} at {csn}"
        )


def reaches(sender: Node, address: str, port: int) -> bool:
    """Return whether a connection from the namespace of a node to an address is made."""
    program = f"import socket; socket.create_connection(({address!r}, {port}), {_REACHED_S})"
    command = ["nsenter", f"--net=/proc/{sender.pid}/ns/net", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def port_of(url: str) -> int:
    """The port of an address."""
    return int(url.rpartition(":")[2])


def clock_off(cluster: Cluster, replica: str) -> float | None:
    """How far a replica finds its wall clock ahead of those of the others, in seconds; None = unknown."""
    try:
        with cluster.connect(replica) as db:
            offset: float | None = db.status()["clock"]["offset_s"]
    except TidelockError:
        return None
    return offset


def queue_of(node: Node) -> str:
    """Return the kernel's words about the queue of a node's interface."""
    name = f"--net=/proc/{node.pid}/ns/net"
    return commands.run("nsenter", name, "tc", "-s", "qdisc", "show", "dev", INTERFACE)


# Both kinds have the same handles. The chaos tests use those of processes in every run.
KINDS: Final = (
    pytest.param("processes", marks=pytest.mark.slow),
    pytest.param("containers", marks=pytest.mark.docker),
)


@pytest.fixture(scope="module", params=KINDS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three replicas and three ZooKeepers, each with a network and a disk of its own."""
    ability.require(commands.lack())
    folder = tmp_path_factory.mktemp("cluster")
    if request.param == "processes":
        made = Cluster.processes(
            folder, zookeepers=3, settings=SETTINGS, isolated=True, disk_bytes=DISK_BYTES
        )
    else:
        made = Cluster.containers(
            folder,
            zookeepers=3,
            settings=SETTINGS,
            disk_bytes=DISK_BYTES,
            agent_image=images.build("agent", "test"),
            zookeeper_image=images.zookeeper("test"),
        )
    try:
        made.start(timeout_s=TIMEOUT_S)
        yield made
    finally:
        made.close()
    require_nothing_left(made)


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """The cluster of all tests; afterwards nothing is cut, and all run. A failure shows the logs' ends."""
    yield running
    running.network.heal()
    for name in [*running.zookeepers, *running.replicas]:
        node = running.node(name)
        node.resume()
        node.start(timeout_s=TIMEOUT_S)
        sys.stdout.write(f"--- {name}\n{node.log()[-2000:]}\n")


def require_nothing_left(cluster: Cluster) -> None:
    """Require that nothing of a closed cluster is left: processes, namespaces, mounts, containers."""
    assert not any(cluster.node(name).running for name in cluster.zookeepers if cluster.kind == "processes")
    owned = f"{os.getpid()}@"
    assert [name for name in namespaces.names() if owned in name] == []
    assert str(cluster.folder) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    if cluster.kind == "containers":
        assert labelled.containers(LABEL) == []


def overlimits(shown: str) -> int:
    """How often a packet had to wait, by what `queue_of` returns."""
    return int(shown.partition("overlimits ")[2].split()[0])


def test_a_killed_node_comes_back_with_its_data(cluster: Cluster) -> None:
    """A killed node is dead, answers nothing, and comes back with its data."""
    node = cluster.node("r1")
    table, csn = commits(cluster, "r1")
    before = node.pid
    node.kill()
    assert (node.running, node.pid, node.ready()) == (False, None, False)
    assert before is not None
    assert not Path(f"/proc/{before}").exists()
    node.start(timeout_s=TIMEOUT_S)
    assert node.pid not in {None, before}
    assert shows(cluster, "r1", table, csn)


def test_a_stopped_node_is_started_again(cluster: Cluster) -> None:
    """A stopped node says in its log that it has ended on purpose; a restart brings it back."""
    node = cluster.node("r2")
    before = node.pid
    node.stop()
    assert not node.running
    node.restart()
    assert node.pid not in {None, before}
    assert node.ready()


@pytest.mark.slow
def test_a_paused_node_answers_nothing_and_goes_on(cluster: Cluster) -> None:
    """A paused node keeps its process and answers nothing; it goes on where it was."""
    node = cluster.node("r3")
    pid = node.pid
    node.pause()
    try:
        assert (node.pid, node.running, node.ready()) == (pid, True, False)
    finally:
        node.resume()
    node.wait_ready(TIMEOUT_S)
    assert node.pid == pid
    node.pause()
    node.kill()
    assert not node.running
    node.start(timeout_s=TIMEOUT_S)


def test_two_nodes_are_cut_and_others_are_not(cluster: Cluster) -> None:
    """Two nodes do not reach each other, others do; the dropped packets are counted."""
    r1, r2, r3 = (cluster.node(name) for name in ("r1", "r2", "r3"))
    ports = {node.name: port_of(cluster.url(node.name)) for node in (r1, r2, r3)}
    before = {node.name: cluster.network.dropped(node.name) for node in (r1, r2, r3)}
    cluster.network.cut("r1", "r2")
    assert not reaches(r1, r2.address, ports["r2"])
    assert not reaches(r2, r1.address, ports["r1"])
    assert reaches(r1, r3.address, ports["r3"])
    assert reaches(r3, r2.address, ports["r2"])
    after = {node.name: cluster.network.dropped(node.name) for node in (r1, r2, r3)}
    assert after["r1"] > before["r1"]
    assert after["r2"] > before["r2"]
    assert after["r3"] == before["r3"]
    cluster.network.join("r2", "r1")
    assert reaches(r1, r2.address, ports["r2"])


@pytest.mark.slow
def test_a_cut_of_one_way_drops_at_the_receiver(cluster: Cluster) -> None:
    """Packets of one node are dropped, so no connection is made; only the receiver drops."""
    network = cluster.network
    before = network.dropped("r1"), network.dropped("r2")
    network.cut("r1", "r2", one_way=True)
    assert not reaches(cluster.node("r1"), cluster.node("r2").address, port_of(cluster.url("r2")))
    assert network.dropped("r1") == before[0]
    assert network.dropped("r2") > before[1]
    network.heal()


@pytest.mark.slow
def test_a_cut_outlives_a_kill_and_a_start(cluster: Cluster) -> None:
    """A node that is killed and started again is still cut off, from its first packet on."""
    r1, r2 = cluster.node("r1"), cluster.node("r2")
    cluster.network.cut("r1", "r2")
    r2.kill()
    r2.start(timeout_s=TIMEOUT_S)
    assert not reaches(r1, r2.address, port_of(cluster.url("r2")))
    cluster.network.heal()


@pytest.mark.slow
def test_an_isolated_node_reaches_nobody(cluster: Cluster) -> None:
    """Clients do not reach an isolated node, nor does it reach ZooKeeper; the others commit."""
    node = cluster.node("r3")
    cluster.network.isolate("r3")
    assert not node.ready()
    zookeeper = cluster.node("z1")
    port = port_of(cluster.zk.partition(",")[0].partition("/")[0])
    assert not reaches(node, zookeeper.address, port)
    commits(cluster, "r1")
    cluster.network.heal()
    node.wait_ready(TIMEOUT_S)
    settled(cluster)


def test_clients_are_cut_off_and_peers_are_not(cluster: Cluster) -> None:
    """An agent whose answers do not arrive is not ready for us, and works for its peers."""
    cluster.network.cut("r3", CLIENTS, one_way=True)
    assert not cluster.node("r3").ready()
    r3 = cluster.node("r3")
    assert reaches(cluster.node("r1"), r3.address, port_of(cluster.url("r3")))
    cluster.network.join("r3", CLIENTS)
    eventually(r3.ready, timeout_s=TIMEOUT_S)


def receive_from(node: Node, host: str, size: int) -> int:
    """Let a program in the namespace of a node send bytes to the host; return how many have arrived."""
    with socket.create_server((host, 0)) as server:
        address = (host, server.getsockname()[1])
        program = f"import socket; socket.create_connection({address!r}).sendall(bytes({size}))"
        command = ["nsenter", f"--net=/proc/{node.pid}/ns/net", sys.executable, "-c", program]
        with subprocess.Popen(command), server.accept()[0] as connection, connection.makefile("rb") as file:
            return len(file.read())


def test_what_a_slow_node_sends_is_held_back(cluster: Cluster) -> None:
    """All bytes arrive, and packets had to wait in the node's queue; later they do not."""
    r1, size = cluster.node("r1"), 400_000
    cluster.network.slow("r1", 200_000)
    assert "tbf" in queue_of(r1)
    assert "rate 1600Kbit" in queue_of(r1)
    assert receive_from(r1, cluster.driver_host, size) == size
    assert overlimits(queue_of(r1)) > 0
    cluster.network.slow("r1", 0)
    assert "tbf" not in queue_of(r1)
    assert receive_from(r1, cluster.driver_host, size) == size


def test_a_full_disk_has_no_byte_left(cluster: Cluster) -> None:
    """No byte is left for the block, and the room is there again afterwards."""
    node = cluster.node("r2")
    free = node.disk_free()
    assert 0 < free < DISK_BYTES
    with node.full_disk():
        assert node.disk_free() == 0
    assert node.disk_free() > free / 2


def test_an_agent_notices_its_clock(cluster: Cluster) -> None:
    """The agent itself says how far its wall clock is off from those of the others."""
    node = cluster.node("r2")
    offset = eventually(lambda: clock_off(cluster, "r2") is not None)
    assert offset
    node.set_clock(3600.0)
    eventually(lambda: abs((clock_off(cluster, "r2") or 0.0) - 3600) < 60, what="a clock an hour ahead")
    node.set_clock(0.0)
    eventually(lambda: abs(clock_off(cluster, "r2") or 0.0) < 60, what="a right clock")


def test_a_replaced_replica_clones_again(cluster: Cluster) -> None:
    """A replica with an empty volume clones what it had, under its own id."""
    table, csn = commits(cluster, "r1")
    node = cluster.node("r3")
    eventually(lambda: shows(cluster, "r3", table, csn), timeout_s=TIMEOUT_S)
    marker = node.data_dir / "marker"
    marker.touch()
    node.replace()
    assert not marker.exists()
    eventually(lambda: shows(cluster, "r3", table, csn), timeout_s=TIMEOUT_S)


@pytest.mark.slow
def test_another_zookeeper_leads_after_a_kill(cluster: Cluster) -> None:
    """Another ZooKeeper leads after the leader was killed, and commits go on."""
    leader = cluster.leader()
    assert leader in cluster.zookeepers
    cluster.node(leader).kill()
    other = eventually(cluster.leader, timeout_s=TIMEOUT_S, what="another leader")
    assert other != leader
    commits(cluster, "r1")
    cluster.node(leader).start(timeout_s=TIMEOUT_S)


@pytest.mark.slow
def test_members_come_and_go(cluster: Cluster) -> None:
    """A member is added, a dead one is replaced by another, and a removed one is forgotten."""
    cluster.add("r4").start(timeout_s=TIMEOUT_S)
    assert cluster.replicas == ["r1", "r2", "r3", "r4"]
    cluster.node("r4").kill()
    cluster.replace_member("r4", "r5").start(timeout_s=TIMEOUT_S)
    assert cluster.replicas == ["r1", "r2", "r3", "r5"]
    settled(cluster)
    cluster.node("r5").kill()
    with cluster.connect("r1") as db:
        db.membership.remove("r5")
    cluster.forget("r5")
    assert cluster.replicas == ["r1", "r2", "r3"]
    assert len(cluster.urls) == 3


#: A program that starts a cluster, says so, and waits for its death.
ABANDONED: Final = "tests.support.clusters.abandoned"


def require_swept(folder: Path, images: list[str]) -> None:
    """Kill an owner whose cluster runs, sweep, and require that nothing of the cluster is left."""
    owner = Child(ABANDONED, str(folder), *images)
    pids: list[int] = owner.receive()
    fields = processes.stat_of(owner.process.pid)
    assert fields is not None
    started = int(fields[processes.START_TICKS])
    label = f"{LABEL}={owner_of(Identity(owner.process.pid, started, processes.boot_id()))}"
    owner.kill()
    left = [name for name in namespaces.names() if f".{owner.process.pid}@" in name]
    # A switch, a ZooKeeper and a replica; two containers each.
    assert len(labelled.containers(label) if images else left) == (4 if images else 3)
    assert all(Path(f"/proc/{pid}/exe").exists() for pid in pids)
    leftovers.sweep()
    if images:
        labelled.sweep()
        assert labelled.containers(label) == []
    assert not any(name in namespaces.names() for name in left)
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in pids)
    assert str(folder) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")


def test_a_start_sweeps_what_a_killed_owner_has_left(tmp_path: Path) -> None:
    """Processes, namespaces and disks of an owner that was killed are gone after the next sweep."""
    ability.require(commands.lack())
    require_swept(tmp_path, [])


@pytest.mark.docker
def test_a_start_sweeps_the_containers_of_a_killed_owner(tmp_path: Path) -> None:
    """Containers, networks, volumes and disks of an owner that was killed are gone after the next sweep."""
    ability.require(commands.lack())
    require_swept(tmp_path, [images.build("agent", "test"), images.zookeeper("test")])


def test_a_cluster_without_namespaces_says_what_cuts_need(tmp_path: Path) -> None:
    """A cluster on the loopback interface commits; its network handles name what they lack."""
    with Cluster.processes(tmp_path, replicas=1, copies=1, settings=SETTINGS) as local:
        assert local.secret is None
        commits(local, "r1")
        with pytest.raises(ConfigError, match="isolated=True"):
            local.network.cut("r1", CLIENTS)
        with pytest.raises(ConfigError, match="disk_bytes"), local.node("r1").full_disk():
            pass
        with pytest.raises(ConfigError, match="only replicas"):
            local.node("z1").set_clock(1.0)
        pid = local.node("r1").pid
    assert pid is not None
    assert not Path(f"/proc/{pid}/exe").exists()


def test_the_fixture_of_the_page_works_as_it_is_shown(tmp_path: Path) -> None:
    """A user who copies the block of docs/testing.md has a test that passes."""
    ability.require(commands.lack())
    file = tmp_path / "test_example.py"
    file.write_text(pages.blocks("docs/testing.md", "python")[0], encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    paths = os.pathsep.join(filter(None, (str(source.ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'temp'}", str(file)],
        env=os.environ | {"PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
