"""Values of columns as Spark makes them: defaults, literals, and expressions in the types of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it
from pyspark.sql import types as spark

from tidelock.column_defaults import scalar_of
from tidelock.column_names import OWN
from tidelock.errors import SchemaMismatchError
from tidelock.partition_paths import NULL_TEXT
from tidelock.type_text import quoted
from tidelock.wire.rows import Fields

#: A new value of a column: SQL as text, an expression of Spark, or a value.
Value = str | Column | bool | int | float | Decimal | date | datetime | bytes | None
#: New values by the names of columns.
Values = Mapping[str, Value]

_PLAIN: Final = (bool, int, float, Decimal, date, bytes)


def expression(value: Value) -> Column:
    """Return a new value as an expression."""
    if isinstance(value, str):
        return F.expr(value)
    # Spark 3.5 has another class of expressions for Connect.
    return F.lit(value) if value is None or isinstance(value, _PLAIN) else value


def default_of(column: Fields) -> Column:
    """Return the value of rows that come without a column: its default, or null."""
    kind, text = column["type"], column.get("default")
    if text is None:
        return F.lit(None).cast(kind)
    if kind == "timestamp":  # its text has no zone, for which Spark would take that of the session
        micros = scalar_of(kind, text).cast(pa.int64()).as_py()
        return F.expr(f"timestamp_micros({micros})")
    value = F.unhex(F.lit(text)) if kind == "binary" else F.lit(text)
    return value.cast(kind)


def in_partitions(definition: Fields) -> list[Column | str]:
    """Return the columns of a table; a text that would be a null in the name of a folder fails the job."""
    keys = definition["partition_by"]
    return [
        _in_folder(one["name"], definition["name"])
        if one["name"] in keys and one["type"] == "string"
        else quoted(one["name"])
        for one in definition["columns"]
    ]


def _in_folder(name: str, table: str) -> Column:
    column = F.col(quoted(name))
    why = (
        f"partition column {name} of table {table} holds an empty text, or {NULL_TEXT}, which Spark and Hive "
        "read as null: give these rows another value, or null"
    )
    return F.when(column.isin("", NULL_TEXT), F.raise_error(F.lit(why))).otherwise(column).alias(name)


def with_defaults(rows: DataFrame, definition: Fields) -> DataFrame:
    """Return rows with all columns of a table: those that are missing have their defaults."""
    made = [column for column in definition["columns"] if column["name"] not in rows.columns]
    return rows.select("*", *(default_of(column).alias(column["name"]) for column in made)) if made else rows


def fitted(
    rows: DataFrame, names: Sequence[str], fields: Sequence[spark.StructField], table: str
) -> DataFrame:
    """Return rows with some columns in the types of a table; a value that has no equal there fails the job.

    Numbers become numbers of other types. What a moment, a day or a text is in another type depends on
    settings of the session, so it is not made.

    Args:
        rows: The rows.
        names: Names of columns of `rows`.
        fields: For each of them the column of the table, whose type it gets.
        table: The table, for messages.

    Raises:
        SchemaMismatchError: A column is of another kind than that of the table.
    """
    wanted = dict(zip(names, fields, strict=True))
    return rows.select(
        *(
            _cast(one, wanted[one.name], table).alias(one.name) if one.name in wanted else quoted(one.name)
            for one in rows.schema
        )
    )


def _cast(found: spark.StructField, wanted: spark.StructField, table: str) -> Column:
    name, kind, own = quoted(found.name), wanted.dataType.simpleString(), found.dataType.simpleString()
    if kind == own:
        return F.col(name)
    if isinstance(found.dataType, spark.NullType):
        return F.col(name).cast(wanted.dataType)
    if not (isinstance(found.dataType, spark.NumericType) and isinstance(wanted.dataType, spark.NumericType)):
        raise SchemaMismatchError(
            f"column {wanted.name} of table {table} is {kind}, but its new value is {own}: cast it",
            table=table,
            column=wanted.name,
        )
    # Without ANSI mode a plain cast gives another number, or null, for a value that does not fit.
    cast = f"try_cast({name} AS {kind})"
    why = F.lit(f"column {wanted.name} of table {table} is {kind}, but a new value of it is ")
    refusal = F.raise_error(F.concat(why, F.col(name).cast("string"), F.lit("; cast it")))
    fits = F.expr(f"{name} IS NULL OR try_cast({cast} AS {own}) <=> {name}")
    return F.when(fits, F.expr(cast)).otherwise(refusal)


def own(name: str) -> str:
    """Return a name for a column beside those of a table, which have no such names."""
    return f"{OWN}{name}"
