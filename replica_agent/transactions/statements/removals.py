"""Removes parts from tables inside a transaction: lock, check, mark (rule removals).

The locks in ZooKeeper come first and keep every other replica away; then one catalog transaction checks that
all parts still exist, and marks them. In the other order a removal that is committed between the check and
the lock would be missed (rule removals; F21, M1, M5b). Parts that the transaction has made itself are
dropped: no other transaction has seen them.

Each statement first adopts the merges that compaction has made since of the parts that it sees
(:mod:`tidelock.csnlog.core.visibility`), so it works on parts that can be removed, however much was inserted
meanwhile. If a part that it sees is removed all the same, another transaction has changed it: a conflict.

A compaction uses this module twice: it marks nothing while it works, and takes its locks when its copies are
made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.errors import BadRequestError, SerializationConflictError, UnsupportedInTransactionError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.switches import Switches
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.tables.partitions import path_in
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.row_checks import RowChecks
from tidelock.replica_agent.transactions.statements.row_staging import RowStaging
from tidelock.replica_agent.transactions.transaction import Isolation, Transaction
from tidelock.replication.core.lock_rules import LockAsk, OnePartition, WholeTable
from tidelock.replication.locks.removal_locks import Locks
from tidelock.replication.partfs import PartFs
from tidelock.wire.statements import RemoveResult

#: Attempts of a statement that compaction overtakes: each attempt works on newer parts.
TRIES = 5


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Removals:
    """Removes parts for the transactions of this home."""

    settings: AgentSettings
    switches: Switches
    catalog: Catalog
    files: PartFs
    transactions: Transactions
    tables: Tables
    staging: RowStaging
    checks: RowChecks
    locks: Locks
    waiters: CsnWaiters

    def adopt(self, tx: Transaction, table: TableId) -> Csn:
        """Begin a statement that removes: let it see the merges of the parts that hold its rows.

        Returns:
            The CSN that it reads at.
        """
        newest = self.waiters.reached
        at = tx.begin_statement(newest)
        tx.staged.adopted.adopt(self.catalog.reader, table, at=at, newest=newest)
        return at

    # -- statements over whole partitions --------------------------------------------------------------------

    async def drop_partition(self, tx: Transaction, table: str, values: Mapping[str, Any]) -> RemoveResult:
        """Remove all rows of one partition that the statement sees.

        Args:
            tx: An open transaction of this home.
            table: The name of the table.
            values: Every partition column with its value; None for null.

        Raises:
            SerializationConflictError: Another transaction removes, or has removed, parts of it.
            UnknownTableError, BadRequestError: No such table, or the values do not name a partition.
        """
        async with self.transactions.removing(tx):
            schema = self.table(tx, table)
            path = path_in(schema, values)
            return await self._cover(tx, schema.id, path)

    async def truncate(self, tx: Transaction, table: str) -> RemoveResult:
        """Remove all rows of a table that the statement sees; errors as :meth:`drop_partition`."""
        async with self.transactions.removing(tx):
            return await self._cover(tx, self.table(tx, table).id, None)

    async def move_partition(
        self, tx: Transaction, source: str, target: str, values: Mapping[str, Any]
    ) -> RemoveResult:
        """Move the rows of one partition into another table of equal schema, without rewriting them.

        Raises:
            BadRequestError: The tables differ in columns, partitions or sort order, or in what earlier parts
                have; or they are the same.
            CheckViolationError: Rows break a check of the other table.
            UnsupportedInTransactionError: The other table has a unique key.
            TableModeError: It is a landing table.
            Others as :meth:`drop_partition`.
        """
        async with self.transactions.removing(tx):
            schema, other = self.table(tx, source), self.table(tx, target)
            other.require_mode(lands=False)
            _require_equal(schema, other)
            if other.unique_key:
                raise UnsupportedInTransactionError(
                    f"table {other.name} has a unique key, and a move does not check the keys of its rows; "
                    "use INSERT INTO ... SELECT, and drop the partition of the source",
                    table=other.name,
                )
            path = path_in(schema, values)
            parts = await self.covered(tx, schema.id, path)
            known = _columns_there(schema, other, parts)
            shared = await self.staging.share(tx, other.id, parts, lambda part: known[part.part])
            await self.checks.require(tx, other, shared, at=tx.read_csn)
            return await self.take(tx, schema.id, parts)

    async def _cover(self, tx: Transaction, table: TableId, path: str | None) -> RemoveResult:
        return await self.take(tx, table, await self.covered(tx, table, path))

    async def covered(self, tx: Transaction, table: TableId, path: str | None) -> list[PartRow]:
        """Lock a partition (None: the table), and return its parts that the statement sees."""
        wide = WholeTable() if path is None else OnePartition(path)
        await self.staging.write_out(tx)
        for left in reversed(range(TRIES)):
            at = self.adopt(tx, table)
            try:
                await self._lock(tx, LockAsk(table, {}, (wide,)))
                break
            except SerializationConflictError as conflict:
                again = await self.moved(tx, table, at, conflict)
                # A compaction may have merged any parts: those that the statement sees are checked below.
                if not left or tx.statements.half_applied or not (again or _compacted(conflict)):
                    raise
        at = self.adopt(tx, table)  # compaction may have run before the lock; it cannot any more
        await self._note_read(tx, table, path, at)
        own, adopted = str(tx.tid), tuple(tx.staged.adopted.tids)
        if path is None:
            return await self.catalog.read(lambda reader: reader.parts(table, at, own, adopted))
        return await self.catalog.read(lambda reader: reader.partition(table, path, at, own, adopted))

    async def moved(
        self, tx: Transaction, table: TableId, at: Csn, conflict: SerializationConflictError
    ) -> bool:
        """Return whether a statement at the CSN ``at`` that conflicted may begin again.

        It may if a compaction has moved its rows to newer parts; or if it reads what is committed, and more
        is committed now. If the conflict is with a compaction, this first waits until that is applied here.
        """
        if _compacted(conflict):
            await self.waiters.wait(conflict.details["csn"], self.settings.wait_bound_s)
        if tx.statements.half_applied:
            return False
        return self.adopt(tx, table) > at or conflict.details.get("holder") in tx.staged.adopted.tids

    async def _note_read(self, tx: Transaction, table: TableId, path: str | None, at: Csn) -> None:
        """Note a read of the partition (None: the table): the removal depends on the rows that exist."""
        if path is None or tx.isolation is not Isolation.SERIALIZABLE:
            tx.note_reads({table: None})
            return
        paths = await self.catalog.read(lambda reader: reader.partitions(table, at))  # of S: merges add none
        tx.note_reads({table: frozenset(paths - {path})})

    def table(self, tx: Transaction, table: str) -> TableSchema:
        """Return a table as a statement sees it; the commit checks that it stays so."""
        at = tx.begin_statement(self.waiters.reached)
        version, schema = self.tables.seen(at, tx.staged.definitions).named(full_name(table))
        tx.require_whole(schema.id)
        tx.use(schema.id, version)
        return schema

    # -- parts -----------------------------------------------------------------------------------------------

    async def remove_parts(self, tx: Transaction, table: TableId, parts: Sequence[PartRow]) -> RemoveResult:
        """Remove parts that a statement sees (see :meth:`adopt`).

        Raises:
            SerializationConflictError: Another transaction has locked a part, or removed it.
        """
        others = {part.part: part.path for part in parts if part.creation_tid != str(tx.tid)}
        if others:
            await self._lock(tx, LockAsk(table, others, ()))
        return await self.take(tx, table, parts)

    async def replace_parts(self, tx: Transaction) -> None:
        """Lock and mark the parts that a compaction replaces; at a conflict it yields, without waiting."""
        for table in sorted(set(tx.staged.removed.values())):
            rows = [self.catalog.reader.part(part) for part, of in tx.staged.removed.items() if of == table]
            parts = [row for row in rows if row is not None]
            ask = LockAsk(table, {part.part: part.path for part in parts}, ())
            await self.locks.take(tx.tid, ask, at=tx.tid.snapshot, merge=True)
            await self._mark(tx, table, [part.part for part in parts])

    def committed(self, tx: Transaction, csn: Csn) -> None:
        """Keep the locks of a committed transaction until every replica knows of its removals."""
        self.locks.committed(tx.tid, csn)

    async def release(self, tx: Transaction) -> None:
        """Release the locks of a rolled-back transaction; a lock that cannot go now goes later."""
        await self.locks.release(tx.tid)

    async def _lock(self, tx: Transaction, ask: LockAsk) -> None:
        """Lock what a statement removes. Commits applied here are no conflict: the mark checks those."""
        at = self.waiters.reached
        await self.locks.take(tx.tid, ask, at=at, wait_s=self.switches.lock_wait_s)
        self.transactions.require_open(tx)  # after a kill, or an expired lease, the rollback has run before

    async def take(self, tx: Transaction, table: TableId, parts: Collection[PartRow]) -> RemoveResult:
        """Remove parts whose locks are held: mark those of others, and drop those of the transaction."""
        own = [part for part in parts if part.creation_tid == str(tx.tid) and part.creation_csn is None]
        mine = {part.part for part in own}
        others = [part for part in parts if part.part not in mine]
        await self._mark(tx, table, [part.part for part in others])
        tx.staged.removed |= {part.part: table for part in others}
        if own:
            await self._drop(tx, own)
        return RemoveResult(sum(part.rows for part in parts), len(parts))

    async def _mark(self, tx: Transaction, table: TableId, parts: Sequence[PartId]) -> None:
        if not parts:
            return
        gone = await self.catalog.write(lambda db: jobs.mark_removed(db, str(tx.tid), parts))
        if gone is not None:
            part, holder, csn = gone
            raise SerializationConflictError(
                f"part {part} of table {table} was removed by {holder} at CSN {csn}, after what {tx.tid} "
                "reads; roll back, and run it again",
                table=table,
                part=part,
                holder=holder,
            )

    async def _drop(self, tx: Transaction, parts: Iterable[PartRow]) -> None:
        """Forget parts that the transaction has made itself; they are never published."""
        names = [part.part for part in parts]
        for part in names:
            tx.staged.stored.pop(part, None)
        unused = await self.catalog.write(lambda db: jobs.drop_parts(db, names))
        await remove_files(self.catalog, self.files, unused)


def _compacted(conflict: SerializationConflictError) -> bool:
    """Return whether the conflict is with a committed compaction."""
    return bool(conflict.details.get("merge")) and conflict.details.get("csn") is not None


def _columns_there(
    source: TableSchema, target: TableSchema, parts: Sequence[PartRow]
) -> dict[PartId, Csn | None]:
    """Return the CSN at which the target had the columns of each part of the source; None: it has them now.

    Raises:
        BadRequestError: It had them at none: the columns of the two tables were changed in different ways.
    """
    found: dict[PartId, Csn | None] = {}
    for part in parts:
        csn, here = part.columns_csn, source.layout(part.columns_csn)
        found[part.part] = None if here is None else csn
        there = target.layout(found[part.part])
        if here is not None and (there is None or there.columns != here.columns):
            raise BadRequestError(
                f"part {part.part} of table {source.name} was written before the columns of that table were "
                f"changed, in another way than those of {target.name}: insert the rows instead",
                table=target.name,
                part=part.part,
            )
    return found


#: The fields of two schemas that are compared, as messages call them.
_WORDS = {"arrow": "columns", "partition_by": "partition_by", "sort_by": "sort_by"}


def _require_equal(source: TableSchema, target: TableSchema) -> None:
    if source.name == target.name:
        raise BadRequestError(f"a partition of {source.name} cannot be moved into {target.name} itself")
    for what, words in _WORDS.items():
        if getattr(source, what) != getattr(target, what):
            raise BadRequestError(
                f"a partition moves between tables of equal schema only; {words} of {source.name} and "
                f"{target.name} differ: insert the rows instead",
                table=target.name,
            )
