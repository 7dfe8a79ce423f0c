"""Ranges of unique keys, in a form that locks and JSON can compare.

Pure. A range concerns only the first column of a table's unique key. Two rows with equal keys are in every
range that contains one of them, so disjoint ranges prove different keys, and overlapping ranges do not
prove equal ones. None means no bound; a value without a short form makes the range wider, never narrower.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

from tidelock.replica_agent.tables.partitions import values_of
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.tables.statistics import TEXT_MAX, Statistics
from tidelock.replication.core.lock_rules import KeyRange
from tidelock.table_columns import Column

_EPOCH = dt.date(1970, 1, 1)
#: More digits than any column has, so that nothing is rounded.
_EXACT = Context(prec=100)


def key_column(schema: TableSchema) -> Column:
    """Return the column that ranges concern: the first of the unique key, which the table must have."""
    return next(column for column in schema.columns if column.name == schema.unique_key[0])


def range_of(column: Column, bounds: Sequence[Any] | None) -> KeyRange:
    """Return the range between two values of a column; None for unknown values.

    Args:
        column: A column of a type that a unique key may have.
        bounds: Smallest and largest value: days and microseconds since 1970 for dates and timestamps,
            decimals as :class:`~decimal.Decimal` or as text.
    """
    low, high = bounds or (None, None)
    if column.type == "string":
        # A prefix never sorts above the text, but no short text is certain to be an upper bound of it.
        top = high if len(high or "") <= TEXT_MAX else None
        return KeyRange(None if low is None else low[:TEXT_MAX], top)
    return KeyRange(_sortable(column, low), _sortable(column, high))


def part_range(schema: TableSchema, path: str, statistics: Statistics | None) -> KeyRange:
    """Return the range of the keys of a part, by its folder or by its statistics."""
    column = key_column(schema)
    if column.name in schema.partition_by:
        value = values_of(path, schema)[column.name]
        return range_of(column, (value, value))
    known = (statistics or {}).get(column.name)
    return range_of(column, None if known is None else known[:2])


def _sortable(column: Column, value: Any) -> Any:
    """Return a value of a key as a JSON value that sorts as the column does."""
    if value is None:
        return None
    if column.type.startswith("decimal"):
        return _digits(column, value)
    if isinstance(value, dt.date):
        return (value - _EPOCH).days
    return value


def _digits(column: Column, value: Decimal | str) -> str:
    """Return a decimal as text of one length: JSON readers make large numbers inexact."""
    precision, scale = map(int, column.type[len("decimal(") : -1].split(","))
    whole = int(Decimal(value).scaleb(scale, _EXACT))
    return f"{whole + 10**precision:0{precision + 1}d}"
