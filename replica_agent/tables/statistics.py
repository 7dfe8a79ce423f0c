"""Column statistics of a part: read from the Parquet footer when it is written, used to skip parts."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.column_types import FLOATING, is_nested
from tidelock.parquet_leaves import first_leaves
from tidelock.replica_agent.tables.layouts import Layout
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.table_columns import Column

#: A text that is longer is left out.
TEXT_MAX = 64

#: Column -> [smallest, largest, nulls] as JSON values. Dates are days and timestamps microseconds since
#: 1970, decimals are text; the bounds are None for columns of nulls, float, double and binary columns, and
#: texts above TEXT_MAX.
Statistics = dict[str, list[Any]]


def statistics_of(metadata: Any, schema: TableSchema, stored: pa.Schema | None = None) -> Statistics:
    """Return the statistics in a Parquet footer, over all row groups; a column without any is left out.

    So are arrays, structs and maps: what a footer says of them are numbers of the values inside.

    Args:
        metadata: The footer.
        schema: The table.
        stored: The columns of the file, if they are in another order than those of the table.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    places = schema.first_leaves if stored is None else first_leaves(stored)
    found = {}
    for column in schema.columns:
        if column.name not in schema.partition_by and not is_nested(column.type):
            known = [group.column(places[column.name]).statistics for group in groups]
            if all(item is not None and item.has_null_count for item in known):
                found[column.name] = _of_column(column.type, known)
    return found


def _of_column(kind: str, groups: Sequence[Any]) -> list[Any]:
    nulls = sum(group.null_count for group in groups)
    if kind in FLOATING or kind == "binary":
        return [None, None, nulls]
    # As stored: Python has no date beyond the year 9999, and JSON has no times.
    raw = kind in {"date", "time", "timestamp", "timestamp_ntz"}
    if any(not group.has_min_max and group.num_values for group in groups):
        return [None, None, nulls]
    bounds = [
        (group.min_raw, group.max_raw) if raw else (group.min, group.max)
        for group in groups
        if group.has_min_max
    ]
    if not bounds:
        return [None, None, nulls]
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    if kind == "string" and max(len(low), len(high)) > TEXT_MAX:
        return [None, None, nulls]
    if kind.startswith("decimal"):
        return [f"{low:f}", f"{high:f}", nulls]
    return [low, high, nulls]


def shown_statistics(found: Statistics, layout: Layout | None) -> Statistics:
    """Return the statistics of a part by the names of the columns as which those of the part are shown."""
    if layout is None:
        return found
    return {
        column.name: found[column.stored]
        for column in layout.columns
        if column.stored is not None and column.stored in found
    }


def bounds_of(known: Sequence[Any], column: Column) -> Any:
    """Return an Arrow expression that is true for every value of a column."""
    low, high, nulls = known
    if low is None:
        return pc.scalar(True)
    field, arrow = pc.field(column.name), column.arrow.type
    if column.type.startswith("decimal"):
        low, high = Decimal(low), Decimal(high)
    bounds = (field >= pa.scalar(low, arrow)) & (field <= pa.scalar(high, arrow))
    return bounds | field.is_null() if nulls else bounds
