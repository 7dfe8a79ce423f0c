"""Inserts: how rows enter a table, unchanged or under its unique key, and the derived rows with them.

Every statement that adds rows from a client or a query passes through here, and so do the files of jobs and
the rows that are derived from either, to any depth. For a table without unique key, dependents, checks and
generated columns an insert is the plain staging of rows
(:mod:`~tidelock.replica_agent.transactions.statements.row_staging`). Statements that change rows
(:mod:`tidelock.replica_agent.transactions.statements.mutations`) do not pass through here: derived tables do
not follow a delete, an update, an upsert or a merge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from aiohttp import web

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.csnlog.core.model import DefineTable
from tidelock.errors import BadRequestError, TooLargeError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.sql.mutation import DerivedRows, MutationRequest
from tidelock.replica_agent.sql.pool import Mutation
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.tables.partitions import path_in
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.back_pressure import BackPressure
from tidelock.replica_agent.transactions.statements.derived import DerivedTables
from tidelock.replica_agent.transactions.statements.mutations import Mutations
from tidelock.replica_agent.transactions.statements.row_checks import RowChecks
from tidelock.replica_agent.transactions.statements.row_staging import STAGE, RowStaging
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replication.core.model import PartMeta
from tidelock.wire.statements import ChangeResult

#: The name of a table while its first rows are read: no SQL can name it.
_NO_NAME: Final = "default.#created"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Inserts:
    """Inserts rows for the transactions of this home."""

    settings: AgentSettings
    waiters: CsnWaiters
    metrics: Metrics
    transactions: Transactions
    tables: Tables
    pressure: BackPressure
    staging: RowStaging
    mutations: Mutations
    derived: DerivedTables
    checks: RowChecks

    async def insert(
        self,
        tx: Transaction,
        table: str,
        content: AsyncIterable[bytes],
        length: int | None,
        *,
        partition: Mapping[str, Any] | None = None,
    ) -> tuple[int, int]:
        """Insert the rows of one Arrow IPC stream; return (rows, parts).

        With ``partition`` (column: value), rows of any other partition are refused.

        Raises:
            RefusedError: Nothing of these rows is kept, and the transaction accepts rollback only.
        """
        with self._cuttable(tx):
            try:
                return await self._insert(tx, table, content, length, partition)
            except (web.RequestPayloadError, ConnectionError) as error:
                why = " ".join(str(error).split())
                raise BadRequestError(
                    f"the body of the insert into {table} ended early ({why}); nothing was kept: roll back, "
                    "and insert again"
                ) from error

    @contextlib.contextmanager
    def _cuttable(self, tx: Transaction) -> Iterator[None]:
        """Run an insert that the end of its transaction cuts, with the error of that end."""
        self.transactions.require_open(tx)
        with tx.statements.cuttable():
            try:
                yield
            except asyncio.CancelledError:
                if not tx.leased:
                    self.transactions.require_open(tx)
                raise  # the client hung up; nothing was added

    async def insert_whole(self, tx: Transaction, table: str, stream: bytes) -> None:
        """Insert the rows of a complete stream, for a transaction that takes no other statement meanwhile.

        Small rows are compared with the columns and kept as they are, so that the commit can encode them
        together with those of other transactions. Rows that depend on others, that others depend on, or that
        a check judges, are inserted at once.

        Raises:
            RefusedError: As :meth:`insert`.
        """
        at = tx.begin_statement(self.waiters.reached)
        version, schema = self.tables.seen(at, tx.staged.definitions).named(full_name(table))
        schema.require_mode(lands=False)
        alone = schema.unique_key or schema.dependents or schema.conditions
        crowded = self.transactions.memory_bytes > self.settings.staged_memory_bytes_max
        if alone or crowded or len(stream) > self.settings.inline_part_bytes_max:
            await self.insert(tx, table, _whole(stream), len(stream))
            return
        with self._cuttable(tx):
            await STAGE.before()
            rows = await self.staging.check(tx, version, schema, stream)
            for path in rows.by_path:
                await self.pressure.admit(tx.staged, schema, path)
            await STAGE.after()
            self.metrics.inserted_rows.inc(rows.count)

    async def _insert(
        self,
        tx: Transaction,
        table: str,
        content: AsyncIterable[bytes],
        length: int | None,
        partition: Mapping[str, Any] | None,
    ) -> tuple[int, int]:
        await STAGE.before()
        if length is not None and length > self.settings.insert_bytes_max:
            limit = self.settings.insert_bytes_max
            msg = f"the insert has {length} bytes, the limit is insert_bytes_max={limit}; split it"
            raise TooLargeError(msg, limit=limit, found=length)
        at = tx.begin_statement(self.waiters.reached)
        _, schema = self.tables.seen(at, tx.staged.definitions).named(full_name(table))
        path = None if partition is None else path_in(schema, partition)
        known = path if schema.partition_by else ""
        if known is not None:
            await self.pressure.admit(tx.staged, schema, known)
        rows, parts = await self.add(tx, schema.id, content, at=at, path=path)
        for found, added in Counter(part.path for part in parts).items():
            if found != known:
                await self.pressure.admit(tx.staged, schema, found, added)
        await STAGE.after()
        self.metrics.inserted_rows.inc(rows)
        return rows, len(parts)

    async def insert_select(self, tx: Transaction, rows: Mutation, at: Csn) -> ChangeResult:
        """Add the rows of an INSERT INTO ... SELECT that an SQL process has begun to read at ``at``."""
        async with self.transactions.removing(tx):
            _, parts = await self.add(tx, rows.affected.table, rows.pieces(), at=at, made=True)
            tx.note_reads(rows.ended.read_set())
            return ChangeResult(rows_inserted=rows.ended.rows_inserted, parts_added=len(parts))

    async def fill(
        self, tx: Transaction, made: DefineTable, rows: DerivedRows, before: Sequence[DefineTable], at: Csn
    ) -> ChangeResult:
        """Insert the result of a SELECT into a table that the transaction has just created.

        Args:
            tx: The transaction.
            made: The definition of the table.
            rows: The SELECT.
            before: The definitions of the transaction before it, whose tables the SELECT sees: one of the
                same name may be replaced.
            at: The CSN that it reads at.

        Raises:
            RefusedError: As :meth:`insert`.
        """
        nameless = msgspec.structs.replace(made, definition={**made.definition, "name": _NO_NAME})
        async with self.transactions.removing(tx):
            await self.staging.write_out(tx)
            adopted = tuple(tx.staged.adopted.tids)
            request = MutationRequest(at, str(tx.tid), made.table, rows, adopted, (*before, nameless))
            async with self.derived.sql.mutate(request) as mutation:
                return await self.insert_select(tx, mutation, at)

    async def add(
        self,
        tx: Transaction,
        table: TableId,
        pieces: AsyncIterable[bytes],
        *,
        at: Csn,
        path: str | None = None,
        made: bool = False,
    ) -> tuple[int, Sequence[PartMeta]]:
        """Add the rows of one Arrow IPC stream; see :meth:`RowStaging.stage`.

        Args:
            tx: An open transaction of this home.
            table: The table.
            pieces: The stream.
            at: The CSN that the statement reads at.
            path: The only partition that rows may be of; None: any.
            made: The stream comes from an SQL process, which has made the generated columns.

        Raises:
            DuplicateKeyError: Rows have the same key, or the key of a row in a table that refuses such rows.
            CheckViolationError: Rows break a check of the table, or bring other values in generated columns.
            SerializationConflictError: Another transaction adds such keys, or changes the rows that are to be
                replaced.
            RefusedError: As :meth:`insert`, for the table or for one that is derived from it.
        """
        version, schema = self.tables.seen(at, tx.staged.definitions).schema(table)
        schema.require_mode(lands=False)
        if not (schema.unique_key or schema.dependents or schema.conditions):
            return await self.staging.stage(tx, table, pieces, at=at, path=path)
        async with self.transactions.removing(tx):
            tx.use(table, version)  # a newer one may name dependents that would not be filled
            if schema.unique_key or (schema.generated and not made):
                rows, parts = await self.mutations.insert(tx, schema, pieces, path)
            else:
                rows, parts = await self.staging.stage(tx, table, pieces, at=at, path=path)
                await self.checks.require(tx, schema, parts, at=at, made=made)
            await self._follow(tx, schema, parts, at)
            return rows, parts

    async def accept(
        self, tx: Transaction, table: TableId, parts: Sequence[PartMeta], taken: Sequence[PartId] | None
    ) -> None:
        """Let rows that were staged as whole files follow the rules of their table, as :meth:`add` does.

        Its checks are judged before (:class:`RowChecks`).

        Args:
            tx: An open transaction of this home.
            table: The table.
            parts: All parts of the rows.
            taken: They are what a change has left of the rows of these parts, and new rows; None: all of them
                are new.

        Raises:
            As :meth:`add`. A key that comes twice among the rows is an error, whatever the table does with
            duplicates: no order says which row is the last.
        """
        _, schema = self.tables.seen(tx.read_csn, tx.staged.definitions).schema(table)
        if not parts or not (schema.unique_key or schema.dependents):
            return
        async with self.transactions.removing(tx):
            version, schema = self.tables.seen(tx.read_csn, tx.staged.definitions).schema(table)
            tx.use(table, version)
            if schema.unique_key:
                await self.mutations.compare_keys(tx, schema, parts, taken)
            if taken is None:
                await self._follow(tx, schema, parts, tx.read_csn)

    async def _follow(self, tx: Transaction, schema: TableSchema, parts: Sequence[PartMeta], at: Csn) -> None:
        """Run the SQL of a table's dependents over the rows just inserted, and insert the results there."""
        if not parts:
            return
        await self.staging.write_out(tx)
        for dependent in schema.dependents:
            async with self.derived.rows_for(tx, dependent, schema, parts, at=at) as pieces:
                await self.add(tx, dependent, pieces, at=at, made=True)


async def _whole(stream: bytes) -> AsyncIterator[bytes]:
    yield stream
