"""Durable two-table commits: client processes spread over three replicas, all rows counted at the end.

Each number of clients commits in both ways, one after the other: in one request, and by statements.

A commit is acknowledged when it is durable on two replicas and visible at its home. CPU is that of the agents
with their workers, and that of the ZooKeeper server. ZooKeeper's writes are counted at the server, sessions
of its clients included.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.tools.machine import cpu_s, zookeeper_cpu_s, zookeeper_writes
from bench.tools.ways import Way
from bench.tools.workload import (
    ROWS,
    SCHEMA,
    TABLES,
    BenchClients,
    ClientCommits,
    ClientPace,
    CommitTiming,
    clients_of,
)
from tidelock.cluster import LocalCluster
from workloads.history import tids_per_csn
from workloads.stats import Latencies


@dataclass(frozen=True, slots=True)
class CommitFigures:
    """The figures of one run."""

    way: Way
    clients: int
    seconds: float
    commits: int
    per_s: float
    latency: Latencies
    tids_per_csn: float
    agent_cpu_ms_per_commit: float
    client_cpu_ms_per_commit: float
    zookeeper_cpu_ms_per_commit: float
    zookeeper_writes_per_commit: float
    rows: int


@dataclass(frozen=True, slots=True)
class Observed:
    """The work of clients, and its cost in the window.

    Attributes:
        zero: When the window began, monotonic.
        agents_cpu_s: CPU of all agents.
        zookeeper_cpu_s: CPU of the ZooKeeper server.
        zookeeper_writes: Its transactions.
        work: The clients' commits, before and after the window, too.
    """

    zero: float
    agents_cpu_s: float
    zookeeper_cpu_s: float
    zookeeper_writes: int
    work: ClientCommits


def create_tables(cluster: LocalCluster) -> None:
    """Create the two tables."""
    with cluster.connect() as db:
        for table in TABLES:
            db.create_table(table, SCHEMA, partition_by=["year"], sort_by=["key"])


def measure(cluster: LocalCluster, way: Way, clients: int, pace: ClientPace) -> CommitFigures:
    """Run client processes and return what the measured window showed.

    Raises:
        RuntimeError: Rows are missing or surplus at the end.
    """
    before = rows(cluster)
    seen = observe(cluster, BenchClients(clients_of(cluster, way), clients, pace))
    done = seen.work.done
    expected, present = len(done) * ROWS * len(TABLES), rows(cluster) - before
    if expected != present:
        raise RuntimeError(f"{expected} rows were acknowledged, {present} are there")
    inside = within(done, seen.zero, pace.run_s)
    return CommitFigures(
        way=way,
        clients=clients,
        seconds=pace.run_s,
        commits=len(inside),
        per_s=round(len(inside) / pace.run_s, 1),
        latency=Latencies.of([item.took_s for item in inside]),
        tids_per_csn=round(tids_per_csn([item.csn for item in inside]), 2),
        agent_cpu_ms_per_commit=round(seen.agents_cpu_s * 1000 / len(inside), 2),
        client_cpu_ms_per_commit=seen.work.cpu_ms_per_commit,
        zookeeper_cpu_ms_per_commit=round(seen.zookeeper_cpu_s * 1000 / len(inside), 2),
        zookeeper_writes_per_commit=round(seen.zookeeper_writes / len(inside), 3),
        rows=present,
    )


def observe(cluster: LocalCluster, running: BenchClients) -> Observed:
    """Let clients work, and measure what it costs in the window."""
    zero = running.begin()
    time.sleep(max(0.0, zero - time.monotonic()))
    before = _costs(cluster)
    time.sleep(max(0.0, zero + running.pace.run_s - time.monotonic()))
    agents, server, writes = (now - then for now, then in zip(_costs(cluster), before, strict=True))
    return Observed(zero, agents, server, int(writes), running.results())


def _costs(cluster: LocalCluster) -> tuple[float, float, int]:
    return cpu_s(cluster), zookeeper_cpu_s(cluster), zookeeper_writes(cluster)


def within(done: Sequence[CommitTiming], zero: float, run_s: float) -> list[CommitTiming]:
    """Return the commits that were acknowledged inside the window; RuntimeError when there are none."""
    inside = [item for item in done if zero <= item.at <= zero + run_s]
    if not inside:
        raise RuntimeError(f"no commit was acknowledged within {run_s} s")
    return inside


def rows(cluster: LocalCluster) -> int:
    """Return how many rows the two tables hold now."""
    with cluster.connect() as db:
        return sum(table["rows"] for table in db.tables() if table["name"].removeprefix("default.") in TABLES)


def run(
    cluster: LocalCluster, ways: Sequence[Way], counts: Sequence[int], pace: ClientPace
) -> list[dict[str, Any]]:
    """Measure one number of clients after the other, each in all ways."""
    create_tables(cluster)
    _start_sql(cluster)
    return [asdict(measure(cluster, way, count, pace)) for count in counts for way in ways]


def _start_sql(cluster: LocalCluster) -> None:
    """Have each agent start a SQL process, which the merges of its parts use, too.

    An agent starts it at first use and keeps it. Without this the first use is the first merge of each table,
    ten seconds after the start: in the first window alone, loading DuckDB takes the processors from commits.
    """
    for replica in cluster.replicas:
        with cluster.connect(replica) as db, db.snapshot() as snap:
            snap.sql(f"SELECT count(*) FROM {TABLES[0]}")
