"""Files with another footer: pyarrow and DuckDB read the columns that it shows, of the file of any writer."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.column_defaults import scalar_of
from tidelock.column_types import to_arrow
from tidelock.float_mark import FLOATS_MARK
from tidelock.replica_agent.footers.evolving import ShownColumn, evolve
from tidelock.replica_agent.footers.thrift import TAIL_BYTES, footer_in
from tidelock.replica_agent.tables.column_defaults import plain_bytes

ROWS = pa.table(
    {
        "k": pa.array(range(10), pa.int64()),
        "s": pa.array([None if n % 3 else f"text {n}" for n in range(10)], pa.string()),
        "d": pa.array([n / 2 for n in range(10)], pa.float64()),
        "nested": pa.array([{"p": n, "l": [str(n)] * (n % 3)} for n in range(10)]),
    }
)
SHOWN = pa.schema(
    [
        ("renamed", pa.string()),
        ("k", pa.int64()),
        ("other", ROWS.schema.field("nested").type),
        ("new", pa.int32()),
        ("deep", pa.map_(pa.string(), pa.list_(pa.struct([("a", pa.int64()), ("b", pa.bool_())])))),
    ]
)
COLUMNS = (
    ShownColumn("renamed", "s"),
    ShownColumn("k", "k"),
    ShownColumn("other", "nested"),
    ShownColumn("new", None),
    ShownColumn("deep", None),
)
WRITERS: dict[str, dict[str, Any]] = {
    "as agents": {"store_schema": False, "store_decimal_as_integer": True, "write_page_checksum": True},
    "pyarrow by itself": {},
    "one row in a group": {"row_group_size": 1},
    "page index": {"row_group_size": 4, "write_page_index": True},
    "pages of the second version": {"data_page_version": "2.0", "use_dictionary": False},
    "old": {"version": "1.0", "use_dictionary": False, "write_statistics": False, "compression": "none"},
    "sorted": {"sorting_columns": [pq.SortingColumn(2), pq.SortingColumn(0)]},
}


def footer_of(file: bytes) -> bytes:
    """Return the footer of a file."""
    return footer_in(lambda start, size: file[start : start + size], len(file))


def template(schema: pa.Schema) -> bytes:
    """Return the footer of a file without rows."""
    sink = io.BytesIO()
    pq.write_metadata(schema, sink, store_schema=False, store_decimal_as_integer=True)
    return footer_of(sink.getvalue())


def written(rows: pa.Table, **options: Any) -> bytes:
    """Return a file of some writer."""
    sink = io.BytesIO()
    pq.write_table(rows, sink, **options)
    return sink.getvalue()


def shown(file: bytes, schema: pa.Schema, columns: tuple[ShownColumn, ...]) -> bytes:
    """Return a file with other columns."""
    footer = footer_of(file)
    data = file[: len(file) - TAIL_BYTES - len(footer)]
    pages, end = evolve(footer, template(schema), columns, pages_at=len(data))
    return data + pages + bytes(7) + end


@pytest.mark.parametrize("writer", WRITERS)
def test_the_file_of_any_writer_shows_other_columns(writer: str, tmp_path: Path) -> None:
    """Renamed ones, nested ones, ones that it lacks; two readers agree, and their filters find all rows."""
    file = shown(written(ROWS, **WRITERS[writer]), SHOWN, COLUMNS)
    path = tmp_path / "shown.parquet"
    path.write_bytes(file)
    found = pq.read_table(path)
    assert found["k"].to_pylist() == ROWS["k"].to_pylist()
    assert found["renamed"].to_pylist() == ROWS["s"].to_pylist()
    assert found["other"].to_pylist() == ROWS["nested"].to_pylist()
    assert found["new"].to_pylist() == found["deep"].to_pylist() == [None] * 10
    assert sorted(found.column_names) == sorted(SHOWN.names)
    assert found.schema.field("deep").type == SHOWN.field("deep").type
    assert b"ARROW:schema" not in (pq.read_metadata(path).metadata or {})
    filtered = pq.read_table(path, filters=[("renamed", "=", "text 9"), ("k", ">", 3)])
    assert filtered["k"].to_pylist() == [9]
    assert pq.read_table(path, filters=[("new", ">", 0)]).num_rows == 0
    duck = duckdb.connect()
    sql = f"select k, renamed, other from '{path}' where new is null and deep is null order by k"
    assert duck.sql(sql).fetchall() == [
        *zip(*(ROWS[name].to_pylist() for name in ("k", "s", "nested")), strict=True)
    ]
    assert duck.sql(f"select k from '{path}' where new = 1 or renamed = 'none'").fetchall() == []


VALUES: dict[str, str] = {
    "bigint": "-7",
    "tinyint": "7",
    "int": "2147483647",
    "float": "0.1",
    "double": "nan",
    "boolean": "true",
    "string": "ü, a text",
    "binary": "00ff",
    "date": "1582-10-15",
    "timestamp": "2026-01-01 00:00:00.000001Z",
    "timestamp_ntz": "0001-01-01 00:00:00.000000",
    "decimal(9,2)": "-1.50",
    "decimal(18,2)": "1.50",
    "decimal(38,10)": "-0.0000000001",
}


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("kind", VALUES)
def test_a_column_that_was_added_with_a_default_shows_it_in_each_row(
    kind: str, nullable: bool, tmp_path: Path
) -> None:
    """In each row group; two readers agree, and filters neither lose rows nor find others."""
    scalar = scalar_of(kind, VALUES[kind])
    schema = pa.schema([("k", pa.int64()), pa.field("new", scalar.type, nullable)])
    columns = (ShownColumn("k", "k"), ShownColumn("new", None, value=plain_bytes(kind, VALUES[kind])))
    rows = pa.table({"k": pa.array(range(100_000), pa.int64())})
    path = tmp_path / "shown.parquet"
    path.write_bytes(shown(written(rows, row_group_size=70_000), schema, columns))
    found = pq.read_table(path)
    assert found.schema.field("new").type == scalar.type
    assert list(map(repr, found["new"].unique().to_pylist())) == [repr(scalar.as_py())]
    assert found["new"].null_count == 0
    if kind != "double":  # NaN is no NaN for pyarrow
        assert pq.read_table(path, filters=[("new", "=", scalar)]).num_rows == 100_000
    assert pq.read_table(path, filters=[("new", "!=", scalar)]).num_rows == (
        100_000 if kind == "double" else 0
    )
    duck = duckdb.connect()
    duck.execute("set timezone = 'UTC'")
    same = f"new is not distinct from (select any_value(new) from '{path}')"
    assert duck.sql(f"select count(*), count(distinct new) from '{path}' where {same}").fetchall() == [
        (100_000, 1)
    ]
    (value,) = duck.sql(f"select any_value(new) from '{path}'").to_arrow_table().column(0).to_pylist()
    assert repr(pa.scalar(value, scalar.type).as_py()) == repr(scalar.as_py())


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("float", "0", False),
        ("double", "-0.0", False),
        ("double", "5e-324", True),
        ("float", "nan", True),
        ("bigint", "0", True),
        ("double", None, True),
    ],
)
def test_a_default_of_zero_ends_the_mark_of_right_floats(kind: str, value: str | None, kept: bool) -> None:
    """Its pages have a dictionary with a zero: an import of such a file with the mark would be refused."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, ROWS.select(["k"]).schema) as writer:
        writer.write_table(ROWS.select(["k"]))
        writer.add_key_value_metadata({FLOATS_MARK: b"1", b"other": b"2"})
    schema = pa.schema([("k", pa.int64()), ("new", to_arrow(kind))])
    made = None if value is None else plain_bytes(kind, value)
    columns = (ShownColumn("k", "k"), ShownColumn("new", None, value=made))
    found = pq.read_metadata(io.BytesIO(shown(sink.getvalue(), schema, columns))).metadata
    assert found.get(FLOATS_MARK) == (b"1" if kept else None)
    assert found[b"other"] == b"2"


def test_a_file_without_any_column_of_today_has_its_rows() -> None:
    """All columns were dropped: each row has the new one, and one page serves all equal row groups."""
    schema = pa.schema([("new", pa.string())])
    file = written(ROWS.select(["k"]), row_group_size=5)
    made = shown(file, schema, (ShownColumn("new", None),))
    found = pq.ParquetFile(pa.BufferReader(made))
    assert found.metadata.num_row_groups == 2
    assert found.read().to_pydict() == {"new": [None] * 10}
    offsets = {found.metadata.row_group(number).column(0).data_page_offset for number in range(2)}
    assert len(offsets) == 1


def test_a_million_rows_take_one_small_page() -> None:
    """The pages do not grow with the rows."""
    rows = pa.table({"k": pa.array(range(1_000_000), pa.int32())})
    footer = footer_of(written(rows))
    schema = pa.schema([("k", pa.int32()), ("new", pa.int64())])
    columns = (ShownColumn("k", "k"), ShownColumn("new", None))
    pages, _ = evolve(footer, template(schema), columns, pages_at=4)
    assert 0 < len(pages) < 60
    found = pq.read_table(pa.BufferReader(shown(written(rows), schema, columns)))
    assert found["new"].null_count == 1_000_000


def test_a_column_that_the_file_lacks_is_an_error() -> None:
    """Rather than nulls: the definition says that the file has it."""
    with pytest.raises(ValueError, match="no column gone"):
        evolve(footer_of(written(ROWS)), template(SHOWN), (ShownColumn("k", "gone"),), pages_at=4)


FOOTER = footer_of(written(ROWS, row_group_size=4))
TEMPLATE = template(SHOWN)


@given(
    cut=st.integers(0, len(FOOTER)),
    changes=st.lists(st.tuples(st.integers(0, len(FOOTER) - 1), st.integers(0, 255)), max_size=4),
)
def test_hostile_bytes_end_in_a_value_error(cut: int, changes: list[tuple[int, int]]) -> None:
    """Whatever they are; other footers are shown."""
    hostile = bytearray(FOOTER)
    for at, byte in changes:
        hostile[at] = byte
    with contextlib.suppress(ValueError):
        _, end = evolve(bytes(hostile if changes else hostile[:cut]), TEMPLATE, COLUMNS, pages_at=4)
        assert end.endswith(b"PAR1")
