"""Conditions of tables: no statement leaves rows that break one, in whichever way they came.

They are the checks of a table, and that its generated columns have the values which their SQL makes.

The rows of a statement are staged first. Then an SQL process reads them, as files, and evaluates the
conditions of their table (:mod:`tidelock.replica_agent.sql.checking`). So every way into a table ends here:
inserts, changed rows, files of jobs, restored parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.csnlog.core.model import DefineTable
from tidelock.replica_agent.sql.mutation import CheckRows, MutationRequest
from tidelock.replica_agent.sql.pool import SqlPool
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.statements.row_staging import RowStaging
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replication.core.model import PartMeta

#: Parts are judged in statements of about so many bytes, each of which has the time of a statement.
JUDGED_BYTES: Final = 256 << 20


class JudgedPart(Protocol):
    """A part whose rows are judged."""

    @property
    def part(self) -> PartId:
        """Its id."""

    @property
    def length(self) -> int:
        """Its bytes."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class RowChecks:
    """Evaluates the checks of tables for the transactions of this home."""

    staging: RowStaging
    catalog: Catalog
    sql: SqlPool

    async def require(
        self,
        tx: Transaction,
        schema: TableSchema,
        parts: Sequence[PartMeta],
        *,
        at: Csn,
        names: Collection[str] | None = None,
        made: bool = False,
    ) -> None:
        """Require that rows do not break the conditions of their table; without effect if it has none.

        Args:
            tx: It has staged the rows.
            schema: The table as the transaction sees it.
            parts: All parts of the rows.
            at: The CSN that the statement reads at.
            names: The conditions; None: all of the table.
            made: The SQL process that sent the rows has made their generated columns.

        Raises:
            CheckViolationError: Rows break a condition.
            BadRequestError: A condition fails for a row.
            TableChangedError: A condition was taken away since.
            TooLargeError, UnavailableError: As :meth:`SqlPool.statement`.
        """
        judged = schema.checks if made else schema.conditions
        asked = tuple(one.name for one in judged if names is None or one.name in names)
        if asked and parts:
            await self.staging.write_out(tx)
            await self._judge(tx, schema.id, asked, parts, at, ())

    async def bind(
        self, tx: Transaction, made: DefineTable, names: Sequence[str], *, at: Csn, judged: Collection[str]
    ) -> Mapping[str, tuple[str, ...]]:
        """Bind conditions of a new definition to its columns; return the names of those that each one reads.

        Args:
            tx: The transaction that defines the table, before it does so.
            made: The definition.
            names: The conditions.
            at: The CSN that the statement reads at.
            judged: Those of them that no row of the table which the transaction sees may break.

        Raises:
            BadRequestError: The SQL of a check is no condition over the columns of one row, or that of a
                generated column no value of it.
            Others as :meth:`require`.
        """
        asked, table = tuple(names), made.table
        columns = await self._run(tx, table, CheckRows(asked), at, (made,))
        if judged:
            await self.staging.write_out(tx)
            own, adopted = str(tx.tid), tuple(tx.staged.adopted.tids)
            parts = await self.catalog.read(lambda reader: reader.parts(table, at, own, adopted))
            await self._judge(tx, table, tuple(judged), parts, at, (made,))
        return columns

    async def _judge(
        self,
        tx: Transaction,
        table: TableId,
        names: tuple[str, ...],
        parts: Sequence[JudgedPart],
        at: Csn,
        made: Sequence[DefineTable],
    ) -> None:
        some: list[PartId] = []
        size = 0
        for number, part in enumerate(parts, 1):
            some.append(part.part)
            size += part.length
            if size >= JUDGED_BYTES or number == len(parts):
                await self._run(tx, table, CheckRows(names, tuple(some)), at, made)
                some, size = [], 0

    async def _run(
        self, tx: Transaction, table: TableId, action: CheckRows, at: Csn, made: Sequence[DefineTable]
    ) -> Mapping[str, tuple[str, ...]]:
        defined = (*tx.staged.definitions, *made)
        request = MutationRequest(at, str(tx.tid), table, action, tuple(tx.staged.adopted.tids), defined)
        async with self.sql.mutate(request) as checking:
            async for _ in checking.pieces():
                pass  # it has no rows
            return checking.ended.checked
