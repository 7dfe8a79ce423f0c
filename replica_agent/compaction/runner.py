"""Merges one group of parts, in a separate transaction that changes no row (rule merges).

The rows of the group at the newest CSN of this replica are put in the table's order and staged like those of
an insert. The same transaction removes the parts; it takes their locks only when its copies are made. Any
failure in between (a conflict, a table that changed, an agent that stops) rolls it back, and nothing of it
remains.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.results import Committed
from tidelock.errors import (
    CommitUnknownError,
    CorruptError,
    SerializationConflictError,
    TransactionClosedError,
    UnavailableError,
)
from tidelock.replica_agent.compaction.planner import Group
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentState, Condition
from tidelock.replica_agent.sql.mutation import CompactParts, MutationRequest
from tidelock.replica_agent.sql.pool import SqlPool
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.transactions.ending.commit import Commits, WaitFor
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.row_staging import RowStaging
from tidelock.replica_agent.transactions.transaction import Transaction, TxState
from tidelock.replication.core.room import DiskUse

COMPACT = faults.step("agent.compact")

#: Pause between two looks whether a merge that runs is worth its disk.
_LOOK_S = 0.5


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Runner:
    """Merges groups.

    Attributes:
        condition: The state of this agent. A merge begins while it serves, and is given up when it stops, or
            was suspended for a session timeout: without ZooKeeper a merge cannot be committed.
        clock: Monotonic seconds.
    """

    settings: AgentSettings
    reader: CatalogReader
    transactions: Transactions
    staging: RowStaging
    commits: Commits
    sql: SqlPool
    waiters: CsnWaiters
    condition: Condition
    clock: Callable[[], float]

    async def run(self, table: TableId, group: Group) -> Csn:
        """Merge a group; return the CSN from which on its rows are in new parts.

        Raises:
            UnavailableError: This agent does not serve, or has ceased to.
            SerializationConflictError: Another transaction removes a part of it, or has done so.
            DiskFullError: The disk is below its reserve; a merge needs room before it frees some.
            CorruptError: A part cannot be read, or the numbers of input rows and output rows differ.
            TidelockError: As the commit of any transaction. Nothing of the merge remains after any error.
        """
        if self.condition.state is not AgentState.SERVING:
            raise self._not_now()
        self.staging.files.room.admit(DiskUse.NEW, 0)
        tx = self.transactions.begin(
            self.waiters.reached, lease_s=self.settings.lease_max_s, data_change=False
        )
        try:
            await COMPACT.before()
            await self._rewrite_while_serving(tx, table, group)
            await COMPACT.after()
            done = await self._commit(tx)
        except BaseException:
            await asyncio.shield(self._roll_back(tx))
            raise
        assert done is not None, "parts were removed"
        return done.csn

    async def _commit(self, tx: Transaction) -> Committed | None:
        """Commit; wait as long as the bounds of the commit itself let it: large copies may take long."""
        while True:
            try:
                return await self.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=None)
            except CommitUnknownError:
                deciding = tx.ending.commit_task
                decided = tx.state is not TxState.SEALED or deciding is None or deciding.done()
                if decided or self.condition.state not in {AgentState.SERVING, AgentState.SUSPENDED}:
                    raise

    async def _rewrite_while_serving(self, tx: Transaction, table: TableId, group: Group) -> None:
        """Rewrite the group; give it up, also in the middle of a sort, when that is in vain."""
        work = asyncio.create_task(self._rewrite(tx, table, group), name="merge")
        served_s = self.clock()
        try:
            while not (await asyncio.wait({work}, timeout=_LOOK_S))[0]:
                self.transactions.touch(tx)
                match self.condition.state:
                    case AgentState.SERVING:
                        served_s = self.clock()
                    case AgentState.SUSPENDED if self.clock() - served_s < self.settings.session_timeout_s:
                        pass
                    case _:
                        raise self._not_now()
            work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    def _not_now(self) -> UnavailableError:
        state = self.condition.state.value
        return UnavailableError(
            f"expected an agent that serves, found one that is {state}; compaction tries again later",
            state=state,
        )

    async def _rewrite(self, tx: Transaction, table: TableId, group: Group) -> None:
        at = tx.tid.snapshot
        there = {part for part, *_ in self.reader.compactable(table, group.path, at)}
        if gone := [part for part in group.parts if part not in there]:
            raise SerializationConflictError(
                f"part {gone[0]} of table {table} was removed before its compaction began",
                table=table,
                part=gone[0],
            )
        tx.staged.removed |= dict.fromkeys(group.parts, table)
        request = MutationRequest(csn=at, tid=None, table=table, action=CompactParts(group.parts))
        async with self.sql.mutate(request) as merge:
            floats = merge.affected.floats
            rows, _ = await self.staging.stage(tx, table, merge.pieces(), floats=floats)
        if rows != group.rows:
            raise CorruptError(
                f"the compaction of {len(group.parts)} parts of table {table} found {rows} rows, the catalog "
                f"says {group.rows}; nothing was changed: `tidelock audit` looks for the damaged part",
                table=table,
                rows=rows,
                expected=group.rows,
            )

    async def _roll_back(self, tx: Transaction) -> None:
        with contextlib.suppress(TransactionClosedError):  # its commit was requested and continues
            await self.commits.roll_back(tx)
