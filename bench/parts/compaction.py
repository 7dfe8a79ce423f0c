"""How fast parts are merged, beside DuckDB's plain COPY of the same rows in order; and what it is for: Spark.

The rate is of one request that merges all of lineitem, three replicas storing the result with fsync; DuckDB
reads the same part files, sorts each partition and writes one copy. Spark then scans lineitem as it became
by many small inserts with compaction at work, beside lineitem from one load.
"""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
from pyspark.sql import SparkSession

import tidelock.spark as tl
from bench.parts.load import program
from bench.tools import tpch
from bench.tools.spark import session
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from workloads.agents import Agents
from workloads.tpch.queries import Q1, Q6, TpchQuery
from workloads.tpch.tables import LINEITEM

#: lineitem, to be merged at once, and as it becomes by small inserts.
MERGED: Final = dataclasses.replace(LINEITEM, name="lineitem_merged")
INSERTED: Final = dataclasses.replace(LINEITEM, name="lineitem_inserted")
#: Queries of lineitem alone.
_QUERIES: Final = (Q1, Q6)
#: Memory for the operators of one SQL process of an agent, and its threads.
_DUCKDB: Final[dict[str, str | bool | int | float | list[str]]] = {"memory_limit": "512MiB", "threads": 2}
#: Compaction has settled when the number of parts has not changed for so long, or after so much time.
_STILL_S: Final = 25.0
_SETTLE_S: Final = 300.0
_LOOK_S: Final = 0.5
_TIMEOUT_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class MergeRate:
    """One merge of a whole table, beside DuckDB.

    Attributes:
        mb: Megabytes (1e6) that were merged.
        merge_s: Until the merged parts were visible where they were made.
        everywhere_s: Until all replicas had applied them.
        copy_s: DuckDB's COPY and the fsync of what it wrote.
    """

    mb: float
    parts_before: int
    parts_after: int
    merge_s: float
    everywhere_s: float
    mb_per_s: float
    copy_s: float
    copy_mb_per_s: float


@dataclass(frozen=True, slots=True)
class ScanFigures:
    """Spark over a table of many inserts, beside the same rows from one load; seconds are medians."""

    query: str
    inserted_s: float
    loaded_s: float
    ratio: float


def run(cluster: LocalCluster, folder: Path, *, parts: int, inserts: int, repeats: int) -> dict[str, Any]:
    """Measure the rate and the scans; lineitem must be loaded."""
    rate = _rate(cluster, folder, parts)
    begun = time.monotonic()
    tpch.load_small(cluster, inserts, name=INSERTED.name, compaction="on")
    inserted_s = time.monotonic() - begun
    with cluster.connect("r1") as db:
        settled_s = _settle(db)
        parts_left = db.table(INSERTED.name)["parts"]
        loaded_parts = db.table(LINEITEM.name)["parts"]
        with session(folder) as spark:
            scans = _scans(db, spark, repeats)
    return {
        "rate": asdict(rate),
        "inserts": inserts,
        "inserted_s": round(inserted_s, 1),
        "settled_s": round(settled_s, 1),
        "parts_left": parts_left,
        "loaded_parts": loaded_parts,
        "scans": [asdict(scan) for scan in scans],
        "worst_ratio": max(scan.ratio for scan in scans),
    }


def _rate(cluster: LocalCluster, folder: Path, parts: int) -> MergeRate:
    tpch.load_small(cluster, parts, name=MERGED.name)
    with cluster.connect("r1") as db:
        with db.snapshot() as snap:
            Agents(cluster).copy_parts("r1", snap.csn, MERGED.name, folder / "merged")
        begun = time.monotonic()
        done = db.optimize(MERGED.name, timeout_s=_TIMEOUT_S)
        merge_s = time.monotonic() - begun
        csn = db.seen_csn
        while any(row["snapshot_csn"] < csn for row in db.status()["replicas"]):
            time.sleep(_LOOK_S / 10)
        everywhere_s = time.monotonic() - begun
    if not done["done"]:
        raise RuntimeError("the merge did not end in time")
    copy_s = _copy(folder / "merged" / "default" / MERGED.name, folder / "copied")
    mb = done["bytes"] / 1e6
    return MergeRate(
        mb=round(mb, 1),
        parts_before=done["parts_before"],
        parts_after=done["parts_after"],
        merge_s=round(merge_s, 2),
        everywhere_s=round(everywhere_s, 2),
        mb_per_s=round(mb / merge_s, 1),
        copy_s=round(copy_s, 2),
        copy_mb_per_s=round(mb / copy_s, 1),
    )


def _copy(source: Path, target: Path) -> float:
    """Have DuckDB write each partition of the files in order; returns the seconds, fsync included."""
    folders: dict[Path, list[str]] = defaultdict(list)
    for path in sorted(source.rglob("*.parquet")):
        folders[path.parent].append(str(path))
    target.mkdir()
    order = ", ".join(LINEITEM.sort_by)
    begun = time.monotonic()
    with duckdb.connect(config=_DUCKDB | {"temp_directory": str(target / "temp")}) as connection:
        for number, files in enumerate(folders.values()):
            rows = connection.read_parquet(files).order(order)
            rows.write_parquet(
                str(target / f"{number}.parquet"), compression="zstd", row_group_size=1_000_000
            )
    subprocess.run([program("sync"), *map(str, target.glob("*.parquet"))], check=True)
    return time.monotonic() - begun


def _settle(db: Database) -> float:
    """Wait until compaction has come to rest; returns the seconds until its last change."""
    begun = changed = time.monotonic()
    parts = -1
    while time.monotonic() < min(changed + _STILL_S, begun + _SETTLE_S):
        part_count = db.table(INSERTED.name)["parts"]
        if part_count != parts:
            parts, changed = part_count, time.monotonic()
        time.sleep(_LOOK_S)
    return changed - begun


def _scans(db: Database, spark: SparkSession, repeats: int) -> Sequence[ScanFigures]:
    names = {"inserted": INSERTED.name, "loaded": LINEITEM.name}
    with tl.attach(spark, db, tables=names.values(), replica="r1") as snap:
        frames = {kind: tl.read(spark, snap, name) for kind, name in names.items()}
        return [_scan(spark, query, frames, repeats) for query in _QUERIES]


def _scan(spark: SparkSession, query: TpchQuery, frames: dict[str, Any], repeats: int) -> ScanFigures:
    """Time one query over both, in turn; the first turn warms up and compares the answers."""
    taken: dict[str, list[float]] = {kind: [] for kind in frames}
    answers: dict[str, Any] = {}
    for turn in range(repeats + 1):
        for kind in sorted(frames, reverse=turn % 2 == 0):
            frames[kind].createOrReplaceTempView("lineitem")
            begun = time.monotonic()
            answers[kind] = spark.sql(query.for_spark).collect()
            if turn:
                taken[kind].append(time.monotonic() - begun)
        if answers["inserted"] != answers["loaded"]:
            raise RuntimeError(f"{query.name}: many inserts and one load give different rows")
    inserted, loaded = statistics.median(taken["inserted"]), statistics.median(taken["loaded"])
    return ScanFigures(query.name, round(inserted, 3), round(loaded, 3), round(inserted / loaded, 3))
