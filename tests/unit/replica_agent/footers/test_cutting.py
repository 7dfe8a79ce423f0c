"""One Parquet file out of some row groups of another one: equal rows and hints, or an error."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import batches
from tidelock.part_layout import FloatColumns, mark, parquet_options
from tidelock.replica_agent.footers import cutting
from tidelock.replica_agent.footers.float_hints import is_marked
from tidelock.replica_agent.footers.pieces import Footer, Number
from tidelock.replica_agent.footers.thrift import Reader, footer_in, read_footer


def written(rows: pa.Table, size: int, **options: Any) -> bytes:
    """Return a part as an agent writes it, with row groups of a size."""
    sink = io.BytesIO()
    chosen = parquet_options(rows.num_rows, small=False, schema=rows.schema, floats=FloatColumns.of(rows))
    with pq.ParquetWriter(sink, rows.schema, **{**chosen, **options}) as writer:
        writer.write_table(rows, row_group_size=size)
        mark(writer)
    return sink.getvalue()


def reading(file: bytes) -> cutting.ReadAt:
    """Return what reads a file, as the disk does: bytes outside of it are an error."""

    def read(at: int, size: int) -> bytes:
        if not 0 <= at <= at + size <= len(file):
            raise ValueError(f"bytes {at}..{at + size} are outside")
        return file[at : at + size]

    return read


def cut(file: bytes, kept: list[int]) -> bytes:
    """Return the file with some row groups."""
    read = reading(file)
    return b"".join(cutting.cut(footer_in(read, len(file)), kept, read))


def pages(file: bytes) -> list[bytes]:
    """Return the bytes of all pages that the offset indexes of a file name."""
    read = reading(file)
    found: list[Number] = []

    def note(reader: Reader, _at: int) -> None:
        found.append(Number.read(reader))

    for group in Footer.read(footer_in(read, len(file))).groups:
        for place, length in (chunk.offset_index for chunk in group.chunks):
            read_footer(read(place, length), {1: lambda reader, _: reader.structs({1: note, 2: note})})
    numbers = [number.value for number in found]
    return [read(at, size) for at, size in zip(numbers[::2], numbers[1::2], strict=True)]


def facts(file: bytes, number: int) -> list[Any]:
    """Return what the footer tells of a row group, but for places."""
    group = pq.read_metadata(io.BytesIO(file)).row_group(number)
    told = []
    for index in range(group.num_columns):
        found = group.column(index).to_dict()
        found["statistics"] = repr(found["statistics"])
        told.append({key: value for key, value in found.items() if not key.endswith("offset")})
    return [group.num_rows, group.total_byte_size, *told]


@given(st.data(), batches(rows_min=1), st.booleans())
def test_rows_and_hints_are_those_of_the_row_groups(
    data: st.DataObject, batch: pa.RecordBatch, indexed: bool
) -> None:
    """All types, with NaN and extremes; any row groups; with and without a page index."""
    rows = pa.Table.from_batches([batch])
    size = data.draw(st.integers(1, len(batch)))
    file = written(rows, size, write_page_index=indexed)
    groups = [rows.slice(begin, size) for begin in range(0, len(batch), size)]
    assert cutting.rows_by_group(footer_in(reading(file), len(file))) == tuple(map(len, groups))
    kept = sorted(data.draw(st.sets(st.integers(0, len(groups) - 1), min_size=1)))
    made = cut(file, kept)
    expected = pa.concat_tables([groups[number] for number in kept])
    found = pq.read_table(io.BytesIO(made), page_checksum_verification=True)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())
    assert [facts(made, n) for n in range(len(kept))] == [facts(file, number) for number in kept]
    assert is_marked(footer_in(reading(made), len(made)))
    if indexed:
        by_group = [pages(cut(file, [number])) for number in range(len(groups))]
        assert [page for number in kept for page in by_group[number]] == pages(made)
        assert [page for group in by_group for page in group] == pages(file)


def test_pages_are_found_by_the_index(tmp_path: Path) -> None:
    """Each page that the index of a row group names is the page that it named before, over many pages."""
    rows = pa.table({"n": range(100_000), "text": [f"text {n % 977}" for n in range(100_000)]})
    file = written(rows, 20_000, write_page_index=True, data_page_size=10_000)
    single = [pages(cut(file, [number])) for number in range(5)]
    assert [page for group in single for page in group] == pages(file)
    assert min(map(len, single)) > rows.num_columns
    made = cut(file, [1, 3, 4])
    assert pages(made) == single[1] + single[3] + single[4]
    path = tmp_path / "m.parquet"
    path.write_bytes(made)
    assert pq.read_table(path, filters=pc.field("n") >= 99_990)["n"].to_pylist() == list(
        range(99_990, 100_000)
    )
    with duckdb.connect() as db:
        assert db.sql(f"SELECT count(*), min(n), max(n) FROM '{path}'").fetchall() == [
            (60_000, 20_000, 99_999)
        ]
        assert db.sql(f"SELECT count(*) FROM '{path}' WHERE text = 'text 5'").fetchall() == [
            (sum(n % 977 == 5 for n in [*range(20_000, 40_000), *range(60_000, 100_000)]),)
        ]


def test_a_cut_file_is_cut_again() -> None:
    """A function of bytes: two cuts are as good as one."""
    rows = pa.table({"n": range(100)})
    file = written(rows, 10, write_page_index=True)
    assert cut(cut(file, [1, 2, 5, 9]), [1, 3]) == cut(file, [2, 9])
    assert cut(file, list(range(10))) != b""
    assert pq.read_table(io.BytesIO(cut(file, list(range(10))))).equals(rows)


@pytest.mark.parametrize("kept", [[], [10], [-1, 2]])
def test_row_groups_that_do_not_exist(kept: list[int]) -> None:
    """They are an error."""
    with pytest.raises(ValueError, match="row groups"):
        cut(written(pa.table({"n": range(100)}), 10), kept)


def test_files_of_other_writers_are_cut_or_refused(tmp_path: Path) -> None:
    """DuckDB writes Bloom filters outside of the row groups: no byte of them is taken for something else."""
    path = tmp_path / "d.parquet"
    with duckdb.connect() as db:
        db.execute(
            "COPY (SELECT i AS n, 'text ' || (i % 50) AS text FROM range(50_000) AS t(i)) "
            f"TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 10_000)"
        )
    file = path.read_bytes()
    with pytest.raises(ValueError, match="places outside"):
        cut(file, [1])
    with duckdb.connect() as db:
        db.execute(
            "COPY (SELECT i AS n, 'text ' || i AS text FROM range(50_000) AS t(i)) "
            f"TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 10_000, WRITE_BLOOM_FILTER false)"
        )
    file = path.read_bytes()
    assert pq.read_table(io.BytesIO(cut(file, [1])))["n"].to_pylist() == list(range(10_240, 20_480))


@given(st.data())
def test_hostile_bytes_are_an_error_or_a_file(data: st.DataObject) -> None:
    """Whatever a footer says, nothing but ValueError comes of it, and nothing outside of the file is read."""
    rows = pa.table({"n": range(40), "x": [0.5] * 40})
    file = bytearray(written(rows, 10, write_page_index=True))
    size = len(footer_in(reading(bytes(file)), len(file)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(len(file) - size - 400, len(file) - 1))
        file[at] = data.draw(st.integers(0, 255))
    try:
        made = cut(bytes(file), [1, 2])
    except ValueError:
        return
    assert made.startswith(b"PAR1")
    assert made.endswith(b"PAR1")
