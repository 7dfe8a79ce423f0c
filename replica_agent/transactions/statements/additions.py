"""How rows enter a table: as they are, or under its unique key; and with them what is derived from them.

Every statement that adds rows which somebody has given, or selected, comes through here; so does what is
derived from them, to any depth. For a table that has neither a unique key nor dependents it is the plain
staging of rows. Statements that change rows (:mod:`tidelock.replica_agent.transactions.statements.mutations`)
do not: what a delete, an update, an upsert or a merge does to a table is not followed by the tables that are
derived from it.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Sequence

from tidelock.csnlog.core.ids import Csn, TableName
from tidelock.replica_agent.transactions.registry import Transaction, Transactions
from tidelock.replica_agent.transactions.statements.derived import DerivedTables
from tidelock.replica_agent.transactions.statements.inserts import Inserts
from tidelock.replica_agent.transactions.statements.mutations import Mutations
from tidelock.replication.core.model import PartMeta


class Additions:
    """Adds rows for the transactions of this home."""

    def __init__(
        self, transactions: Transactions, inserts: Inserts, mutations: Mutations, derived: DerivedTables
    ) -> None:
        self._transactions, self._inserts = transactions, inserts
        self._mutations, self._derived = mutations, derived

    async def add(
        self,
        tx: Transaction,
        table: TableName,
        pieces: AsyncIterable[bytes],
        *,
        at: Csn | None = None,
        path: str | None = None,
    ) -> tuple[int, Sequence[PartMeta]]:
        """Add the rows of one Arrow IPC stream; see :meth:`Inserts.stage`.

        Raises:
            DuplicateKeyError: Rows have a key twice, or one that is in the table, which refuses it.
            SerializationConflictError: Another transaction adds such keys, or changes the rows that are to be
                replaced.
            RefusedError: As :meth:`Inserts.insert`, for the table or for one that is derived from it.
        """
        csn = tx.tid.snapshot if at is None else at
        version, schema = self._inserts.schema(table, csn)
        if not (schema.unique_key or schema.dependents):
            return await self._inserts.stage(tx, table, pieces, at=csn, path=path)
        async with self._transactions.removing(tx):
            tx.use(table, version)  # a newer one may name dependents that would not be followed
            if schema.unique_key:
                rows, parts = await self._mutations.insert(tx, schema, pieces, path)
            else:
                rows, parts = await self._inserts.stage(tx, table, pieces, at=csn, path=path)
            await self._derived.follow(tx, schema, parts, at=csn, adding=self.add)
            return rows, parts
