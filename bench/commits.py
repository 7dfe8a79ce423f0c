"""Durable two-table commits: clients as processes spread over three replicas, rows counted at the end.

A commit inserts 100 rows into each of two tables and is acknowledged when it is durable on two replicas and
visible at its home. The figure beside it: synchronous sequential creates of one client at the same ZooKeeper
server, which is what a commit log without group commit could do at most.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from queue import Queue
from typing import Any

import pyarrow as pa

import tidelock
from bench.machine import cpu_s, resident_mb, zookeeper_writes
from tidelock.cluster import LocalCluster

ROWS = 100
TABLES = ("bench_orders", "bench_lines")
SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("year", pa.int32()),
        ("status", pa.string()),
        ("price", pa.decimal128(15, 2)),
        ("day", pa.date32()),
        ("comment", pa.string()),
    ]
)


@dataclass(frozen=True)
class Commits:
    """What one run showed; times in ms."""

    clients: int
    seconds: float
    commits: int
    per_s: float
    p50_ms: float
    p99_ms: float
    tids_per_csn: float
    agent_cpu_ms_per_commit: float
    zookeeper_writes_per_commit: float
    rows_expected: int
    rows_found: int


def batch(client: int, number: int) -> pa.Table:
    """Return the rows of one insert."""
    first = (client << 40) + number * ROWS
    return pa.table(
        {
            "key": list(range(first, first + ROWS)),
            "year": [1995] * ROWS,
            "status": ["O", "F"] * (ROWS // 2),
            "price": pa.array(range(100, 100 + ROWS), pa.int32()).cast(pa.decimal128(15, 2)),
            "day": pa.array(range(9000, 9000 + ROWS), pa.int32()).cast(pa.date32()),
            "comment": [f"row {first + n} of the benchmark" for n in range(ROWS)],
        },
        schema=SCHEMA,
    )


def client(
    number: int,
    url: str,
    replica: str,
    start: Barrier,
    warm_s: float,
    run_s: float,
    results: Queue[list[tuple[float, float]]],
) -> None:
    """Commit in a loop; put (time of the answer relative to the measured window, latency) of each commit."""
    db = tidelock.connect(url, replica=replica)
    found: list[tuple[float, float]] = []
    with db.begin() as tx:  # loads what a client loads at first use, before the clock runs
        tx.insert(TABLES[0], batch(number, 0).slice(0, 0))
    start.wait()
    zero = time.monotonic() + warm_s
    count = 0
    while (begun := time.monotonic()) < zero + run_s:
        rows = batch(number, count)
        with db.begin() as tx:
            for table in TABLES:
                tx.insert(table, rows)
        found.append((time.monotonic() - zero, time.monotonic() - begun))
        count += 1
    results.put(found)


def measure(cluster: LocalCluster, clients: int, *, warm_s: float, run_s: float) -> Commits:
    """Run ``clients`` client processes and return what the measured window showed.

    Raises:
        RuntimeError: Rows are missing or surplus at the end.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.commits", "tidelock.client"])
    start, results = context.Barrier(clients + 1), context.Queue()
    before = _rows(cluster)
    workers = []
    for number in range(clients):
        replica = cluster.replicas[number % len(cluster.replicas)]
        arguments = (number, cluster.url(replica), replica, start, warm_s, run_s, results)
        workers.append(context.Process(target=client, args=arguments, daemon=True))
    for worker in workers:
        worker.start()
    start.wait()
    time.sleep(warm_s)
    cpu, writes, csn = cpu_s(cluster), zookeeper_writes(cluster), cluster.connect().status()["end_csn"]
    time.sleep(run_s)
    cpu, writes = cpu_s(cluster) - cpu, zookeeper_writes(cluster) - writes
    csns = cluster.connect().status()["end_csn"] - csn
    found = [item for _ in workers for item in results.get(timeout=120)]
    for worker in workers:
        worker.join()
    return _summary(cluster, clients, found, run_s, cpu, writes, csns, before)


def _summary(
    cluster: LocalCluster,
    clients: int,
    found: Sequence[tuple[float, float]],
    run_s: float,
    cpu: float,
    writes: int,
    csns: int,
    before: int,
) -> Commits:
    inside = sorted(latency * 1000 for at, latency in found if 0 <= at <= run_s)
    expected, present = len(found) * ROWS * len(TABLES), _rows(cluster) - before
    if expected != present:
        raise RuntimeError(f"{expected} rows were acknowledged, {present} are there")
    count = len(inside)
    return Commits(
        clients=clients,
        seconds=run_s,
        commits=count,
        per_s=round(count / run_s, 1),
        p50_ms=round(statistics.median(inside), 2),
        p99_ms=round(inside[int(len(inside) * 0.99)], 2),
        tids_per_csn=round(count / max(csns, 1), 2),
        agent_cpu_ms_per_commit=round(cpu * 1000 / count, 2),
        zookeeper_writes_per_commit=round(writes / count, 3),
        rows_expected=expected,
        rows_found=present,
    )


def _rows(cluster: LocalCluster) -> int:
    with cluster.connect() as db:
        return sum(table["rows"] for table in db.tables() if table["name"].removeprefix("default.") in TABLES)


def raw_creates(cluster: LocalCluster, *, run_s: float) -> dict[str, float]:
    """Measure synchronous sequential creates of one client at the same server.

    The floor of a log without batches.
    """
    from bench.raw_zookeeper import creates  # noqa: PLC0415 - the one place of the bench that talks to ZooKeeper itself

    return creates(cluster.zk, run_s)


def run(cluster: LocalCluster, *, quick: bool) -> dict[str, Any]:
    """Measure all numbers of clients and return the JSON section."""
    db = cluster.connect()
    for table in TABLES:
        db.create_table(table, SCHEMA, partition_by=["year"], sort_by=["key"])
    warm_s, run_s = (1.0, 3.0) if quick else (3.0, 15.0)
    raw = raw_creates(cluster, run_s=min(run_s, 5.0))
    found = [asdict(measure(cluster, clients, warm_s=warm_s, run_s=run_s)) for clients in (1, 32)]
    for item in found:
        item["ratio_to_raw_creates"] = round(item["per_s"] / raw["per_s"], 2)
    return {"raw_zookeeper_creates": raw, "runs": found, "agent_resident_mb": resident_mb(cluster)}
