"""The partitions of a table: their values by their paths, and their paths as requests name them."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping

from tidelock.errors import BadRequestError, CorruptError, SchemaMismatchError, TooLargeError
from tidelock.partition_paths import NULL_TEXT, PartitionValue, path_of, segment, text_of, unescape
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.table_columns import Column


def path_in(schema: TableSchema, values: Mapping[str, object]) -> str:
    """Return the path of the partition of a table that a request names by JSON values, null as None.

    Numbers, decimals and dates may be given as texts.

    Raises:
        BadRequestError: A partition column is missing, another is named, or a value does not fit its column.
    """
    names = [column.name for column in schema.partition_columns]
    if set(values) != set(names):
        raise BadRequestError(
            f"a partition of table {schema.name} is named by {', '.join(names) or 'nothing: it has none'}; "
            f"found {', '.join(values) or 'nothing'}",
            table=schema.name,
        )
    path = "/".join(_named(column, values[column.name]) for column in schema.partition_columns)
    try:
        values_of(path, schema)
    except CorruptError as error:
        raise BadRequestError(
            f"{dict(values)} names no partition of table {schema.name}: a value does not fit its column, or "
            "is not written like its folder",
            table=schema.name,
        ) from error
    return path


def _named(column: Column, value: object) -> str:
    if value is not None and not isinstance(value, bool | int | str):
        raise BadRequestError(
            f"the value {value!r} of partition column {column.name} is neither text nor a number"
        )
    return segment(column.name, value)


def values_of(path: str, schema: TableSchema) -> dict[str, PartitionValue]:
    """Return the values of a partition's path by column; CorruptError if it is not a path of the table."""
    folders = path.split("/") if path else []
    columns = schema.partition_columns
    if len(folders) != len(columns):
        raise _not_a_path(path, schema)
    values: dict[str, PartitionValue] = {}
    for folder, column in zip(folders, columns, strict=True):
        name, separator, text = folder.partition("=")
        if not separator or unescape(name) != column.name:
            raise _not_a_path(path, schema)
        try:
            values[column.name] = _parse(text, column)
        except (LookupError, ValueError, ArithmeticError) as error:
            raise _not_a_path(path, schema) from error
    # Python reads more texts than are written (`+1`, `20240101`): they would be second folders of the same
    # values.
    if _is_other_than(path, values):
        raise _not_a_path(path, schema)
    return values


def _is_other_than(path: str, values: Mapping[str, PartitionValue]) -> bool:
    try:
        return path_of(values) != path
    except (SchemaMismatchError, TooLargeError):
        return True


def named(path: str, schema: TableSchema) -> dict[str, bool | int | str | None]:
    """Return the values of a partition's path as a request names them: :func:`path_in` accepts them."""
    return {
        name: text_of(value) if isinstance(value, dt.date | decimal.Decimal) else value
        for name, value in values_of(path, schema).items()
    }


def _parse(text: str, column: Column) -> PartitionValue:
    if text == NULL_TEXT:
        return None
    text = unescape(text)
    match column.type:
        case "string":
            return text
        case "boolean":
            return {"true": True, "false": False}[text]
        case "date":
            return dt.date.fromisoformat(text)
        case "tinyint" | "smallint" | "int" | "bigint":
            return int(text)
        case _:
            return decimal.Decimal(text)


def _not_a_path(path: str, schema: TableSchema) -> CorruptError:
    expected = "/".join(f"{column.name}=<{column.type}>" for column in schema.partition_columns)
    return CorruptError(
        f"{path!r} is not the path of a partition of table {schema.name}, expected {expected!r}",
        table=schema.name,
        path=path,
    )
