"""One Parquet file out of many: equal rows, equal hints, and an error for parts that do not fit."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import ALL_TYPES, batches
from tidelock.float_mark import FLOATS_MARK
from tidelock.part_layout import FloatColumns, form_of, mark, parquet_options
from tidelock.replica_agent.footers import combined
from tidelock.replica_agent.footers.thrift import (
    TAIL_BYTES,
    Reader,
    count_bytes,
    footer_length,
    list_head,
)

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("price", pa.float64())])


def written(rows: pa.RecordBatch | pa.Table, *, marked: bool = True, **options: Any) -> bytes:
    """Return a part as an agent writes a small one."""
    sink = io.BytesIO()
    chosen = parquet_options(rows.num_rows, small=True, schema=rows.schema, floats=FloatColumns.of(rows))
    with pq.ParquetWriter(sink, rows.schema, **{**chosen, **options}) as writer:
        writer.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows]))
        if marked:
            mark(writer)
    return sink.getvalue()


def cut(part: bytes) -> tuple[int, bytes]:
    """Return the length of a part, and its footer."""
    size = footer_length(part[-TAIL_BYTES:])
    assert size is not None
    return len(part), part[-TAIL_BYTES - size : -TAIL_BYTES]


def whole(parts: list[bytes]) -> bytes:
    """Return the bytes of the file that parts make."""
    made = combined.combine([cut(part) for part in parts])
    data = b"".join(
        part[: len(part) - len(footer) - TAIL_BYTES]
        for part, (_, footer) in zip(parts, map(cut, parts), strict=True)
    )
    assert made.starts[-1] == len(data)
    assert made.length == combined.length_of(sum(map(len, parts)))
    return data + bytes(made.length - len(data) - len(made.end)) + made.end


def some(first: int, rows: int = 3) -> pa.Table:
    """Return rows with numbers from ``first`` on."""
    numbers = range(first, first + rows)
    return pa.table(
        {"n": numbers, "text": [f"t{n}" for n in numbers], "price": [n / 2 for n in numbers]}, schema=SCHEMA
    )


@given(st.lists(batches(rows_min=1), min_size=1, max_size=5))
def test_all_rows_are_there_in_the_order_of_the_parts(rows: list[pa.RecordBatch]) -> None:
    """Whatever the values and types: nulls, NaN, extremes, long texts."""
    parts = [written(one) for one in rows]
    found = pq.read_table(pa.BufferReader(whole(parts)))
    expected = pa.concat_tables(pq.read_table(pa.BufferReader(part)) for part in parts)
    # Compared as stored: a NaN equals nothing.
    assert [batch.serialize().to_pybytes() for batch in found.combine_chunks().to_batches()] == [
        batch.serialize().to_pybytes() for batch in expected.combine_chunks().to_batches()
    ]


@given(st.lists(batches(rows_min=1), min_size=2, max_size=5))
def test_the_hints_of_each_part_are_as_they_were(rows: list[pa.RecordBatch]) -> None:
    """All metadata of a column chunk but its positions; these move by the start of their part."""
    parts = [written(one) for one in rows]
    starts = combined.combine([cut(part) for part in parts]).starts
    found = pq.read_metadata(pa.BufferReader(whole(parts)))
    assert (found.num_row_groups, found.num_rows) == (len(parts), sum(one.num_rows for one in rows))
    for number, part in enumerate(parts):
        before = pq.read_metadata(pa.BufferReader(part)).row_group(0)
        after = found.row_group(number)
        assert (after.num_rows, after.total_byte_size) == (before.num_rows, before.total_byte_size)
        for column in range(before.num_columns):
            old, new = before.column(column).to_dict(), after.column(column).to_dict()
            for name in ("data_page_offset", "dictionary_page_offset", "file_offset"):
                position, moved = old.pop(name), new.pop(name)
                assert moved == (position + starts[number] if position else position), name
            assert repr(new) == repr(old)  # a NaN equals nothing


def test_readers_skip_row_groups_by_their_statistics(tmp_path: Path) -> None:
    """DuckDB and Arrow find the same rows with and without a filter."""
    path = tmp_path / "m.parquet"
    path.write_bytes(whole([written(some(10 * number)) for number in range(40)]))
    assert pq.read_table(path, filters=pc.field("n") >= 380)["n"].to_pylist() == [
        380,
        381,
        382,
        390,
        391,
        392,
    ]
    with duckdb.connect() as db:
        assert db.sql(f"SELECT count(*), sum(n) FROM '{path}'").fetchall() == [(120, 23520)]
        assert db.sql(f"SELECT text FROM '{path}' WHERE n = 171").fetchall() == [("t171",)]
        assert db.sql(f"SELECT count(*) FROM '{path}' WHERE price > 195").fetchall() == [(2,)]


def test_a_page_index_is_refused() -> None:
    """It has positions among the data: Spark would read pages of another part."""
    indexed = written(some(0, 1000), write_page_index=True)
    with pytest.raises(ValueError, match="page index"):
        combined.combine([cut(indexed), cut(indexed)])


@given(st.lists(batches(rows_min=1), min_size=2, max_size=4))
def test_every_page_begins_where_the_footer_says(rows: list[pa.RecordBatch]) -> None:
    """All bytes of a column chunk are those of its part, so also the headers of the pages."""
    parts = [written(one) for one in rows]
    file = whole(parts)
    found = pq.read_metadata(pa.BufferReader(file))
    for number, part in enumerate(parts):
        before = pq.read_metadata(pa.BufferReader(part)).row_group(0)
        for column in range(before.num_columns):
            old, new = before.column(column), found.row_group(number).column(column)
            size = old.total_compressed_size
            assert file[first(new) : first(new) + size] == part[first(old) : first(old) + size]


def first(chunk: Any) -> int:
    """Return where the pages of a column chunk begin."""
    return int(chunk.dictionary_page_offset or chunk.data_page_offset)


def test_the_order_of_the_parts_is_that_of_the_row_groups() -> None:
    """Another order is another file."""
    parts = [written(some(number)) for number in range(3)]
    assert whole(parts) != whole(parts[::-1])


def test_the_bytes_of_a_footer_are_fixed() -> None:
    """Replicas of different versions serve one file under one name: a change needs another name."""
    parts = [(100, _footer(4, rows=2)), (50, _footer(4, rows=3))]
    made = combined.combine(parts)
    assert made.length == 187
    assert made.starts == (0, 100 - 8 - len(parts[0][1]), 150 - 16 - 2 * len(parts[0][1]))
    moved = 4 + made.starts[1]
    assert made.end[:-8] == _head(5) + b"\x19\x2c" + _group(4) + _group(moved) + _TAIL


_TAIL: Final = b"\x19\x1c\x18" + bytes([len(FLOATS_MARK)]) + FLOATS_MARK + b"\x00\x00"


def _head(rows: int) -> bytes:
    """Version 1, an empty schema, the number of rows."""
    return b"\x15\x02\x19\x0c\x16" + count_bytes(rows)


def _group(position: int) -> bytes:
    """A row group of one column chunk, whose pages begin at a position."""
    metadata = b"\x96" + count_bytes(position) + b"\x00"  # field 9 of ColumnMetaData
    return b"\x19\x1c" + b"\x3c" + metadata + b"\x00" + b"\x00"


def _footer(position: int, *, rows: int) -> bytes:
    return _head(rows) + b"\x19\x1c" + _group(position) + _TAIL


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (written(some(1).drop(["price"])), "differ in their schema"),
        (written(some(1), marked=False), "differ in their schema, their writer or their marks"),
        (written(some(1).replace_schema_metadata({"a": "b"}), store_schema=True), "differ in"),
    ],
    ids=["columns", "mark", "key"],
)
def test_parts_that_differ_make_no_file(other: bytes, words: str) -> None:
    """A row group under the schema of another part would be read wrongly."""
    with pytest.raises(ValueError, match=words):
        combined.combine([cut(written(some(0))), cut(other)])


def test_parts_with_wrong_hints_make_no_file() -> None:
    """Their footers would have to be changed, part by part."""
    unmarked = cut(written(some(0), marked=False))
    with pytest.raises(ValueError, match="hints about floats"):
        combined.combine([unmarked, unmarked])


@given(st.data())
def test_a_damaged_footer_is_an_error_or_another_footer(data: st.DataObject) -> None:
    """No other error comes, and it ends."""
    length, footer = cut(written(some(0)))
    changed = bytearray(footer)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    kept = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    with contextlib.suppress(ValueError):
        combined.combine([(length, kept), (length, kept)])


@pytest.mark.parametrize(("columns", "parts"), [(1, 64), (16, 64), (17, 60), (512, 2), (513, 1), (2000, 0)])
def test_a_file_has_fewer_parts_where_a_table_has_many_columns(columns: int, parts: int) -> None:
    """Each task that reads a piece of it parses the whole footer."""
    assert combined.parts_max(columns) == parts


@given(st.integers(0, (1 << 62) - 1), st.integers(0, 100), st.integers(0, 15))
def test_numbers_and_lists_are_read_as_they_were_written(value: int, count: int, kind: int) -> None:
    """Short and long forms."""
    assert Reader(count_bytes(value)).count() == value
    assert Reader(list_head(count, kind)).elements() == (count, kind)


def test_a_negative_position_is_refused() -> None:
    """It would lie before the file."""
    with pytest.raises(ValueError, match="negative"):
        Reader(b"\x01").count()


def test_a_form_is_one_schema() -> None:
    """Types, names, order and nulls belong to it."""
    forms = {form_of(pa.schema([(name, kind)])) for name, kind in ALL_TYPES.items()}
    forms |= {form_of(SCHEMA), form_of(pa.schema(list(SCHEMA)[::-1]))}
    forms.add(form_of(pa.schema([pa.field("n", pa.int64(), nullable=False)])))
    assert len(forms) == len(ALL_TYPES) + 3
    assert form_of(SCHEMA) == form_of(pa.schema(list(SCHEMA)))
