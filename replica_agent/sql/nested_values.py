"""New values of arrays, structs and maps: the engine casts a struct by the names of its fields.

A field that the column does not have would be left out without an error. So the types of the expressions are
compared with those of the columns before a statement runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidelock.casts import surplus_field
from tidelock.column_types import is_nested
from tidelock.errors import SchemaMismatchError
from tidelock.replica_agent.sql.session import SqlSession
from tidelock.replica_agent.tables.schema import TableSchema


def require_fields(
    session: SqlSession,
    schema: TableSchema,
    columns: Sequence[str],
    sql: str,
    params: Mapping[str, Any] | Any,
) -> None:
    """Raise SchemaMismatchError if a value has a field that its column does not have.

    Args:
        session: The session.
        schema: The table.
        columns: The columns that get the values of a SELECT.
        sql: That SELECT; its rows are not read.
        params: Its parameters.
    """
    nested = {column.name: column for column in schema.columns if is_nested(column.type)}
    if not any(name in nested for name in columns):
        return
    found = session.rows(f"FROM (\n{sql}\n) LIMIT 0", params).schema
    for name, field in zip(columns, found, strict=True):
        surplus = surplus_field(field.type, nested[name].arrow.type) if name in nested else None
        if surplus is not None:
            raise SchemaMismatchError(
                f"column {name} of table {schema.name} is {nested[name].type}, but a new value has the field "
                f"{surplus}; leave it out, or give it one of these names",
                table=schema.name,
                column=name,
                field=surplus,
            )
