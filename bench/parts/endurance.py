"""Ten minutes of inserts with compaction and collection on: what slows down, and what grows.

Clients insert as in `commits`. History, outcomes and log are kept for seconds instead of a day, and finished
transactions for one minute instead of ten, so every size that becomes stable does so within the first
minutes: a size that still grows after the fifth minute grows forever.

Sizes rise and fall all the time: the log is shortened by hundreds of records at once, and a merge of large
parts needs memory for a second. So each size is measured many times a minute. The mean is checked, and the
largest value is reported.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, replace
from statistics import fmean
from typing import Any, Final

from bench.parts import commits
from bench.tools.machine import memory_mb, zookeeper_figure
from bench.tools.workload import BenchClients, ClientPace, CommitTiming, clients_of
from tidelock.client import Database
from tidelock.cluster import LocalCluster

#: Settings of the agents in this run. The watcher's own reads of the tables keep their history, too.
SETTINGS: Final = {
    "TIDELOCK_HISTORY_RETENTION_S": "60",
    "TIDELOCK_OUTCOME_RETENTION_S": "60",
    "TIDELOCK_UNPINNED_TTL_S": "30",
    "TIDELOCK_CLOSED_KEPT_S": "60",
    "TIDELOCK_LOG_KEEP_RECORDS": "1000",
    "TIDELOCK_HORIZON_INTERVAL_S": "5",
    "TIDELOCK_CLEAN_INTERVAL_S": "10",
}
CLIENTS: Final = 8
#: Samples within one interval.
SAMPLES: Final = 12
_MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes at one moment.

    Attributes:
        znodes: In ZooKeeper.
        catalog_mb: Of the largest catalog, its journal included.
        memory_mb: Resident memory of the largest protocol process.
    """

    znodes: float
    catalog_mb: float
    memory_mb: float


@dataclass(frozen=True, slots=True)
class Minute:
    """One interval.

    Attributes:
        commits: Acknowledged within it.
        mean: Of all samples.
        memory_max_mb: The most memory of all samples.
        parts: That the two tables are made of at its end.
    """

    commits: int
    mean: Sizes
    memory_max_mb: float
    parts: int

    def row(self) -> dict[str, float]:
        """Return the figures by their names."""
        return {
            "commits": self.commits,
            "parts": self.parts,
            **asdict(self.mean),
            "memory_max_mb": self.memory_max_mb,
        }


def run(cluster: LocalCluster, minutes: int, minute_s: float) -> dict[str, Any]:
    """Insert for so many intervals of ``minute_s`` into new tables."""
    commits.create_tables(cluster)
    running = BenchClients(clients_of(cluster), CLIENTS, ClientPace(0.0, minutes * minute_s))
    zero = running.begin()
    with ThreadPoolExecutor(1) as watcher:
        watched = watcher.submit(_watch, cluster, zero, minutes, minute_s)
        done = running.results().done
        measured = watched.result()
    counts = _counts(done, zero, minutes, minute_s)
    rows = [replace(item, commits=count).row() for item, count in zip(measured, counts, strict=True)]
    return {"minute_s": minute_s, "clients": CLIENTS, "minutes": rows, **ratios(rows)}


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


def _counts(done: Sequence[CommitTiming], zero: float, minutes: int, minute_s: float) -> list[int]:
    counts = [0] * minutes
    for item in done:
        number = int((item.at - zero) // minute_s)
        if 0 <= number < minutes:
            counts[number] += 1
    return counts


def _watch(cluster: LocalCluster, zero: float, minutes: int, minute_s: float) -> list[Minute]:
    """Return what stood, minute by minute, without the commits."""
    with cluster.connect() as db:
        return [_minute(cluster, db, zero + number * minute_s, minute_s) for number in range(minutes)]


def _minute(cluster: LocalCluster, db: Database, begin: float, minute_s: float) -> Minute:
    samples: list[Sizes] = []
    for number in range(1, SAMPLES + 1):
        time.sleep(max(0.0, begin + number * minute_s / SAMPLES - time.monotonic()))
        memory = max(item["protocol"] for item in memory_mb(cluster).values())
        znodes = int(zookeeper_figure(cluster, "mntr", "zk_znode_count"))
        samples.append(Sizes(znodes, max(map(_catalog_mb, _folders(cluster))), memory))
    tables = [table for table in db.tables() if table["name"].startswith("default.bench_")]
    mean = Sizes(*(round(fmean(column), 2) for column in zip(*map(astuple, samples), strict=True)))
    most = max(sample.memory_mb for sample in samples)
    return Minute(0, mean, most, sum(table["parts"] for table in tables))


def _folders(cluster: LocalCluster) -> list[Any]:
    return [cluster.data_dir(replica) for replica in cluster.replicas]


def _catalog_mb(folder: Any) -> float:
    return float(sum(path.stat().st_size for path in folder.glob("catalog.db*")) / _MB)
