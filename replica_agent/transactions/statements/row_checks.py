"""Checks of tables: no statement leaves rows that break one, in whichever way they came.

The rows of a statement are staged first. Then an SQL process reads them, as files, and evaluates the checks
of their table (:mod:`tidelock.replica_agent.sql.checking`). So every way into a table ends here: inserts,
changed rows, files of jobs, restored parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.model import DefineTable
from tidelock.replica_agent.sql.mutation import CheckRows, MutationRequest
from tidelock.replica_agent.sql.pool import SqlPool
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.statements.row_staging import RowStaging
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replication.core.model import PartMeta


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class RowChecks:
    """Evaluates the checks of tables for the transactions of this home."""

    staging: RowStaging
    sql: SqlPool

    async def require(
        self,
        tx: Transaction,
        schema: TableSchema,
        parts: Sequence[PartMeta],
        *,
        at: Csn,
        names: Collection[str] | None = None,
    ) -> None:
        """Require that rows do not break the checks of their table; without effect if it has none.

        Args:
            tx: It has staged the rows.
            schema: The table as the transaction sees it.
            parts: All parts of the rows.
            at: The CSN that the statement reads at.
            names: The checks; None: all of the table.

        Raises:
            CheckViolationError: Rows break a check.
            BadRequestError: A check fails for a row.
            TooLargeError, UnavailableError: As :meth:`SqlPool.statement`.
        """
        asked = tuple(one.name for one in schema.checks if names is None or one.name in names)
        if not (asked and parts):
            return
        await self.staging.write_out(tx)
        action = CheckRows(asked, asked, tuple(part.part for part in parts))
        await self._run(tx, schema.id, action, at, ())

    async def bind(
        self,
        tx: Transaction,
        made: DefineTable,
        names: Collection[str],
        *,
        at: Csn,
        rows: bool,
    ) -> Mapping[str, tuple[str, ...]]:
        """Bind checks of a new definition to its columns; return the names of those that each one reads.

        Args:
            tx: The transaction that defines the table, before it does so.
            made: The definition.
            names: The checks.
            at: The CSN that the statement reads at.
            rows: Whether all rows of the table that the transaction sees must not break them.

        Raises:
            BadRequestError: The SQL of a check is no condition over the columns of one row.
            Others as :meth:`require`.
        """
        if rows:
            await self.staging.write_out(tx)
        asked = tuple(names)
        return await self._run(tx, made.table, CheckRows(asked, asked if rows else ()), at, (made,))

    async def _run(
        self, tx: Transaction, table: TableId, action: CheckRows, at: Csn, made: Sequence[DefineTable]
    ) -> Mapping[str, tuple[str, ...]]:
        defined = (*tx.staged.definitions, *made)
        request = MutationRequest(at, str(tx.tid), table, action, tuple(tx.staged.adopted.tids), defined)
        async with self.sql.mutate(request) as checking:
            async for _ in checking.pieces():
                pass  # it has no rows
            return checking.ended.checked
