"""Replacements: parts whose rows a job of the client changes, as Spark does with tables of any size.

The client reads a table at the snapshot of its transaction, finds the files that have rows to change, and
names them. Their parts are locked and removed here, before a row is written: of two transactions that would
change one part, one is told now. Then the client reads exactly these parts, and writes what remains of their
rows as a job (:mod:`tidelock.replica_agent.uploads.uploads`). The transaction cannot be committed before the
seal of that job, which has the numbers of changed rows, and fails unless the files have all other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.errors import CorruptError, SerializationConflictError, UnsupportedInTransactionError
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.staged_files import TakenParts
from tidelock.replica_agent.transactions.statements.removals import TRIES
from tidelock.replica_agent.transactions.transaction import Isolation, Transaction
from tidelock.replica_agent.uploads.uploads import Uploads
from tidelock.wire.ids import TableName
from tidelock.wire.statements import ReplacedPart, Replacement


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Replacements:
    """Takes parts out of the transactions of this home, for jobs that change their rows."""

    uploads: Uploads

    async def begin(self, tx: Transaction, table: TableName, parts: Sequence[PartId]) -> Replacement:
        """Lock and remove the parts that hold the rows of some parts; return which these are.

        They are other ones where compaction has merged some since the snapshot; then all rows of the merged
        parts are to be written again.

        Args:
            tx: An open transaction of this home, which has not changed the table.
            table: The table.
            parts: Parts that its snapshot shows.

        Raises:
            SerializationConflictError: Another transaction has locked or removed one of them.
            UnsupportedInTransactionError: The transaction has changed the table, or reads what is committed.
            TableModeError: It is a landing table.
            TooLargeError: There are too many parts to be locked.
            UnknownTableError: There is no such table.
        """
        removals = self.uploads.removals
        schema = removals.table(tx, table)
        writes = self.uploads.of(tx, schema.id)
        # In the order of a seal, so that no job of the table is sealed meanwhile.
        async with writes.turn, removals.transactions.removing(tx):
            self._require_unchanged(tx, schema)
            found = await self._remove(tx, schema.id, parts)
            tx.note_reads({schema.id: None})
            rows = sum(part.rows for part in found)
            writes.taken = TakenParts(tuple(part.part for part in found), rows)
            return Replacement(_readable(tx.tid.snapshot, found, removals.waiters.reached), rows)

    async def _remove(self, tx: Transaction, table: TableId, parts: Sequence[PartId]) -> list[PartRow]:
        """Remove the holders of the rows of parts; begin again if compaction replaces them meanwhile."""
        removals = self.uploads.removals
        for left in reversed(range(TRIES)):
            at = removals.adopt(tx, table)
            found = await self._holders(tx, table, at, parts)
            try:
                await removals.remove_parts(tx, table, found)
            except SerializationConflictError as conflict:
                if not left or not await removals.moved(tx, table, at, conflict):
                    raise
            else:
                return found
        raise AssertionError("the last try returns or raises")

    def _require_unchanged(self, tx: Transaction, schema: TableSchema) -> None:
        """Require that the snapshot shows the table as the transaction sees it: a client reads that."""
        if tx.isolation is Isolation.READ_COMMITTED:
            raise UnsupportedInTransactionError(
                f"{tx.tid} sees at each statement what is committed then, and Spark reads one snapshot: "
                "begin it with isolation='snapshot' or 'serializable'"
            )
        staged = tx.staged
        added = any(part.table == schema.id for part in staged.parts)
        kept = any(rows.schema.id == schema.id for rows in staged.rows)
        writes = staged.writes[schema.id]
        changed = added or kept or schema.id in staged.removed.values()
        written = writes.taken is not None or bool(writes.files) or writes.area.unsealed() is not None
        if changed or written or any(made.table == schema.id for made in staged.definitions):
            raise UnsupportedInTransactionError(
                f"{tx.tid} has changed table {schema.name} already, which its snapshot does not show to "
                "Spark; do it in a transaction of its own, or use tx.merge, tx.update or tx.delete",
                table=schema.name,
            )

    async def _holders(
        self, tx: Transaction, table: TableId, at: Csn, parts: Sequence[PartId]
    ) -> list[PartRow]:
        """Return the parts that the transaction sees and that have the rows of ``parts``, by id."""
        own, adopted = str(tx.tid), frozenset(tx.staged.adopted.tids)

        def job(reader: CatalogReader) -> list[PartRow]:
            seen = {part.part: part for part in reader.parts(table, at, own, adopted)}
            found: dict[PartId, PartRow] = {}
            left, known = [*parts], set(parts)
            while left:
                part = left.pop()
                merge = reader.remover(part)
                # A part that another transaction has removed is kept: the mark finds the conflict.
                row = seen.get(part) or (reader.part(part) if merge not in adopted else None)
                if row is not None:
                    found[part] = row
                    continue
                if merge is None:
                    raise CorruptError(f"part {part} of table {table} is gone from the catalog", part=part)
                made = [row.part for row in reader.parts_of(merge) if row.part not in known]
                left += made
                known |= {*made}
            return [found[part] for part in sorted(found)]

        return await self.uploads.catalog.read(job)


def _readable(snapshot: Csn, parts: Sequence[PartRow], newest: Csn) -> list[ReplacedPart]:
    """Return the files of locked parts, with CSNs that show them for as long as the transaction is open.

    Parts that compaction has made since the snapshot are shown at the newest CSN: the locks keep them there.
    """
    return [
        ReplacedPart(part.name, part.rows, snapshot if _before(part, snapshot) else newest) for part in parts
    ]


def _before(part: PartRow, snapshot: Csn) -> bool:
    return part.creation_csn is not None and part.creation_csn <= snapshot
