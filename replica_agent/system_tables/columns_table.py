"""The system table of columns, with what the catalog knows of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tidelock.replica_agent.storage.catalog_schema import VISIBLE_OF_TABLE
from tidelock.replica_agent.storage.table_reads import TableRow
from tidelock.replica_agent.system_tables.catalog_tables import TABLE, named, seen_args
from tidelock.replica_agent.system_tables.definition import (
    BATCH_ROWS,
    COUNT,
    FLAG,
    TEXT,
    Column,
    Moment,
    Place,
    Slice,
    SystemTable,
    View,
    made,
)
from tidelock.replica_agent.tables.column_bounds import ColumnBounds, TableBounds, as_text
from tidelock.replica_agent.tables.layouts import COLUMNS_CSN_SQL
from tidelock.replica_agent.tables.schema import TableSchema

#: The columns that need the statistics of all parts.
_OF_VALUES: Final = frozenset({"nulls", "min", "max"})


def bounds_in(view: View, table: TableRow) -> TableBounds:
    """Return what the catalog knows of the values of a table: it reads one catalog row for each part."""
    found = TableBounds(TableSchema.from_definition(table.id, table.definition))
    columns, source = ["path", "rows", "stats", COLUMNS_CSN_SQL], f"{VISIBLE_OF_TABLE} ORDER BY path"
    for batch in view.reader.selected(columns, source, seen_args(view, table), BATCH_ROWS):
        for path, rows, stats, columns_csn in batch:
            found.add(path, rows, stats, columns_csn)
    return found


def _columns(view: View) -> Iterable[Slice]:
    for table in view.tables:
        yield Slice(made(_described(view, table)), equal=named(table), reads=table.id)


def _described(view: View, table: TableRow) -> Callable[[frozenset[str]], Iterable[Mapping[str, Any]]]:
    def rows(wanted: frozenset[str]) -> Iterable[Mapping[str, Any]]:
        definition = table.definition
        known = bounds_in(view, table).columns() if wanted & _OF_VALUES else {}
        for position, column in enumerate(TableSchema.from_definition(table.id, definition).columns):
            of = known.get(column.name, ColumnBounds())
            yield {
                **named(table),
                "position": position,
                "column_name": column.name,
                "type": column.type,
                "nullable": column.nullable,
                "default_value": column.default,
                "generation_expression": column.generated,
                "comment": column.comment,
                "partition_position": _place(definition["partition_by"], column.name),
                "sort_position": _place(definition["sort_by"], column.name),
                "nulls": of.nulls,
                "min": as_text(column, of.low),
                "max": as_text(column, of.high),
            }

    return rows


def _place(names: list[str], name: str) -> int | None:
    return names.index(name) if name in names else None


COLUMNS: Final = SystemTable(
    name="columns",
    doc="The columns of the tables, one row each, with the bounds of their values.",
    place=Place.CLUSTER,
    moment=Moment.CSN,
    columns=(
        *TABLE,
        Column("position", COUNT, "Its place in the table, from 0."),
        Column("column_name", TEXT, "Its name."),
        Column("type", TEXT, "Its type, in Spark's names."),
        Column("nullable", FLAG, "Whether it may be null."),
        Column("default_value", TEXT, "Value of rows that come without it; bytes as hexadecimal digits."),
        Column("generation_expression", TEXT, "SQL that makes its values; null if rows bring them."),
        Column("comment", TEXT, "What it means."),
        Column("partition_position", COUNT, "Its place in `partition_by`, from 0; null for other columns."),
        Column("sort_position", COUNT, "Its place in `sort_by`, from 0; null for other columns."),
        Column("nulls", COUNT, "Number of its nulls; null if a part does not say."),
        Column(
            "min",
            TEXT,
            "Its smallest value as text, times in ISO 8601; null if it has none, and if it is not known: for "
            "floating-point numbers, binary values, and texts of more than 64 characters.",
        ),
        Column("max", TEXT, "Its largest value, likewise."),
    ),
    cost=(
        "One row for each column. `nulls`, `min` and `max` come from the footers of the parts, which the "
        "catalog keeps: they read one catalog row for each part of the table, and only if the query names "
        "them. No file is read."
    ),
    slices=_columns,
)
