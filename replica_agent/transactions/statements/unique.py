"""Tables with a unique key: no two rows that are visible at one CSN, on any replica, have the same key.

Inserts take no locks, except those into such tables. They lock a range of the first key column, from the
smallest key to the largest. Two inserts whose ranges overlap cannot both be committed unless one sees the
other. The second one finds the lock of the first. Or that lock is deleted, since every replica has applied
the commit; then the second one finds the rows of the first among those that were added above its own CSN.
Removed rows need no lock of keys: a statement that removes or rewrites a part holds the lock of that part,
and adds no key that was not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import BadRequestError, SerializationConflictError
from tidelock.replica_agent.config.switches import Switches
from tidelock.replica_agent.sql.mutation import Action, MergeRows, UpdateRows
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.tables.key_ranges import key_column, part_range, range_of
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replication.core.lock_rules import LockAsk, overlap
from tidelock.replication.locks.removal_locks import Locks


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class UniqueKeys:
    """Keeps the keys of new rows apart from those of other transactions."""

    switches: Switches
    reader: CatalogReader
    transactions: Transactions
    locks: Locks

    async def claim(
        self, tx: Transaction, schema: TableSchema, bounds: Sequence[Any] | None, at: Csn
    ) -> None:
        """Lock the range of the keys that a statement adds; they were compared with what ``at`` shows.

        Without effect for a table without a unique key.

        Args:
            tx: It keeps the lock.
            schema: The schema of the table.
            bounds: Smallest and largest value of the first key column among the new rows, as in
                :class:`~tidelock.replica_agent.sql.mutation.Affected`; None: any.
            at: The CSN that the statement reads the table at.

        Raises:
            SerializationConflictError: Another transaction adds, or has added above ``at``, keys of this
                range.
        """
        if not schema.unique_key:
            return
        keys = range_of(key_column(schema), bounds)
        ask = LockAsk(schema.id, {}, (keys,))
        await self.locks.take(tx.tid, ask, at=at, wait_s=self.switches.lock_wait_s)
        self.transactions.require_open(tx)  # it was killed, or its lease ran out, while it waited
        for path, statistics in self.reader.added_since(schema.id, at):
            if overlap(keys, part_range(schema, path, statistics)):
                raise SerializationConflictError(
                    f"rows were added to table {schema.name} after CSN {at}, which {tx.tid} reads, and may "
                    "have keys of its own new rows; roll back, and run it again",
                    table=schema.name,
                    keys=[keys.low, keys.high],
                )


def for_unique_key(schema: TableSchema, action: Action) -> Action:
    """Return a statement in the form for a table with a key: a merge by the key's columns in their order.

    The claimed range is that of the first key column.

    Raises:
        BadRequestError: It could give a row of a table with a unique key the key of another row.
    """
    if not schema.unique_key:
        return action
    match action:
        case UpdateRows(set=values):
            _require_none(schema, values, "an update")
        case MergeRows(on=on, update=update, insert=insert):
            if set(on) != set(schema.unique_key):
                raise BadRequestError(
                    f"table {schema.name} is unique by {', '.join(schema.unique_key)}; merge or upsert on "
                    f"exactly these columns, found {', '.join(on) or 'none'}",
                    table=schema.name,
                )
            _require_none(schema, update if isinstance(update, dict) else {}, "a merge")
            if isinstance(insert, dict):
                given = {name: value for name, value in insert.items() if value != f"source.{name}"}
                _require_none(schema, given, "when_not_matched_insert of a merge")
            return msgspec.structs.replace(action, on=schema.unique_key)
    return action


def _require_none(schema: TableSchema, values: Mapping[str, object], statement: str) -> None:
    if changed := [name for name in schema.unique_key if name in values]:
        raise BadRequestError(
            f"{changed[0]} is a column of the unique key of table {schema.name}, which {statement} cannot "
            "change; delete the rows, and insert them with their new keys",
            table=schema.name,
            column=changed[0],
        )
