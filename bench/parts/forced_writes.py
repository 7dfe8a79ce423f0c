"""Forced writes of a commit, and what it takes where each of them is slow.

Two clusters commit in turn: one writes its catalogs behind packs and log, the other forces every transaction
of them. `strace` counts the calls of fsync and fdatasync of all agents, and lets each take a while longer:
the disks of most machines need milliseconds, that of a test machine a fraction of one.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.parts import commits
from bench.tools.ways import Way
from bench.tools.workload import ROWS, TABLES, ClientPace
from tidelock.cluster import LocalCluster

#: How much longer a forced write takes, in milliseconds.
SLOWER_MS: Final = 5
#: The tracer is there when it has seen all threads of an agent.
_ATTACH_S: Final = 3.0


def run(folder: Path, clients: tuple[int, ...], pace: ClientPace) -> list[dict[str, Any]]:
    """Measure both clusters with each number of clients.

    Raises:
        RuntimeError: `strace` is not installed, or rows are missing at the end.
    """
    if shutil.which("strace") is None:
        raise RuntimeError("this needs strace; Debian: apt-get install strace")
    found = []
    with contextlib.ExitStack() as opened:
        clusters = {}
        for behind in (False, True):
            environment = {"TIDELOCK_CATALOG_WRITE_BEHIND": str(behind).lower()}
            made = LocalCluster.create(folder / f"behind-{behind}", environment=environment)
            clusters[behind] = opened.enter_context(made)
            commits.create_tables(clusters[behind])
        for count in clients:
            for behind, cluster in clusters.items():
                with _slower(cluster, folder) as traces:
                    figures = commits.measure(cluster, Way.WRITE, count, pace)
                    calls = sum(trace.read_text().count("\n") for trace in traces)
                found.append(
                    {
                        "write_behind": behind,
                        "clients": count,
                        "slower_ms": SLOWER_MS,
                        "per_s": figures.per_s,
                        "p50_ms": figures.latency.p50_ms,
                        "tids_per_csn": figures.tids_per_csn,
                        "forced_per_commit": round(calls * ROWS * len(TABLES) / figures.rows, 2),
                    }
                )
    return found


@contextlib.contextmanager
def _slower(cluster: LocalCluster, folder: Path) -> Iterator[list[Path]]:
    """Make each forced write of the agents slower; yield the files that get a line for each."""
    traces = [folder / f"trace-{replica}" for replica in cluster.replicas]
    inject = f"inject=fsync,fdatasync:delay_exit={SLOWER_MS * 1000}"
    options = ("strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-e", inject)
    tracers = [
        subprocess.Popen(
            [*options, "-o", str(trace), "-p", str(cluster.pid(replica))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for replica, trace in zip(cluster.replicas, traces, strict=True)
    ]
    try:
        time.sleep(_ATTACH_S)
        yield traces
    finally:
        for tracer in tracers:
            tracer.send_signal(signal.SIGTERM)
            tracer.wait()
