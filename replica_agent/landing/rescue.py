"""The rescue of rows that landed in a transaction which will not be committed.

Its boot has ended before it could commit them, or the log refuses it, since a table of it was dropped.
The home has acknowledged such rows, and nothing but the parts of that transaction holds them. So each
replica that knows of its end, and has confirmed these parts, commits their bytes again, as new parts in a
transaction of its own. All do so under one label, which names the first transaction: the log takes one of
them, and the others hear that the label exists. A replica that applies the record of that label forgets the
parts (`catalog_writes`). The rows of a table that was dropped since they landed go with it, also if it has
come back.

A label is kept for a time, and then a replica that was down for longer could bring the rows once more. So
nobody begins before it has applied the log to an end that was read after the abort was known: if somebody has
brought the rows before, that record is applied here, and the parts are forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from tidelock.csnlog.core.ids import PartId, TableId, Tid
from tidelock.csnlog.core.labels import landing_label
from tidelock.csnlog.core.skipped import Skips
from tidelock.csnlog.log import CsnLog
from tidelock.errors import CorruptError, LabelExistsError, UnavailableError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.pack_writer import PartNumbers, StagedBytes
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.transactions.ending.commit import Commits, WaitFor
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replication.core.model import PartMeta
from tidelock.replication.partfs import PartFs

_log = structlog.get_logger("landing")


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Rescue:
    """Commits what has landed in transactions that were aborted.

    Attributes:
        skips: Records that operators have had skipped.
        damaged: Called with a part whose bytes are wrong; it is fetched again.
        wait_s: How long to wait for the end of the log.
    """

    condition: Condition
    log: CsnLog
    waiters: CsnWaiters
    catalog: Catalog
    tables: Tables
    files: PartFs
    numbers: PartNumbers
    transactions: Transactions
    commits: Commits
    skips: Skips
    metrics: Metrics
    damaged: Callable[[PartId, str], None]
    wait_s: float

    async def settle(self, tid: Tid) -> bool:
        """Return whether the parts of a transaction that is certainly not committed may be forgotten here.

        Rows that landed with it are committed first, unless another replica has done that.
        """
        if not self.catalog.reader.landed(str(tid)):
            return True
        if any(str(tid) in word.tids for word in self.skips.values()):
            return True  # an operator does not want them
        if not self.condition.allows(AgentAction.COMMIT):
            return False
        try:
            end = await self.log.barrier()
            return await self.waiters.wait(end, self.wait_s) and await self._commit(tid)
        except LabelExistsError:
            return True
        except Exception as error:  # the next check tries again, and the others need this one to go on
            _log.warning("landing_not_rescued", tid=str(tid), reason=str(error))
            return False

    async def _commit(self, tid: Tid) -> bool:
        at = self.waiters.reached
        landed = self.catalog.reader.landed(str(tid))  # none if the log has brought them by now
        versions: dict[TableId, int] = {}
        copies: list[tuple[PartMeta, bytes]] = []
        for meta, place in landed:
            # Rows that an earlier version has left here name no CSN of their columns, which did not change.
            since = tid.snapshot if meta.columns_csn is None else meta.columns_csn
            if (version := self.tables.version_since(meta.table, since, at)) is None:
                continue
            versions[meta.table] = version
            if place is None:
                raise UnavailableError(f"part {meta.part} is damaged, and is fetched again")
            try:
                data = await asyncio.to_thread(self.files.read, place)
            except CorruptError as error:
                self.damaged(meta.part, error.message)
                raise
            copy = msgspec.structs.replace(meta, part=self.numbers.next(), kind="part", columns_csn=since)
            copies.append((copy, data))
        if not copies:
            return True
        tx = self.transactions.begin(self.waiters.reached, label=landing_label(str(tid)))
        for copy, data in copies:
            self.transactions.add(tx, StagedBytes(copy, data, tx.tid))
            tx.use(copy.table, versions[copy.table])
        done = await self.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=None)
        rows = sum(copy.rows for copy, _ in copies)
        self.metrics.landing.rescued.inc(rows)
        _log.info("landing_rescued", tid=str(tid), by=str(tx.tid), rows=rows, csn=done and done.csn)
        return True
