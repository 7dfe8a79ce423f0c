"""The footer that readers are shown for parts of older writers: no hints about floats, all else as it was."""

from __future__ import annotations

import contextlib
import io
import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import ALL_TYPES, batches
from tidelock.float_mark import FLOATS_MARK
from tidelock.part_layout import FloatColumns, mark, parquet_options
from tidelock.replica_agent.footers.float_hints import changes
from tidelock.replica_agent.footers.thrift import TAIL_BYTES, footer_length

#: How older writers, and others than ours, may have written a file.
LAYOUTS: dict[str, dict[str, Any]] = {
    "as agents did": {
        "store_schema": False,
        "store_decimal_as_integer": True,
        "write_page_checksum": True,
        "compression": "snappy",
    },
    "with a page index": {"write_page_index": True, "compression": "zstd"},
    "with plain dictionaries": {"version": "1.0", "data_page_version": "1.0"},
    "without statistics": {"write_statistics": False},
    "without dictionaries": {"use_dictionary": False},
}
FLOATS = frozenset({"c_float", "c_double"})


def written(rows: pa.RecordBatch | pa.Table, rows_per_group: int = 1000, **options: Any) -> bytes:
    """Return a file of these rows."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows.schema, **options) as writer:
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        writer.write_table(table, row_group_size=rows_per_group)
    return sink.getvalue()


def shown(data: bytes) -> bytes:
    """Return a file as readers see it."""
    size = footer_length(data[-TAIL_BYTES:])
    assert size is not None
    begin = len(data) - TAIL_BYTES - size
    changed = bytearray(data)
    for at, byte in changes(data[begin : begin + size]):
        changed[begin + at] = byte
    return bytes(changed)


def chunks(data: bytes) -> list[list[Any]]:
    """Return the metadata of all column chunks, by row group."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [[group.column(number) for number in range(group.num_columns)] for group in groups]


@given(rows=batches(), rows_per_group=st.integers(1, 25), layout=st.sampled_from(list(LAYOUTS)))
def test_only_hints_about_floats_are_hidden(rows: pa.RecordBatch, rows_per_group: int, layout: str) -> None:
    """Length and rows stay; float columns have no range, no page ranges, and no word about dictionaries."""
    data = written(rows, rows_per_group, **LAYOUTS[layout])
    hidden = shown(data)
    assert len(hidden) == len(data)
    read = [repr(pq.read_table(pa.BufferReader(one)).to_pylist()) for one in (data, hidden)]
    assert read[0] == read[1]
    for before, after in zip(chunks(data), chunks(hidden), strict=True):
        for one, other in zip(before, after, strict=True):
            if one.path_in_schema in FLOATS:
                assert not other.is_stats_set
                assert not other.has_column_index
                assert other.has_offset_index == one.has_offset_index
                assert "PLAIN_DICTIONARY" not in other.encodings
                assert other.total_compressed_size == one.total_compressed_size
            else:
                assert other.to_dict() == one.to_dict()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("column", sorted(FLOATS))
def test_a_row_group_with_a_nan_is_not_skipped(layout: dict[str, Any], column: str) -> None:
    """Arrow leaves NaN out of the range and prunes by it; the file that is shown has no range."""
    rows = pa.table({column: pa.array([0.5, math.nan], ALL_TYPES[column]), "k": [1, 2]})
    for group in chunks(shown(written(rows, **layout))):
        assert [chunk.is_stats_set for chunk in group] == [False, layout.get("write_statistics", True)]


def test_a_file_with_the_mark_is_shown_as_it_is() -> None:
    """Its writer has kept the rule, so its ranges are right, and readers use them."""
    rows = pa.table({"c_double": [0.5, 2.0]})
    sink = io.BytesIO()
    options = parquet_options(2, small=True, schema=rows.schema, floats=FloatColumns.of(rows))
    with pq.ParquetWriter(sink, rows.schema, **options) as writer:
        writer.write_table(rows)
        mark(writer)
    data = sink.getvalue()
    assert pq.read_metadata(pa.BufferReader(data)).metadata == {FLOATS_MARK: b"1"}
    assert shown(data) == data
    assert chunks(data)[0][0].statistics.max == 2.0


def test_a_value_that_reads_like_the_mark_is_none() -> None:
    """It stands in the range of another column, and says nothing of the writer."""
    rows = pa.table({"c_double": [0.5, math.nan], "c_string": [FLOATS_MARK.decode()] * 2})
    [[floats, strings]] = chunks(shown(written(rows)))
    assert not floats.is_stats_set
    assert strings.statistics.max == FLOATS_MARK.decode()


def test_a_file_of_spark_keeps_its_ranges() -> None:
    """Spark leaves a range out where a NaN is; only what it says of dictionaries misleads about zeros."""
    rows = pa.table({"c_double": [-0.0, 0.5]})
    data = written(rows, version="1.0")
    name = pq.read_metadata(pa.BufferReader(data)).created_by.encode()
    spark = data.replace(name, b"parquet-mr".ljust(len(name)))
    [[chunk]] = chunks(shown(spark))
    assert chunk.statistics.max == 0.5
    assert "PLAIN_DICTIONARY" in chunks(spark)[0][0].encodings
    assert "PLAIN_DICTIONARY" not in chunk.encodings


@given(st.binary(max_size=300))
def test_a_footer_that_is_none_is_an_error(data: bytes) -> None:
    """It ends, and with no other error."""
    with contextlib.suppress(ValueError):
        changes(data)


_MANY = b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"


@pytest.mark.parametrize(
    "data",
    [
        b"\x19\xf3" + _MANY,  # a list of 2^62 bytes
        b"\x19\xf7" + _MANY,  # of doubles
        b"\x19\xf1" + _MANY,  # of booleans
        b"\x1b" + _MANY + b"\x11",  # a map of booleans to booleans
        b"\x18" + _MANY,  # a string
        b"\x15" + b"\xff" * 2_000_000,  # a number without an end
        b"\x1c" * 100_000,  # structs, each in the one before
        b"\x19" + b"\x19" * 100_000,  # lists
    ],
    ids=["bytes", "doubles", "booleans", "map", "string", "number", "structs", "lists"],
)
def test_a_hostile_footer_ends_in_as_many_steps_as_it_has_bytes(data: bytes) -> None:
    """Counts and depth of the file decide nothing about time and stack."""
    with pytest.raises(ValueError, match=r"ends early|more than"):
        changes(data)


def test_a_file_that_is_no_parquet_has_no_footer() -> None:
    """The last bytes tell."""
    assert footer_length(b"12345678") is None
    assert footer_length(b"PAR1") is None
    assert footer_length(b"\x01\0\0\0PAR1") == 1
