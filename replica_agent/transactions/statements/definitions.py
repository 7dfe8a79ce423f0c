"""Statements that create, change and drop tables inside a transaction (rule tables).

Each one is decided at once, against the tables that the transaction sees: those of its snapshot, after its
own definitions. It changes nothing but the list of these definitions, so a refused statement leaves the
transaction as it was. The commit finds out whether the definitions are still right
(:mod:`tidelock.replica_agent.transactions.ending.definition_order`).

A new kind of statement is a function of :mod:`tidelock.replica_agent.tables.definitions`, which returns
definitions, and a method here, which runs it with :meth:`TableStatements._define`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import pyarrow as pa

from tidelock.csnlog.core.codec import encode_entries
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.model import ChangeTable, DefineTable
from tidelock.errors import (
    SnapshotTooOldError,
    TooLargeError,
    UnknownTableError,
    UnsealedWriteError,
    UnsupportedInTransactionError,
)
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.sql.mutation import DerivedRows
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.table_reads import DroppedTable
from tidelock.replica_agent.storage.tables import SeenTables, Tables
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replica_agent.tables import definitions
from tidelock.replica_agent.tables.checks import Check, Generated
from tidelock.replica_agent.tables.column_changes import NO_CHANGES, ColumnChanges
from tidelock.replica_agent.tables.names import full_name, namespace_key
from tidelock.replica_agent.tables.schema import ColumnLimits, Derivation, TableSchema
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.insert import Inserts
from tidelock.replica_agent.transactions.transaction import Isolation, Transaction
from tidelock.replication.partfs import PartFs
from tidelock.wire.ids import TableName
from tidelock.wire.tables import CreateTableRequest


class Made(msgspec.Struct, frozen=True):
    """A statement that has defined a table: the definition, and the rows that it has inserted, if it does."""

    definition: DefineTable
    rows: int | None = None


def column_limits(settings: AgentSettings) -> ColumnLimits:
    """Return the limits of columns that an agent is told."""
    return ColumnLimits(
        columns=settings.columns_max,
        name_bytes=settings.column_name_bytes_max,
        depth=settings.nested_depth_max,
        default_bytes=settings.column_default_bytes_max,
        checks=settings.checks_max,
        check_bytes=settings.check_bytes_max,
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TableStatements:
    """Defines tables for the transactions of this home."""

    settings: AgentSettings
    catalog: Catalog
    files: PartFs
    waiters: CsnWaiters
    tables: Tables
    transactions: Transactions
    inserts: Inserts

    async def create(self, tx: Transaction, asked: CreateTableRequest, arrow: pa.Schema | None) -> Made:
        """Create a table, and insert the result of its SQL, if it has one.

        Args:
            tx: An open transaction of this home.
            asked: The request.
            arrow: Its columns; None: those of the result.

        Raises:
            TableExistsError: A table of this name exists, and is not to be replaced.
            UnknownTableError: The source does not exist.
            Others as `TableSchema.from_request`, `DerivedTables.check` and `Inserts.fill`.
        """
        before = list(tx.staged.definitions)
        fills = asked.sql is not None
        made = await self._define(tx, lambda seen: self._creating(tx, asked, arrow, seen), keep_rows=fills)
        if asked.sql is None:
            return made
        columns = tuple(column["name"] for column in made.definition.definition["columns"])
        rows = DerivedRows(asked.sql, tuple(asked.params), columns)
        at = tx.read_csn
        done = await self.inserts.fill(tx, made.definition, rows, before, at)
        there = {one.table for one in tx.staged.definitions if not one.drops}
        defined = {one.table for one in (*before, *tx.staged.definitions)}
        await asyncio.shield(self._forget_rows(tx, defined - there))  # the SELECT may have read them
        return Made(made.definition, done.rows_inserted)

    async def _creating(
        self, tx: Transaction, asked: CreateTableRequest, arrow: pa.Schema | None, seen: SeenTables
    ) -> list[DefineTable]:
        derived = self.inserts.derived
        if arrow is None:
            arrow = await derived.columns(tx, asked.sql or "", asked.params, seen.at)
        derivation = None
        if asked.derived_from is not None:
            source = self._look_up(tx, asked.derived_from)
            derivation = Derivation(seen.find(source), asked.derived_sql or "")
        schema = TableSchema.from_request(
            asked.name, arrow, asked.partition_by, asked.sort_by, asked.properties,
            derivation=derivation,
            checks=asked.checks,
            limits=column_limits(self.settings),
            retention_s_min=self.settings.history_retention_s,
        )  # fmt: skip
        self._look_up(tx, schema.name)
        made = (definitions.replacing if asked.or_replace else definitions.creating)(schema, seen)
        if derivation is not None:
            await derived.check(tx, schema, seen)
        return await self._bound(tx, made, schema.conditions, seen.at)

    async def _bound(
        self,
        tx: Transaction,
        made: Sequence[DefineTable],
        conditions: Sequence[Check],
        at: Csn,
        *,
        judged: Sequence[Check] = (),
    ) -> list[DefineTable]:
        """Return definitions, in whose first one the conditions name the columns that they read.

        Args:
            tx: The transaction.
            made: The definitions, that of the table with the conditions first.
            conditions: The conditions that are to be bound.
            at: The CSN that the statement reads at.
            judged: Those of them that rows which are there must not break.
        """
        if not conditions:
            return [*made]
        first, *others = made
        names, broken_by_none = ([one.name for one in some] for some in (conditions, judged))
        found = await self.inserts.checks.bind(tx, first, names, at=at, judged=broken_by_none)
        schema = TableSchema.from_definition(first.table, first.definition).with_checked(found)
        return [type(first)(first.table, first.version, schema.definition()), *others]

    async def drop(self, tx: Transaction, name: str) -> Made:
        """Drop a table, with the rows that the transaction has staged for it; errors as `dropping`."""

        async def make(seen: SeenTables) -> list[DefineTable]:
            return definitions.dropping(self._look_up(tx, name), seen)

        return await self._define(tx, make)

    async def undrop(self, tx: Transaction, name: str, *, to: str | None, csn: Csn | None) -> Made:
        """Bring a dropped table back, with the rows that it had; no byte of them is written.

        The parts are new ones that have the bytes of those which left with the drop, so at the CSNs in
        between there is no table.

        Args:
            tx: An open transaction of this home.
            name: The name that it had when it was dropped.
            to: Its name from now on; None: the same.
            csn: The CSN of the drop; None: the last drop of a table of that name.

        Raises:
            UnknownTableError: The transaction sees no such drop.
            SnapshotTooOldError: Its rows are not kept any more.
            Others as `definitions.undropping`; PartDamagedError, which leaves the transaction rollback only.
        """
        full = self._look_up(tx, name)
        new = None if to is None else self._look_up(tx, to)
        gone = self._gone(tx, full, csn)

        async def make(seen: SeenTables) -> list[DefineTable]:
            dropped = ChangeTable(gone.id, gone.version, gone.definition)
            return definitions.undropping(dropped, new, seen)

        before = Csn(gone.csn - 1)
        parts = await self.catalog.read(lambda reader: reader.parts(gone.id, before))
        made = await self._define(tx, make)
        async with self.transactions.removing(tx):
            self._require_rows(full, gone)
            shared = await self.inserts.staging.share(tx, gone.id, parts)
            schema = TableSchema.from_definition(gone.id, made.definition.definition)
            # The transaction of the drop may have deleted rows, and then added a check that they break.
            newer = {one.name for one in schema.checks_to_judge(self.tables.schema(gone.id, before)[1])}
            await self.inserts.checks.require(tx, schema, shared, at=tx.read_csn, names=newer)
        return Made(made.definition, sum(part.rows for part in parts))

    async def found(self, tx: Transaction, namespace: str, properties: Mapping[str, str]) -> Made:
        """Create a namespace; errors as `definitions.founding`."""
        key = namespace_key(namespace)

        async def make(seen: SeenTables) -> list[DefineTable]:
            return definitions.founding(key, properties, seen)

        return await self._define(tx, make)

    async def clear(self, tx: Transaction, namespace: str, *, cascade: bool) -> Made:
        """Drop a namespace, and its tables with ``cascade``; errors as `definitions.clearing`."""
        key = namespace_key(namespace)

        async def make(seen: SeenTables) -> list[DefineTable]:
            return definitions.clearing(key, seen, cascade=cascade)

        return await self._define(tx, make)

    async def clone(self, tx: Transaction, name: str, to: str, csn: Csn | None) -> Made:
        """Create a table with the definition and the rows of another one; no byte of them is written.

        Derived tables stay with their source: the new table is derived from no other, and no other from it.

        Args:
            tx: An open transaction of this home.
            name: The name of the other table.
            to: The name of the new table.
            csn: The CSN at which the other one is read, which is held; None: as the transaction sees it.

        Raises:
            UnknownTableError: There is no such table.
            TableExistsError: The new name is taken.
            Others as `definitions.creating`; PartDamagedError, which leaves the transaction rollback only.
        """
        source, new = self._look_up(tx, name), self._look_up(tx, to)
        if csn is None:
            await self.inserts.staging.write_out(tx)
            seen = self.tables.seen(tx.begin_statement(self.waiters.reached), tx.staged.definitions)
            _, schema = seen.named(source)
        else:
            _, schema = self.tables.named(source, csn)

        async def make(tables: SeenTables) -> list[DefineTable]:
            return definitions.cloning(schema, new, tables)

        made = await self._define(tx, make)
        async with self.transactions.removing(tx):
            parts = await self.catalog.read(partial(self._seen_parts, tx, schema.id, csn))
            await self.inserts.staging.share(tx, made.definition.table, parts)
            tx.note_reads({schema.id: None} if csn is None else {})
        return Made(made.definition, sum(part.rows for part in parts))

    def _seen_parts(
        self, tx: Transaction, table: TableId, csn: Csn | None, reader: CatalogReader
    ) -> list[PartRow]:
        if csn is not None:
            return reader.parts(table, csn)
        at = tx.read_csn
        return reader.parts(table, at, str(tx.tid), tuple(tx.staged.adopted.tids))

    def _gone(self, tx: Transaction, name: TableName, csn: Csn | None) -> DroppedTable:
        """Return a dropped table whose rows are kept."""
        reader = self.catalog.reader
        at = tx.begin_statement(self.waiters.reached)
        gone = reader.dropped(name, at, csn)
        if gone is None:
            when = "" if csn is None else f" at CSN {csn}"
            raise UnknownTableError(
                f"no table {name} was dropped{when}, as far as is known at CSN {at}; a dropped table "
                "has the name that it had then",
                table=name,
            )
        self._require_rows(name, gone)
        return gone

    def _require_rows(self, name: TableName, gone: DroppedTable) -> None:
        """Raise SnapshotTooOldError unless the rows of a dropped table are kept; its id is no name of it."""
        try:
            self.catalog.reader.require_kept(Csn(gone.csn - 1), gone.id)
        except SnapshotTooOldError as error:
            raise SnapshotTooOldError(
                f"table {name} was dropped at CSN {gone.csn}, and its rows are not kept any more: the "
                f"horizon is {error.details['min_csn']} (history_retention_s, or its property retention_s)",
                table=name,
                **error.details,
            ) from error

    async def alter(
        self,
        tx: Transaction,
        name: str,
        *,
        to: str | None,
        properties: Mapping[str, str | None],
        columns: ColumnChanges = NO_CHANGES,
    ) -> Made:
        """Give a table another name, other properties or other columns; write its rows again if need be.

        Raises:
            BadRequestError: A table that is derived from this one could not follow it any more; or a check is
                no condition over the columns of one row, or a generated column no value of one.
            CheckViolationError: Rows of the table break a new check.
            UnsupportedInTransactionError: The transaction has rows for the table, with the columns of before.
            Others as `definitions.altering`, and as `Mutations.rewrite`: rollback only after the latter.
        """
        rewrite = False

        async def make(seen: SeenTables) -> list[DefineTable]:
            nonlocal rewrite
            new = None if to is None else self._look_up(tx, to)
            full = self._look_up(tx, name)
            _, before = seen.named(full)
            rewrite = columns.rewrite(before)
            found = definitions.altering(
                full, seen,
                to=new, properties=properties, columns=columns, limits=column_limits(self.settings),
            )  # fmt: skip
            made = TableSchema.from_definition(found[0].table, found[0].definition)
            made.check_properties(self.settings.history_retention_s)
            if columns.files:
                await self._require_followed(tx, made, seen)
            asked = made.checks_to_judge(before)
            # The rows get the values of a new generated column by being written again, and are judged then.
            judged = [] if any(isinstance(one, Generated) for one in asked) else asked
            if judged:
                tx.depend_on_rows(made.id)  # those that others have added since are not judged
            return await self._bound(tx, found, asked, seen.at, judged=judged)

        made = await self._define(tx, make)
        if rewrite:
            await self.inserts.mutations.rewrite(tx, made.definition.table)
        return made

    async def restore_columns(self, tx: Transaction, now: TableSchema, csn: Csn) -> None:
        """Give a table the columns that it had at a CSN, if it has others; the caller restores the parts.

        The commit is refused if others have added or removed rows meanwhile and these may not be rows of
        then: their pages may not hold the types, or their generated columns other values.

        Args:
            tx: An open transaction of this home.
            now: The table as it sees it.
            csn: The CSN, at which the table existed.

        Raises:
            BadRequestError: A table that is derived from this one could not follow it any more.
            UnsupportedInTransactionError: The transaction has rows for the table, with the columns of now.
        """
        _, then = self.tables.schema(now.id, csn)
        if then.columns == now.columns:
            return
        files = then.files_differ(now)

        async def make(seen: SeenTables) -> list[DefineTable]:
            later = self.tables.changes(now.id, csn, seen.at)
            found = definitions.restoring(self._look_up(tx, now.name), then, later, seen)
            made = TableSchema.from_definition(found.table, found.definition)
            if files:
                await self._require_followed(tx, made, seen)
            if files or made.checks_to_judge(now):
                tx.depend_on_rows(now.id)
            return [found]

        await self._define(tx, make)

    async def _require_followed(self, tx: Transaction, made: TableSchema, seen: SeenTables) -> None:
        """Refuse other columns of files that rows of the transaction, or a derived table, do not follow."""
        _require_no_rows(tx, made)
        await self.inserts.derived.check_dependents(tx, made, seen)

    async def _define(
        self,
        tx: Transaction,
        make: Callable[[SeenTables], Awaitable[Sequence[DefineTable]]],
        *,
        keep_rows: bool = False,
    ) -> Made:
        """Run a statement, and return the first one of its definitions.

        With ``keep_rows`` the caller takes back what was staged for tables that it drops.

        Raises:
            TransactionClosedError: The transaction takes no statements.
            TableChangedError: A statement before has used another version of a table that it changes.
            UnsealedWriteError: It drops a table into which a job still writes in this transaction.
            TooLargeError: The transaction has too many definitions.
            Others as ``make``; after each of them the transaction goes on.
        """
        async with self.transactions.alone(tx):
            at = tx.begin_statement(self.waiters.reached)
            made = await self._made(tx, make, at)
            dropped = {one.table for one in made if one.drops}
            found = definitions.joined(tx.staged.definitions, made)
            _require_no_job(tx, dropped)
            limits = self.settings
            _require_room(tx, "definitions_max", limits.definitions_max, len(found))
            _require_room(tx, "record_bytes_max", limits.record_bytes_max, len(encode_entries(found)))
            known = {one.table for one in tx.staged.definitions}
            for one in made:
                if one.version and one.table not in known:
                    tx.use(one.table, one.version - 1)
                known.add(one.table)
            tx.staged.definitions = found
            if not keep_rows:
                await asyncio.shield(self._forget_rows(tx, dropped))
            return Made(made[0])

    async def _made(
        self, tx: Transaction, make: Callable[[SeenTables], Awaitable[Sequence[DefineTable]]], at: Csn
    ) -> Sequence[DefineTable]:
        """Return definitions that were made with all rows in sight that the transaction has of their tables.

        An insert of the transaction may end while they are made.
        """
        while True:
            before = {(part.table, part.part) for part in tx.staged.parts}
            made = await make(self.tables.seen(at, tx.staged.definitions))
            tables = {one.table for one in made}
            now = {(part.table, part.part) for part in tx.staged.parts}
            if not any(table in tables for table, _ in before ^ now):
                return made

    def _look_up(self, tx: Transaction, name: str) -> TableName:
        """Return the full form of a name, and note the look at it for a serializable transaction."""
        full, names = full_name(name), tx.statements.names
        if tx.isolation is Isolation.SERIALIZABLE and full not in names:
            _require_room(tx, "definitions_max", self.settings.definitions_max, len(names) + 1)
            names[full] = self.tables.bearer(full, tx.tid.snapshot)
        return full

    async def _forget_rows(self, tx: Transaction, tables: Iterable[TableId]) -> None:
        """Take back what the transaction has staged for tables that it drops.

        Their committed parts leave them with the definition, also those that it has removed before.
        """
        gone = frozenset(tables)
        staged = tx.staged
        dropped = [part.part for part in staged.parts if part.table in gone]
        for part in dropped:
            self.transactions.drop_memory(tx, part)
            staged.stored.pop(part, None)
        staged.removed = {part: table for part, table in staged.removed.items() if table not in gone}
        for table in gone:
            staged.writes.pop(table, None)
        if dropped:
            unused = await self.catalog.write(lambda db: jobs.drop_parts(db, dropped))
            await remove_files(self.catalog, self.files, unused)


def _require_room(tx: Transaction, name: str, limit: int, found: int) -> None:
    if found > limit:
        raise TooLargeError(
            f"the definitions of tables in {tx.tid} would take {found} of {name}={limit}; define the other "
            "tables in another transaction",
            limit=limit,
            found=found,
        )


def _require_no_rows(tx: Transaction, schema: TableSchema) -> None:
    """Refuse other columns for rows that are staged: each part has the columns that hold at its CSN."""
    rows = (part.table for part in tx.staged.parts), (one.schema.id for one in tx.staged.rows)
    if schema.id in {*itertools.chain(*rows), *tx.staged.writes}:
        raise UnsupportedInTransactionError(
            f"{tx.tid} has rows of table {schema.name} with the columns of before; change the columns first, "
            "or in another transaction",
            table=schema.name,
        )


def _require_no_job(tx: Transaction, tables: Iterable[TableId]) -> None:
    for table in tables:
        writes = tx.staged.writes.get(table)
        if writes is not None and (why := writes.area.unsealed()):
            raise UnsealedWriteError(
                f"table {table} cannot be dropped in {tx.tid} while a job writes into it there: {why}; wait "
                "for the job, or roll back",
                table=table,
            )
