"""Defaults of columns: as DDL says them, and in rows that come without them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidelock.client.values.columns import schema_of
from tidelock.errors import BadRequestError, SchemaMismatchError
from tidelock.table_columns import Column, TableColumns

DDL = {
    "id bigint not null": ("id", pa.int64(), False, None),
    "s string default 'a, b'": ("s", pa.string(), True, {"default": "'a, b'"}),
    "s string not null default 'it''s' comment 'the ''state'''": (
        "s",
        pa.string(),
        False,
        {"default": "'it''s'", "comment": "the 'state'"},
    ),
    "d date default date '2026-01-01' not null": ("d", pa.date32(), False, {"default": "date '2026-01-01'"}),
    "`default` decimal(9, 2) DEFAULT -1.5": ("default", pa.decimal128(9, 2), True, {"default": "-1.5"}),
    "o'a string default 'it''s, too'": ("o'a", pa.string(), True, {"default": "'it''s, too'"}),
    "n struct<a: int, b: string> comment 'x'": (
        "n",
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        True,
        {"comment": "x"},
    ),
}


@pytest.mark.parametrize("text", DDL)
def test_a_type_may_be_followed_by_a_default_and_a_comment(text: str) -> None:
    """Also between other columns: commas in quotes separate nothing."""
    name, kind, nullable, metadata = DDL[text]
    (_, found, _) = schema_of(f"before int, {text}, after int")
    assert (found.name, found.type, found.nullable) == (name, kind, nullable)
    told = {key.decode(): value.decode() for key, value in (found.metadata or {}).items()}
    assert told == (metadata or {})


def test_names_with_apostrophes_are_separated_by_commas() -> None:
    """Where no quote begins before the name."""
    assert schema_of("o'a string, b'c int").names == ["o'a", "b'c"]


@pytest.mark.parametrize(
    "text",
    [
        "s string default",
        "s string comment x",
        "s default 'a'",
        "s string default not null",
        "s string null default 'a' not null",
    ],
)
def test_ddl_that_says_something_else_is_refused(text: str) -> None:
    """The message says what may follow a type."""
    with pytest.raises(BadRequestError, match=r"comment|twice"):
        schema_of(text)


def columns(*more: dict[str, Any]) -> TableColumns:
    """Return a table with a required column, and others."""
    return TableColumns(
        "default.t", (Column("k", "bigint", nullable=False), *(Column(**one) for one in more))
    )


def test_rows_may_lack_columns_with_a_default() -> None:
    """They get it; a null that is sent stays a null, and other columns are still expected."""
    table = columns(
        {"name": "s", "type": "string", "nullable": False, "default": "new"},
        {"name": "b", "type": "binary", "default": "00ff"},
        {"name": "d", "type": "decimal(9,2)", "default": "1.50"},
    )
    found = pa.record_batch({"k": [1, 2], "d": [None, None]})
    table.check(found.schema)
    shown = table.conform(found)
    assert shown.schema == table.arrow
    assert shown.to_pydict() == {
        "k": [1, 2], "s": ["new"] * 2, "b": [b"\0\xff"] * 2, "d": [None] * 2,
    }  # fmt: skip
    with pytest.raises(SchemaMismatchError, match=r"column k .* is missing"):
        table.check(pa.schema([("s", pa.string())]))
    with pytest.raises(SchemaMismatchError, match=r"column x .* is missing"):
        columns({"name": "x", "type": "string"}).check(found.schema)
