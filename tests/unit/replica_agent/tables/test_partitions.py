"""Partition values as folders, and batches split by them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import ALL_TYPES, batches
from tidelock.errors import CorruptError, SchemaMismatchError, TooLargeError
from tidelock.partition_paths import ESCAPED, NULL_TEXT, PartitionValue, escape, path_of, split, unescape
from tidelock.replica_agent.tables.partitions import values_of
from tidelock.replica_agent.tables.schema import TableSchema

PARTITION_COLUMNS = (
    *("c_boolean", "c_tinyint", "c_smallint", "c_int", "c_bigint"),
    *("c_decimal", "c_string", "c_date"),
)


def table(partition_by: Sequence[str]) -> TableSchema:
    """A table of all types."""
    return TableSchema.from_request("t", pa.schema(list(ALL_TYPES.items())), partition_by)


def test_the_escaped_characters_are_those_of_the_protocol() -> None:
    """Escaped are the characters of docs/protocol.md#bytes (those of Hive and Spark), and no others."""
    documented = {chr(code) for code in range(32)} | set("\"#%'*/:=?\\{[]^") | {"\x7f"}
    assert documented == ESCAPED
    assert escape("".join(map(chr, range(0x20, 0x80)))) == (
        " !%22%23$%25&%27()%2A+,-.%2F0123456789%3A;<%3D>%3F@ABCDEFGHIJKLMNOPQRSTUVWXYZ%5B%5C%5D%5E_"
        "`abcdefghijklmnopqrstuvwxyz%7B|}~%7F"
    )
    assert escape("\x00\n\x1fü€😀") == "%00%0A%1Fü€😀"


@given(text=st.text())
def test_escapes_are_undone_when_read(text: str) -> None:
    """An escaped value is read back, and its folder contains nothing that would be a path of its own."""
    escaped = escape(text)
    assert unescape(escaped) == text
    assert not set(escaped) & (ESCAPED - {"%"})


@pytest.mark.parametrize("text", ["%", "%4", "%zz", "100%"])
def test_a_lone_percent_stands_for_itself(text: str) -> None:
    """Spark reads a `%` that begins no escape as it is."""
    assert unescape(text) == text


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("c_boolean", True, "true"),
        ("c_boolean", False, "false"),
        ("c_tinyint", -128, "-128"),
        ("c_bigint", 1 << 62, "4611686018427387904"),
        ("c_decimal", Decimal("-1.50"), "-1.50"),
        ("c_decimal", Decimal("0.00"), "0.00"),
        ("c_date", dt.date(1, 2, 3), "0001-02-03"),
        ("c_date", dt.date(9999, 12, 31), "9999-12-31"),
        ("c_string", "007", "007"),
        ("c_string", " a/b=c ", " a%2Fb%3Dc "),
        ("c_string", "Zürich", "Zürich"),
        ("c_string", "null", "null"),
        ("c_string", None, NULL_TEXT),
        ("c_int", None, NULL_TEXT),
    ],
)
def test_each_value_has_its_text(column: str, value: PartitionValue, text: str) -> None:
    """A value is written as Spark writes it and read back as itself, with its type."""
    path = path_of({column: value})
    assert path == f"{column}={text}"
    found = values_of(path, table([column]))[column]
    assert found == value
    assert type(found) is type(value)


def test_several_columns_are_nested_in_their_order() -> None:
    """One folder for each column, in the order of `partition_by`."""
    values: dict[str, PartitionValue] = {"c_string": "a/b", "c_date": dt.date(2024, 1, 2)}
    assert path_of(values) == "c_string=a%2Fb/c_date=2024-01-02"
    assert values_of("c_string=a%2Fb/c_date=2024-01-02", table(["c_string", "c_date"])) == values
    assert path_of({}) == ""
    assert values_of("", table([])) == {}


@pytest.mark.parametrize("value", ["", NULL_TEXT])
def test_values_that_would_be_read_as_null(value: str) -> None:
    """The empty string and the name of null cannot be told from null in a path: refused."""
    with pytest.raises(SchemaMismatchError, match=r"c_string .* reads as null"):
        path_of({"c_string": value})


def test_a_long_value_is_bounded_in_escaped_bytes() -> None:
    """A folder's name is at most what file systems take, counted in escaped bytes."""
    assert path_of({"c": "x" * 253})
    for value in ("x" * 254, "/" * 85, "ü" * 127):
        with pytest.raises(TooLargeError) as caught:
            path_of({"c": value})
        assert caught.value.details["limit"] == 255


@pytest.mark.parametrize(
    "path",
    [
        "",
        "c_int=1",
        "c_int=1/c_date=2024-01-01/c_int=1",
        "c_date=2024-01-01/c_int=1",
        "c_int=/c_date=2024-01-01",
        "c_int=+1/c_date=2024-01-01",
        "c_int=01/c_date=2024-01-01",
        "c_int=1.0/c_date=2024-01-01",
        "c_int=1/c_date=20240101",
        "c_int=1/c_date=2024-02-30",
        "c_int/c_date=2024-01-01",
    ],
)
def test_paths_of_other_tables(path: str) -> None:
    """A path that this table never writes is corruption, not another value."""
    with pytest.raises(CorruptError, match="is not the path of a partition"):
        values_of(path, table(["c_int", "c_date"]))


def test_a_date_that_has_no_text() -> None:
    """A date beyond the year 9999 has no text that all readers know: refused as a partition value."""
    dates = pa.array([4_000_000], pa.int32()).cast(pa.date32())
    batch = pa.RecordBatch.from_arrays([dates, pa.array([1])], ["d", "a"])
    with pytest.raises(SchemaMismatchError, match="column d holds a date outside"):
        list(split(batch, ["d"]))


def test_rows_keep_their_order_within_a_partition() -> None:
    """Splitting is stable, and partitions come in the order in which they appear."""
    batch = pa.RecordBatch.from_pydict({"p": ["b", "a", "b", None, "a", "b"], "n": [0, 1, 2, 3, 4, 5]})
    parts = list(split(batch, ["p"]))
    assert [(path, rows.to_pydict()) for path, rows in parts] == [
        ("p=b", {"n": [0, 2, 5]}),
        ("p=a", {"n": [1, 4]}),
        (f"p={NULL_TEXT}", {"n": [3]}),
    ]


def test_one_partition_is_not_copied() -> None:
    """A batch of one partition is passed on with the memory that it has."""
    batch = pa.RecordBatch.from_pydict({"p": [1, 1], "n": [0, 1]})
    [(path, rows)] = split(batch, ["p"])
    assert path == "p=1"
    assert rows.column("n").buffers()[1].address == batch.column("n").buffers()[1].address


def test_an_empty_batch_has_no_partition() -> None:
    """No rows, no folder."""
    schema = TableSchema.from_request("t", pa.schema([("p", pa.int64()), ("n", pa.int64())]), ["p"])
    assert list(split(pa.RecordBatch.from_pylist([], schema=schema.arrow), schema.partition_by)) == []


def _is_refused(row: dict[str, Any]) -> bool:
    return row.get("c_string") == "" or len(escape(row.get("c_string") or "").encode()) > 240


@given(
    batch=batches((*PARTITION_COLUMNS, "c_double")),
    partition_by=st.lists(st.sampled_from(PARTITION_COLUMNS), min_size=1, max_size=3, unique=True),
)
def test_splitting_by_partition_loses_no_row(batch: pa.RecordBatch, partition_by: list[str]) -> None:
    """The partitions' paths and rows, put together again, are the rows that were split."""
    batch = batch.filter(pa.array([not _is_refused(row) for row in batch.to_pylist()], pa.bool_()))
    schema = TableSchema.from_request("t", batch.schema, partition_by)
    together = []
    paths = []
    for path, rows in split(batch, schema.partition_by):
        assert rows.schema.equals(schema.file_arrow)
        assert rows.num_rows > 0
        paths.append(path)
        together += [row | values_of(path, schema) for row in rows.to_pylist()]
    assert len(set(paths)) == len(paths)

    def key(row: dict[str, Any]) -> str:
        return repr([row[name] for name in batch.schema.names])

    assert sorted(map(key, together)) == sorted(map(key, batch.to_pylist()))
