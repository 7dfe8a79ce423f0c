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

from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.errors import BadRequestError, UnknownTableError, UnsupportedInTransactionError
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replica_agent.tables.column_changes import why_not_held
from tidelock.replica_agent.tables.layouts import Layout
from tidelock.replica_agent.tables.partitions import path_in
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.statements.definitions import TableStatements
from tidelock.replica_agent.transactions.statements.removals import Removals
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.wire.statements import RestoreResult


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Restores:
    """Restores tables for the transactions of this home."""

    removals: Removals
    tables: TableStatements

    async def restore(
        self, tx: Transaction, table: str, csn: Csn, values: Mapping[str, Any] | None
    ) -> RestoreResult:
        """Make a table, or one of its partitions, again as it was at a CSN that stays readable meanwhile.

        A table gets the columns back that it had. A partition is shown with the columns of now, as its parts
        would be if they had stayed.

        Args:
            tx: An open transaction of this home.
            table: The name of the table.
            csn: The CSN.
            values: Every column of the partition with its value; None: the whole table.

        Raises:
            SerializationConflictError: Another transaction removes, or has removed, parts of it.
            CheckViolationError: Rows of then break a check that the table has got since.
            UnknownTableError: There is no such table, or it did not exist at the CSN.
            BadRequestError: The values do not name a partition; or its files have a type of before, whose
                pages are others.
            UnsupportedInTransactionError: It has a unique key; or its columns were others, and the
                transaction has rows with those of now.
            TableModeError: It is a landing table.
        """
        removals = self.removals
        async with removals.transactions.removing(tx):
            schema = removals.table(tx, table)
            self._require_restorable(tx, schema, csn)
            if values is None:
                await self.tables.restore_columns(tx, schema, csn)
                schema = removals.table(tx, table)
            path = None if values is None else path_in(schema, values)
            now = await removals.covered(tx, schema.id, path)

            def read(reader: CatalogReader) -> list[PartRow]:
                return (
                    reader.parts(schema.id, csn) if path is None else reader.partition(schema.id, path, csn)
                )

            then = await removals.catalog.read(read)
            back, gone = _without(then, now, schema), _without(now, then, schema)
            _require_shown(schema, back)
            shared = await removals.staging.share(tx, schema.id, back)
            _, before = self.tables.tables.schema(schema.id, csn)
            newer = {one.name for one in schema.checks_to_judge(before)}
            checks = self.tables.inserts.checks
            await checks.require(tx, schema, shared, at=tx.read_csn, names=newer)
            removed = await removals.take(tx, schema.id, gone)
            return RestoreResult(csn, removed.rows, removed.parts, sum(part.rows for part in back), len(back))

    def _require_restorable(self, tx: Transaction, schema: TableSchema, csn: Csn) -> None:
        schema.require_mode(lands=False)
        if schema.unique_key:
            raise UnsupportedInTransactionError(
                f"table {schema.name} has a unique key, and a restore does not compare the keys of its rows "
                "with those that others insert meanwhile; read the table at the CSN, and upsert the rows",
                table=schema.name,
            )
        if csn > tx.read_csn:
            raise BadRequestError(
                f"{tx.tid} reads at CSN {tx.read_csn}, and cannot restore table {schema.name} to CSN {csn}, "
                "whose rows it does not see; restore it in a transaction that begins later",
                csn=csn,
            )
        if self.removals.tables.version(schema.id, csn) is None:
            raise UnknownTableError(
                f"table {schema.name} did not exist at CSN {csn}; restore it to a CSN since its creation",
                table=schema.name,
            )


def _require_shown(schema: TableSchema, parts: Sequence[PartRow]) -> None:
    """Refuse parts whose pages the columns of now do not hold: plain readers could not read them."""
    first: dict[Csn, tuple[Layout, PartRow]] = {}
    for part in parts:
        if (layout := schema.layout(part.columns_csn)) is not None:
            first.setdefault(layout.below, (layout, part))
    for layout, part in first.values():
        if problem := why_not_held(schema, layout):
            raise BadRequestError(
                f"{problem} in part {part.part}, which has the columns of CSN {part.columns_csn}; restore "
                "the whole table, or insert the rows from a read at that CSN",
                table=schema.name,
                part=part.part,
            )


def _without(parts: Sequence[PartRow], others: Sequence[PartRow], schema: TableSchema) -> list[PartRow]:
    """Return the parts whose bytes no other part shows alike; of several alike those in excess."""

    def alike(part: PartRow) -> tuple[str, PartId, Csn | None]:
        layout = schema.layout(part.columns_csn)
        return part.path, part.meta.origin, None if layout is None else layout.below

    there = Counter(map(alike, others))
    left = []
    for part in parts:
        key = alike(part)
        if there[key]:
            there[key] -= 1
        else:
            left.append(part)
    return left
