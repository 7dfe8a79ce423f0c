"""Validation of a transaction: what it depends on must be unchanged at the end of the log (rule commit).

A serializable transaction depends on all that it has read. Every other one depends on the tables whose rows
it has all written again: a row that came in between would be one of before.

The order decides: the version of ``csn/head`` first, then the log to its end in the same session, then, when
all of that is applied here, what has changed since the transaction's snapshot. Every commit sets
``csn/head``, so a commit after this check makes the multi of the transaction fail its check, and the
transaction is validated again (F11).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.log import CsnLog
from tidelock.errors import SerializationConflictError
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.transactions.transaction import Excluded, Isolation, Transaction


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Validation:
    """Validates read sets at this home."""

    reader: CatalogReader
    tables: Tables
    log: CsnLog
    waiters: CsnWaiters

    async def validate(self, tx: Transaction, timeout_s: float) -> int:
        """Return the version of ``csn/head`` at which nothing that the transaction has read had changed.

        Raises:
            SerializationConflictError: A commit since its snapshot has changed rows, or the definition, of
                what it has read; or another table has a name that it has looked up.
            UnavailableError: The end of the log was not applied here in time.
        """
        version, end = await self.log.head(patience_s=timeout_s)
        await self.waiters.require(end, timeout_s)
        since = tx.tid.snapshot
        reads = dict(tx.statements.reads)
        if tx.isolation is Isolation.SERIALIZABLE and tx.statements.unrecorded_reads:  # any table, all of it
            reads = dict.fromkeys(self.reader.table_names(self.waiters.reached))
        changed = {table: self.reader.changed_partitions(table, since) for table in reads}
        table = first_conflict(reads, changed)
        if table is None:
            table = next((table for table in reads if self._redefined(table, tx)), None)
        if table is not None:
            raise SerializationConflictError(
                f"{tx.tid} has read table {table} at CSN {since}, and a commit up to CSN {end} has changed "
                "what it read; run it again",
                table=table,
                csn=end,
            )
        self._require_names(tx, end)
        return version

    def _require_names(self, tx: Transaction, end: Csn) -> None:
        for name, found in tx.statements.names.items():
            if self.tables.bearer(name, self.waiters.reached) != found:
                raise SerializationConflictError(
                    f"{tx.tid} has looked for a table {name} at CSN {tx.tid.snapshot}, and a commit up to "
                    f"CSN {end} has created, dropped or renamed one of that name; run it again",
                    table=name,
                    csn=end,
                )

    def _redefined(self, table: TableId, tx: Transaction) -> bool:
        now = self.tables.version(table, self.waiters.reached)
        return now != self.tables.version(table, tx.tid.snapshot)


def first_conflict(reads: Mapping[TableId, Excluded], changed: Mapping[TableId, set[str]]) -> TableId | None:
    """Return a table with a changed partition that the transaction may have read, or None.

    A partition counts as read unless the transaction has excluded it; so does a partition that was created
    since (phantoms).
    """
    for table, excluded in reads.items():
        if changed[table] - (excluded or frozenset()):
            return table
    return None
