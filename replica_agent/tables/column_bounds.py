"""The bounds of the values in the columns of a table, from what the catalog keeps of its parts."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa

from tidelock.csnlog.core.ids import Csn
from tidelock.replica_agent.tables.partitions import values_of
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.tables.statistics import shown_statistics
from tidelock.table_columns import Column

#: A value that is not known, beside None for one that does not exist.
_UNKNOWN: Final = object()


class ColumnBounds(msgspec.Struct, frozen=True):
    """The values of a column, as far as they are known.

    Attributes:
        nulls: Number of nulls; None if it is not known.
        low: Smallest value, as a Python value of its Arrow type or the number behind it; None if there is no
            value, or if it is not known.
        high: Largest value, likewise.
    """

    nulls: int | None = None
    low: Any = None
    high: Any = None


class TableBounds:
    """The bounds of all columns of a table, of which one part after the other is added.

    A value is known if every part says it. Parts say nothing of the bounds of floating-point, binary and long
    text columns.
    """

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._of: dict[str, _Bounds] = {column.name: _Bounds() for column in schema.columns}
        self._last: _Partition | None = None

    def add(self, path: str, rows: int, statistics: str | None, columns_csn: Csn | None) -> None:
        """Add a part: partition, rows, the JSON of its statistics if it has some, and columns CSN."""
        stored = json.loads(statistics) if statistics else {}
        found = shown_statistics(stored, self._schema.layout(columns_csn))
        values = self._partition(path)
        for column in self._schema.columns:
            bounds = self._of[column.name]
            if column.name in values:
                value = values[column.name]
                bounds.add(value, value, rows if value is None else 0, rows)
            elif column.name in found:
                low, high, nulls = found[column.name]
                bounds.add(_value(column, low), _value(column, high), nulls, rows)
            elif rows:
                bounds.add_unknown()

    def _partition(self, path: str) -> Mapping[str, Any]:
        """Return the values of a partition; those of the last one are kept."""
        if self._last is None or self._last.path != path:
            found = values_of(path, self._schema)
            self._last = _Partition(path, {name: _number(value) for name, value in found.items()})
        return self._last.values

    def columns(self) -> dict[str, ColumnBounds]:
        """Return what is known of each column."""
        return {name: bounds.found() for name, bounds in self._of.items()}


class _Partition(msgspec.Struct, frozen=True):
    """A partition and its values."""

    path: str
    values: Mapping[str, Any]


class _Bounds:
    """The bounds of one column so far."""

    def __init__(self) -> None:
        self._low: Any = None
        self._high: Any = None
        self._nulls: int | None = 0

    def add(self, low: Any, high: Any, nulls: int, rows: int) -> None:
        if self._nulls is not None:
            self._nulls += nulls
        if low is None:
            if nulls < rows:
                self._low = self._high = _UNKNOWN
        elif self._low is None:
            self._low, self._high = low, high
        elif self._low is not _UNKNOWN:
            self._low, self._high = min(self._low, low), max(self._high, high)

    def add_unknown(self) -> None:
        self._nulls, self._low, self._high = None, _UNKNOWN, _UNKNOWN

    def found(self) -> ColumnBounds:
        if self._low is _UNKNOWN:
            return ColumnBounds(self._nulls)
        return ColumnBounds(self._nulls, self._low, self._high)


def _value(column: Column, stored: Any) -> Any:
    """Return a value of the statistics (:data:`tidelock.replica_agent.tables.statistics.Statistics`)."""
    return Decimal(stored) if stored is not None and column.type.startswith("decimal") else stored


def _number(value: Any) -> Any:
    """Return a value of a partition as statistics have it: dates as days since 1970."""
    return (value - dt.date(1970, 1, 1)).days if isinstance(value, dt.date) else value


def as_text(column: Column, value: Any) -> str | None:
    """Return a bound as text; dates and times in ISO 8601."""
    if value is None:
        return None
    text: str = pa.scalar(value, column.arrow.type).cast(pa.string()).as_py()
    return text.replace(" ", "T", 1) if column.type in {"timestamp", "timestamp_ntz"} else text
