"""The images and docker/compose.yaml: a cluster in containers, used from outside (rule processes)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import tidelock
from demo.containers import images
from tests.support import names
from tests.support.clusters import containers
from tests.support.clusters.containers import Cluster
from tests.support.project import source
from tests.support.spark.hdfs_client import JOB
from tests.support.waiting import eventually
from tidelock import java
from tidelock.client import Database
from tidelock.client.agents.webhdfs import StagingFolder
from tidelock.loopback_names import LOOPBACK

# The first test builds the images; without a cache that loads some hundred megabytes of packages.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(1200)]

#: Tag of the images.
TAG: Final = "test"
ORDERS: Final = pa.schema([("o_id", pa.int64()), ("o_year", pa.int32()), ("o_total", pa.int64())])
LINES: Final = pa.schema([("l_order", pa.int64()), ("l_number", pa.int32()), ("l_price", pa.int64())])
#: The folder of a task, as Spark's writer names it.
ATTEMPT: Final = "_temporary/0/_temporary/attempt_1"
#: How long a Spark session and a read of a few rows may take, in seconds.
SPARK_TIMEOUT_S: Final = 240.0


@pytest.fixture(scope="module")
def agent_image() -> str:
    """The agent's image, of this checkout."""
    return images.build("agent", TAG)


@pytest.fixture(scope="module")
def running(agent_image: str) -> Iterator[Cluster]:
    """Three ZooKeepers and three agents in containers, on a machine that does not know the agents' names."""
    with containers.running(agent_image, images.zookeeper(TAG)) as cluster, names.unknown():
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """The cluster of all tests, healthy. A test may kill agents, and starts them again."""
    yield running
    for replica, agent in running.agents.items():  # shown with a test that fails
        sys.stdout.write(f"--- {replica}\n{containers.log(agent)}\n")


@pytest.fixture
def db(cluster: Cluster) -> Iterator[Database]:
    """A client outside, that knows the addresses of all agents."""
    with tidelock.connect([cluster.url(replica) for replica in cluster.replicas], token=cluster.secret) as db:
        yield db


def batch(first: int, count: int) -> tuple[pa.Table, pa.Table]:
    """Orders, and two lines of each with half its total."""
    ids = list(range(first, first + count))
    orders = {"o_id": ids, "o_year": [1992 + i % 3 for i in ids], "o_total": [2 * i for i in ids]}
    lines = {
        "l_order": [i for i in ids for _ in (1, 2)],
        "l_number": [number for _ in ids for number in (1, 2)],
        "l_price": [i for i in ids for _ in (1, 2)],
    }
    return pa.table(orders, schema=ORDERS), pa.table(lines, schema=LINES)


def rows_of(table: pa.Table) -> list[list[Any]]:
    """The rows, sorted."""
    return sorted(list(row.values()) for row in table.to_pylist())


def spark_outside(
    cluster: Cluster, folder: Path, *, first: str, csn: int, tables: list[str]
) -> dict[str, Any]:
    """Return what a Spark job on this machine reads at a CSN, with replica `first` before the others."""
    names.write_hosts(folder / "hosts")
    asked = {
        "urls": [cluster.url(replica) for replica in cluster.replicas],
        "token": cluster.secret,
        "replica": first,
        "csn": csn,
        "tables": tables,
    }
    environ = {
        "JAVA_HOME": str(java.home_for_spark(java.find(), folder)),
        "JDK_JAVA_OPTIONS": f"-Djdk.net.hosts.file={folder / 'hosts'}",
        "PYTHONPATH": str(source.ROOT),
        "SPARK_LOCAL_IP": LOOPBACK,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.outside_reader"],
        input=json.dumps(asked),
        env={**os.environ, **environ},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SPARK_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows: dict[str, Any] = json.loads(done.stdout)
    return rows


def commit(db: Database, tables: Mapping[str, pa.Table]) -> int:
    """Insert rows into tables in one transaction, and wait until two replicas show them; its CSN."""
    tx = db.begin()
    for table, rows in tables.items():
        tx.insert(table, rows)
    csn = tx.commit(wait="copies").csn
    assert csn is not None
    return csn


@pytest.mark.slow
def test_a_snapshot_outlives_a_container(cluster: Cluster, db: Database, tmp_path: Path) -> None:
    """A container is killed; Spark outside reads the same rows at the same CSN; the replica catches up."""
    db.create_table("smoke.orders", ORDERS, partition_by=["o_year"])
    db.create_table("smoke.lines", LINES)
    orders, lines = batch(1, 100)
    csn = commit(db, {"smoke.orders": orders, "smoke.lines": lines})
    with db.snapshot(csn) as snap:
        before = {table: rows_of(snap.read(table)) for table in ("smoke.orders", "smoke.lines")}
    assert before == {"smoke.orders": rows_of(orders), "smoke.lines": rows_of(lines)}

    victim = cluster.replicas[0]
    containers.kill(cluster.agents[victim])
    try:
        more = batch(1001, 50)
        later = commit(db, {"smoke.orders": more[0], "smoke.lines": more[1]})
        assert later > csn
        assert spark_outside(cluster, tmp_path, first=victim, csn=csn, tables=list(before)) == before
    finally:
        containers.start_again(cluster.agents[victim])

    with tidelock.connect(cluster.url(victim), replica=victim, token=cluster.secret) as returned:
        eventually(lambda: returned.status()["snapshot_csn"] >= later, what=f"{victim} has caught up")
        with returned.snapshot(later) as snap:
            assert rows_of(snap.read("smoke.orders")) == rows_of(pa.concat_tables([orders, more[0]]))
            assert rows_of(snap.read("smoke.lines")) == rows_of(pa.concat_tables([lines, more[1]]))


def test_sigterm_drains_an_agent_in_a_container(cluster: Cluster) -> None:
    """SIGTERM reaches the agent: it ends by itself, with exit code 0, and comes back."""
    agent = cluster.agents[cluster.replicas[-1]]
    try:
        agent.stop(timeout=60)
        assert containers.wait(agent) == 0, containers.log(agent)
    finally:
        containers.start_again(agent)


@pytest.mark.slow
def test_a_replica_with_a_new_address_is_found_again(cluster: Cluster, db: Database) -> None:
    """Its peers know it by name, and fetch the rows of a transaction that it has committed."""
    db.create_table("smoke.moved", LINES)
    rows = batch(1, 10)[1]
    home, *others = reversed(cluster.replicas)
    with containers.moved(cluster.agents[home]):
        with tidelock.connect(cluster.url(home), replica=home, token=cluster.secret) as there:
            csn = commit(there, {"smoke.moved": rows})
        for replica in others:
            with tidelock.connect(cluster.url(replica), replica=replica, token=cluster.secret) as peer:
                eventually(lambda: peer.status()["snapshot_csn"] >= csn, what=f"CSN {csn} on {replica}")
                with peer.snapshot(csn) as snap:
                    assert rows_of(snap.read("smoke.moved")) == rows_of(rows)


@pytest.mark.slow
def test_a_zookeeper_with_a_new_address_is_found_again(cluster: Cluster, db: Database) -> None:
    """Servers and agents know it by name: a commit succeeds when only it and one other are left."""
    db.create_table("smoke.ensemble", LINES)
    first, second, _ = cluster.zookeepers
    with containers.moved(first):
        containers.kill(second)
        try:
            commit(db, {"smoke.ensemble": batch(1, 10)[1]})
        finally:
            containers.start_again(second)


@pytest.mark.slow
def test_a_frozen_agent_is_unhealthy_until_it_goes_on(cluster: Cluster) -> None:
    """The engine asks the agent itself, so an agent that stands still does not count as well."""
    agent = cluster.agents[cluster.replicas[1]]
    containers.signal(agent, "STOP")
    try:
        eventually(lambda: containers.health(agent) == "unhealthy", what="an unhealthy agent", timeout_s=120)
    finally:
        containers.signal(agent, "CONT")
    eventually(lambda: containers.health(agent) == "healthy", what="a healthy agent", timeout_s=120)


@pytest.mark.slow
def test_an_agent_that_is_killed_inside_comes_back(cluster: Cluster, db: Database) -> None:
    """The restart policy starts it, and it serves what was committed without it."""
    victim = cluster.replicas[2]
    agent = cluster.agents[victim]
    agent.reload()
    restarts = agent.attrs["RestartCount"]
    db.create_table("smoke.killed", LINES)
    containers.signal(agent, "KILL")
    rows = batch(1, 10)[1]
    with tidelock.connect(cluster.url(cluster.replicas[0]), token=cluster.secret) as other:
        csn = commit(other, {"smoke.killed": rows})

    def back() -> bool:
        healthy = containers.health(agent) == "healthy"
        return healthy and agent.attrs["RestartCount"] > restarts

    eventually(back, what=f"{victim} was started again", timeout_s=240)
    with tidelock.connect(cluster.url(victim), replica=victim, token=cluster.secret) as returned:
        eventually(lambda: returned.status()["snapshot_csn"] >= csn, what=f"{victim} has caught up")
        with returned.snapshot(csn) as snap:
            assert rows_of(snap.read("smoke.killed")) == rows_of(rows)


@pytest.mark.slow
def test_memory_and_processes_of_each_service_are_bounded(cluster: Cluster) -> None:
    """One service that runs wild does not take the machine from the others: the kernel has the bounds."""
    bounds = dict.fromkeys(cluster.agents.values(), (4 << 30, 512))
    bounds |= dict.fromkeys(cluster.zookeepers, (2 << 30, 256))
    for container, (memory, pids) in bounds.items():
        container.reload()
        host = container.attrs["HostConfig"]
        assert (host["Memory"], host["PidsLimit"]) == (memory, pids), container.name


def test_it_runs_without_rights(cluster: Cluster) -> None:
    """The agent is not root and has no rights: it can write its data and /tmp, and nothing else."""
    agent = cluster.agents[cluster.replicas[0]]
    assert agent.exec_run(["id", "-u"]).output.strip() == b"10001"
    status = agent.exec_run(["cat", "/proc/1/status"]).output.decode()
    assert {"CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} <= {
        *status.splitlines()
    }
    assert agent.exec_run(["test", "-w", "/data"]).exit_code == 0
    assert agent.exec_run(["test", "-w", "/opt/tidelock"]).exit_code == 1
    assert agent.exec_run(["touch", "/tmp/a"]).exit_code == 0  # noqa: S108 - of the container
    assert b"Read-only file system" in agent.exec_run(["touch", "/a"], user="root").output


def test_the_secret_is_not_in_the_environment(cluster: Cluster) -> None:
    """Neither the description of a container nor its processes' environment has the secret."""
    agent = cluster.agents[cluster.replicas[0]]
    assert cluster.secret not in json.dumps(agent.attrs)
    assert agent.exec_run(["cat", "/run/secrets/tidelock"]).output.decode().strip() == cluster.secret


def test_only_agents_are_on_both_networks(cluster: Cluster) -> None:
    """An agent is on the peers' network and on the clients', and its name is known on both."""
    for replica, agent in cluster.agents.items():
        agent.reload()
        networks = agent.attrs["NetworkSettings"]["Networks"]
        assert sorted(name.rpartition("_")[2] for name in networks) == ["clients", "peers"]
        assert all(f"{replica}.localhost" in network["Aliases"] for network in networks.values())


def test_uploads_are_sent_on_by_the_address_that_the_client_knows(cluster: Cluster, db: Database) -> None:
    """A writer that has come by the loopback address is redirected by it, to whichever replica."""
    db.create_table("smoke.uploads", LINES)
    tx = db.begin()
    try:
        path = tx.path("smoke.uploads")
        assert urlsplit(path).hostname == LOOPBACK
        folder = StagingFolder(path)
        files = (f"{ATTEMPT}/part-{number:05}-{JOB}-c000.parquet" for number in range(6))
        found = {folder.locate(file)[0] for file in files}
    finally:
        tx.rollback()
    assert {address.rpartition(":")[0] for address in found} == {LOOPBACK}
    assert len(found) > 1


def test_without_a_secret_it_refuses(agent_image: str) -> None:
    """An agent in a container listens to the network, so it does not start without a secret, and says why."""
    environ = {"TIDELOCK_REPLICA": "r1", "TIDELOCK_ZK": "zookeeper:2181/tidelock"}
    with containers.alone(agent_image, environ) as agent:
        assert containers.wait(agent) == 2
        assert "TIDELOCK_SECRET_FILE" in containers.log(agent)
