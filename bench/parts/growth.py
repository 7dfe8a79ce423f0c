"""Commits and listings of a cluster whose catalogs are large, beside a cluster that has only begun.

Both clusters have three replicas and run at the same time; one client commits at each in turn. The rows of
tables, parts and records in the large catalogs are copies of one, so that they are there without as many
commits; the records lie in a gap of the CSNs between two epochs of the log.
"""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from bench.tools.part_files import copy_rows
from bench.tools.workload import SCHEMA, batch
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core.ids import csn, epoch_of

_TABLES: Final = ("default.growth_orders", "default.growth_lines")
#: The table that is listed, and the one from which the other tables are copied.
_LISTED: Final = "default.growth_listed"
_OTHER: Final = "default.growth_other"
#: Partitions of each table; the review that set the bound of the listing had as many.
_PARTITIONS: Final = 30
_FIRST_YEAR: Final = 1990
#: Records of an epoch: the first ends soon, and the CSNs up to the second are free.
_EPOCH_LIMIT: Final = 10
_TURNS: Final = 20
_COMMITS: Final = 25
_LISTINGS: Final = 5
_TIMEOUT_S: Final = 60.0
#: An agent reads large catalogs at its start.
_START_S: Final = 300.0
_SETTINGS: Final = {"TIDELOCK_COMPACTION": "false"}  # nothing merges the copies meanwhile


def run(folder: Path, *, tables: int, parts: int, listed: int, records: int) -> dict[str, Any]:
    """Measure commits at both clusters in turn, and cold listings at the large one.

    Args:
        folder: An empty folder.
        tables: Tables of the large cluster.
        parts: Its parts in all tables.
        listed: Of these the parts of the table that is listed.
        records: Records in its history.
    """
    with contextlib.ExitStack() as stack:
        small, large = (
            stack.enter_context(
                LocalCluster.create(folder / name, environment=_SETTINGS, epoch_limit=_EPOCH_LIMIT)
            )
            for name in ("small", "large")
        )
        for cluster in (small, large):
            _begin(cluster)
        _grow(large, tables=tables, parts=parts, listed=listed, records=records)
        taken: dict[str, list[float]] = {"small": [], "large": []}
        with small.connect("r1") as few, large.connect("r1") as many:
            for turn in range(_TURNS):
                for name, db in (("small", few), ("large", many)):
                    taken[name] += _commits(db, turn)
            found = many.table(_LISTED)["parts"]
            whole_s = _cold_listings(large, many)
        with large.connect("r1") as db:
            large.environment["TIDELOCK_COMBINED_PART_BYTES_MAX"] = "0"
            large.stop("r1")
            large.start("r1", timeout_s=_START_S)
            by_part_s = _cold_listings(large, db)
    if found != listed:
        raise RuntimeError(f"{listed} parts were made, the agent knows {found}")
    p50 = {name: statistics.median(times) * 1000 for name, times in taken.items()}
    return {
        "tables": tables,
        "parts": parts,
        "listed": listed,
        "records": records,
        "small_p50_ms": round(p50["small"], 2),
        "large_p50_ms": round(p50["large"], 2),
        "ratio": round(p50["large"] / p50["small"], 3),
        "listing_s": round(whole_s, 3),
        "listing_by_part_s": round(by_part_s, 3),
    }


def _begin(cluster: LocalCluster) -> None:
    """Create the tables, and commit until the log is in its second epoch."""
    with cluster.connect("r1") as db:
        for table in (*_TABLES, _LISTED, _OTHER):
            db.create_table(table, SCHEMA, partition_by=["year"])
        db.write({_LISTED: batch(0, 0), _OTHER: batch(0, 0)}, wait="all")
        for number in range(2 * _EPOCH_LIMIT):
            db.write(_rows(number), wait="all")


def _rows(number: int) -> dict[str, Any]:
    return dict.fromkeys(_TABLES, batch(1, number))


def _grow(cluster: LocalCluster, *, tables: int, parts: int, listed: int, records: int) -> None:
    """Let the catalogs of all replicas grow while no agent runs."""
    for replica in cluster.replicas:
        cluster.stop(replica)

    def grow(replica: str) -> None:
        with contextlib.closing(sqlite3.connect(cluster.data_dir(replica) / "catalog.db")) as db, db:
            _copies(db, tables=tables, parts=parts, listed=listed, records=records)

    with ThreadPoolExecutor() as threads:
        list(threads.map(grow, cluster.replicas))
    for replica in cluster.replicas:
        cluster.start(replica, timeout_s=_START_S)


def _copies(db: sqlite3.Connection, *, tables: int, parts: int, listed: int, records: int) -> None:
    path = f"'year=' || ({_FIRST_YEAR} + n % {_PARTITIONS})"
    copied = tables - len(_TABLES) - 2
    name = f"'{_OTHER}' || (n - 1)"
    copy_rows(db, "tables", ("id", _OTHER), {"id": name, "name": name}, copied)
    here = {"part": "'r1-1-' || (1000000 + n)", "path": path}
    copy_rows(db, "parts", ("table_name", _LISTED), here, listed - 1)
    there = {
        "part": f"'r1-1-' || ({1_000_000 + listed} + n)",
        "path": path,
        "table_name": f"'{_OTHER}' || (n % {copied})",
    }
    copy_rows(db, "parts", ("table_name", _OTHER), there, parts - listed)
    first, last = db.execute("SELECT min(csn), max(csn) FROM csns WHERE csn > 0").fetchone()
    if not epoch_of(first) < epoch_of(last):
        raise RuntimeError(f"expected CSNs of two epochs, found {first} to {last}")
    number = f"{csn(0, _EPOCH_LIMIT)} + n"
    copy_rows(db, "csns", ("csn", first), {"csn": number}, records)
    tid = f"({number} - 1) || '-r1-1-' || (1000000 + n)"
    copy_rows(db, "outcomes", ("csn", first), {"csn": number, "tid": tid, "label": "NULL"}, records)


def _commits(db: Database, turn: int) -> list[float]:
    taken = []
    for number in range(_COMMITS):
        rows = _rows(1000 * (turn + 1) + number)
        begun = time.monotonic()
        db.write(rows)
        taken.append(time.monotonic() - begun)
    return taken


def _cold_listings(cluster: LocalCluster, db: Database) -> float:
    """Return the median of the seconds for a folder of the large table, at a new CSN each time."""
    taken = []
    [replica] = [item for item in cluster.layout.replicas if item.id == "r1"]
    folder = f"{_LISTED.replace('.', '/')}/year={_FIRST_YEAR}"
    for number in range(_LISTINGS):
        at = db.write(_rows(number)).csn
        url = f"http://127.0.0.1:{replica.data}/webhdfs/v1/snapshots/{at}/{folder}?op=LISTSTATUS"
        begun = time.monotonic()
        with urlopen(url, timeout=_TIMEOUT_S) as answer:
            answer.read()
        taken.append(time.monotonic() - begun)
    return statistics.median(taken)
