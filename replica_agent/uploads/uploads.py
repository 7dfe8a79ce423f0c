"""Writes through the file system, at the home: files are received, and those of sealed jobs become parts.

A file is written once: it is hashed while it arrives, durable when its upload ends, and never copied or
renamed on the disk again. Until its job is sealed it has only an undo row, so a crash, a rollback or the end
of the lease leaves nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import structlog

from tidelock.csnlog.core.ids import PartId, TableId, Tid
from tidelock.errors import (
    BadRequestError,
    TidelockError,
    UnavailableError,
    UnsealedWriteError,
)
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.pack_writer import PartNumbers
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replica_agent.tables.partitions import values_of
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.staged_files import StagedFile, TableWrites, TakenParts
from tidelock.replica_agent.transactions.staging_area import InPlace
from tidelock.replica_agent.transactions.staging_paths import PathKind, StagingPath, kind_of, text_of
from tidelock.replica_agent.transactions.statements.insert import Inserts
from tidelock.replica_agent.transactions.statements.removals import Removals
from tidelock.replica_agent.transactions.statements.row_staging import STAGE
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replica_agent.uploads.eager_replication import EagerReplication
from tidelock.replica_agent.uploads.examiner import FileExaminer
from tidelock.replica_agent.uploads.local_files import LocalFile, linkable
from tidelock.replica_agent.uploads.parquet_files import partition_path
from tidelock.replica_agent.uploads.quota import UploadQuota
from tidelock.replica_agent.uploads.receiving import UploadReceiver
from tidelock.replica_agent.uploads.replaced_rows import require_all_rows
from tidelock.replica_agent.uploads.token_issuer import TokenIssuer
from tidelock.replication.core.model import Location, PartMeta, bytes_alone
from tidelock.replication.core.room import DiskUse
from tidelock.replication.partfs import PartFs
from tidelock.wire.statements import ChangeResult, InsertResult, RowChanges

#: Files that one request to the examiner names, so that other jobs get a turn in between.
_AT_ONCE = 32

#: Returns whether the client still waits for the answer.
Waiting = Callable[[], bool]

_log = structlog.get_logger("uploads")


def _always() -> bool:
    return True


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Uploads:
    """Keeps the staging folders of the transactions of this home.

    Attributes:
        tokens: Decides which requests may use the folders.
        hint: Notifies the peers of large parts of a transaction, so that they fetch early.
    """

    settings: AgentSettings
    catalog: Catalog
    files: PartFs
    numbers: PartNumbers
    waiters: CsnWaiters
    metrics: Metrics
    transactions: Transactions
    tables: Tables
    inserts: Inserts
    removals: Removals
    tokens: TokenIssuer
    eager: EagerReplication
    receiver: UploadReceiver
    examiner: FileExaminer
    hint: Callable[[Tid, Sequence[PartMeta]], None]
    quota: UploadQuota = field(init=False)

    def __post_init__(self) -> None:
        """Set the limits of staging."""
        self.quota = UploadQuota(self.settings)

    def of(self, tx: Transaction, table: TableId) -> TableWrites:
        """Return the folder of a table to which files can be written.

        Raises:
            TransactionClosedError: The transaction accepts no statements.
            UnknownTableError: The table does not exist.
            TableModeError: It is a landing table.
        """
        self.transactions.require_open(tx)
        found = tx.staged.writes.get(table)
        if found is None:
            self._schema(tx, table)
            found = tx.staged.writes[table] = TableWrites()
            self.examiner.warm()
        return found

    def _schema(self, tx: Transaction, table: TableId) -> TableSchema:
        at = tx.begin_statement(self.waiters.reached)
        version, schema = self.tables.seen(at, tx.staged.definitions).schema(table)
        schema.require_mode(lands=False)
        tx.use(table, version)
        return schema

    async def upload(
        self,
        tx: Transaction,
        table: TableId,
        place: StagingPath,
        content: AsyncIterator[bytes],
        *,
        overwrite: bool,
    ) -> None:
        """Receive a file; on return it is durable and at its path.

        Raises:
            BadRequestError: As :meth:`StagingArea.check_create`; or the file was cut, or deleted while it was
                written.
            TooLargeError: As :class:`UploadQuota`.
            TransactionClosedError: The transaction has ended meanwhile.
            DiskFullError, UnavailableError: No byte of it was kept.
        """

        async def receive(part: PartId, grown: Callable[[int], None]) -> tuple[Location, str]:
            # It only opens a file; in a thread the file might be lost.
            sink = self.files.begin(part, use=DiskUse.NEW)
            return await self.receiver.receive(content, sink, grown), sink.checksum

        await self._take(tx, self.of(tx, table), place, receive, overwrite=overwrite)

    async def link(
        self, tx: Transaction, table: TableId, place: StagingPath, source: LocalFile, *, overwrite: bool
    ) -> bool:
        """Take a file of this machine by a link; return False if that is not possible, and nothing is done.

        A link takes no time. The other replicas begin to copy its bytes at once.

        Raises as :meth:`upload`.
        """
        found = await self.receiver.run(linkable, self.settings.import_dir, source)
        if found is None:
            return False
        writes = self.of(tx, table)

        async def link(part: PartId, grown: Callable[[int], None]) -> tuple[Location, str]:
            grown(source.length)
            return await self.receiver.run(self.files.link, part, found)

        try:
            number = await self._take(tx, writes, place, link, overwrite=overwrite)
        except OSError as error:  # another file system, or one without links
            _log.info("not_linked", tid=str(tx.tid), path=source.path, reason=str(error))
            return False
        await self.eager.announce(tx, writes, [number])
        return True

    async def _take(
        self,
        tx: Transaction,
        writes: TableWrites,
        place: StagingPath,
        bring: Callable[[PartId, Callable[[int], None]], Awaitable[tuple[Location, str]]],
        *,
        overwrite: bool,
    ) -> int:
        """Make a file that ``bring`` brings part of the folder; return its number there.

        ``bring`` returns the place and the checksum of the file.
        """
        self.quota.require_file(tx)
        number, dropped = writes.area.create(place, overwrite=overwrite)
        part = self.numbers.next()
        file = writes.files[number] = StagedFile(part, self.files.part_path(part))
        came = 0

        def grown(length: int) -> None:
            nonlocal came
            if number not in writes.files:
                raise _deleted(place)
            writes.length += length - came
            came = length
            self.quota.require_bytes(tx, length)

        with self._running(tx):
            try:
                await self.eager.discard(writes.take(dropped))
                await self.catalog.write(lambda db: jobs.note_undo(db, [file.path]))
                location, checksum = await bring(part, grown)
                self.transactions.require_open(tx)
                if not writes.area.finish(number, location.length):
                    raise _deleted(place)  # noqa: TRY301 - cleaned up below
                meta = bytes_alone(part, location.length, checksum)
                writes.files[number] = StagedFile(part, file.path, meta, location)
            except BaseException:
                writes.length -= came
                writes.area.abandon(number)
                writes.files.pop(number, None)
                await asyncio.shield(self._remove([file.path]))
                raise
        self.metrics.uploads.labels("own").inc()
        return number

    async def rename(self, tx: Transaction, table: TableId, source: StagingPath, target: StagingPath) -> bool:
        """Move a file or a folder; if the move commits a task, the task's files are copied to the peers.

        Returns:
            False in the cases in which Hadoop expects False.

        Raises:
            BadRequestError: As :meth:`StagingArea.rename`.
        """
        writes = self.of(tx, table)
        async with writes.turn:
            self.transactions.require_open(tx)
            if not writes.area.rename(source, target):
                return False
            if kind_of(target) is PathKind.TASK:
                await self.eager.announce(tx, writes, writes.area.below(target))
            return True

    async def delete(
        self,
        tx: Transaction,
        table: TableId,
        place: StagingPath,
        *,
        recursive: bool,
        waiting: Waiting = _always,
        confirmed: bool = True,
    ) -> bool:
        """Delete staged files; or, for the folder of the table or of a partition, its existing rows.

        ``waiting`` and ``confirmed`` are those of :meth:`mark`.

        Raises:
            BadRequestError: As :meth:`StagingArea.delete`.
            SerializationConflictError: Another transaction removes such rows; rollback only.
            UnsealedWriteError, SchemaMismatchError, UnavailableError: As :meth:`mark`; a job that replaces
                partitions ends with this deletion.
        """
        writes = self.of(tx, table)
        async with writes.turn:
            self.transactions.require_open(tx)
            schema = self._schema(tx, table)
            found = writes.area.delete(place, recursive=recursive)
            await self.eager.discard(writes.take(found.dropped))
            if found.replaces is not None:
                if found.replaces:
                    values = values_of(partition_path(found.replaces, schema), schema)
                    texts = {name: None if value is None else _plain(value) for name, value in values.items()}
                    await self.removals.drop_partition(tx, schema.name, texts)
                else:
                    await self.removals.truncate(tx, schema.name)
            if found.seals:
                writes.unconfirmed |= not confirmed
                await self._seal(tx, table, writes, waiting)
            return found.existed

    async def mark(
        self,
        tx: Transaction,
        table: TableId,
        place: StagingPath,
        waiting: Waiting = _always,
        *,
        confirmed: bool = True,
    ) -> None:
        """Receive a ``_SUCCESS``, which seals the job.

        Args:
            tx: The transaction.
            table: The table of the folder.
            place: The path of the mark.
            waiting: Returns whether the client still waits for the answer.
            confirmed: The job counts at once; otherwise the transaction cannot be committed before
                :meth:`confirm`.

        Raises:
            UnavailableError: The client does not wait any more. For Spark the job has failed then,
                and may be run again, so that its rows would be added twice: the transaction is
                rollback only.
            Others as :meth:`seal`.
        """
        writes = self.of(tx, table)
        async with writes.turn:
            _require_insert(table, writes)
            if writes.area.mark(place):
                writes.unconfirmed |= not confirmed
                await self._seal(tx, table, writes, waiting)

    async def confirm(self, tx: Transaction, table: TableId) -> bool:
        """Let the sealed jobs of a table count; return whether one has waited for that."""
        writes = self.of(tx, table)
        async with writes.turn:
            self.transactions.require_open(tx)
            waited, writes.unconfirmed = writes.unconfirmed, False
            return waited

    async def seal(self, tx: Transaction, table: TableId) -> InsertResult:
        """Turn the files of the ended job into parts of the transaction; none if it was sealed before.

        Raises:
            UnsealedWriteError: Some of its tasks still run.
            BadRequestError: The job replaces rows, and is to be ended by :meth:`seal_change`.
            SchemaMismatchError: A file does not fit the table; the transaction accepts rollback only.
            CheckViolationError: Rows break a check of the table; likewise.
            DuplicateKeyError, SerializationConflictError: Rows have keys that the table has, or that others
                add to it; likewise.
            TooManyPartsError: A partition has too many parts; likewise.
            RefusedError: A table that is derived from this one cannot follow; likewise.
            DiskFullError, UnavailableError: Likewise.
        """
        writes = self.of(tx, table)
        async with writes.turn:
            _require_insert(table, writes)
            return await self._seal(tx, table, writes)

    async def seal_change(self, tx: Transaction, table: TableId, asked: RowChanges) -> ChangeResult:
        """Seal the job that writes what a change leaves of the rows of parts, and its new rows.

        Args:
            tx: An open transaction of this home.
            table: The table, some parts of which were taken by `Replacements.begin`.
            asked: The numbers of changed rows.

        Raises:
            BadRequestError: No parts were taken.
            CorruptError: The files do not have the rows of these parts less the deleted ones, and the
                inserted ones; the transaction accepts rollback only.
            Others as :meth:`seal`.
        """
        writes = self.of(tx, table)
        async with writes.turn:
            taken = writes.taken
            if taken is None:
                raise BadRequestError(
                    f"no parts of table {table} were taken by {tx.tid}, so there is no change to end; seal "
                    "the job instead",
                    table=table,
                )
            with tx.ending.failing(f"the change of {table}", spared=UnsealedWriteError):
                sealed = await self._seal(tx, table, writes, taken=taken)
                require_all_rows(table, taken.rows, asked, sealed.rows)
            writes.taken = None
            return ChangeResult(
                asked.rows_deleted, asked.rows_updated, asked.rows_inserted, len(taken.parts), sealed.parts
            )

    async def settle(
        self, tx: Transaction, table: TableId, job: str, places: Iterable[StagingPath]
    ) -> InsertResult:
        """End a job by naming its files that count, and seal it; errors as :meth:`seal` and as the area's."""
        writes = self.of(tx, table)
        async with writes.turn:
            self.transactions.require_open(tx)
            _require_insert(table, writes)
            await self.eager.discard(writes.take(writes.area.settle(job, places)))
            return await self._seal(tx, table, writes)

    async def _seal(
        self,
        tx: Transaction,
        table: TableId,
        writes: TableWrites,
        waiting: Waiting = _always,
        *,
        taken: TakenParts | None = None,
    ) -> InsertResult:
        self.transactions.require_open(tx)
        # A job that has failed leaves only the rollback: a commit of its remaining files would be half of it.
        with self._running(tx), tx.ending.failing(f"the write to {table}", spared=UnsealedWriteError):
            sealed = await self._add(tx, table, writes, taken)
            if not waiting():
                raise _unheard(table)
            return sealed

    async def _add(
        self, tx: Transaction, table: TableId, writes: TableWrites, taken: TakenParts | None
    ) -> InsertResult:
        await STAGE.before()
        schema, found = self._schema(tx, table), writes.area.closing()
        if not found:
            writes.area.seal(found)
            return InsertResult(0, 0)
        files = {item.number: writes.files[item.number] for item in found}
        places = await self.eager.gather(tx, list(files.values()))
        staged: list[jobs.StagedPart] = []
        for first in range(0, len(found), _AT_ONCE):
            some = found[first : first + _AT_ONCE]
            staged += await self._examine(tx, schema, some, files, places)
        for path in sorted({part.meta.path for part in staged}):
            await self.inserts.pressure.admit(tx.staged, schema, path)
        await self.catalog.write(partial(jobs.name_staged, parts=staged))
        metas = [part.meta for part in staged]
        # Before they are parts of the transaction, which may be committed while they are judged.
        judged = None
        while judged != schema.conditions:
            judged = schema.conditions
            await self.inserts.checks.require(tx, schema, metas, at=tx.read_csn)
            self.transactions.require_open(tx)
            schema = self._schema(tx, table)  # unless the transaction has dropped or changed it meanwhile
        await self.inserts.accept(tx, table, metas, None if taken is None else taken.parts)
        self.transactions.require_open(tx)
        tx.staged.stored.update({part.meta.part: part.meta for part in staged})
        writes.area.seal(found)
        kept = {part.meta.part for part in staged}
        empty = [number for number, file in files.items() if file.part not in kept]
        writes.take(files.keys() - empty)
        await self.eager.discard(writes.take(empty))
        self.hint(tx.tid, metas)
        self.metrics.inserted_rows.inc(sum(meta.rows for meta in metas))
        await STAGE.after()
        return InsertResult(sum(meta.rows for meta in metas), len(metas))

    async def _examine(
        self,
        tx: Transaction,
        schema: TableSchema,
        found: Sequence[InPlace],
        files: dict[int, StagedFile],
        places: dict[PartId, Location],
    ) -> list[jobs.StagedPart]:
        """Check files of a job; those without rows are left out."""
        paths = [partition_path(item.place[:-1], schema) for item in found]
        own = [files[item.number] for item in found]
        facts = await self.examiner.examine(schema, [places[file.part] for file in own])
        staged = []
        for path, file, known in zip(paths, own, facts, strict=True):
            assert file.meta is not None, file
            if known.rows:
                meta = msgspec.structs.replace(
                    file.meta, table=schema.id, path=path, rows=known.rows, stats=known.stats
                )
                staged.append(jobs.StagedPart(meta, places[file.part], tx.tid))
        return staged

    @contextlib.contextmanager
    def _running(self, tx: Transaction) -> Iterator[None]:
        """Run as a statement of a transaction: the transaction's end cuts it, and is then the error."""
        with tx.statements.cuttable():
            try:
                yield
            except asyncio.CancelledError:
                if not tx.leased:
                    self.transactions.require_open(tx)
                raise

    async def _remove(self, paths: Sequence[str]) -> None:
        """Delete files; those that cannot be deleted now are remembered and deleted later."""
        with contextlib.suppress(TidelockError):
            await remove_files(self.catalog, self.files, paths)


def _require_insert(table: TableId, writes: TableWrites) -> None:
    """Raise BadRequestError if the job is to end with the numbers of the rows that it has changed."""
    if writes.taken is not None:
        raise BadRequestError(
            f"the job replaces rows of {len(writes.taken.parts)} parts of table {table}, and ends with their "
            "numbers: end the change (tidelock.spark.merge, update and delete do), or roll back",
            table=table,
        )


def _unheard(table: TableId) -> UnavailableError:
    return UnavailableError(
        f"the job that writes to {table} was sealed, but Spark had given up waiting, so it reports the job "
        "as failed: begin again, with a longer dfs.webhdfs.socket.read-timeout",
        table=table,
    )


def _deleted(place: StagingPath) -> BadRequestError:
    return BadRequestError(f"{text_of(place)} was deleted while it was written")


def _plain(value: object) -> bool | int | str:
    return value if isinstance(value, bool | int) else str(value)
