"""How far the slowest live peer is behind an acknowledgement, for every commit, at a part of the peak rate.

The lag of a commit is the time from its acknowledgement to the moment at which the last replica has applied
its CSN; 0 when all had before. A process looks at the snapshot CSN in the catalogs of all replicas every
few ms; all clocks are the machine's monotonic one.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.parts import commits
from bench.tools.workload import BenchClients, ClientPace, CommitTiming, clients_of
from tidelock.cluster import LocalCluster
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from workloads.stats import Latencies, reached

#: Of the largest rate that the clients reached without a pace.
SHARE_OF_PEAK: Final = 0.7
#: Pause between two reads: the resolution of a lag.
LOOK_S: Final = 0.002
#: How long replicas may take to apply the last commit.
CATCH_UP_S: Final = 30.0

#: The CSNs that one replica had applied: (time, CSN), in order.
Moments = list[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Lag:
    """The figures of one run."""

    clients: int
    asked_per_s: float
    per_s: float
    commits: int
    latency: Latencies
    lag: Latencies


def run(cluster: LocalCluster, clients: int, peak_per_s: float, pace: ClientPace) -> dict[str, Any]:
    """Commit at a share of the peak rate and follow all replicas; the tables must exist."""
    target_per_s = peak_per_s * SHARE_OF_PEAK
    paced = ClientPace(pace.warm_s, pace.run_s, interval_s=clients / target_per_s)
    context = multiprocessing.get_context("spawn")
    last, results = context.Value("q", -1), context.Queue()
    folders = [cluster.data_dir(replica) for replica in cluster.replicas]
    watcher = context.Process(target=_watch, args=(folders, last, results), daemon=True)
    running = BenchClients(clients_of(cluster), clients, paced)
    watcher.start()
    zero = running.begin()
    done = running.results().done
    last.value = max(item.csn for item in done)
    moments = results.get(timeout=CATCH_UP_S + paced.run_s)
    watcher.join()
    inside = commits.within(done, zero, paced.run_s)
    return asdict(
        Lag(
            clients=clients,
            asked_per_s=round(target_per_s, 1),
            per_s=round(len(inside) / paced.run_s, 1),
            commits=len(inside),
            latency=Latencies.of([item.took_s for item in inside]),
            lag=Latencies.of(lags(inside, moments)),
        )
    )


def lags(done: Sequence[CommitTiming], replicas: Sequence[Moments]) -> list[float]:
    """Return the lag of each commit in seconds; RuntimeError when a replica never reached one."""
    durations = []
    for item in done:
        moments = [reached(replica, item.csn) for replica in replicas]
        known = [moment for moment in moments if moment is not None]
        if len(known) < len(moments):
            raise RuntimeError(f"a replica has not reached CSN {item.csn}")
        durations.append(max(0.0, max(known) - item.at))
    return durations


def _watch(folders: Sequence[Path], last: Any, results: Any) -> None:
    """Note when each catalog's snapshot CSN moves, until all have reached ``last`` (-1 = not known yet)."""
    readers = [CatalogReader(folder) for folder in folders]
    moments: list[Moments] = [[] for _ in readers]
    until = float("inf")
    while time.monotonic() < until:
        for reader, noted in zip(readers, moments, strict=True):
            csn = reader.snapshot_csn()
            if not noted or csn > noted[-1][1]:
                noted.append((time.monotonic(), csn))
        if last.value >= 0:
            until = min(until, time.monotonic() + CATCH_UP_S)
            if all(noted[-1][1] >= last.value for noted in moments):
                break
        time.sleep(LOOK_S)
    results.put(moments)
    for reader in readers:
        reader.close()
