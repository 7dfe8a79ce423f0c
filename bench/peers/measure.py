"""Measures one peer, with one number of clients after the other."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.peers.peer import OtherFormat
from bench.tools.workload import GAVE_UP, ROWS, BenchClients, ClientPace, Commit
from workloads.stats import Latencies

#: Name -> module and class; imported only where they are used, since not all can be in one process.
PEERS: Final = {
    "deltalake": ("bench.peers.delta", "Delta"),
    "pyiceberg": ("bench.peers.iceberg", "Iceberg"),
    "ducklake": ("bench.peers.ducklake", "DuckLake"),
}
#: Peers whose import starts a thread: clients that are forked from such a process may hang forever.
_STARTS_THREADS: Final = {"deltalake"}


def measure(name: str, folder: Path, counts: Sequence[int], pace: ClientPace) -> dict[str, Any]:
    """Return what each number of clients showed, each on new tables."""
    runs = [_measure(name, folder / str(count), count, pace) for count in counts]
    peer = _peer(name)
    return {"peer": peer.name, "tables": peer.tables, "note": peer.note, "runs": runs}


def _peer(name: str) -> OtherFormat:
    module, kind = PEERS[name]
    peer: OtherFormat = getattr(importlib.import_module(module), kind)()
    return peer


def _open(number: int, name: str, folder: Path) -> Commit:
    return _peer(name).open(number, folder)


def _measure(name: str, folder: Path, count: int, pace: ClientPace) -> dict[str, Any]:
    folder.mkdir(parents=True)
    peer = _peer(name)
    peer.prepare(folder)
    shared = [] if name in _STARTS_THREADS else [PEERS[name][0]]
    running = BenchClients(functools.partial(_open, name=name, folder=folder), count, pace, shared)
    zero = running.begin()
    done = running.results().done
    committed = [item for item in done if item.csn != GAVE_UP]
    good = [item for item in committed if zero <= item.at <= zero + pace.run_s]
    return {
        "clients": count,
        "per_s": round(len(good) / pace.run_s, 1),
        "latency": asdict(Latencies.of([item.took_s for item in good])) if good else None,
        "failed_attempts": sum(item.failed for item in done),
        "rows_missing": len(committed) * ROWS * peer.tables - peer.rows(folder),
    }
