"""Ten minutes of inserts with compaction and collection on: what slows down, and what grows.

Clients insert as in `commits`. History, outcomes and log are kept for seconds instead of a day, so that
everything that is to come to rest does so within the first minutes: what still grows after the fifth minute
grows for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench import commits
from bench.machine import memory_mb
from bench.workload import Clients, Done, Pace, clients_of
from tidelock.cluster import LocalCluster

#: Settings of the agents in this run. The watcher's own look at the tables keeps their history, too.
SETTINGS: Final = {
    "TIDELOCK_HISTORY_RETENTION_S": "60",
    "TIDELOCK_OUTCOME_RETENTION_S": "60",
    "TIDELOCK_UNPINNED_TTL_S": "30",
    "TIDELOCK_LOG_KEEP_RECORDS": "1000",
    "TIDELOCK_HORIZON_INTERVAL_S": "5",
    "TIDELOCK_CLEAN_INTERVAL_S": "10",
}
CLIENTS: Final = 8
_MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Minute:
    """What stood at the end of one interval.

    Attributes:
        commits: Acknowledged within it.
        znodes: In ZooKeeper.
        catalog_mb: Of the largest catalog, its journal included.
        memory_mb: Resident memory of the largest protocol process.
        parts: That the two tables are made of now.
    """

    commits: int
    znodes: int
    catalog_mb: float
    memory_mb: float
    parts: int


def run(cluster: LocalCluster, minutes: int, minute_s: float) -> dict[str, Any]:
    """Insert for so many intervals of ``minute_s`` into new tables."""
    commits.create_tables(cluster)
    stood: list[Minute] = []
    running = Clients(clients_of(cluster), CLIENTS, Pace(0.0, minutes * minute_s))
    zero = running.begin()
    watcher = threading.Thread(target=_watch, args=(cluster, zero, minutes, minute_s, stood), daemon=True)
    watcher.start()
    done = running.results().done
    watcher.join()
    found = [
        {**asdict(item), "commits": count}
        for item, count in zip(stood, _counts(done, zero, minutes, minute_s), strict=True)
    ]
    return {"minute_s": minute_s, "clients": CLIENTS, "minutes": found, **ratios(found)}


def ratios(minutes: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return how the last interval compares: its rate with the second's, its sizes with the fifth's.

    With fewer than five intervals the sizes are compared with those of the second. Pure.
    """
    last, second = minutes[-1], minutes[1]
    fifth = minutes[4] if len(minutes) > 5 else second
    return {
        "rate_ratio": round(last["commits"] / second["commits"], 2),
        **{f"{key}_ratio": round(last[key] / fifth[key], 2) for key in ("znodes", "catalog_mb", "memory_mb")},
    }


def _counts(done: Sequence[Done], zero: float, minutes: int, minute_s: float) -> list[int]:
    counts = [0] * minutes
    for item in done:
        number = int((item.at - zero) // minute_s)
        if 0 <= number < minutes:
            counts[number] += 1
    return counts


def _watch(cluster: LocalCluster, zero: float, minutes: int, minute_s: float, stood: list[Minute]) -> None:
    with cluster.connect() as db:
        for number in range(1, minutes + 1):
            time.sleep(max(0.0, zero + number * minute_s - time.monotonic()))
            memory = memory_mb(cluster)
            tables = [table for table in db.tables() if table["name"].startswith("default.bench_")]
            stood.append(
                Minute(
                    commits=0,
                    znodes=_znodes(cluster),
                    catalog_mb=round(max(map(_catalog_mb, _folders(cluster))), 2),
                    memory_mb=max(item["protocol"] for item in memory.values()),
                    parts=sum(table["parts"] for table in tables),
                )
            )


def _folders(cluster: LocalCluster) -> list[Any]:
    return [cluster.data_dir(replica) for replica in cluster.replicas]


def _catalog_mb(folder: Any) -> float:
    return float(sum(path.stat().st_size for path in folder.glob("catalog.db*")) / _MB)


def _znodes(cluster: LocalCluster) -> int:
    assert cluster.zookeeper is not None, "the bench runs its own ZooKeeper"
    answer = cluster.zookeeper.servers[0].ask("mntr") or ""
    for line in answer.splitlines():
        if line.startswith("zk_znode_count"):
            return int(line.split()[1])
    raise RuntimeError("the ZooKeeper server does not show its number of znodes")
