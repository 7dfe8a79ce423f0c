"""The order of definitions: those of a commit must be right for all that was defined before (rule tables).

They were decided at the snapshot of the transaction, and others may have been committed since. The version of
the znode ``tables`` comes first, then the log to its end, then, when all of that is applied here, a look at
the tables that the transaction uses and the names that it gives. The commit checks the version. So a
definition after this look makes the commit fail, and the transaction looks again; one of a table that it has
nothing to do with costs it nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelock.csnlog.log import CsnLog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.tables.definitions import require_right
from tidelock.replica_agent.transactions.transaction import Transaction


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DefinitionOrder:
    """Finds the place of a transaction's definitions among those of all others."""

    tables: Tables
    log: CsnLog
    waiters: CsnWaiters

    async def place(self, tx: Transaction, timeout_s: float) -> int:
        """Return a version of ``tables`` at which the definitions of a transaction are right.

        Raises:
            TableChangedError: Another transaction has changed or dropped a table that it uses.
            TableExistsError: Another transaction has given one of its names.
            UnavailableError: The end of the log was not applied here in time.
        """
        version, end = await self.log.tables(patience_s=timeout_s)
        await self.waiters.require(end, timeout_s)
        then, now = self.tables.seen(tx.tid.snapshot), self.tables.seen(self.waiters.reached)
        require_right(tx.staged.definitions, tx.staged.tables, then, now)
        return version
