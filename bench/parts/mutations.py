"""Deletes and updates of one row in a hundred of lineitem, beside deltalake on the same rows.

Rows that are spread over every part, and rows that are next to each other in the sort order: the first
rewrite the whole table, the second show whether parts and row groups are left out. Tidelock commits on three
replicas, each copy forced to disk; deltalake writes one copy, and does not fsync. Both ways of Tidelock run
one after the other, each on a cluster of its own, with deltalake beside it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable, write_deltalake

from bench.tools import tpch
from bench.tools.statements import BenchStatement, statements
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from workloads.tpch import data
from workloads.tpch.tables import LINEITEM

#: The ways in which Tidelock changes a part, with the settings of their agents.
_WAYS: Final = {
    "row groups": {"TIDELOCK_ROW_GROUP_ROWS": "131072"},
    "whole parts": {"TIDELOCK_CUT_PART_BYTES_MIN": str(1 << 40)},
}


@dataclass(frozen=True, slots=True)
class MutationFigures:
    """Seconds of one statement, its commit included, and how many rows it changed."""

    way: str
    statement: str
    rows: int
    tidelock_s: float
    everywhere_s: float
    deltalake_s: float
    ratio: float


def run(folder: Path) -> list[dict[str, Any]]:
    """Run every statement in each way and at deltalake, one after the other, over the tables in a folder.

    RuntimeError when they do not change the same number of rows.
    """
    runs = []
    for way, environment in _WAYS.items():
        place = folder / f"mutations, {way}"
        with LocalCluster.create(place, environment=environment) as cluster:
            runs += _run(cluster, folder, str(place / "deltalake"), way)
    return runs


def _run(cluster: LocalCluster, folder: Path, path: str, way: str) -> list[dict[str, Any]]:
    with cluster.connect("r1") as db, data.TpchRows(tpch.source(folder)) as source:
        data.create_tables(db)
        rows = source.rows(LINEITEM).read_all()
        db.insert(LINEITEM.name, rows, wait="all")
        largest = max(rows["l_orderkey"].to_pylist())
        write_deltalake(path, rows, partition_by=list(LINEITEM.partition_by))
        del rows
        return [asdict(_measure(db, path, way, statement)) for statement in statements(largest)]


def _measure(db: Database, path: str, way: str, statement: BenchStatement) -> MutationFigures:
    begun = time.monotonic()
    with db.begin() as tx:
        if statement.update is None:
            changed = tx.delete(LINEITEM.name, statement.where).rows_deleted
        else:
            changed = tx.update(LINEITEM.name, statement.update, statement.where).rows_updated
        tx.commit()
        home_s = time.monotonic() - begun
        tx.commit(wait="all")
    everywhere_s = time.monotonic() - begun
    begun = time.monotonic()
    other = _deltalake(path, statement)
    delta_s = time.monotonic() - begun
    if other != changed:
        raise RuntimeError(f"{statement.name}: Tidelock changed {changed} rows, deltalake {other}")
    return MutationFigures(
        way=way,
        statement=statement.name,
        rows=changed,
        tidelock_s=round(home_s, 2),
        everywhere_s=round(everywhere_s, 2),
        deltalake_s=round(delta_s, 2),
        ratio=round(home_s / delta_s, 2),
    )


def _deltalake(path: str, statement: BenchStatement) -> int:
    table = DeltaTable(path)
    if statement.update is None:
        return int(table.delete(statement.where)["num_deleted_rows"])
    return int(table.update(updates=dict(statement.update), predicate=statement.where)["num_updated_rows"])
