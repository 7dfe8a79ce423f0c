"""Row staging: an Arrow IPC stream, or row groups of stored parts, become staged parts of a transaction.

Small bodies are turned into Parquet in memory and stay there until the transaction is sealed; large ones
stream into separate files, each with its undo row first. An upload counts only if its transaction is still
open when the upload ends: the seal, a rollback or the end of the lease cuts it, and its output is taken back.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import sqlite3
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import msgspec

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import Csn, PartId, TableId, Tid
from tidelock.errors import SchemaMismatchError, TidelockError, UnavailableError
from tidelock.part_layout import NO_FLOATS, FloatColumns
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replica_agent.storage.damaged_parts import part_damaged
from tidelock.replica_agent.storage.pack_writer import PartNumbers, StagedBytes, Stager
from tidelock.replica_agent.storage.part_cutter import cut_part
from tidelock.replica_agent.storage.part_writer import (
    EncodedPart,
    InsertStream,
    PartMaker,
    encode_shared,
    encode_small,
)
from tidelock.replica_agent.storage.row_streams import CheckedRows, check_small
from tidelock.replica_agent.storage.shared_bytes import Sharer, share
from tidelock.replica_agent.storage.spare_encoders import SpareEncoders
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState
from tidelock.replication.core.model import PartMeta
from tidelock.replication.core.room import DiskUse
from tidelock.replication.partfs import PartFs, PartSink

STAGE = faults.step("agent.stage")
#: A body of up to so many bytes is checked in the event loop: a thread would take longer to be told.
_CHECKED_AT_ONCE_BYTES = 64 << 10


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class RowStaging:
    """Turns rows into staged parts of a transaction.

    Attributes:
        hint: Notifies the peers of large parts of a transaction, so that they fetch early.
    """

    settings: AgentSettings
    catalog: Catalog
    files: PartFs
    stager: Stager
    numbers: PartNumbers
    transactions: Transactions
    tables: Tables
    hint: Callable[[Tid, Sequence[PartMeta]], None]
    encoders: ThreadPoolExecutor = field(init=False)
    spare: SpareEncoders = field(init=False)
    _large: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        """Make the threads, and room for ``large_inserts_max`` large inserts."""
        self.encoders = ThreadPoolExecutor(max_workers=2, thread_name_prefix="encode")
        self.spare = SpareEncoders(self.settings.encode_threads - 1)
        self._large = asyncio.Semaphore(self.settings.large_inserts_max)

    @contextlib.asynccontextmanager
    async def large(self) -> AsyncIterator[None]:
        """Hold a slot for an insert that does not stay in memory; each such insert may use much memory.

        Raises:
            UnavailableError: No slot became free within ``commit_timeout_s``; nothing was kept.
        """
        try:
            async with asyncio.timeout(self.settings.commit_timeout_s):
                await self._large.acquire()
        except TimeoutError:
            raise UnavailableError(
                f"{self.settings.large_inserts_max} large inserts run already (large_inserts_max); "
                "nothing was kept: insert again later, or begin on another replica"
            ) from None
        try:
            yield
        finally:
            self._large.release()

    def close(self) -> None:
        """End the threads."""
        self.encoders.shutdown(wait=False, cancel_futures=True)
        self.spare.close()

    async def stage(
        self,
        tx: Transaction,
        table: TableId,
        pieces: AsyncIterable[bytes],
        *,
        at: Csn | None = None,
        path: str | None = None,
        floats: FloatColumns = NO_FLOATS,
    ) -> tuple[int, Sequence[PartMeta]]:
        """Stage rows as they are, from pieces of one Arrow IPC stream; return their number and their parts.

        If it raises, no row is kept.

        Args:
            tx: It keeps the rows until it ends.
            table: The rows are checked against its definition.
            pieces: The pieces of the stream.
            at: The CSN whose definition counts; None: the transaction's snapshot.
            path: Partition that all rows must belong to, or None.
            floats: Those of the rows, as far as they are known.

        Raises:
            RefusedError: The rows do not fit the table, or a limit was passed.
        """
        at = tx.tid.snapshot if at is None else at
        version, schema = self.tables.seen(at, tx.staged.definitions).schema(table)
        upload = _RowUpload(self, tx, schema, path)
        try:
            rows = await upload.run(pieces, floats)
            tx.use(table, version)
        except BaseException:
            await asyncio.shield(upload.discard())
            raise
        return rows, upload.parts

    async def cut(
        self, tx: Transaction, table: TableId, kept: Sequence[tuple[PartRow, Sequence[int]]], at: Csn
    ) -> Sequence[PartMeta]:
        """Stage row groups of stored parts as they are, those of each as a part of its own.

        If it raises, nothing is kept.

        Args:
            tx: It keeps the parts until it ends.
            table: The table of the parts.
            kept: The parts, each with the numbers of its row groups, ascending.
            at: The CSN whose definition counts.

        Raises:
            CorruptError: The bytes of a part are not the written ones.
            DiskFullError, UnavailableError: They could not be written.
        """
        _, schema = self.tables.seen(at, tx.staged.definitions).schema(table)
        upload = _RowUpload(self, tx, schema, None)
        try:
            await upload.cut(kept)
        except BaseException:
            await asyncio.shield(upload.discard())
            raise
        return upload.parts

    async def checked(self, version: int, schema: TableSchema, stream: bytes) -> CheckedRows:
        """Return the rows of a complete stream, not yet encoded.

        Raises:
            RefusedError: The rows do not fit the table, or a limit was passed.
        """
        self.files.room.admit(DiskUse.NEW, 0)
        work = partial(check_small, stream, schema, version, self.settings)
        if len(stream) <= _CHECKED_AT_ONCE_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.encoders, work)

    async def check(self, tx: Transaction, version: int, schema: TableSchema, stream: bytes) -> CheckedRows:
        """Check the rows of a complete stream, which their transaction keeps until it departs.

        Raises:
            RefusedError: The rows do not fit the table, or a limit was passed.
        """
        rows = await self.checked(version, schema, stream)
        self.transactions.require_open(tx)
        tx.use(schema.id, version)
        if rows.count:
            self.transactions.keep(tx, rows)
        return rows

    async def encode(
        self, tx: Transaction, owners: Sequence[Transaction], landed: Mapping[TableId, Csn] | None = None
    ) -> None:
        """Encode the rows that transactions keep into parts of ``tx``, in memory.

        One part holds the rows of all of them in one partition of one table.

        Args:
            tx: The transaction that gets the parts.
            owners: Those whose rows are encoded; they keep them unless ``tx`` is the only one.
            landed: Of rows that land: for each table a CSN at which it had their columns. Such parts may be
                committed when it has others (rule columns).

        Raises:
            TooLargeError: A part would be too large to be kept in memory.
        """
        rows = [one for owner in owners for one in owner.staged.rows]
        work = partial(encode_shared, rows, self.settings, self.numbers.next)
        parts = await asyncio.get_running_loop().run_in_executor(self.encoders, work)
        if tx in owners:
            self.transactions.take_rows(tx)
        for table, part in parts:
            assert part.data is not None, "a part of small inserts is in memory"
            meta = _meta(table, part)
            if landed is not None:
                meta = msgspec.structs.replace(meta, kind="landed", columns_csn=landed[table])
            self.transactions.add(tx, StagedBytes(meta, part.data, tx.tid))

    async def share(
        self,
        tx: Transaction,
        table: TableId,
        parts: Sequence[PartRow],
        columns_csn: Callable[[PartRow], Csn | None] = operator.attrgetter("columns_csn"),
    ) -> Sequence[PartMeta]:
        """Add parts to ``table`` that have the bytes of other parts (rule shared-bytes); return them.

        A peer that holds the other parts takes their bytes; one that does not receives the new parts like
        every part.

        Args:
            tx: The transaction that adds them.
            table: The table, whose definition shows the columns of the parts.
            parts: The other parts, of any table, removed or not.
            columns_csn: Returns the CSN at which the table had the columns of a part; None: those of now.

        Raises:
            PartDamagedError: One of the other parts is damaged here, and is being fetched again.
        """
        new = [
            msgspec.structs.replace(
                row.meta,
                part=self.numbers.next(),
                table=table,
                kind="part",
                source=row.meta.origin,
                columns_csn=columns_csn(row),
            )
            for row in parts
        ]

        def job(db: sqlite3.Connection) -> None:
            done = share(db, [Sharer(meta, tx.tid) for meta in new])
            for meta, row in zip(new, parts, strict=True):
                if meta.part not in done.parts:
                    raise part_damaged(self.transactions.replica, row, f"of table {row.table}")

        await self.catalog.write(job)
        tx.staged.stored.update({meta.part: meta for meta in new})
        return new

    async def write_out(self, tx: Transaction) -> None:
        """Write the parts that a transaction holds in memory, so that its own queries can read them."""
        memory = list(tx.staged.memory.values())
        if not memory:
            return
        self.files.room.admit(DiskUse.NEW, sum(staged.meta.length for staged in memory))
        await self.stager.store(memory, [])
        # Other statements went on meanwhile: rows that were inserted stay in memory, and a part that was
        # taken back, or written out by another query, is not added again.
        moved = [staged.meta for staged in memory if staged.meta.part in tx.staged.memory]
        dropped = []
        if tx.state not in {TxState.SEALED, TxState.COMMITTED}:  # else the commit owns them
            gone = (staged.meta.part for staged in memory if staged.meta.part not in tx.staged.memory)
            dropped = [part for part in gone if part not in tx.staged.stored]
        for meta in moved:
            self.transactions.drop_memory(tx, meta.part)
            tx.staged.stored[meta.part] = meta
        if dropped:
            unused = await self.catalog.write(lambda db: jobs.drop_parts(db, dropped))
            await remove_files(self.catalog, self.files, unused)
        self.transactions.require_open(tx)


@dataclass(slots=True, eq=False, repr=False)
class _RowUpload:
    """One insert under way."""

    staging: RowStaging
    tx: Transaction
    schema: TableSchema
    path: str | None
    parts: list[PartMeta] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _sinks: dict[PartId, PartSink] = field(default_factory=dict)
    _files: list[str] = field(default_factory=list)  # of large parts, complete or not
    _given_up: bool = False

    async def run(self, content: AsyncIterable[bytes], floats: FloatColumns) -> int:
        """Stage the body and return its rows; whether it is small is known at its end."""
        self.staging.files.room.admit(DiskUse.NEW, 0)
        maker = self._maker(floats)
        pieces = aiter(content)
        head, ended = await _head(pieces, self.staging.settings.inline_part_bytes_max)
        if ended:
            work = partial(encode_small, head, maker)
            for part in await self._loop.run_in_executor(self.staging.encoders, work):
                await self._take(part)
        else:
            async with self.staging.large():
                stream = InsertStream(maker).parts(_chain(head, pieces))
                try:
                    async for part in stream:
                        await self._take(part)
                finally:
                    await stream.aclose()
        self.staging.transactions.require_open(self.tx)
        return sum(meta.rows for meta in self.parts)

    async def cut(self, kept: Sequence[tuple[PartRow, Sequence[int]]]) -> None:
        """Stage row groups of stored parts."""
        self.staging.files.room.admit(DiskUse.NEW, 0)
        data_dir = self.staging.files.data_dir
        for source, groups in kept:
            work = asyncio.create_task(
                asyncio.to_thread(cut_part, self._maker(), data_dir, source, groups), name="cut a part"
            )
            try:
                await self._take(await asyncio.shield(work))
            finally:
                if not work.done():  # it has been cut short: the thread ends at its next write
                    self._given_up = True
                    await asyncio.to_thread(self._abandon)
                    await asyncio.gather(work, return_exceptions=True)
        self.staging.transactions.require_open(self.tx)

    def _maker(self, floats: FloatColumns = NO_FLOATS) -> PartMaker:
        staging = self.staging
        return PartMaker(
            self.schema, staging.settings, staging.numbers.next, self._open, floats, staging.spare
        )

    def _open(self, part: PartId) -> PartSink:
        """Write the undo row, then open the file; called in the encoding thread."""
        path = self.staging.files.part_path(part)
        noted = asyncio.run_coroutine_threadsafe(
            self.staging.catalog.write(lambda db: jobs.note_undo(db, [path])), self._loop
        )
        noted.result()
        self._files.append(path)
        if self._given_up:
            raise UnavailableError(f"the statement that writes part {part} was given up")
        sink = self._sinks[part] = self.staging.files.begin(part, use=DiskUse.NEW)
        return sink

    async def _take(self, part: EncodedPart) -> None:
        meta = _meta(self.schema.id, part)
        transactions = self.staging.transactions
        self.parts.append(meta)
        if self.path is not None and part.path != self.path:
            raise SchemaMismatchError(
                f"some rows belong to partition {part.path} of table {self.schema.name}, expected only "
                f"partition {self.path}; nothing of them was kept, give the rows of that partition alone",
                table=self.schema.name,
            )
        if part.data is None:
            location = await asyncio.to_thread(self._sinks.pop(part.part).finish)
            staged = jobs.StagedPart(meta, location, self.tx.tid)
            await self.staging.catalog.write(lambda db: jobs.add_staged(db, [staged], []))
            self.tx.staged.stored[meta.part] = meta
            transactions.require_open(self.tx)
            self.staging.hint(self.tx.tid, [meta])
        else:
            transactions.require_open(self.tx)
            transactions.add(self.tx, StagedBytes(meta, part.data, self.tx.tid))
            if transactions.memory_bytes > self.staging.settings.staged_memory_bytes_max:
                await self.staging.write_out(self.tx)

    def _abandon(self) -> None:
        for sink in list(self._sinks.values()):
            sink.abandon()

    async def discard(self) -> None:
        """Take back what this upload has added; its transaction can only be rolled back."""
        await asyncio.to_thread(self._abandon)
        dropped = [meta.part for meta in self.parts]
        for part in dropped:
            self.staging.transactions.drop_memory(self.tx, part)
            self.tx.staged.stored.pop(part, None)
        if dropped or self._files:
            # Also the rows of a write that was cut. If this fails, undecided parts and files remain that no
            # commit will name; the undecided check removes them.
            self.staging.catalog.late_removals.update(self._files)
            with contextlib.suppress(TidelockError):
                unused = await self.staging.catalog.write(lambda db: jobs.drop_parts(db, dropped))
                await remove_files(self.staging.catalog, self.staging.files, [*unused, *self._files])


def _meta(table: TableId, part: EncodedPart) -> PartMeta:
    return PartMeta(
        part=part.part, table=table, path=part.path, rows=part.rows, length=part.length,
        checksum=part.checksum, stats=part.stats, form=part.form,
    )  # fmt: skip


async def _head(body: AsyncIterator[bytes], limit: int) -> tuple[bytes, bool]:
    """Read a body until more than ``limit`` bytes are read; return them, and whether the body has ended."""
    pieces: list[bytes] = []
    size = 0
    async for chunk in body:
        pieces.append(chunk)
        size += len(chunk)
        if size > limit:
            return b"".join(pieces), False
    return b"".join(pieces), True


async def _chain(head: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for chunk in rest:
        yield chunk
