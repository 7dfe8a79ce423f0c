"""Counters of the reader processes, in small files that are mapped into memory.

The agent, a test or the demo can read them at any moment, also after the writer was killed: a store to a
mapped page is in the kernel's page cache at once. Each worker slot has one file and one writer; a worker that
takes over a slot continues its counts.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

#: The counters, in the order of their 64-bit fields. New ones are added at the end.
NAMES = (
    "opens",  # reads of a part or of table metadata that were begun
    "bytes",  # bytes of parts handed to the kernel
    "status_requests",  # GETFILESTATUS, block locations, summaries
    "listings",  # folders listed
    "standby_answers",  # "ask another replica": behind, draining, part not whole here
    "refusals",  # loud refusals: CSN too old or beyond the end, writes, malformed requests
    "corrupt_blocks",  # reads that found a part damaged
    "blocks",  # blocks of parts verified for answers (replication/core/digest.py: BLOCK_BYTES)
)

_FORMAT = struct.Struct(f"={len(NAMES)}Q")


def path_of(run_dir: Path, slot: int) -> Path:
    """Return the file of a worker slot."""
    return run_dir / f"reader-{slot}.counters"


def reset(run_dir: Path, slots: int) -> None:
    """Create the files of all slots again with zeros; files of former slots are deleted."""
    run_dir.mkdir(parents=True, exist_ok=True)
    for stale in run_dir.glob("reader-*.counters"):
        stale.unlink()
    for slot in range(slots):
        path_of(run_dir, slot).write_bytes(bytes(_FORMAT.size))


def read(run_dir: Path) -> dict[str, int]:
    """Return the sums over all slots; all zero where no worker has run."""
    totals = [0] * len(NAMES)
    for path in run_dir.glob("reader-*.counters"):
        data = path.read_bytes()
        if len(data) == _FORMAT.size:
            totals = [total + value for total, value in zip(totals, _FORMAT.unpack(data), strict=True)]
    return dict(zip(NAMES, totals, strict=True))


class ReaderCounters:
    """The counters of this process; for one thread."""

    def __init__(self, path: Path) -> None:
        """Map the file that the pool has made; OSError if it does not exist."""
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FORMAT.size)
        self._fields = memoryview(self._map).cast("Q")

    def add(self, name: str, count: int = 1) -> None:
        """Raise one counter; ValueError for an unknown name."""
        self._fields[NAMES.index(name)] += count
