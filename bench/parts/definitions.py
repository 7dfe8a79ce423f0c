"""Definitions of tables: how many a second, with a few tables and with many, and what many versions cost.

Two clusters of three replicas run at the same time, and one client works at each in turn. The tables of the
larger one were created one after the other, as users create them.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from bench.tools.workload import SCHEMA, batch
from tidelock.client import Database
from tidelock.cluster import LocalCluster

#: The table of one version, and the one of many.
_ONCE, _OFTEN = "defined_once", "defined_often"
#: A table whose commits give new CSNs.
_PACE: Final = "defined_beside"
_TURNS: Final = 5
_DEFINITIONS: Final = 20
_COMMITS: Final = 40
_LISTINGS: Final = 10
_TIMEOUT_S: Final = 60.0
_SETTINGS: Final = {"TIDELOCK_COMPACTION": "false"}  # both tables keep the parts that are listed


def run(folder: Path, *, tables: int, versions: int) -> dict[str, Any]:
    """Measure definitions at both clusters in turn, then commits and listings of both tables in turn.

    Args:
        folder: An empty folder.
        tables: Tables of the large cluster.
        versions: Definitions of the table of many, each with another column.
    """
    with contextlib.ExitStack() as stack:
        few, many = (
            stack.enter_context(LocalCluster.create(folder / name, environment=_SETTINGS))
            for name in ("few", "many")
        )
        with few.connect("r1") as small, many.connect("r1") as large:
            for number in range(tables):
                large.create_table(f"other_{number}", SCHEMA)
            taken: dict[str, list[float]] = {"few": [], "many": [], "one": []}
            for turn in range(_TURNS):
                for name, db in (("few", small), ("many", large)):
                    taken[name] += _times(partial(_defined, db), _DEFINITIONS)
                taken["one"] += _times(partial(large.write, {"other_0": batch(1, turn)}), 2 * _DEFINITIONS)
            found = _versions(few, small, versions)
    median = {name: statistics.median(times) for name, times in taken.items()}
    return {
        "tables": tables,
        "few_per_s": round(2 / median["few"], 1),
        "many_per_s": round(2 / median["many"], 1),
        "ratio": round(median["many"] / median["few"], 3),
        "to_commit": round(median["many"] / 2 / median["one"], 2),
        **found,
    }


def _versions(cluster: LocalCluster, db: Database, versions: int) -> dict[str, Any]:
    """Return what commits and listings of both tables take."""
    for table in (_ONCE, _OFTEN, _PACE):
        db.create_table(table, SCHEMA)
    for number in range(1, versions):
        _next_version(db, number)
        if number % (versions // 10) == 0:  # the parts are of many versions, and both tables have as many
            for table in (_ONCE, _OFTEN):
                db.write({table: batch(1, number)})
    taken: dict[str, list[float]] = {name: [] for name in ("commit_once", "commit_often", "once", "often")}
    for turn in range(_TURNS):
        for name, table in (("once", _ONCE), ("often", _OFTEN)):
            rows = {table: batch(1, turn)}
            taken[f"commit_{name}"] += _times(partial(db.write, rows), _COMMITS)
            taken[name] += [_cold_listing(cluster, db, table) for _ in range(_LISTINGS)]
    p50 = {name: statistics.median(times) * 1000 for name, times in taken.items()}
    return {
        "versions": versions,
        "commit_once_ms": round(p50["commit_once"], 2),
        "commit_often_ms": round(p50["commit_often"], 2),
        "commit_ratio": round(p50["commit_often"] / p50["commit_once"], 3),
        "listing_once_ms": round(p50["once"], 2),
        "listing_often_ms": round(p50["often"], 2),
        "listing_ratio": round(p50["often"] / p50["once"], 3),
    }


def _next_version(db: Database, number: int) -> None:
    """Give the table of many a column of this version in place of the last one's."""
    db.alter_table(
        _OFTEN,
        add=f"c{number} bigint default {number}",
        drop=[f"c{number - 1}"] if number > 1 else [],
    )


def _defined(db: Database) -> None:
    db.create_table("made", SCHEMA)
    db.drop_table("made")


def _times(call: Callable[[], object], count: int) -> list[float]:
    taken = []
    for _ in range(count):
        begun = time.monotonic()
        call()
        taken.append(time.monotonic() - begun)
    return taken


def _cold_listing(cluster: LocalCluster, db: Database, table: str) -> float:
    """Return the seconds for the folder of a table at a new CSN."""
    at = db.write({_PACE: batch(1, 0)}).csn
    [replica] = [item for item in cluster.layout.replicas if item.id == "r1"]
    url = f"http://127.0.0.1:{replica.data}/webhdfs/v1/snapshots/{at}/default/{table}?op=LISTSTATUS"
    begun = time.monotonic()
    with urlopen(url, timeout=_TIMEOUT_S) as answer:
        answer.read()
    return time.monotonic() - begun
