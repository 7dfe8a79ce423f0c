"""Rows with other columns than their table: the columns that it would get, and the rows that it is sent."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidelock.client.values.schema_merge import filled, new_columns, require_exact
from tidelock.errors import SchemaMismatchError
from tidelock.wire.tables import TableColumn

COLUMNS = (
    TableColumn("k", "bigint", False),
    TableColumn("Größe", "double", True),
    TableColumn("s", "string", True, default="new"),
    TableColumn("n", "array<int>", True),
)


def test_columns_are_new_that_no_name_of_the_table_means() -> None:
    """They may be null, whatever the rows say; categories are their values; case makes no new column."""
    words = pa.dictionary(pa.int8(), pa.string())
    rows = pa.schema([("k", pa.int32()), ("GRÖSSE", pa.float32()), pa.field("new", words, nullable=False)])
    assert new_columns(rows, COLUMNS) == pa.schema([("new", pa.string())])
    assert new_columns(pa.schema([("k", pa.int32())]), COLUMNS).names == []


def test_rows_get_nulls_where_the_table_has_no_default() -> None:
    """Required columns, and those with a default, stay missing; each batch has the same columns."""
    batches = [pa.record_batch({"k": [1, 2]}), pa.record_batch({"k": pa.array([], pa.int64())})]
    found = filled(pa.RecordBatchReader.from_batches(batches[0].schema, batches), COLUMNS).read_all()
    assert found.to_pydict() == {"k": [1, 2], "Größe": [None] * 2, "n": [None] * 2}
    assert found.schema.field("n").type == pa.list_(pa.int32())
    reader = pa.table({"s": ["a"], "Größe": [1.0], "n": pa.array([[1]], pa.list_(pa.int32()))}).to_reader()
    assert filled(reader, COLUMNS) is reader


def test_rows_of_exactly_the_types_of_the_table() -> None:
    """Every other type is named at once; columns that only the rows have are for the table to refuse."""
    exact = pa.schema([("k", pa.int64()), ("n", pa.list_(pa.int32())), ("other", pa.int8())])
    require_exact(exact, COLUMNS, "t")
    with pytest.raises(SchemaMismatchError, match="k is int32, expected int64; Größe is float"):
        require_exact(pa.schema([("k", pa.int32()), ("Größe", pa.float32())]), COLUMNS, "t")
