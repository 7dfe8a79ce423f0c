"""The close of a transaction: committed, with its locks kept; or rolled back, with nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import structlog

from tidelock.csnlog.core.results import Committed
from tidelock.errors import TidelockError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replica_agent.transactions.ending.copies import CopyMaker
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.removals import Removals
from tidelock.replica_agent.transactions.transaction import Transaction, TxState
from tidelock.replication.partfs import PartFs

_log = structlog.get_logger("commit")


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TransactionCloser:
    """Closes transactions of this home."""

    settings: AgentSettings
    transactions: Transactions
    catalog: Catalog
    files: PartFs
    copies: CopyMaker
    removals: Removals

    async def commit(self, tx: Transaction, done: Committed | None) -> None:
        """Close a committed transaction; None: it changed nothing, and the log does not have it."""
        if done is not None:
            self.removals.committed(tx, done.csn)
        self.transactions.close(tx, TxState.COMMITTED, outcome=done)
        self.copies.release(tx.tid)
        if done is None:  # its locks were taken for no change
            await self.removals.release(tx)

    async def roll_back(self, tx: Transaction, error: TidelockError | None, *, pushed: bool) -> None:
        """Close a transaction, so that nothing more is added, and end its running statements.

        Then take back rows, marks, files, locks and the peers' copies.

        Args:
            tx: Neither committed nor rolled back.
            error: The reason, for later requests.
            pushed: A commit may have sent parts of it to peers.
        """
        copied = pushed or bool(tx.staged.stored or tx.staged.writes)  # peers may have fetched early
        stored = copied or bool(tx.staged.removed) or tx.statements.half_applied
        self.transactions.close(tx, TxState.ROLLED_BACK, error=error)
        if tx.statements.running:
            stored = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.commit_timeout_s):
                    await tx.statements.cut()
        if copied:
            self.copies.rolled_back(tx.tid)
        await self.removals.release(tx)
        unsealed = tx.staged.take_unsealed()
        if stored:
            self.catalog.late_removals.update(unsealed)
            try:
                unused = await self.catalog.write(lambda db: jobs.drop_undecided(db, [str(tx.tid)]))
                await remove_files(self.catalog, self.files, sorted({*unused, *unsealed}))
            except TidelockError as failed:
                # The rollback is decided all the same: the undecided check removes the rows and their files.
                _log.warning("rollback_not_cleaned", tid=str(tx.tid), reason=failed.message)
