"""How long an agent needs to be ready when its data directory holds many part files.

The files are really on disk, and their rows in the catalog, but they come from copying one committed part:
that many commits would take an hour. The page cache is warm.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.machine import memory_mb
from bench.workload import SCHEMA, batch
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core.ids import ReplicaId, TableName, Tid, part_id
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replication.core.model import Location
from tidelock.replication.partfs import PartFs

_TABLE: Final = "default.start"
_STARTS: Final = 3
#: Far above what the agent itself has numbered.
_FIRST: Final = 1_000_000


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
    _fill(cluster.data_dir(replica), replica, count)
    taken = []
    for _ in range(_STARTS):
        begun = time.monotonic()
        cluster.start(replica)
        taken.append(time.monotonic() - begun)
        cluster.stop(replica)
    cluster.start(replica)
    with cluster.connect() as db:
        found = db.table(_TABLE)["parts"]
    if found != count:
        raise RuntimeError(f"{count} parts were made, the agent knows {found}")
    return {
        "part_files": count,
        "ready_s": round(statistics.median(taken), 2),
        "memory_mb": memory_mb(cluster)[replica],
    }


def _fill(data_dir: Path, replica: str, count: int) -> None:
    """Copy the one committed part until there are so many files."""
    files = PartFs(data_dir)
    reader = CatalogReader(data_dir)
    with contextlib.closing(reader):
        rows = reader.parts(TableName(_TABLE), reader.snapshot_csn())
    first = next(row for row in rows if row.file is not None)
    made = [_copy(files, first, replica, number) for number in range(len(rows), count)]
    with contextlib.closing(sqlite3.connect(data_dir / "catalog.db")) as db, db:
        jobs.add_staged(db, made, [])
        db.execute("update parts set creation_csn = ? where creation_csn is null", (first.creation_csn,))


def _copy(files: PartFs, first: PartRow, replica: str, number: int) -> jobs.StagedPart:
    part = part_id(ReplicaId(replica), 1, _FIRST + number)
    path = files.part_path(part)
    shutil.copyfile(files.data_dir / str(first.file), files.data_dir / path)
    location = Location(path, first.offset, first.length, first.blocks)
    return jobs.StagedPart(
        msgspec.structs.replace(first.meta, part=part), location, Tid.parse(first.creation_tid)
    )
