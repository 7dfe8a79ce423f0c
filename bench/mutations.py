"""Deletes and updates of one row in a hundred of lineitem, beside deltalake on the same rows.

Rows that are spread over every part, and rows that are next to each other in the sort order: the first
rewrite the whole table, the second show whether parts and row groups are left out. Tidelock commits on three
replicas, each copy forced to disk; deltalake writes one copy, and does not fsync.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable, write_deltalake

from tidelock.client import Database
from tidelock.cluster import LocalCluster
from workloads.tpch.tables import LINEITEM

_SHARE: Final = 100


@dataclass(frozen=True, slots=True)
class BenchStatement:
    """A statement that both systems run.

    Attributes:
        name: For the report.
        where: Condition in SQL that both understand.
        update: New values, or None for a delete.
    """

    name: str
    where: str
    update: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class MutationFigures:
    """Seconds of one statement, its commit included, and how many rows it changed."""

    statement: str
    rows: int
    tidelock_s: float
    everywhere_s: float
    deltalake_s: float
    ratio: float


def run(cluster: LocalCluster, folder: Path) -> list[dict[str, Any]]:
    """Run every statement at both, one after the other; lineitem must be loaded.

    RuntimeError when they do not change the same number of rows.
    """
    with cluster.connect("r1") as db:
        rows = db.read(LINEITEM.name)
        largest = max(rows["l_orderkey"].to_pylist())
        path = str(folder / "deltalake")
        write_deltalake(path, rows, partition_by=list(LINEITEM.partition_by))
        del rows
        return [asdict(_measure(db, path, statement)) for statement in _statements(largest)]


def _statements(largest: int) -> list[BenchStatement]:
    reprice = {"l_extendedprice": "l_extendedprice * 1.01"}
    step = largest // _SHARE
    ranges = [f"l_orderkey >= {step * number} and l_orderkey < {step * (number + 1)}" for number in (20, 60)]
    return [
        BenchStatement("delete, spread", f"l_orderkey % {_SHARE} = 7", None),
        BenchStatement("update, spread", f"l_orderkey % {_SHARE} = 8", reprice),
        BenchStatement("delete, range", ranges[0], None),
        BenchStatement("update, range", ranges[1], reprice),
    ]


def _measure(db: Database, path: str, statement: BenchStatement) -> MutationFigures:
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
    return int(table.update(updates=statement.update, predicate=statement.where)["num_updated_rows"])
