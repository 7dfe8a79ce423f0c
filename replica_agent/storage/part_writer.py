"""Rows become parts: the body of an insert is checked, split by partition and encoded, in bounded memory.

A part is encoded row group by row group and hashed meanwhile. It stays in memory while it is small; a large
one goes into a sink that the caller opened and makes durable, so nothing here touches the disk. After any
error the caller discards every part and every sink of the insert.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import operator
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tidelock.csnlog.core.ids import PartId, TableId
from tidelock.errors import TooLargeError
from tidelock.part_layout import NO_FLOATS, PAGE_INDEX_ROWS, FloatColumns, mark, parquet_options, sorted_by
from tidelock.partition_paths import split
from tidelock.replica_agent.config.allocator import give_back
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.arrow_body import InsertBody
from tidelock.replica_agent.storage.part_target import PIECE_BYTES, PartTarget, Sink
from tidelock.replica_agent.storage.row_streams import CheckedRows, batches_of, require_partitions, whole
from tidelock.replica_agent.storage.spare_encoders import NO_SPARE, SpareEncoders
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.tables.statistics import Statistics, statistics_of


class EncodedPart(msgspec.Struct, frozen=True):
    """A finished part.

    Attributes:
        part: Its id.
        path: Partition path, ``""`` without partitions.
        rows: Rows.
        length: Bytes of the Parquet range.
        checksum: XXH3-128 of the range, 32 hexadecimal digits.
        blocks: XXH3-64 digests of its 256 KiB blocks, 8 bytes each, big-endian.
        stats: See :data:`part_stats.Statistics`.
        data: The bytes of a small part; None if they went to the sink.
        form: See :class:`tidelock.wire.peers.PartMeta`.
    """

    part: PartId
    path: str
    rows: int
    length: int
    checksum: str
    blocks: bytes
    stats: Statistics
    data: bytes | None
    form: str | None


class PartMaker(msgspec.Struct, frozen=True):
    """The common needs of the parts of an insert: the table, the limits, an id, a sink for a large part.

    ``open_file`` is called in the thread that encodes, before the first byte of the part that it names.
    ``floats`` are those that rows may have, as far as they are known before the first row. ``spare`` threads
    encode row groups beside the one that adds the rows.
    """

    schema: TableSchema
    settings: AgentSettings
    new_part: Callable[[], PartId]
    open_file: Callable[[PartId], Sink]
    floats: FloatColumns = NO_FLOATS
    spare: SpareEncoders = NO_SPARE


class PartWriter:
    """Collects the rows of one part, encodes them row group by row group, ends as an :class:`EncodedPart`.

    One thread calls it. A spare thread may encode a row group meanwhile, one of a part at a time, since the
    next one follows it in the file. Nothing that the caller is told depends on how far that thread has come,
    so neither do the parts. Its error is raised by a later call.

    Args:
        maker: The common needs of the parts of an insert.
        path: Partition path.
        floats: Those that rows of the part may have.
    """

    def __init__(self, maker: PartMaker, path: str, floats: FloatColumns) -> None:
        self._maker = maker
        self._path = path
        self._floats = floats
        self._part = maker.new_part()
        self._target = PartTarget(
            functools.partial(maker.open_file, self._part), maker.settings.inline_part_bytes_max
        )
        self._batches: list[pa.RecordBatch] = []
        self._batch_rows = 0
        self._batch_bytes = 0
        self._rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[Any] = []
        self._encoding: Future[None] | None = None
        self._group_begin = 0  # bytes of the file before its last row group
        self._group_bytes = 0  # of that row group, in Arrow
        self._spilled = False  # after that row group nothing waits in memory
        self._ended = False
        self._form: str | None = None
        self._data: bytes | None = None

    @property
    def memory_bytes(self) -> int:
        """Return the bytes that wait in memory: rows not yet encoded, and encoded ones not yet in a file.

        The rows of a row group that a spare thread encodes are not counted. Those of its bytes that may wait
        afterwards are counted as the most that may, until :meth:`settle_memory`.
        """
        if self._encoding is None:
            return self._batch_bytes + self._target.memory_bytes
        if self._spilled:
            return self._batch_bytes
        return self._batch_bytes + max(self._maker.settings.inline_part_bytes_max, PIECE_BYTES)

    def settle_memory(self) -> None:
        """Wait until :attr:`memory_bytes` is exact."""
        if not self._spilled:
            self._settle()

    def reaches(self, length: int) -> bool:
        """Return whether so many bytes are encoded; waits only for a row group that may bring it there.

        A row group that is more than twice as large as its rows in Arrow may be noticed with the next one.
        """
        if self._group_begin + 2 * self._group_bytes < length:
            return False
        self._settle()
        return self._target.length >= length

    def check(self) -> None:
        """Raise the error of a spare thread that has failed."""
        if self._encoding is not None and self._encoding.done():
            self._settle()

    def allows(self, floats: FloatColumns) -> bool:
        """Return whether rows with these columns may be added: the first row group decides about the file."""
        if self._writer is None:
            self._floats |= floats
        return self._floats | floats == self._floats

    def add(self, batch: pa.RecordBatch) -> None:
        """Add conformed rows (columns of the files) that it allows; encode when a row group is full."""
        settings = self._maker.settings
        while batch.num_rows:
            piece = batch.slice(0, settings.row_group_rows - self._batch_rows)
            batch = batch.slice(piece.num_rows)
            self._batches.append(piece)
            self._batch_rows += piece.num_rows
            self._batch_bytes += piece.nbytes
            if self._batch_rows >= settings.row_group_rows or self._batch_bytes >= settings.row_group_bytes:
                self._encode(self._target)
                self._spilled = False

    def spill(self) -> None:
        """Move all that waits in memory to the sink; the row group becomes smaller than it might be."""
        self._encode(self._target, self._target.spill)
        self._spilled = True

    def end(self) -> None:
        """Begin to encode the rest; the writer accepts nothing more."""
        if self._ended:
            return
        self._ended = True
        if self._writer is None and self._is_small():
            # A page index has positions that no other file may copy.
            self._form = self._maker.schema.form if self._batch_rows < PAGE_INDEX_ROWS else None
            whole = pa.BufferOutputStream()  # the target would be called a hundred times
            self._encode(whole, functools.partial(self._close, whole))
        else:
            self._encode(self._target, self._close)

    def finish(self) -> EncodedPart:
        """Encode the rest, unless :meth:`end` has begun to, and return the part."""
        self.end()
        self._settle()
        digest = self._target.digest
        return EncodedPart(
            part=self._part,
            path=self._path,
            rows=self._rows,
            length=digest.length,
            checksum=digest.checksum(),
            blocks=digest.blocks(),
            stats=statistics_of(self._metadata[0], self._maker.schema),
            data=self._data,
            form=self._form,
        )

    def abandon(self) -> None:
        """Write nothing more, in any thread.

        Otherwise the Parquet writer would write a footer when it is deleted.
        """
        self._target.discard()
        if self._encoding is not None:
            wait([self._encoding])
        if self._writer is not None:
            with contextlib.suppress(Exception):  # it may be broken by the error that led here
                self._writer.close()

    def _is_small(self) -> bool:
        return self._batch_bytes <= self._maker.settings.inline_part_bytes_max

    def _encode(self, output: object, then: Callable[[], object] | None = None) -> None:
        """Write the collected rows as one row group, sorted, then call ``then``, in a spare thread or here.

        The first group decides where all bytes go. A small one takes less time than to wake a thread.
        """
        schema = self._maker.schema
        small = self._is_small()
        group = [pa.Table.from_batches(self._batches)] if self._batches else []
        self._batches = []
        sort_by = schema.sort_by
        if self._encoding is not None and group and sort_by:
            group.append(sorted_by(group.pop(), sort_by))  # while the row group before is still encoded
            sort_by = ()
        self._settle()
        if group:
            if self._writer is None:
                self._writer = pq.ParquetWriter(
                    output,
                    schema.file_arrow,
                    metadata_collector=self._metadata,
                    **parquet_options(self._batch_rows, small, schema.file_arrow, self._floats),
                )
            self._group_begin, self._group_bytes = self._target.length, self._batch_bytes
            self._rows += self._batch_rows
            self._batch_rows, self._batch_bytes = 0, 0
        work = functools.partial(self._write, group, sort_by, then)
        self._encoding = None if small else self._maker.spare.run(work)
        if self._encoding is None:
            work()

    def _write(
        self, group: list[pa.Table], sort_by: Sequence[str], then: Callable[[], object] | None
    ) -> None:
        """Write the rows of a row group, if any, and call ``then``."""
        if group:
            rows = group.pop()  # so that they are freed as soon as they have been sorted
            if sort_by:
                rows = sorted_by(rows, sort_by)
            assert self._writer is not None, "it was made before"
            self._writer.write_table(rows, row_group_size=rows.num_rows)
        if then is not None:
            then()

    def _settle(self) -> None:
        """Wait for the row group that a spare thread encodes, and raise its error."""
        encoding, self._encoding = self._encoding, None
        if encoding is not None:
            encoding.result()

    def _close(self, whole: pa.BufferOutputStream | None = None) -> None:
        """Write the footer and end the part; ``whole`` has the bytes of a small one."""
        assert self._writer is not None, "a part has rows"
        mark(self._writer)
        self._writer.close()
        if whole is not None:
            self._target.write(whole.getvalue().to_pybytes())
        self._data = self._target.finish()


class _Partitions:
    """The open writers of one insert."""

    def __init__(self, maker: PartMaker) -> None:
        self._maker = maker
        self._writers: dict[str, PartWriter] = {}
        self._seen: set[str] = set()
        #: Grows only. So an insert has at most one more part for each float column and open partition.
        self._floats = maker.floats
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[EncodedPart]:
        """Add a batch of the stream; yield the parts that have become large enough."""
        for one in self._writers.values():
            one.check()
        schema = self._maker.schema
        batch = schema.conform(batch, self._rows)
        self._rows += batch.num_rows
        for path, rows in split(batch, schema.partition_by):
            floats = FloatColumns.of(rows)
            self._floats |= floats
            writer = self._writers.get(path)
            if writer is not None and not writer.allows(floats):
                yield self._finish(path)
                writer = None
            writer = writer or self._open(path)
            writer.add(rows)
            if writer.reaches(self._maker.settings.part_bytes_max):
                yield self._finish(path)
        self._relieve()

    def finish(self) -> Iterator[EncodedPart]:
        """Yield the parts that are still open; each spare thread encodes one ahead of it."""
        ahead = 1 + self._maker.spare.threads
        paths = list(self._writers)
        for number, path in enumerate(paths):
            for one in paths[number : number + ahead]:
                self._writers[one].end()
            yield self._finish(path)

    def abandon(self) -> None:
        """Write nothing more to any sink."""
        for writer in self._writers.values():
            writer.abandon()

    def _finish(self, path: str) -> EncodedPart:
        part = self._writers[path].finish()
        del self._writers[path]
        return part

    def _open(self, path: str) -> PartWriter:
        self._seen.add(path)
        require_partitions(len(self._seen), self._maker.schema, self._maker.settings)
        writer = self._writers[path] = PartWriter(self._maker, path, self._floats)
        return writer

    def _relieve(self) -> None:
        """Keep several writers together within the memory that a single one may use."""
        writers = self._writers.values()
        limit = self._maker.settings.row_group_bytes
        if len(writers) <= 1 or sum(writer.memory_bytes for writer in writers) <= limit:
            return
        for writer in writers:
            writer.settle_memory()
        total = sum(writer.memory_bytes for writer in writers)
        while total > limit:
            largest = max(writers, key=lambda writer: writer.memory_bytes)
            total -= largest.memory_bytes
            largest.spill()


def _encode(
    source: Any, end: Callable[[], tuple[bytes, bool]], maker: PartMaker
) -> Generator[EncodedPart, None, None]:
    """Read an IPC stream and yield its parts.

    Args:
        source: A source for the Arrow reader.
        end: Returns, when all is read, the last bytes and whether more follow.
        maker: The needs of the parts.
    """
    partitions = _Partitions(maker)
    try:
        for batch in batches_of(source, end, maker.schema):
            yield from partitions.add(batch)
        yield from partitions.finish()
    finally:
        partitions.abandon()


def _end(encoded: Generator[EncodedPart, None, None]) -> None:
    """Release the memory of a large insert: Arrow keeps freed row groups for the next ones, maybe forever."""
    encoded.close()
    pa.default_memory_pool().release_unused()
    give_back()


def encode_small(body: bytes, maker: PartMaker) -> list[EncodedPart]:
    """Turn a complete body into parts, in the calling thread.

    Raises:
        BadRequestError: Not a complete Arrow IPC stream.
        SchemaMismatchError: The rows do not fit the table.
        TooLargeError: More partitions than ``partitions_per_insert_max``, or a folder's name is too long.
    """
    return list(_encode(*whole(body), maker))


def encode_shared(
    inserts: Iterable[CheckedRows], settings: AgentSettings, new_part: Callable[[], PartId]
) -> list[tuple[TableId, EncodedPart]]:
    """Encode the rows of several inserts into one part for each table and partition, in the calling thread.

    Args:
        inserts: Those of one table have the same version of its definition.
        settings: The limits.
        new_part: Returns a part id.

    Raises:
        TooLargeError: A part would be larger than ``inline_part_bytes_max``.
    """
    together: dict[tuple[TableId, str], list[pa.RecordBatch]] = {}
    schemas: dict[TableId, TableSchema] = {}
    for insert in inserts:
        schemas[insert.schema.id] = insert.schema
        for path, batches in insert.by_path.items():
            together.setdefault((insert.schema.id, path), []).extend(batches)
    parts: list[tuple[TableId, EncodedPart]] = []
    for (table, path), batches in together.items():
        maker = PartMaker(schemas[table], settings, new_part, _too_large)
        floats = functools.reduce(operator.or_, map(FloatColumns.of, batches))
        writer = PartWriter(maker, path, floats)
        try:
            for batch in batches:
                writer.add(batch)
            parts.append((table, writer.finish()))
        except BaseException:
            writer.abandon()
            raise
    return parts


def _too_large(part: PartId) -> Sink:
    raise TooLargeError(f"part {part} of several inserts would exceed inline_part_bytes_max")


class InsertStream:
    """One insert whose body comes in chunks."""

    def __init__(self, maker: PartMaker) -> None:
        self._maker = maker

    async def parts(self, chunks: AsyncIterable[bytes]) -> AsyncGenerator[EncodedPart, None]:
        """Yield the parts as they are finished; the caller takes the bytes (or the sink) of each at once.

        When this generator has ended, even by an error or by ``aclose()``, no thread writes to a sink any
        more.

        Raises:
            BadRequestError, SchemaMismatchError: As :func:`encode_small`.
            TooLargeError: As there, or the body is larger than ``insert_bytes_max``.
            Exception: An error that ``chunks`` or a sink raised.
        """
        loop = asyncio.get_running_loop()
        slots = asyncio.Semaphore(self._maker.settings.insert_chunks_ahead)
        body = InsertBody(
            self._maker.settings.row_group_bytes, lambda: loop.call_soon_threadsafe(slots.release)
        )
        encoded = _encode(body, body.end, self._maker)
        # A separate thread: it waits for the client, and a slow client must not block a thread that others
        # need.
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="insert")
        feeder = asyncio.create_task(self._feed(chunks, body, slots), name="insert-body")
        try:
            while (part := await loop.run_in_executor(thread, next, encoded, None)) is not None:
                yield part
        finally:
            body.feed(ConnectionAbortedError("the insert was given up"))
            feeder.cancel()
            await asyncio.gather(feeder, return_exceptions=True)
            await loop.run_in_executor(thread, _end, encoded)
            thread.shutdown()  # it is idle now

    async def _feed(self, chunks: AsyncIterable[bytes], body: InsertBody, slots: asyncio.Semaphore) -> None:
        received = 0
        try:
            async for chunk in chunks:
                received += len(chunk)
                self._check_size(received)
                if chunk:
                    await slots.acquire()
                    body.feed(chunk)
            body.feed(b"")
        except Exception as error:
            body.feed(error)

    def _check_size(self, received: int) -> None:
        limit = self._maker.settings.insert_bytes_max
        if received > limit:
            raise TooLargeError(
                f"the rows of an insert have more than {limit} bytes (insert_bytes_max); split it",
                limit=limit,
                found=received,
            )
