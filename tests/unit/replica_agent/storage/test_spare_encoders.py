"""Row groups of one insert are encoded by several threads: same parts, bounded memory, errors, the end."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.support.aio import until
from tests.support.rows import MemorySink, Sinks, chunks_of, stream, streamed
from tidelock.csnlog.core.ids import PartId
from tidelock.errors import DiskFullError
from tidelock.replica_agent.storage.part_writer import EncodedPart, PartMaker
from tidelock.replica_agent.storage.spare_encoders import SpareEncoders
from tidelock.replica_agent.tables.schema import TableSchema

SCHEMA = pa.schema([("id", pa.int64()), ("group", pa.int64()), ("noise", pa.binary())])
TABLE = TableSchema.from_request("t", SCHEMA, [], ["id"])
GROUPED = TableSchema.from_request("t", SCHEMA, ["group"], ["id"])
#: A row group of more than two rows is worth another thread.
LARGE = {"inline_part_bytes_max": 1000}
#: Bytes of the noise of a row.
NOISE = 400


def rows(count: int, groups: int = 1, seed: int = 1) -> pa.RecordBatch:
    """Rows in no order that hardly compress, spread over the first so many groups."""
    source = random.Random(seed)
    ids = list(range(count))
    source.shuffle(ids)
    columns = [ids, [number % groups for number in range(count)], [source.randbytes(NOISE) for _ in ids]]
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=SCHEMA)


def of_group(group: int, count: int) -> pa.RecordBatch:
    """Rows of one group."""
    return rows(count).set_column(1, SCHEMA.field("group"), pa.array([group] * count))


@pytest.fixture
def spare() -> Iterator[SpareEncoders]:
    """One spare thread."""
    encoders = SpareEncoders(1)
    yield encoders
    encoders.close()


class WatchedSinks(Sinks):
    """Sinks that note the threads that open them, and call ``opening`` with the part before."""

    def __init__(self, opening: Callable[[PartId], object] = lambda _: None) -> None:
        super().__init__()
        self.threads: dict[PartId, str] = {}
        self._opening = opening

    def open(self, part: PartId) -> MemorySink:
        """Open the sink of a part."""
        self.threads[part] = threading.current_thread().name
        self._opening(part)
        return super().open(part)

    def shared(self, schema: TableSchema, spare: SpareEncoders, **limits: Any) -> PartMaker:
        """Return the maker of parts of an insert that may use a spare thread."""
        return msgspec.structs.replace(self.maker(schema, **LARGE, **limits), spare=spare)


def spare_threads(sinks: WatchedSinks) -> list[PartId]:
    """The parts whose first bytes came from a spare thread."""
    return [part for part, name in sinks.threads.items() if name.startswith("row-group")]


# -- what is written


@pytest.mark.parametrize(
    ("schema", "limits"),
    [
        (GROUPED, {}),
        (GROUPED, {"row_group_bytes": 200_000}),
        (GROUPED, {"row_group_rows": 50}),
        (GROUPED, {"row_group_rows": 50, "part_bytes_max": 100_000}),
        (TABLE, {"row_group_rows": 300}),
        (TABLE, {"row_group_rows": 300, "part_bytes_max": 500_000}),
    ],
    ids=["at the end", "spilled", "groups", "parts", "one partition", "parts of one partition"],
)
async def test_parts_do_not_depend_on_the_number_of_threads(
    schema: TableSchema, limits: dict[str, int]
) -> None:
    """Ids, order, statistics and bytes are those of one thread, however often there is an idle one."""
    body = stream(*(rows(250, groups=7, seed=seed) for seed in range(12)))
    expected: list[EncodedPart] = []
    for threads in (0, 1, 3):
        spare = SpareEncoders(threads)
        sinks = WatchedSinks()
        parts = await streamed(chunks_of(body, 10_000), sinks.shared(schema, spare, **limits))
        spare.close()
        assert sum(part.rows for part in parts) == 3000
        expected = expected or parts
        assert parts == expected
        assert bool(spare_threads(sinks)) == bool(threads)


# -- what runs at once


async def test_two_partitions_are_encoded_at_once(spare: SpareEncoders) -> None:
    """Two threads begin their parts before either goes on."""
    both = threading.Barrier(2, timeout=30)
    sinks = WatchedSinks(lambda _: both.wait())
    parts = await streamed(chunks_of(stream(rows(500, groups=2)), 10_000), sinks.shared(GROUPED, spare))
    assert [part.rows for part in parts] == [250, 250]
    assert len(spare_threads(sinks)) == 1


async def test_rows_are_read_while_those_before_are_encoded(spare: SpareEncoders) -> None:
    """So an insert into a single partition gains, too: its row group waits until the whole body was read."""
    read = threading.Event()
    sinks = WatchedSinks(lambda _: read.wait(30))
    body = stream(*(rows(100, seed=seed) for seed in range(15)))

    async def chunks() -> AsyncIterator[bytes]:
        async for chunk in chunks_of(body, 1000):
            yield chunk
        assert not sinks.written
        read.set()

    maker = sinks.shared(TABLE, spare, row_group_rows=1000, insert_chunks_ahead=2)
    [part] = await streamed(chunks(), maker)
    assert part.rows == 1500


async def test_an_insert_without_an_idle_thread_encodes_itself(spare: SpareEncoders) -> None:
    """It waits for no other insert: the rows that wait would need memory without a bound."""
    gate = threading.Event()
    other = spare.run(lambda: gate.wait(30))
    sinks = WatchedSinks()
    parts = await streamed(chunks_of(stream(rows(500, groups=3)), 10_000), sinks.shared(GROUPED, spare))
    gate.set()
    assert len(parts) == len(sinks.threads) == 3
    assert spare_threads(sinks) == []
    assert other is not None
    other.result()


async def test_rows_that_wait_are_bounded_while_a_row_group_is_encoded(spare: SpareEncoders) -> None:
    """A spare thread hangs until the insert has written three other partitions itself."""
    gate = threading.Event()
    itself: list[PartId] = []
    limit = 1 << 20
    batch = rows(250, groups=5)
    before = pa.total_allocated_bytes()
    largest = 0

    def opening(part: PartId) -> None:
        if threading.current_thread().name.startswith("row-group"):
            gate.wait(30)
            return
        itself.append(part)
        if len(itself) == 3:
            gate.set()

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal largest
        async for chunk in chunks_of(stream(*([batch] * 400)), 50_000):
            largest = max(largest, pa.total_allocated_bytes() - before)
            yield chunk

    maker = WatchedSinks(opening).shared(GROUPED, spare, row_group_bytes=limit)
    assert sum(part.rows for part in await streamed(chunks(), maker)) == 400 * batch.num_rows
    assert len(itself) >= 3
    # Rows that wait and a row group that is encoded, sorted copies, and what the writers of Parquet hold.
    assert largest < 5 * limit < 400 * batch.nbytes / 5


# -- what goes wrong


async def test_an_error_of_a_spare_thread_ends_the_insert_with_the_next_batch(spare: SpareEncoders) -> None:
    """The disk of one part is full; the client, which sends rows of another partition on and on, is told."""
    full: list[PartId] = []

    def opening(part: PartId) -> None:
        if threading.current_thread().name.startswith("row-group"):
            full.append(part)
            raise DiskFullError("no room")

    first, more = of_group(0, 2000), of_group(1, 1)
    one, two, three = (len(stream(first, *([more] * count))) for count in (0, 1, 2))
    assert two - one == three - two
    body = stream(first, more)
    end = body[-8:]

    async def endless() -> AsyncIterator[bytes]:
        yield body[: -len(end)]
        while True:
            await asyncio.sleep(0)
            yield body[one - len(end) : -len(end)]

    maker = WatchedSinks(opening).shared(GROUPED, spare, row_group_rows=2000)
    with pytest.raises(DiskFullError, match="no room"):
        await streamed(endless(), maker)
    assert set(full) == {"r1-1-1"}


async def test_an_insert_that_is_given_up_waits_for_its_spare_thread(spare: SpareEncoders) -> None:
    """It ends when no thread writes any more, and the thread is free for others."""
    began, gate = threading.Event(), threading.Event()

    def opening(_: PartId) -> None:
        began.set()
        gate.wait(30)

    async def silent() -> AsyncIterator[bytes]:
        yield stream(rows(150))
        await asyncio.Event().wait()

    sinks = WatchedSinks(opening)
    task = asyncio.create_task(streamed(silent(), sinks.shared(TABLE, spare, row_group_rows=100)))
    await until(began.is_set)
    task.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    assert spare.run(gate.wait) is None  # it is busy
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    written = {part: bytes(data) for part, data in sinks.written.items()}
    idle = spare.run(lambda: None)
    assert idle is not None
    idle.result()
    assert written == sinks.written
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("insert")]


def test_a_thread_is_idle_again_after_an_error(spare: SpareEncoders) -> None:
    """The one who gave it the work gets the error."""

    def fail() -> None:
        raise DiskFullError("no room")

    for _ in range(3):
        done = spare.run(fail)
        assert done is not None
        with pytest.raises(DiskFullError, match="no room"):
            done.result()


def test_no_thread_is_idle_if_there_is_none() -> None:
    """With `encode_threads` = 1 each insert encodes all its rows itself."""
    assert SpareEncoders(0).run(lambda: None) is None
