"""How long an agent needs to be ready, and to tell its status, when it holds many part files.

The files are really on disk, and their rows in the catalog, but they come from copying one committed part:
that many commits would take an hour. The page cache is warm.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from bench.tools.machine import memory_mb
from bench.tools.part_files import fill
from bench.tools.workload import SCHEMA, batch
from tidelock.cluster import LocalCluster

_TABLE: Final = "default.start"
_STARTS: Final = 3
_STATUS_REQUESTS: Final = 50


def run(folder: Path, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Measure with each number of part files, in ascending order, on a cluster of one replica."""
    # So that even the smallest part becomes a file of its own.
    own_files = {"TIDELOCK_INLINE_PART_BYTES_MAX": "1"}
    with LocalCluster.create(folder, replicas=1, environment=own_files) as cluster:
        [replica] = cluster.replicas
        with cluster.connect() as db:
            db.create_table(_TABLE, SCHEMA, partition_by=["year"])
            db.insert(_TABLE, batch(0, 0))
        return [_measure(cluster, replica, count) for count in sorted(counts)]


def _measure(cluster: LocalCluster, replica: str, count: int) -> dict[str, Any]:
    cluster.stop(replica)
    fill(cluster.data_dir(replica), _TABLE, replica, count)
    taken = []
    for _ in range(_STARTS):
        taken.append(_timed(lambda: cluster.start(replica)))
        cluster.stop(replica)
    cluster.start(replica)
    with cluster.connect() as db:
        found = db.table(_TABLE)["parts"]
        status_s = [_timed(db.status) for _ in range(_STATUS_REQUESTS)]
    if found != count:
        raise RuntimeError(f"{count} parts were made, the agent knows {found}")
    return {
        "part_files": count,
        "ready_s": round(statistics.median(taken), 2),
        "status_ms": round(statistics.median(status_s) * 1000, 2),
        "memory_mb": memory_mb(cluster)[replica],
    }


def _timed(call: Callable[[], object]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun
