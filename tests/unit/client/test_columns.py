"""The columns of a new table, from a schema, data, names with types, or DDL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelock.client.values.columns import generated_in, schema_of
from tidelock.errors import BadRequestError, SchemaMismatchError

pd = pytest.importorskip("pandas", reason="pandas comes with the extra `spark`")

PLAIN = pa.schema([("id", pa.int64()), ("name", pa.string())])
REQUIRED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("price", pa.decimal128(9, 2))])


@pytest.mark.parametrize(
    "columns",
    [
        PLAIN,
        PLAIN.empty_table(),
        pa.RecordBatch.from_pylist([], PLAIN),
        PLAIN.empty_table().to_reader(),
        {"id": "bigint", "name": "string"},
        {"id": pa.int64(), "name": "STRING"},
        "id bigint, name string",
        "id: long,\n  `name` string null",
        '"id" LONG , name String',
    ],
    ids=lambda one: type(one).__name__,
)
def test_the_same_columns_in_every_form(columns: Any) -> None:
    """Each form gives the same schema."""
    assert schema_of(columns) == PLAIN


@pytest.mark.parametrize(
    "columns",
    [
        REQUIRED,
        {"id": "bigint not null", "price": "decimal(9,2)"},
        "id bigint NOT NULL, price decimal( 9 , 2 )",
        "id long not  null, price numeric(9,2)",
    ],
    ids=lambda one: type(one).__name__,
)
def test_required_columns_and_digits(columns: Any) -> None:
    """`not null` and the digits of a decimal are part of a type."""
    assert schema_of(columns) == REQUIRED


@pytest.mark.parametrize(
    ("text", "arrow"),
    [
        *(("byte", pa.int8()), ("short", pa.int16()), ("integer", pa.int32()), ("real", pa.float32())),
        *(("dec", pa.decimal128(10, 0)), ("decimal(5)", pa.decimal128(5, 0))),
        *(("timestamp", pa.timestamp("us", "UTC")), ("timestamp_ltz", pa.timestamp("us", "UTC"))),
        *(("timestamp_ntz", pa.timestamp("us")), ("date", pa.date32()), ("boolean", pa.bool_())),
    ],
)
def test_the_names_that_spark_has_for_types(text: str, arrow: pa.DataType) -> None:
    """Aliases of Spark's SQL are known, with Spark's meaning."""
    assert schema_of({"c": text}).field("c").type == arrow


def test_the_columns_of_rows_are_taken(tmp_path: Path) -> None:
    """pandas, Parquet files and streams of Arrow give their columns; the index of a DataFrame is none."""
    frame = pd.DataFrame({"id": [1], "name": ["a"]}, index=["x"])
    assert schema_of(frame).names == ["id", "name"]
    assert schema_of(duckdb.sql("select 1::bigint as id, 'a' as name")) == PLAIN
    pq.write_table(PLAIN.empty_table(), tmp_path / "x.parquet")
    assert schema_of(tmp_path / "x.parquet") == PLAIN


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (7, "found int"),
        ([("id", "bigint")], "found list"),
        ("", "expected `name type`"),
        ("id", "expected `name type`.*found 'id'"),
        ("id bigint,", "found ''"),
        ("id money", "'money' is not a column type"),
        ("id bigint primary key", "column id, found 'bigint primary key'"),
        ("a b c", "column a, found 'b c'"),
        ("price decimal(99,2)", "'decimal\\(99,2\\)' is not a column type"),
        ("price decimal(9,2", "column price, found 'decimal\\(9,2'"),
        ({"id": None}, "type of column id as text"),
        ({"id": "bigint not"}, "column id, found 'bigint not'"),
    ],
)
def test_what_has_no_columns_is_refused(columns: Any, text: str) -> None:
    """The error says what was expected, and what was found."""
    with pytest.raises(BadRequestError, match=text):
        schema_of(columns)


def test_a_dataframe_of_mixed_values_is_refused() -> None:
    """As for its rows."""
    with pytest.raises(SchemaMismatchError, match="several types"):
        schema_of(pd.DataFrame({"k": [1, "x"]}))


@pytest.mark.parametrize(
    ("text", "sql", "rest"),
    [
        ("bigint generated always as (n * 2)", "n * 2", (True, None)),
        (
            "date not null generated always as (cast(t as date)) comment 'a (b)'",
            "cast(t as date)",
            (False, "a (b)"),
        ),
        ("date generated always as (f(t)) not null comment 'x'", "f(t)", (False, "x")),
        (
            "decimal(9,2) GENERATED ALWAYS AS ( (a + b) * ')' ) stored not null",
            "(a + b) * ')'",
            (False, None),
        ),
        ("struct<a:int,b:string> generated always as (f(x, '\"'))", "f(x, '\"')", (True, None)),
    ],
)
def test_generated_columns_of_a_text(text: str, sql: str, rest: tuple[bool, str | None]) -> None:
    """The SQL between the outer brackets is metadata of the field."""
    schema = schema_of(f"n bigint, g {text}, z int")
    field = schema.field("g")
    assert generated_in(schema) == {"g": sql}
    comment = (field.metadata or {}).get(b"comment")
    assert (field.nullable, None if comment is None else comment.decode()) == rest
    assert schema.names == ["n", "g", "z"]


@pytest.mark.parametrize(
    "text",
    [
        "bigint generated always as n * 2",
        "bigint generated always as (n * 2",
        "bigint generated as (n)",
        "generated always as (n)",
        "bigint generated always as (n) default",
        "bigint not null generated always as (n) null",
    ],
)
def test_texts_that_are_no_generated_columns(text: str) -> None:
    """The error names the column and what may stand there."""
    with pytest.raises(BadRequestError, match="g"):
        schema_of(f"g {text}")


def test_a_long_text_is_read_at_once() -> None:
    """However many brackets and words it has."""
    sql = " + ".join(["(n * 2)", "length('generated always as (not null)')"] * 300)
    assert generated_in(schema_of(f"n int, g bigint generated always as ({sql})")) == {"g": sql}
    with pytest.raises(BadRequestError):
        schema_of(f"g bigint generated always as ({sql}) and more")
