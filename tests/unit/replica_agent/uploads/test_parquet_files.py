"""Files of other writers: which ones can be parts, and how each other one is refused."""

from __future__ import annotations

import datetime as dt
import io
import math
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.spark.hdfs_client import parquet
from tidelock.errors import SchemaMismatchError
from tidelock.float_mark import FLOATS_MARK
from tidelock.parquet_leaves import first_leaves
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.uploads import parquet_files
from tidelock.replica_agent.uploads.parquet_files import examine, partition_path

ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("number", pa.int32()),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
SCHEMA = TableSchema.from_request("t", ARROW, ["city", "number"])
FLAT = TableSchema.from_request("t", ARROW)
AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
GOOD = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        "at": pa.array([AT, AT], pa.timestamp("us", "UTC")),
    }
)


def put(column: str, values: list[Any], kind: pa.DataType) -> pa.Table:
    """Return the good rows with another column."""
    return GOOD.set_column(GOOD.schema.get_field_index(column), column, pa.array(values, kind))


def marked(table: pa.Table, key: str, value: str = "") -> bytes:
    """Return a file with a key of Spark's in its footer."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({key: value})
    return sink.getvalue()


def framed_by_hadoop() -> bytes:
    """Return a file whose footer names Hadoop's lz4 (5 in the enum of codecs), which Arrow does not write."""
    data = parquet(pa.table({"number": [1]}), compression="lz4")
    codec = data.rindex(b"number") + len(b"number")
    assert data[codec : codec + 2] == b"\x15\x0e"  # an i32: 7, Parquet's own lz4
    return data[: codec + 1] + b"\x0a" + data[codec + 2 :]


def examined(tmp_path: Path, data: bytes) -> tuple[int, dict[str, list[Any]]]:
    """Examine a file."""
    path = tmp_path / "file.parquet"
    path.write_bytes(data)
    return examine(path, SCHEMA)


@pytest.mark.parametrize("names", [["id", "price", "at"], ["at", "id", "price"]])
@pytest.mark.parametrize("integers", [True, False])
def test_a_good_file_tells_rows_and_statistics(tmp_path: Path, names: list[str], integers: bool) -> None:
    """Rows and statistics are under their own columns, in any order, however decimals are stored."""
    rows, stats = examined(tmp_path, parquet(GOOD.select(names), store_decimal_as_integer=integers))
    micros = int(AT.timestamp() * 1_000_000)
    assert rows == 2
    assert stats == {"id": [1, 2, 0], "price": ["1.50", "1.50", 1], "at": [micros, micros, 0]}


def test_columns_without_statistics_are_claimed_nothing_of(tmp_path: Path) -> None:
    """Nothing is claimed of a column whose footer says nothing; nulls are looked for in its rows."""
    assert examined(tmp_path, parquet(GOOD, write_statistics=False)) == (2, {})
    with pytest.raises(SchemaMismatchError, match=r"column id .* is required, and 1 rows"):
        examined(tmp_path, parquet(put("id", [1, None], pa.int64()), write_statistics=False))


WRONG: dict[str, tuple[bytes, str]] = {
    "a null": (parquet(put("id", [1, None], pa.int64())), "column id .* is required, and 1 rows"),
    "decimal": (
        parquet(put("price", [None, None], pa.decimal128(9, 1))),
        r"column price .* is decimal128\(9, 1\), expected decimal\(9,2\)",
    ),
    "milliseconds": (
        parquet(put("at", [AT, AT], pa.timestamp("ms", "UTC"))),
        "column at .*=TIMESTAMP_MICROS",
    ),
    "no zone": (parquet(put("at", [0, 0], pa.timestamp("us"))), "column at .*=TIMESTAMP_MICROS"),
    "int96": (
        parquet(GOOD, use_deprecated_int96_timestamps=True),
        "column at .* int96.*=TIMESTAMP_MICROS",
    ),
    "narrower": (parquet(put("id", [1, 2], pa.int32())), "column id .* int32"),
    "nested": (parquet(put("id", [[1], [2]], pa.list_(pa.int64()))), "column id .* list"),
    "missing": (parquet(GOOD.drop_columns(["price"])), "column price .* is missing"),
    "surplus": (parquet(GOOD.append_column("x", pa.array([1, 2]))), "column x .* not in the table"),
    "partition column": (
        parquet(GOOD.append_column("city", pa.array(["a", "b"]))),
        "column city .* use partitionBy",
    ),
    "doubled": (parquet(GOOD.append_column("id", GOOD.column("id"))), "more than once"),
    "codec": (parquet(GOOD, compression="brotli"), "BROTLI"),
    "Spark's lz4": (framed_by_hadoop(), r"column number .* by lz4 as Hadoop frames it.* lz4_raw"),
    "Julian dates": (
        marked(GOOD, "org.apache.spark.legacyDateTime"),
        "datetimeRebaseModeInWrite=CORRECTED",
    ),
    "Spark 2": (marked(GOOD, "org.apache.spark.version", "2.4.8"), r"Spark 2\.4\.8.* 3\.5 or newer"),
    "no Parquet": (b"PAR1 and nothing else", "cannot be read as Parquet"),
    "nothing": (b"", "cannot be read as Parquet"),
    "cut": (parquet(GOOD)[:-9], "cannot be read as Parquet"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_is_refused_by_its_column(tmp_path: Path, kind: str) -> None:
    """A wrong file is refused with the column's name and what to change."""
    data, message = WRONG[kind]
    with pytest.raises(SchemaMismatchError, match=message):
        examined(tmp_path, data)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_file_that_hides_a_nan_or_a_zero_is_accepted_without_the_mark_only(
    tmp_path: Path, kind: pa.DataType
) -> None:
    """Readers see no hints of a file without the mark; a copy of a part's metadata must not claim any."""
    path, schema = tmp_path / "file.parquet", TableSchema.from_request("t", pa.schema([("x", kind)]))
    mark = {FLOATS_MARK: b"1"}
    for values, problem in (([1.0, math.nan, None], "range"), ([0.0, 1.0], "dictionary"), ([1.0, 2.0], "")):
        table = pa.table({"x": pa.array(values, kind)})
        path.write_bytes(parquet(table))
        assert examine(path, schema)[0] == len(values)
        claiming = io.BytesIO()
        pq.write_table(table.replace_schema_metadata(mark), claiming)
        path.write_bytes(claiming.getvalue())
        with (
            pytest.raises(SchemaMismatchError, match=r"column x .*no such key") if problem else nullcontext()
        ):
            assert examine(path, schema)[0] == len(values)


def test_partitions_are_the_folders_as_spark_writes_them() -> None:
    """The partition is the file's folders; any spelling other than Spark's is refused."""
    assert partition_path(("city=a%2Fb", "number=7"), SCHEMA) == "city=a%2Fb/number=7"
    assert partition_path(("city=__HIVE_DEFAULT_PARTITION__", "number=1"), SCHEMA)
    assert not partition_path((), FLAT)
    for place in ((), ("city=a",), ("number=7", "city=a"), ("city=a", "number=x"), ("city=a", "number=07")):
        with pytest.raises(SchemaMismatchError, match=r'partitionBy\("city", "number"\)'):
            partition_path(place, SCHEMA)
    with pytest.raises(SchemaMismatchError, match=r"partitionBy\(\)"):
        partition_path(("city=a",), FLAT)


def test_a_file_of_this_spark(tmp_path: Path) -> None:
    """A file of this Spark version names it and is accepted."""
    assert examined(tmp_path, marked(GOOD, "org.apache.spark.version", "4.3.0"))[0] == len(GOOD)


@pytest.mark.parametrize(
    ("column", "refused"),
    [
        (pa.field("update_count", pa.int64()), False),
        (pa.field("s", pa.struct([("update_count", pa.int64()), ("timestamps", pa.int64())])), False),
        (pa.field("s", pa.struct([("a", pa.list_(pa.date32()))])), True),
        (pa.field("m", pa.map_(pa.string(), pa.timestamp("us", "UTC"))), True),
    ],
    ids=str,
)
def test_an_old_spark_is_refused_for_dates_alone(tmp_path: Path, column: pa.Field, refused: bool) -> None:
    """The types of the leaves decide, not names that look like those of dates."""
    schema = pa.schema([column])
    path = tmp_path / "file.parquet"
    path.write_bytes(marked(schema.empty_table(), "org.apache.spark.version", "2.4.8"))
    with pytest.raises(SchemaMismatchError, match="Julian") if refused else nullcontext():
        assert examine(path, TableSchema.from_request("t", schema))[0] == 0


@pytest.mark.parametrize("texts", [[b"a", b"\xff"], [b"\xff\xfe", b"z"]])
def test_bounds_that_are_no_text(tmp_path: Path, texts: list[bytes]) -> None:
    """Bounds that no reader accepts as text are refused with the column's name."""
    schema = TableSchema.from_request("t", pa.schema([("name", pa.string())]))
    path = tmp_path / "file.parquet"
    wrong = pa.array(texts, pa.binary()).view(pa.string())
    path.write_bytes(parquet(pa.table({"name": wrong})))
    with pytest.raises(SchemaMismatchError, match=r"column name .* not UTF-8"):
        examine(path, schema)


def test_the_places_of_columns_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may have thousands of columns, and each may be looked at in each of its row groups."""
    asked: list[pa.Schema] = []

    def noted(schema: pa.Schema) -> dict[str, int]:
        asked.append(schema)
        return first_leaves(schema)

    monkeypatch.setattr(parquet_files, "first_leaves", noted)
    schema = pa.schema([pa.field(f"c{number}", pa.string(), nullable=False) for number in range(20)])
    sink = io.BytesIO()
    rows = pa.table({name: ["a", "b"] for name in schema.names}, schema=schema)
    pq.write_table(rows, sink, row_group_size=1, compression="snappy")
    assert examine(pa.BufferReader(sink.getvalue()), TableSchema.from_request("t", schema))[0] == 2
    assert len(asked) == 1
