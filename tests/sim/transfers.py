"""The rows of the writers' transfers: what they add to both tables, and what a reader makes of it."""

from __future__ import annotations

import functools
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.histories import table_model
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replica_agent.tables.names import full_name

#: Tables that writers add to, and compaction changes.
TABLES: Final = ("a", "b")
SCHEMA: Final = pa.schema(
    [pa.field("k", pa.string(), nullable=False), pa.field("n", pa.int64()), pa.field("f", pa.float64())]
)
#: Rows of a write in both tables.
ROWS: Final = (1, 2)

#: Parts of each table with their bytes.
Lists = dict[str, list[tuple[PartRow, bytes]]]


def rows_of(key: str, n: int) -> dict[str, pa.Table]:
    """Return the rows of a write by table; their numbers add up to 0."""
    return {TABLES[0]: _entries(key, n), TABLES[1]: _entries(key, 1 - n, -1)}


def _entries(key: str, *numbers: int) -> pa.Table:
    floats = [table_model.float_of(n) for n in numbers]
    return pa.table({"k": [key] * len(numbers), "n": numbers, "f": floats}, schema=SCHEMA)


def landing_rows(key: str, n: int) -> pa.Table:
    """Return the row of a landing."""
    return _entries(key, n)


def keys_of(parts: list[tuple[PartRow, bytes]]) -> list[str]:
    """Return the keys of all rows."""
    return [key for _, data in parts for key, _ in _rows(data)]


def balances(found: Lists) -> list[list[Any]]:
    """Return key, sum and rows in the first table, sum and rows in the second."""
    sums: dict[str, list[int]] = {}
    for index, table in enumerate(map(full_name, TABLES)):
        for _, data in found[table]:
            for key, n in _rows(data):
                entry = sums.setdefault(key, [0, 0, 0, 0])
                entry[2 * index] += n
                entry[2 * index + 1] += 1
    return [[key, *sums[key]] for key in sorted(sums)]


@functools.lru_cache(maxsize=20_000)
def _rows(data: bytes) -> tuple[tuple[str, int], ...]:
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    table_model.require_floats(table["f"].to_pylist(), table["n"].to_pylist())
    return tuple(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))
