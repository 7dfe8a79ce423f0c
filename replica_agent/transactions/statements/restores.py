"""Makes a table again as it was at a CSN: a commit of entries, without a byte of rows (rule shared-bytes).

The parts that were visible then and are not now come back, as new parts with the same bytes. The parts that
are visible now and were not then leave the table. Parts that were visible then, and still are, or whose bytes
another part has by now, stay as they are. The lock is that of a removal of the table, or of the partition.
So two restores conflict, and a restore and a statement that removes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import BadRequestError, UnknownTableError, UnsupportedInTransactionError
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replica_agent.tables.partitions import path_in
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.statements.removals import Removals
from tidelock.replica_agent.transactions.statements.row_staging import require_own_columns
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.wire.statements import RestoreResult


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Restores:
    """Restores tables for the transactions of this home."""

    removals: Removals

    async def restore(
        self, tx: Transaction, table: str, csn: Csn, values: Mapping[str, Any] | None
    ) -> RestoreResult:
        """Make a table, or one of its partitions, again as it was at a CSN that stays readable meanwhile.

        Args:
            tx: An open transaction of this home.
            table: The name of the table.
            csn: The CSN.
            values: Every column of the partition with its value; None: the whole table.

        Raises:
            SerializationConflictError: Another transaction removes, or has removed, parts of it.
            UnknownTableError: There is no such table, or it did not exist at the CSN.
            BadRequestError: Its columns were others at the CSN, or the values do not name a partition.
            UnsupportedInTransactionError: It has a unique key.
            TableModeError: It is a landing table.
        """
        removals = self.removals
        async with removals.transactions.removing(tx):
            schema = removals.table(tx, table)
            self._require_restorable(schema, csn)
            path = None if values is None else path_in(schema, values)
            now = await removals.covered(tx, schema.id, path)

            def read(reader: CatalogReader) -> list[PartRow]:
                return (
                    reader.parts(schema.id, csn) if path is None else reader.partition(schema.id, path, csn)
                )

            then = await removals.catalog.read(read)
            back, gone = _without(then, now), _without(now, then)
            require_own_columns(schema, back)
            await removals.staging.share(tx, schema.id, back)
            removed = await removals.take(tx, schema.id, gone)
            return RestoreResult(csn, removed.rows, removed.parts, sum(part.rows for part in back), len(back))

    def _require_restorable(self, schema: TableSchema, csn: Csn) -> None:
        schema.require_mode(lands=False)
        if schema.unique_key:
            raise UnsupportedInTransactionError(
                f"table {schema.name} has a unique key, and a restore does not compare the keys of its rows "
                "with those that others insert meanwhile; read the table at the CSN, and upsert the rows",
                table=schema.name,
            )
        if self.removals.tables.version(schema.id, csn) is None:
            raise UnknownTableError(
                f"table {schema.name} did not exist at CSN {csn}; restore it to a CSN since its creation",
                table=schema.name,
            )
        _, then = self.removals.tables.schema(schema.id, csn)
        for what, words in (("stored_columns", "columns"), ("partition_by", "partition_by")):
            if getattr(then, what) != getattr(schema, what):
                raise BadRequestError(
                    f"{words} of table {schema.name} were others at CSN {csn} than they are now; insert the "
                    f"rows of that CSN instead: tx.insert(table, db.read(table, csn={csn}))",
                    table=schema.name,
                    csn=csn,
                )


def _without(parts: Sequence[PartRow], others: Sequence[PartRow]) -> list[PartRow]:
    """Return the parts whose bytes no other part has; of several with the same bytes those in excess."""
    there = Counter((part.path, part.meta.origin) for part in others)
    left = []
    for part in parts:
        key = part.path, part.meta.origin
        if there[key]:
            there[key] -= 1
        else:
            left.append(part)
    return left
