"""Landings beside inserts: 100 rows into one table, by client processes spread over three replicas.

Both are answered when the rows are durable on two replicas, an insert when they are also visible at its home.
The two kinds take turns for each number of clients. All rows are counted at the end.
"""

from __future__ import annotations

import enum
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import tidelock
from bench.parts.commits import observe, within
from bench.tools.workload import ROWS, SCHEMA, BenchClients, ClientPace, Commit, batch
from tidelock.cluster import LocalCluster
from workloads.stats import Latencies

#: How long acknowledged rows may take to be visible at the end (seconds).
_VISIBLE_S: Final = 60.0
_POLL_S: Final = 0.1


class Kind(enum.StrEnum):
    """How rows are written: by `db.land`, or by `db.insert` into a table of equal columns."""

    LAND = "land"
    INSERT = "insert"


def open_client(number: int, urls: Sequence[str], replicas: Sequence[str], kind: Kind) -> Commit:
    """Return the writes of a client, at its replica."""
    home = number % len(replicas)
    db = tidelock.connect(urls[home], replica=replicas[home])

    def write(count: int) -> tuple[int, int]:
        rows = batch(number, count)
        if kind is Kind.LAND:
            db.land(kind, rows)
        else:
            db.insert(kind, rows)
        return 0, 0

    db.insert(Kind.INSERT, batch(number, 0).slice(0, 0))  # loads what a client loads at first use
    return write


def run(folder: Path, counts: Sequence[int], pace: ClientPace) -> list[dict[str, Any]]:
    """Measure one number of clients after the other, each with both kinds."""
    with LocalCluster.create(folder) as cluster:
        with cluster.connect() as db:
            for kind in Kind:
                properties = {"landing": "on"} if kind is Kind.LAND else {}
                db.create_table(kind, SCHEMA, partition_by=["year"], sort_by=["key"], properties=properties)
        return [_measure(cluster, kind, count, pace) for count in counts for kind in Kind]


def _measure(cluster: LocalCluster, kind: Kind, clients: int, pace: ClientPace) -> dict[str, Any]:
    before = _rows(cluster, kind)
    opener = functools.partial(open_client, urls=cluster.urls, replicas=cluster.replicas, kind=kind)
    seen = observe(cluster, BenchClients(opener, clients, pace))
    expected = len(seen.work.done) * ROWS
    until = time.monotonic() + _VISIBLE_S
    while (present := _rows(cluster, kind) - before) < expected and time.monotonic() < until:
        time.sleep(_POLL_S)
    if present != expected:
        raise RuntimeError(f"{expected} rows were acknowledged by {kind}, {present} are there")
    inside = within(seen.work.done, seen.zero, pace.run_s)
    latency = Latencies.of([item.took_s for item in inside])
    return {
        "kind": kind,
        "clients": clients,
        "per_s": round(len(inside) / pace.run_s, 1),
        "p50_ms": latency.p50_ms,
        "p99_ms": latency.p99_ms,
        "agent_cpu_ms": round(seen.agents_cpu_s * 1000 / len(inside), 2),
        "client_cpu_ms": seen.work.cpu_ms_per_commit,
        "zookeeper_cpu_ms": round(seen.zookeeper_cpu_s * 1000 / len(inside), 2),
        "zookeeper_writes": round(seen.zookeeper_writes / len(inside), 3),
        "rows": present,
    }


def _rows(cluster: LocalCluster, kind: Kind) -> int:
    with cluster.connect() as db:
        return int(db.table(kind)["rows"])
