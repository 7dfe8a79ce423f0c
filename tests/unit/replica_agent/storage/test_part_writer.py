"""Inserts become parts: round trips, checksums, limits, and bodies that are no complete stream."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import random
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import ALL_TYPES, FLOATS, Sinks, batches, chunks_of, settings, stream, streamed
from tidelock.errors import BadRequestError, DiskFullError, SchemaMismatchError, TidelockError, TooLargeError
from tidelock.part_layout import PAGE_INDEX_ROWS, FloatColumns
from tidelock.replica_agent.storage.part_writer import EncodedPart, InsertStream, encode_small
from tidelock.replica_agent.storage.row_streams import check_small, conformed
from tidelock.replica_agent.tables.schema import TableSchema

BLOCK = 256 * 1024


def content(part: EncodedPart, sinks: Sinks) -> bytes:
    """Return the bytes of a part, in memory or in a sink."""
    return part.data if part.data is not None else bytes(sinks.written[part.part])


def rows_of(parts: Iterable[EncodedPart], sinks: Sinks) -> list[dict[str, Any]]:
    """Return the rows in the files of the parts, in their order."""
    return [row for part in parts for row in pq.read_table(pa.BufferReader(content(part, sinks))).to_pylist()]


def numbers(count: int, groups: int = 1, seed: int = 1) -> pa.RecordBatch:
    """Rows that compress badly: `id` counts, `group` of so many, `noise` of 40 random bytes."""
    source = random.Random(seed)
    return pa.RecordBatch.from_pydict(
        {
            "id": list(range(count)),
            "group": [number % groups for number in range(count)],
            "noise": [source.randbytes(40) for _ in range(count)],
        }
    )


NUMBERS = numbers(1).schema
TABLE = TableSchema.from_request("t", NUMBERS)
GROUPED = TableSchema.from_request("t", NUMBERS, ["group"])


def threads() -> list[str]:
    """Names of the threads that encode inserts."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("insert")]


def text_column(offsets: list[int], data: bytes) -> pa.Array:
    """A column of texts with offsets and bytes as given, right or wrong."""
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


# -- what a part is


@given(batch=batches())
def test_rows_of_all_types_round_trip(batch: pa.RecordBatch) -> None:
    """The Parquet file holds the inserted rows: types, nullability and values; no rows make no file."""
    sinks = Sinks()
    schema = TableSchema.from_request("t", batch.schema)
    parts = encode_small(stream(batch), sinks.maker(schema))
    if not batch.num_rows:
        assert parts == []
        return
    [part] = parts
    table = pq.read_table(pa.BufferReader(content(part, sinks)))
    assert table.schema.equals(batch.schema)
    assert repr(table.to_pylist()) == repr(batch.to_pylist())  # in which NaN is equal to NaN
    assert part.rows == batch.num_rows


@given(
    columns=st.lists(st.tuples(st.none() | FLOATS, st.none() | FLOATS), min_size=1, max_size=30),
    rows_per_group=st.integers(1, 5),
    batch_rows=st.integers(1, 10),
    foreseen=st.booleans(),
)
def test_no_chunk_hides_a_nan_or_the_other_zero_from_a_reader(
    columns: list[tuple[float | None, float | None]], rows_per_group: int, batch_rows: int, foreseen: bool
) -> None:
    """A float chunk with a NaN has no range; one with a zero has both in its range, and no dictionary.

    Rows whose NaN and zeros are foreseen are one part, although the first row group may have none.
    """
    sinks = Sinks()
    schema = pa.schema([("c_float", pa.float32()), ("c_double", pa.float64())])
    rows = pa.RecordBatch.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in columns], schema=schema
    )
    batches = [rows.slice(at, batch_rows) for at in range(0, rows.num_rows, batch_rows)]
    maker = sinks.maker(TableSchema.from_request("t", schema), row_group_rows=rows_per_group)
    if foreseen:
        maker = msgspec.structs.replace(maker, floats=FloatColumns.of(rows))
    parts = encode_small(stream(*batches), maker)
    assert repr(rows_of(parts, sinks)) == repr(rows.to_pylist())
    # Otherwise a part for each column that gets a NaN, or a zero, later on.
    assert len(parts) <= (1 if foreseen else 1 + 2 * len(schema))
    for part in parts:
        file = pq.ParquetFile(pa.BufferReader(content(part, sinks)))
        for group in range(file.num_row_groups):
            values = file.read_row_group(group)
            for number, name in enumerate(schema.names):
                chunk = file.metadata.row_group(group).column(number)
                known = [value for value in values[name].to_pylist() if value is not None]
                if any(map(math.isnan, known)):
                    assert not chunk.is_stats_set
                if 0.0 in known:
                    assert not chunk.has_dictionary_page
                    if chunk.is_stats_set and chunk.statistics.has_min_max:
                        low, high = chunk.statistics.min, chunk.statistics.max
                        assert low < 0 or math.copysign(1, low) < 0
                        assert high > 0 or math.copysign(1, high) > 0


def test_a_small_part_stays_in_memory() -> None:
    """A small part stays in memory and has its length, rows and checksums."""
    sinks = Sinks()
    [part] = encode_small(stream(numbers(100)), sinks.maker(TABLE))
    assert part.data is not None
    assert (part.part, part.path, part.rows, part.length) == ("r1-1-1", "", 100, len(part.data))
    assert part.checksum == xxhash.xxh3_128_hexdigest(part.data)
    assert part.blocks == xxhash.xxh3_64_digest(part.data)
    assert sinks.written == {}


async def test_a_large_part_goes_to_its_sink() -> None:
    """A large part has no bytes in memory, and its checksums are those of the bytes in the sink."""
    sinks = Sinks()
    batch = numbers(40_000)
    [part] = await streamed(chunks_of(stream(batch), 65536), sinks.maker(TABLE))
    assert part.data is None
    data = bytes(sinks.written[part.part])
    assert part.length == len(data) > 4 * BLOCK
    assert part.checksum == xxhash.xxh3_128_hexdigest(data)
    blocks = [xxhash.xxh3_64_digest(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    assert part.blocks == b"".join(blocks)
    assert pq.read_table(pa.BufferReader(data)).to_batches()[0].equals(batch)


async def test_streamed_and_small_inserts_are_the_same() -> None:
    """The bytes of the parts do not depend on the pieces in which the body arrives."""
    body = stream(numbers(500, groups=3), numbers(10, groups=2, seed=2))
    expected = encode_small(body, Sinks().maker(GROUPED))
    assert len(expected) == 3
    for size in (1, 7, 100_000):
        assert await streamed(chunks_of(body, size), Sinks().maker(GROUPED)) == expected


async def test_rows_are_split_by_partition() -> None:
    """Each partition of an insert becomes a separate part, without the partition's column."""
    sinks = Sinks()
    parts = encode_small(stream(numbers(10, groups=2), numbers(5, groups=3)), sinks.maker(GROUPED))
    assert [(part.path, part.rows) for part in parts] == [("group=0", 7), ("group=1", 7), ("group=2", 1)]
    assert [row["id"] for row in rows_of(parts[:1], sinks)] == [0, 2, 4, 6, 8, 0, 3]
    assert pq.read_schema(pa.BufferReader(content(parts[0], sinks))).names == ["id", "noise"]
    assert len({part.part for part in parts}) == 3


def test_what_readers_of_the_file_find() -> None:
    """Statistics and page checksums are there; decimals up to 18 digits are integers."""
    schema = TableSchema.from_request("t", pa.schema(list(ALL_TYPES.items())))
    batch = pa.RecordBatch.from_pylist([dict.fromkeys(ALL_TYPES), {"c_decimal": 1}], schema=schema.arrow)
    [part] = encode_small(stream(batch), Sinks().maker(schema))
    metadata = pq.read_metadata(pa.BufferReader(part.data))
    by_name = {
        metadata.row_group(0).column(index).path_in_schema: metadata.row_group(0).column(index)
        for index in range(metadata.num_columns)
    }
    assert all(column.is_stats_set for column in by_name.values())
    assert by_name["c_decimal"].physical_type == "INT32"
    assert by_name["c_decimal_18"].physical_type == "INT64"


@pytest.mark.parametrize(("rows", "indexed"), [(PAGE_INDEX_ROWS - 1, False), (PAGE_INDEX_ROWS, True)])
def test_a_page_index_is_for_parts_of_many_pages(rows: int, indexed: bool) -> None:
    """Where there are few rows it would cost more requests than it saves."""
    schema = pa.schema([("id", pa.int64())])
    batch = pa.RecordBatch.from_arrays([pa.array(range(rows))], schema=schema)
    sinks = Sinks()
    [part] = encode_small(stream(batch), sinks.maker(TableSchema.from_request("t", schema)))
    column = pq.read_metadata(pa.BufferReader(content(part, sinks))).row_group(0).column(0)
    assert (column.has_offset_index, column.has_column_index) == (indexed, indexed)


@pytest.mark.parametrize(
    ("rows", "limits", "formed"),
    [
        (10, {}, True),
        (PAGE_INDEX_ROWS - 1, {}, True),
        (PAGE_INDEX_ROWS, {}, False),  # it has a page index
        (10, {"row_group_rows": 5}, False),
        (10, {"inline_part_bytes_max": 1}, False),
    ],
    ids=["small", "many rows", "a page index", "row groups", "large"],
)
def test_a_part_has_a_form_if_others_can_differ_in_their_rows_alone(
    rows: int, limits: dict[str, int], *, formed: bool
) -> None:
    """One row group without a page index, in memory (ADR 0044)."""
    schema = pa.schema([("flag", pa.bool_())])
    batch = pa.RecordBatch.from_arrays([pa.array([True] * rows)], schema=schema)
    table = TableSchema.from_request("t", schema)
    [part] = encode_small(stream(batch), Sinks().maker(table, **limits))
    assert part.form == (table.form if formed else None)


def test_a_flipped_bit_is_seen_by_the_page_checksum() -> None:
    """A reader that verifies pages refuses a damaged one."""
    [part] = encode_small(stream(numbers(100)), Sinks().maker(TABLE))
    data = bytearray(part.data or b"")
    data[data.index(numbers(100).column("noise")[50].as_py()) + 3] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(pa.BufferReader(bytes(data)), page_checksum_verification=True)


def test_statistics_are_bounds_and_nulls_as_json() -> None:
    """Bounds and nulls of each column as JSON values; None where there is no cheap bound."""
    schema = pa.schema(list(ALL_TYPES.items()))
    batch = pa.RecordBatch.from_pylist(
        [
            dict.fromkeys(ALL_TYPES),
            {
                "c_boolean": False,
                "c_tinyint": -1,
                "c_smallint": 2,
                "c_int": 3,
                "c_bigint": 4,
                "c_float": 0.5,
                "c_double": 0.5,
                "c_decimal": -1,
                "c_decimal_18": 0,
                "c_decimal_38": 9,
                "c_string": "a",
                "c_binary": b"a",
                "c_date": 1,
                "c_time": dt.time(0, 0, 1),
                "c_timestamp": 2,
                "c_timestamp_ntz": 3,
            },
            {"c_tinyint": 7, "c_string": "ü" * 64, "c_date": -1, "c_decimal": 2},
        ],
        schema=schema,
    )
    [part] = encode_small(stream(batch), Sinks().maker(TableSchema.from_request("t", schema)))
    assert part.stats == {
        "c_boolean": [False, False, 2],
        "c_tinyint": [-1, 7, 1],
        "c_smallint": [2, 2, 2],
        "c_int": [3, 3, 2],
        "c_bigint": [4, 4, 2],
        "c_float": [None, None, 2],
        "c_double": [None, None, 2],
        "c_decimal": ["-1.00", "2.00", 1],
        "c_decimal_18": ["0." + "0" * 18, "0." + "0" * 18, 2],
        "c_decimal_38": ["9", "9", 2],
        "c_string": ["a", "ü" * 64, 1],
        "c_binary": [None, None, 2],
        "c_date": [-1, 1, 1],
        "c_time": [1_000_000, 1_000_000, 2],
        "c_timestamp": [2, 2, 2],
        "c_timestamp_ntz": [3, 3, 2],
    }


def test_statistics_cover_all_row_groups() -> None:
    """Bounds are those of the whole part; a column of nulls has none, a long text is left out."""
    batch = pa.RecordBatch.from_pydict(
        {"n": [5, 1, 9, 4], "text": ["a", "b", "z" * 65, "d"], "none": pa.nulls(4, pa.int64())}
    )
    schema = TableSchema.from_request("t", batch.schema)
    [part] = encode_small(stream(batch), Sinks().maker(schema, row_group_rows=2))
    assert part.stats == {"n": [1, 9, 0], "text": [None, None, 0], "none": [None, None, 4]}


def test_a_row_group_without_bounds() -> None:
    """Parquet leaves the bounds of very long texts out; those of other row groups do not tell of them."""
    batch = pa.RecordBatch.from_pydict({"text": ["a", "b", "z" * 5000, "z" * 5000]})
    schema = TableSchema.from_request("t", batch.schema)
    [part] = encode_small(stream(batch), Sinks().maker(schema, row_group_rows=2))
    assert part.stats == {"text": [None, None, 0]}


# -- row groups, sizes, limits


def test_row_groups_have_their_rows_and_are_sorted() -> None:
    """A row group is closed at its number of rows, and sorted by the table's columns."""
    schema = TableSchema.from_request("t", NUMBERS, [], ["group", "id"])
    sinks = Sinks()
    [part] = encode_small(
        stream(numbers(10, groups=3), numbers(5, groups=3)), sinks.maker(schema, row_group_rows=6)
    )
    file = pq.ParquetFile(pa.BufferReader(content(part, sinks)))
    assert [file.metadata.row_group(number).num_rows for number in range(3)] == [6, 6, 3]
    for number in range(3):
        keys = [(row["group"], row["id"]) for row in file.read_row_group(number).to_pylist()]
        assert keys == sorted(keys)


def test_a_row_group_is_closed_at_its_bytes() -> None:
    """Rows in memory are bounded by bytes, too."""
    sinks = Sinks()
    body = stream(*(numbers(100, seed=seed) for seed in range(10)))
    [part] = encode_small(body, sinks.maker(TABLE, row_group_bytes=12_000))
    metadata = pq.read_metadata(pa.BufferReader(content(part, sinks)))
    assert metadata.num_row_groups == 5
    assert len(rows_of([part], sinks)) == 1000


async def test_a_part_is_closed_at_its_bytes() -> None:
    """A part that has grown to its limit is finished, and the next one begins, before the body has ended."""
    sinks = Sinks()
    body = stream(*(numbers(1000, seed=seed) for seed in range(10)))
    limits = {"row_group_rows": 500, "part_bytes_max": 100_000, "inline_part_bytes_max": 1000}
    parts = await streamed(chunks_of(body), sinks.maker(TABLE, **limits))
    assert len(parts) > 3
    assert sum(part.rows for part in parts) == 10_000
    assert [row["id"] for row in rows_of(parts, sinks)] == list(range(1000)) * 10


async def test_many_partitions_share_the_memory_of_one() -> None:
    """Rows that wait in many partitions are written out before they are more than one row group."""
    sinks = Sinks()
    body = stream(*(numbers(200, groups=40, seed=seed) for seed in range(50)))
    parts = await streamed(chunks_of(body), sinks.maker(GROUPED, row_group_bytes=50_000))
    assert len(parts) == 40
    assert sum(part.rows for part in parts) == 10_000
    assert any(part.data is None for part in parts)


async def test_an_insert_over_too_many_partitions_is_refused() -> None:
    """An insert over too many partitions is refused, also when they come one after the other."""
    body = stream(*(numbers(1).set_column(1, "group", pa.array([value])) for value in range(4)))
    limits = {"partitions_per_insert_max": 3, "row_group_rows": 1, "part_bytes_max": 1}
    with pytest.raises(TooLargeError) as caught:
        await streamed(chunks_of(body), Sinks().maker(GROUPED, **limits))
    assert caught.value.details == {"limit": 3, "found": 4}


async def test_too_large_a_record_batch() -> None:
    """A record batch that would not fit into the memory of an insert is refused before it is read."""
    with pytest.raises(TooLargeError, match=r"row_group_bytes.*smaller record batches"):
        await streamed(chunks_of(stream(numbers(10_000))), Sinks().maker(TABLE, row_group_bytes=100_000))


async def test_too_large_a_body() -> None:
    """A body above `insert_bytes_max` is refused, wherever its record batches end."""
    with pytest.raises(TooLargeError, match="insert_bytes_max"):
        await streamed(chunks_of(stream(numbers(1000))), Sinks().maker(TABLE, insert_bytes_max=10_000))


# -- what is not a complete stream


async def test_a_stream_without_rows_makes_no_part() -> None:
    """A stream without rows is complete, and makes no part."""
    empty = numbers(0).slice(0, 0).cast(NUMBERS)
    for body in (stream(empty), stream(empty, empty)):
        assert encode_small(body, Sinks().maker(GROUPED)) == []
        assert await streamed(chunks_of(body), Sinks().maker(TABLE)) == []


@pytest.mark.slow
async def test_a_cut_stream_is_refused_wherever_it_is_cut() -> None:
    """A body that lacks even its last byte is no insert; a cut between two messages is seen, too."""
    body = stream(numbers(3), numbers(2))
    for length in range(len(body)):
        with pytest.raises(BadRequestError, match="not one complete Arrow IPC stream"):
            encode_small(body[:length], Sinks().maker(TABLE))
    for length in (0, 3, 500, len(body) - 9, len(body) - 8, len(body) - 1):
        with pytest.raises(BadRequestError, match="not one complete Arrow IPC stream"):
            await streamed(chunks_of(body[:length]), Sinks().maker(TABLE))


async def test_bytes_after_the_end() -> None:
    """Two streams in one body, or any other bytes behind the end, are refused: their rows would be lost."""
    body = stream(numbers(3))
    for wrong in (body + body, body + b"\0"):
        with pytest.raises(BadRequestError, match="bytes follow its end"):
            encode_small(wrong, Sinks().maker(TABLE))
        with pytest.raises(BadRequestError, match="bytes follow its end"):
            await streamed(chunks_of(wrong), Sinks().maker(TABLE))


@given(data=st.data())
def test_a_damaged_stream_never_breaks_the_agent(data: st.DataObject) -> None:
    """Any byte may be wrong: the insert is refused with an error of ours, or the file holds valid rows."""
    body = bytearray(stream(data.draw(batches(rows_max=3))))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    sinks = Sinks()
    schema = TableSchema.from_request("t", pa.schema(list(ALL_TYPES.items())))
    try:
        parts = encode_small(bytes(body), sinks.maker(schema))
    except TidelockError:
        return
    for part in parts:
        pq.read_table(pa.BufferReader(content(part, sinks))).validate(full=True)


@pytest.mark.parametrize(
    "column",
    [
        text_column([0, 2], b"\xff\xfe"),
        pa.Array.from_buffers(pa.decimal128(3, 0), 1, [None, pa.py_buffer((10**20).to_bytes(16, "little"))]),
        text_column([0, 5000, 2], b"ab"),
    ],
    ids=["text that is no UTF-8", "decimal of too many digits", "offset beyond the end"],
)
def test_values_invalid_for_their_type_are_refused(column: pa.Array) -> None:
    """Values that Arrow's type does not allow are refused, not written for others to stumble over."""
    batch = pa.RecordBatch.from_arrays([column], ["c"])
    with pytest.raises(BadRequestError):
        encode_small(stream(batch), Sinks().maker(TableSchema.from_request("t", batch.schema)))


async def test_a_wrong_schema_is_seen_before_any_row() -> None:
    """The schema message alone decides, while the client still sends."""
    body = stream(numbers(1000).drop_columns(["noise"]))
    sent = asyncio.Event()

    async def first_bytes_only() -> AsyncIterator[bytes]:
        yield body[:1000]
        sent.set()
        await asyncio.Event().wait()

    with pytest.raises(SchemaMismatchError, match=r"noise .binary. is missing"):
        await streamed(first_bytes_only(), Sinks().maker(TABLE))
    assert sent.is_set()
    assert threads() == []


# -- what goes wrong around it


async def test_errors_of_the_body_reach_the_caller() -> None:
    """The caller gets the error of reading the body, and the thread has ended."""

    async def broken() -> AsyncIterator[bytes]:
        yield stream(numbers(10))[:100]
        raise RuntimeError("the connection broke")

    with pytest.raises(RuntimeError, match="the connection broke"):
        await streamed(broken(), Sinks().maker(TABLE))
    assert threads() == []


async def test_errors_of_a_sink_reach_the_caller() -> None:
    """A full disk is reported as such, at a row group and at the end; nothing is written after it."""
    for limits in ({"row_group_rows": 100}, {}):
        sinks = Sinks()
        sinks.fail = DiskFullError("no room")
        maker = sinks.maker(TABLE, inline_part_bytes_max=1000, **limits)
        with pytest.raises(DiskFullError, match="no room"):
            await streamed(chunks_of(stream(*(numbers(1000) for _ in range(5)))), maker)
        sinks.fail = None
        assert [len(written) for written in sinks.written.values()] == [0]


async def test_a_caller_that_gives_up() -> None:
    """After `aclose` no thread runs and no sink is written to, though rows were waiting."""
    sinks = Sinks()
    body = stream(*(numbers(1000, seed=seed) for seed in range(20)))
    limits = {"row_group_rows": 500, "part_bytes_max": 30_000, "inline_part_bytes_max": 1000}
    parts = InsertStream(sinks.maker(TABLE, **limits)).parts(chunks_of(body))
    await anext(parts)
    await parts.aclose()
    written = {part: bytes(data) for part, data in sinks.written.items()}
    assert threads() == []
    assert written == sinks.written


async def test_a_cancelled_insert_ends_its_thread() -> None:
    """Cancelling the task ends the thread, though it waits for a client that sends nothing."""
    waiting = asyncio.Event()

    async def silent() -> AsyncIterator[bytes]:
        yield stream(numbers(10))[:100]
        waiting.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(streamed(silent(), Sinks().maker(TABLE)))
    await waiting.wait()
    assert len(threads()) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert threads() == []


def test_columns_that_were_not_sent_count_as_the_bytes_that_they_become() -> None:
    """A few bytes stand for many rows where columns are missing or null: their memory is bounded, too."""
    fields = [
        pa.field("k", pa.int8()),
        pa.field("s", pa.string(), metadata={"default": "'" + "x" * 256 + "'"}),
    ]
    table = TableSchema.from_request("t", pa.schema(fields))
    few = stream(pa.record_batch({"k": pa.array([1] * 1000, pa.int8())}))
    assert check_small(few, table, 0, settings()).nbytes > 256_000
    many = stream(pa.record_batch({"k": pa.nulls(50_000_000)}))
    assert len(many) < 1000
    limits = settings(staged_memory_bytes_max=32 << 20)
    with pytest.raises(TooLargeError, match="staged_memory_bytes_max=33554432"):
        check_small(many, table, 0, limits)
    with pytest.raises(TooLargeError, match="nulls and defaults of columns that they lack"):
        conformed(many, table, 32 << 20)
    assert conformed(few, table, 32 << 20)["s"].to_pylist() == ["x" * 256] * 1000
