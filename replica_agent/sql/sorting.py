"""Sorts the rows of parts in the order of their table, also rows that the engine cannot sort at once.

The engine's sort spills, but merges the spilled rows in pieces of :data:`MERGED_ROWS` rows, each as a whole
in memory. Pieces of wide rows exceed its memory limit. In that case the first column of the order is cut into
ranges that fit, and each range is read and sorted separately, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tidelock.column_types import FLOATING, is_nested
from tidelock.replica_agent.sql import composition
from tidelock.replica_agent.sql.plan import RowStream, TargetTable, rows_of
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.table_columns import Column

#: Rows that the engine merges at a time in each of its threads (DuckDB).
MERGED_ROWS: Final = 122_880
#: Shares of the engine's memory: for the rows that it merges, and for the rows of one range, which it copies.
_MERGE_SHARE, _RANGE_SHARE = 1 / 2, 1 / 3
#: Each range reads all parts, except for row groups that cannot have a row of the range.
_RANGES_MAX: Final = 256
#: Bytes of a value in memory; a text has more, which the bytes on disk indicate.
_VALUE_BYTES, _VARIABLE = 8, frozenset({"string", "binary"})


def in_order(target: TargetTable, parts: Sequence[PartRow]) -> list[RowStream]:
    """Return statements that give all rows of the parts that `#affected` shows, in the table's order."""
    column = _cut(target)
    count = 1 if column is None else _ranges(target, parts)
    if column is None or count == 1:
        return [RowStream(composition.ordered(target.schema))]
    bounds = [bound for (bound,) in target.session.fetch(composition.quantiles(column, count))]
    return [_between(target, column, low, high) for low, high in pairwise([None, *bounds, None])]


def _cut(target: TargetTable) -> Column | None:
    """Return the column to cut, the first one of the order, if it exists and can be cut.

    NaN is above all numbers for the engine, but not for the reader of files: float columns are not cut.
    """
    for column in target.schema.columns:
        if column.name in target.schema.sort_by[:1] and column.type not in FLOATING:
            return column
    return None


def _ranges(target: TargetTable, parts: Sequence[PartRow]) -> int:
    """Return the number of ranges into which the rows must be cut."""
    columns, config = target.schema.columns, target.session.config
    rows = max(1, rows_of(parts))
    size = rows * _VALUE_BYTES * len(columns)
    if any(column.type in _VARIABLE or is_nested(column.type) for column in columns):
        size += 2 * sum(part.length for part in parts)
    merged = min(size, size // rows * MERGED_ROWS * config.threads)
    if merged <= config.engine_bytes * _MERGE_SHARE:
        return 1
    return min(_RANGES_MAX, 1 + int(size / (config.engine_bytes * _RANGE_SHARE)))


def _between(target: TargetTable, column: Column, low: str | None, high: str | None) -> RowStream:
    params = {name: value for name, value in (("low", low), ("high", high)) if value is not None}
    within = composition.in_range(column, low=low is not None, high=high is not None)
    return RowStream(composition.ordered(target.schema, within), params)
