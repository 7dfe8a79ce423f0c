"""Writes through the file system, at the home: files stream in, and those of sealed jobs become parts.

A file is written once: hashed while it comes in, durable when its upload ends, and never copied or renamed on
the disk again. Until its job is sealed it has an undo row and no other, so a crash, a rollback or the end of
the lease leaves nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from aiohttp import web

from tidelock.csnlog.ids import TableName
from tidelock.errors import (
    BadRequestError,
    TidelockError,
    TooLargeError,
    UnsealedWriteError,
    UnsupportedInTransactionError,
)
from tidelock.replica_agent import catalog_jobs as jobs
from tidelock.replica_agent.inserts import STAGE, Inserts
from tidelock.replica_agent.partitions import values_of
from tidelock.replica_agent.removals import Removals
from tidelock.replica_agent.schema import TableSchema
from tidelock.replica_agent.transactions import Transaction, TxState
from tidelock.replica_agent.unused_files import remove_files
from tidelock.replica_agent.writes.area import InPlace
from tidelock.replica_agent.writes.parquet_files import examine, partition_path
from tidelock.replica_agent.writes.passes import Passes
from tidelock.replica_agent.writes.places import Place, text_of
from tidelock.replica_agent.writes.staged import StagedFile, TableWrites
from tidelock.replication.model import PartMeta
from tidelock.replication.partfs import BUFFER_BYTES, PartSink

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a sealed job has added."""

    rows: int
    parts: int


class Writes:
    """Keeps the staging folders of the transactions of this home; ``passes`` tells who may use them."""

    def __init__(self, inserts: Inserts, removals: Removals, passes: Passes) -> None:
        self.passes = passes
        self._inserts, self._removals = inserts, removals
        self._settings, self._catalog, self._files = inserts.settings, inserts.catalog, inserts.files
        self._transactions = inserts.transactions

    def of(self, tx: Transaction, table: TableName) -> TableWrites:
        """Return the folder of a table that files can be written for.

        Raises:
            TransactionClosedError: The transaction takes no statements.
            UnknownTableError: There is no such table.
            UnsupportedInTransactionError: Its rows have to be looked at one by one.
        """
        self._transactions.require_open(tx)
        found = tx.writes.get(table)
        if found is None:
            self._schema(tx, table)
            found = tx.writes[table] = TableWrites()
        return found

    def _schema(self, tx: Transaction, table: TableName) -> TableSchema:
        version, schema = self._inserts.schema(table, tx.begin_statement(self._inserts.reached()))
        if schema.unique_key or schema.dependents:
            why = (
                "a unique key"
                if schema.unique_key
                else f"tables derived from it ({', '.join(schema.dependents)})"
            )
            raise UnsupportedInTransactionError(
                f"table {table} has {why}, so whole files cannot be added to it: use tx.insert, tx.upsert or "
                "tx.merge",
                table=table,
            )
        tx.use(table, version)
        return schema

    async def upload(
        self,
        tx: Transaction,
        table: TableName,
        place: Place,
        content: AsyncIterator[bytes],
        *,
        overwrite: bool,
    ) -> None:
        """Take a file; when this returns it is durable, and at its place.

        Raises:
            BadRequestError: As :meth:`StagingArea.check_create`; or it was cut, or deleted while it was
                written.
            TooLargeError: It has more than ``insert_bytes_max`` bytes.
            TransactionClosedError: The transaction has ended meanwhile.
            DiskFullError, UnavailableError: Nothing of it was kept.
        """
        writes = self.of(tx, table)
        number, dropped = writes.area.create(place, overwrite=overwrite)
        part = self._inserts.numbers.next()
        file = writes.files[number] = StagedFile(part, self._files.part_path(part))
        with self._running(tx):
            try:
                await self._remove(writes.take(dropped))
                await self._catalog.write(lambda db: jobs.note_undo(db, [file.path]))
                sink = self._files.begin(part)  # only opens a file; in a thread it might be lost
                try:
                    await self._receive(content, sink)
                    location = await _to_the_end(sink.finish)
                except BaseException:
                    await _to_the_end(sink.abandon)
                    raise
                self._transactions.require_open(tx)
                if not writes.area.finish(number, location.length):
                    raise _deleted(place)  # noqa: TRY301 - cleaned up below
                writes.files[number] = StagedFile(part, file.path, sink.checksum, location)
            except BaseException:
                writes.area.abandon(number)
                writes.files.pop(number, None)
                await asyncio.shield(self._remove([file.path]))
                raise

    async def _receive(self, content: AsyncIterator[bytes], sink: PartSink) -> None:
        """Write a body in pieces worth a thread's turn."""
        pieces: list[bytes] = []
        size = 0
        try:
            async for piece in content:
                pieces.append(piece)
                size += len(piece)
                if size >= BUFFER_BYTES:
                    await _to_the_end(sink.write, b"".join(pieces))
                    pieces, size = [], 0
                    self._check_size(sink.length)
        except (web.RequestPayloadError, ConnectionError) as error:
            raise BadRequestError("the file was cut on its way; nothing of it was kept") from error
        if pieces:
            await _to_the_end(sink.write, b"".join(pieces))
        self._check_size(sink.length)

    def _check_size(self, found: int) -> None:
        limit = self._settings.insert_bytes_max
        if found > limit:
            raise TooLargeError(
                f"a file has more than {limit} bytes (insert_bytes_max): write smaller ones "
                "(spark.sql.files.maxRecordsPerFile)",
                limit=limit,
                found=found,
            )

    async def delete(self, tx: Transaction, table: TableName, place: Place, *, recursive: bool) -> bool:
        """Delete staged files; or, of the table's folder or a partition's, the rows that are there.

        Raises:
            BadRequestError: As :meth:`StagingArea.delete`.
            SerializationConflictError: Another transaction removes such rows; rollback only.
            UnsealedWriteError, SchemaMismatchError: As :meth:`seal`; of a job that replaces partitions this
                is its end.
        """
        writes = self.of(tx, table)
        async with writes.turn:
            self._transactions.require_open(tx)
            schema = self._schema(tx, table)
            found = writes.area.delete(place, recursive=recursive)
            await self._remove(writes.take(found.dropped))
            if found.replaces is not None:
                if found.replaces:
                    values = values_of(partition_path(found.replaces, schema), schema)
                    texts = {name: None if value is None else _plain(value) for name, value in values.items()}
                    await self._removals.drop_partition(tx, table, texts)
                else:
                    await self._removals.truncate(tx, table)
            if found.seals:
                await self._seal(tx, table, writes)
            return found.existed

    async def mark(self, tx: Transaction, table: TableName, place: Place) -> None:
        """Take a ``_SUCCESS``, which seals the job. Raises as :meth:`seal`."""
        writes = self.of(tx, table)
        async with writes.turn:
            if writes.area.mark(place):
                await self._seal(tx, table, writes)

    async def seal(self, tx: Transaction, table: TableName) -> Sealed:
        """Turn the files of the job that has ended into parts of the transaction; none if that has happened.

        Raises:
            UnsealedWriteError: Tasks of it are still at work.
            SchemaMismatchError: A file does not fit the table; the transaction takes rollback only.
            TooManyPartsError: A partition has too many parts; likewise.
            DiskFullError, UnavailableError: Likewise.
        """
        writes = self.of(tx, table)
        async with writes.turn:
            return await self._seal(tx, table, writes)

    async def settle(self, tx: Transaction, table: TableName, job: str, places: Iterable[Place]) -> Sealed:
        """End a job by naming its files that count, and seal it; errors as :meth:`seal`, and of the area."""
        writes = self.of(tx, table)
        async with writes.turn:
            self._transactions.require_open(tx)
            await self._remove(writes.take(writes.area.settle(job, places)))
            return await self._seal(tx, table, writes)

    async def _seal(self, tx: Transaction, table: TableName, writes: TableWrites) -> Sealed:
        self._transactions.require_open(tx)
        with self._running(tx):
            try:
                return await self._add(tx, table, writes)
            except UnsealedWriteError:
                raise
            except TidelockError as error:
                # The job has failed, so a commit of what it has left would be half of it.
                self._transactions.fail(tx, error)
                raise

    async def _add(self, tx: Transaction, table: TableName, writes: TableWrites) -> Sealed:
        await STAGE.before()
        schema, found = self._schema(tx, table), writes.area.closing()
        if not found:
            writes.area.seal(found)
            return Sealed(0, 0)
        files = {item.number: writes.files[item.number] for item in found}
        loop = asyncio.get_running_loop()
        staged = await loop.run_in_executor(self._inserts.encoders, self._examine, tx, schema, found, files)
        for path in sorted({part.meta.path for part in staged}):
            await self._inserts.pressure.admit(tx, schema, path)
        await self._catalog.write(lambda db: jobs.add_staged(db, staged, []))
        self._transactions.require_open(tx)
        tx.stored.update({part.meta.part: part.meta for part in staged})
        writes.area.seal(found)
        kept = {part.meta.part for part in staged}
        empty = [number for number, file in files.items() if file.part not in kept]
        for number in files.keys() - empty:
            del writes.files[number]
        await self._remove(writes.take(empty))
        metas = [part.meta for part in staged]
        self._inserts.hint(tx, metas)
        self._inserts.metrics.inserted_rows.inc(sum(meta.rows for meta in metas))
        await STAGE.after()
        return Sealed(sum(meta.rows for meta in metas), len(metas))

    def _examine(
        self,
        tx: Transaction,
        schema: TableSchema,
        found: Sequence[InPlace],
        files: dict[int, StagedFile],
    ) -> list[jobs.StagedPart]:
        """Check all files of a job, in a thread; those without rows are left out."""
        staged = []
        for item in found:
            file = files[item.number]
            assert file.location is not None, item
            path = partition_path(item.place[:-1], schema)
            rows, stats = examine(self._files.data_dir / file.path, schema)
            if rows:
                meta = PartMeta(
                    part=file.part, table=schema.name, path=path, rows=rows, length=file.location.length,
                    checksum=file.checksum, stats=stats,
                )  # fmt: skip
                staged.append(jobs.StagedPart(meta, file.location, tx.tid))
        return staged

    @contextlib.contextmanager
    def _running(self, tx: Transaction) -> Iterator[None]:
        """Run as a statement of a transaction: its end cuts this, and is what is then told."""
        task = asyncio.current_task()
        assert task is not None
        inside = task in tx.uploads
        tx.uploads.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if tx.state not in {TxState.OPEN, TxState.FAILED}:
                self._transactions.require_open(tx)
            raise
        finally:
            if not inside:
                tx.uploads.discard(task)
                tx.upload_ended.set()

    async def _remove(self, paths: Sequence[str]) -> None:
        """Delete files; what cannot go now is kept in mind, and goes later."""
        with contextlib.suppress(TidelockError):
            await remove_files(self._catalog, self._files, paths)


async def _to_the_end(call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Run a blocking call in a thread; who is cancelled meanwhile goes on when that has ended.

    Else a file would be discarded while a thread still writes, or renames, it.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call, *args, **named))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


def _deleted(place: Place) -> BadRequestError:
    return BadRequestError(f"{text_of(place)} was deleted while it was written")


def _plain(value: object) -> bool | int | str:
    return value if isinstance(value, bool | int) else str(value)
