"""Statements that change rows inside a transaction: delete, update, merge, and INSERT INTO ... SELECT.

An SQL process finds the parts with matching rows; they are locked, checked and marked as removed
(:mod:`tidelock.replica_agent.transactions.statements.removals`) before the first of their remaining rows is
received. These rows are staged as the rows of an insert are; row groups of large parts that the statement
does not touch are copied as they are. Parts that the transaction has made itself are dropped last, since the
process reads them to the end. A statement that does not reach its end leaves the transaction to be rolled
back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import msgspec

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.errors import CorruptError, SerializationConflictError, TooLargeError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.sql.mutation import (
    Action,
    CompareKeys,
    DeleteRows,
    InsertRows,
    MergeRows,
    MutationRequest,
    RewriteRows,
    UpdateRows,
)
from tidelock.replica_agent.sql.pool import SqlPool
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.removals import TRIES, Removals
from tidelock.replica_agent.transactions.statements.row_checks import JUDGED_BYTES, RowChecks
from tidelock.replica_agent.transactions.statements.row_staging import RowStaging
from tidelock.replica_agent.transactions.statements.unique import UniqueKeys, for_unique_key
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replication.core.model import PartMeta
from tidelock.replication.partfs import PartFs, ScratchFile
from tidelock.wire.statements import ChangeResult

#: Bytes of a body that are written at a time.
_WRITE_BYTES = 1 << 20


class _Changed(msgspec.Struct, frozen=True):
    """The result of a statement, and the parts that it has added."""

    counts: ChangeResult
    added: Sequence[PartMeta]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Mutations:
    """Changes rows for the transactions of this home."""

    settings: AgentSettings
    catalog: Catalog
    files: PartFs
    transactions: Transactions
    tables: Tables
    staging: RowStaging
    removals: Removals
    keys: UniqueKeys
    checks: RowChecks
    sql: SqlPool

    async def delete(self, tx: Transaction, table: str, action: DeleteRows) -> ChangeResult:
        """Delete the rows of a table for which a condition is true.

        Raises:
            BadRequestError, SchemaMismatchError, UnknownTableError: The statement is wrong.
            SerializationConflictError: Another transaction removes, or has removed, a part with such rows.
            TooLargeError, DiskFullError: A limit was passed. After each error: rollback only.
        """
        async with self.transactions.removing(tx):
            return (await self._change(tx, self._found(tx, table).id, action)).counts

    async def update(self, tx: Transaction, table: str, action: UpdateRows) -> ChangeResult:
        """Give columns new values in the rows for which a condition is true; errors as :meth:`delete`.

        Raises:
            CheckViolationError: Rows would break a check of the table.
            TableModeError: It is a landing table.
        """
        async with self.transactions.removing(tx):
            return (await self._change(tx, self._open(tx, table), action)).counts

    async def rewrite(self, tx: Transaction, table: TableId) -> None:
        """Write all rows of a table again, in the present types of its columns; errors as :meth:`update`.

        Generated columns get their values.

        The commit is refused if others have added or removed rows of the table meanwhile.
        """
        async with self.transactions.removing(tx):
            await self._change(tx, table, RewriteRows())
            tx.depend_on_rows(table)

    async def merge(
        self, tx: Transaction, table: str, action: MergeRows, body: AsyncIterable[bytes], length: int | None
    ) -> ChangeResult:
        """Bring the rows of an Arrow IPC stream into a table by key; errors as :meth:`update`.

        Args:
            tx: An open transaction of this home.
            table: The name of the table.
            action: What to do; its ``source`` is set here.
            body: The stream.
            length: Bytes of the stream, if known.
        """
        async with self.transactions.removing(tx), self._kept(body, length) as path:
            target = self._open(tx, table)
            found = msgspec.structs.replace(action, source=str(path))
            return (await self._change(tx, target, found)).counts

    async def insert(
        self, tx: Transaction, schema: TableSchema, body: AsyncIterable[bytes], path: str | None
    ) -> tuple[int, Sequence[PartMeta]]:
        """Insert rows into a table with a unique key, or with generated columns.

        Arguments and errors are those of `Inserts.add`.
        """
        action: MergeRows | InsertRows = InsertRows("")
        if schema.unique_key:
            action = MergeRows(
                "",
                schema.unique_key,
                update=schema.replaces,
                insert=True,
                upsert=True,
                unique="replace" if schema.replaces else "refuse",
            )
        async with self.transactions.removing(tx), self._kept(body, None) as source:
            found = msgspec.structs.replace(action, source=str(source))
            done = await self._change(tx, schema.id, found, path)
        return done.counts.rows_inserted + done.counts.rows_updated, done.added

    async def compare_keys(
        self,
        tx: Transaction,
        schema: TableSchema,
        parts: Sequence[PartMeta],
        taken: Sequence[PartId] | None,
    ) -> None:
        """Require that rows which were staged as whole files have keys of their own.

        Args:
            tx: It has staged the rows; they are not parts of it yet.
            schema: Their table, which has a unique key.
            parts: All parts of the rows.
            taken: Parts that these rows replace, whose keys are not new; None: all keys are, and rows of a
                table that replaces duplicates are deleted if they have one of them.

        Raises:
            DuplicateKeyError: Two of the rows have the same key; or a row of the table has it, and stays.
            Others as :meth:`delete`.
        """
        async with self.transactions.removing(tx):
            for some in _apart(parts):
                action = CompareKeys(
                    schema.unique_key,
                    tuple(part.part for part in some),
                    tuple(taken or ()),
                    replace=schema.replaces and taken is None,
                )
                await self._change(tx, schema.id, action)

    def _found(self, tx: Transaction, table: str) -> TableSchema:
        """Return the table that has a name for the statement that begins, which may read any table."""
        tx.require_whole()
        at = tx.begin_statement(self.removals.waiters.reached)
        return self.tables.seen(at, tx.staged.definitions).named(full_name(table))[1]

    def _open(self, tx: Transaction, table: str) -> TableId:
        """Return a table by its name; TableModeError if its rows come in another way than by statements."""
        found = self._found(tx, table)
        found.require_mode(lands=False)
        return found.id

    async def _change(
        self, tx: Transaction, table: TableId, action: Action, path: str | None = None
    ) -> _Changed:
        """Run a statement; run it again if compaction has replaced its parts before they were locked."""
        for left in reversed(range(TRIES)):
            at = self.removals.adopt(tx, table)
            try:
                return await self._once(tx, table, action, at, path)
            except SerializationConflictError as conflict:
                if not left or not await self.removals.moved(tx, table, at, conflict):
                    raise
        raise AssertionError("the last try returns or raises")

    async def _once(
        self, tx: Transaction, table: TableId, action: Action, at: Csn, path: str | None
    ) -> _Changed:
        defined = tuple(tx.staged.definitions)
        _, schema = self.tables.seen(at, defined).schema(table)
        action = for_unique_key(schema, action)
        await self.staging.write_out(tx)
        request = MutationRequest(at, str(tx.tid), table, action, tuple(tx.staged.adopted.tids), defined)
        async with self.sql.mutate(request) as mutation:
            parts = await self._parts(mutation.affected.parts)
            own = [part for part in parts if part.creation_tid == str(tx.tid) and part.creation_csn is None]
            mine = {part.part for part in own}
            committed = [part for part in parts if part.part not in mine]
            if mutation.affected.rows_to_insert:
                await self.keys.claim(tx, schema, mutation.affected.keys, at)
            await self.removals.remove_parts(tx, table, committed)
            _, added = await self.staging.stage(tx, table, mutation.pieces(), at=at, path=path)
            if not isinstance(action, DeleteRows | CompareKeys):  # what they leave has been checked
                await self.checks.require(tx, schema, added, at=at, made=True)
            ended = mutation.ended
            kept = [
                (part, mutation.affected.kept[part.part])
                for part in parts
                if part.part in mutation.affected.kept
            ]
            added = [*added, *await self.staging.cut(tx, table, kept, at)]
        await self.removals.remove_parts(tx, table, own)
        tx.note_reads(ended.read_set())
        rows = (ended.rows_deleted, ended.rows_updated, ended.rows_inserted)
        return _Changed(ChangeResult(*rows, len(parts), len(added)), added)

    async def _parts(self, parts: Sequence[str]) -> list[PartRow]:
        """Return the rows of parts; a statement may touch thousands."""

        def read(reader: CatalogReader) -> list[PartRow]:
            found = [(part, reader.part(PartId(part))) for part in parts]
            if gone := [part for part, row in found if row is None]:
                raise CorruptError(
                    f"part {gone[0]} is gone from the catalog while a statement reads it", part=gone[0]
                )
            return [row for _, row in found if row is not None]

        return await self.catalog.read(read)

    @contextlib.asynccontextmanager
    async def _kept(self, body: AsyncIterable[bytes], length: int | None) -> AsyncIterator[Path]:
        """Keep a body in a file while the block runs.

        Raises:
            TooLargeError: It is larger than ``insert_bytes_max``.
            DiskFullError: The disk has no room for it.
        """
        self._bounded(length or 0)
        scratch = await asyncio.to_thread(self.files.scratch)
        try:
            await self._write(scratch, body)
            yield scratch.path
        finally:
            await asyncio.to_thread(scratch.remove)

    async def _write(self, scratch: ScratchFile, body: AsyncIterable[bytes]) -> None:
        received, waiting = 0, bytearray()
        async for chunk in body:
            received += len(chunk)
            self._bounded(received)
            waiting += chunk
            if len(waiting) >= _WRITE_BYTES:
                await asyncio.to_thread(scratch.write, bytes(waiting))
                waiting.clear()
        await asyncio.to_thread(scratch.write, bytes(waiting))

    def _bounded(self, received: int) -> None:
        limit = self.settings.insert_bytes_max
        if received > limit:
            raise TooLargeError(
                f"the rows have more than {limit} bytes (insert_bytes_max); send them in several statements",
                limit=limit,
                found=received,
            )


def _apart(parts: Sequence[PartMeta]) -> Iterator[list[PartMeta]]:
    """Yield groups of about :data:`JUDGED_BYTES` whose rows cannot have keys in common: whole partitions.

    The columns of the partitions are in each unique key.
    """
    some: list[PartMeta] = []
    size = 0
    for _, of_partition in groupby(sorted(parts, key=attrgetter("path")), attrgetter("path")):
        for part in of_partition:
            some.append(part)
            size += part.length
        if size >= JUDGED_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
