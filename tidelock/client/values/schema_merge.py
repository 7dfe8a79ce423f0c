"""Rows whose columns are not those of their table: the columns that it would need, and those to fill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import pyarrow as pa

from tidelock.casts import decoded_type
from tidelock.column_names import same
from tidelock.column_types import to_arrow
from tidelock.errors import SchemaMismatchError
from tidelock.wire.tables import TableColumn

#: Values of other types than the columns have: those that lose nothing are taken, or none.
Cast: TypeAlias = Literal["safe", "exact"]


def require_exact(rows: pa.Schema, columns: Sequence[TableColumn], table: str) -> None:
    """Raise SchemaMismatchError if columns of rows have other types than the table; all are named.

    Columns that only one of them has are judged by the table.
    """
    expected = {column.name: to_arrow(column.type) for column in columns}
    wrong = [
        f"{field.name} is {field.type}, expected {expected[field.name]}"
        for field in rows
        if field.name in expected and field.type != expected[field.name]
    ]
    if wrong:
        raise SchemaMismatchError(
            f"rows have other types than the columns of table {table}: {'; '.join(wrong)}. "
            'Cast them, or take cast="safe", which takes values that lose nothing',
            table=table,
        )


def new_columns(rows: pa.Schema, columns: Sequence[TableColumn]) -> pa.Schema:
    """Return the columns of rows that a table does not have, as columns that may be null.

    A name that differs in case alone from one of the table is not new: the table refuses such rows, and says
    which column they may mean.
    """
    known = {same(column.name) for column in columns}
    return pa.schema(
        [pa.field(one.name, decoded_type(one.type)) for one in rows if same(one.name) not in known]
    )


def filled(rows: pa.RecordBatchReader, columns: Sequence[TableColumn]) -> pa.RecordBatchReader:
    """Return the rows with nulls in columns that they lack, where these may be null and nobody fills them.

    Other columns stay missing: the table gives them a default or a generated value, or refuses the rows.
    """
    lacking = [
        pa.field(column.name, to_arrow(column.type))
        for column in columns
        if column.nullable
        and column.default is None
        and column.generated is None
        and column.name not in rows.schema.names
    ]
    if not lacking:
        return rows
    schema = pa.schema([*rows.schema, *lacking])

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            nulls = [pa.nulls(batch.num_rows, field.type) for field in lacking]
            yield pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())
