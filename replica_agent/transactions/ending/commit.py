"""The end of a transaction: seal, copies, group commit, apply, answer; or a rollback that leaves nothing.

``commit`` is idempotent by tid: all callers share one task, and a transaction that is no longer in memory
is answered from the catalog's outcomes. A caller that gives up waiting does not stop the task: a commit
that was requested is decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

import structlog

from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.results import Committed
from tidelock.errors import (
    CommitUnknownError,
    NotCommittedError,
    TidelockError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
)
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.transactions.ending.carriers import Carriers
from tidelock.replica_agent.transactions.ending.closing import TransactionCloser
from tidelock.replica_agent.transactions.ending.commit_batching import GroupCommitGate
from tidelock.replica_agent.transactions.ending.settlement import Settlement
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.row_staging import RowStaging
from tidelock.replica_agent.transactions.transaction import Transaction, TxState
from tidelock.replication.core.lag import LagVerdict

_log = structlog.get_logger("commit")


class WaitFor(Enum):
    """When commit() returns: the home has applied it; ``copies`` replicas have; all live replicas have."""

    HOME = "home"
    COPIES = "copies"
    ALL = "all"


WAITS = frozenset(item.value for item in WaitFor)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AppliedCommits:
    """Waits until commits are applied where their clients want to read them.

    Attributes:
        applied_on: Waits until the CSN is applied on ``copies`` (False) or on all live (True) replicas;
            returns the replicas that still lack it after the given seconds.
        clock: Monotonic seconds.
    """

    reader: CatalogReader
    waiters: CsnWaiters
    applied_on: Callable[[Csn, bool, float], Awaitable[tuple[ReplicaId, ...]]]
    clock: Callable[[], float]

    async def wait(self, tid: Tid, done: Committed, wait: WaitFor, timeout_s: float) -> Committed:
        """Return a commit, of any home, when this replica has applied it, and others as ``wait`` requires.

        Raises:
            CommitUnknownError: It was not applied within ``timeout_s``; it is committed nevertheless
                (``csn``).
        """
        until = self.clock() + timeout_s
        behind: tuple[str, ...] = ()
        if not await self.waiters.wait(done.csn, max(0.0, timeout_s)):
            behind = ("this replica",)
        elif wait is not WaitFor.HOME:
            behind = await self.applied_on(done.csn, wait is WaitFor.ALL, until - self.clock())
        if behind:
            msg = (
                f"{tid} is committed at CSN {done.csn}, but {', '.join(behind)} did not apply it in time; "
                "repeat commit() to wait on"
            )
            raise CommitUnknownError(msg, tid=str(tid), csn=done.csn)
        return self.recall(tid) or done

    def recall(self, tid: Tid) -> Committed | None:
        """Return a commit with its effective time, if it is applied here and not forgotten."""
        found = self.reader.outcome(str(tid))
        return Committed(*found) if found else None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Commits:
    """Decides this replica's transactions: one task for each, however often its commit is requested.

    Attributes:
        carriers: Commits small transactions together; it departs at the same gate.
        gate: Decides when commits depart.
        delay: Delays a commit while replicas lag behind, at most for the given seconds; returns the verdict
            that ended the delay.
        clock: Monotonic seconds.
    """

    replica: ReplicaId
    settings: AgentSettings
    transactions: Transactions
    metrics: Metrics
    applied: AppliedCommits
    settlement: Settlement
    closer: TransactionCloser
    staging: RowStaging
    carriers: Carriers
    gate: GroupCommitGate
    delay: Callable[[float], Awaitable[LagVerdict]]
    clock: Callable[[], float]

    # -- requests of clients ---------------------------------------------------------------------------------

    async def commit(
        self,
        tid: Tid,
        *,
        wait: WaitFor,
        timeout_s: float | None,
        label: str | None = None,
        batch: int | None = None,
        progress: str | None = None,
    ) -> Committed | None:
        """Commit and return the CSN, or None for a transaction that changed nothing.

        Args:
            tid: The transaction.
            wait: The replicas on which it is to be applied.
            timeout_s: How long to wait for that, and for the decision.
            label: Its label, if its beginning named none.
            batch: Number of the batch, if the label is a streaming query's.
            progress: Text that is kept with the label, if its beginning gave none.

        Raises:
            BadRequestError: It has another label, or other progress.
            RefusedError: Certainly not committed, and rolled back.
            CommitUnknownError: Not decided within ``timeout_s``; repeat the call.
        """
        timeout = self.settings.commit_timeout_s * 2 if timeout_s is None else timeout_s
        until = self.clock() + timeout
        try:
            tx = self.transactions.find(str(tid))
        except UnknownTransactionError:
            done = self.applied.recall(tid)
            if done is None:
                msg = (
                    f"replica {self.replica} does not know {tid}: it was rolled back, or its home is "
                    "another replica; ask outcome(tid)"
                )
                raise UnknownTransactionError(msg, tid=str(tid)) from None
        else:
            if label is not None:
                tx.take_label(label, batch)
            if progress is not None:
                tx.take_progress(progress)
            done = await self._await_decision(tx, timeout)
        return None if done is None else await self.applied.wait(tid, done, wait, until - self.clock())

    async def write(
        self,
        tx: Transaction,
        stage: Callable[[], Awaitable[None]],
        *,
        wait: WaitFor,
        timeout_s: float | None,
    ) -> Committed | None:
        """Stage the changes of a transaction and commit it; return and raise as :meth:`commit`.

        One task does both. So a caller that gives up, or asks for the commit of the same tid meanwhile, finds
        the transaction decided or under way, and never half staged.
        """
        timeout = self.settings.commit_timeout_s * 2 if timeout_s is None else timeout_s
        until = self.clock() + timeout
        tx.ending.commit_task = _started(self._stage_and_decide(tx, stage), f"write {tx.tid}")
        done = await self._await_decision(tx, timeout)
        return None if done is None else await self.applied.wait(tx.tid, done, wait, until - self.clock())

    async def _await_decision(self, tx: Transaction, timeout_s: float) -> Committed | None:
        if tx.state in {TxState.COMMITTED, TxState.ROLLED_BACK}:
            if tx.state is TxState.COMMITTED:
                return tx.ending.outcome
            self._refuse_closed(tx)
        if tx.ending.commit_task is None:
            self.transactions.require_open(tx)
            tx.ending.seal()
            tx.ending.commit_task = _started(self._decide(tx), f"commit {tx.tid}")
        try:
            return await asyncio.wait_for(asyncio.shield(tx.ending.commit_task), timeout_s)
        except TimeoutError:
            if tx.ending.outcome is not None:
                return tx.ending.outcome  # decided, but not yet applied here
            msg = (
                f"the commit of {tx.tid} is not decided after {timeout_s:.1f} s; repeat commit(), or "
                "ask outcome(tid)"
            )
            raise CommitUnknownError(msg, tid=str(tx.tid)) from None

    def _refuse_closed(self, tx: Transaction) -> None:
        if tx.ending.error is not None:
            raise tx.ending.error
        msg = f"transaction {tx.tid} is rolled back; begin a new one"
        raise TransactionClosedError(msg, tid=str(tx.tid), state=tx.state.value)

    async def roll_back(self, tx: Transaction, error: TidelockError | None = None) -> None:
        """Roll back, or call the running commit off; without effect if it is rolled back already.

        Raises:
            TransactionClosedError: It is committed, or has rows that landed: the call came too late.
            CommitUnknownError: Its commit was sent, and is not decided within ``wait_bound_s``.
        """
        if tx.leased:
            await self.closer.roll_back(tx, error, pushed=False)
            return
        if tx.lands and tx.state is TxState.SEALED:
            raise TransactionClosedError(
                f"{tx.tid} has rows that landed: they count as written, and its commit goes on; delete the "
                "rows when it is committed",
                tid=str(tx.tid),
                state=tx.state.value,
            )
        if tx.state is TxState.SEALED and tx.ending.commit_task is not None:
            self.settlement.call_off(tx)
            await asyncio.wait({tx.ending.commit_task}, timeout=self.settings.wait_bound_s)
        if tx.state is TxState.SEALED:
            msg = (
                f"the commit of {tx.tid} was called off, but it was sent before and is not decided yet; "
                "repeat rollback() or commit(), or ask outcome(tid)"
            )
            raise CommitUnknownError(msg, tid=str(tx.tid))
        if tx.state is TxState.COMMITTED:
            done = tx.ending.outcome
            at = "" if done is None else f" at CSN {done.csn}"
            raise TransactionClosedError(
                f"transaction {tx.tid} is committed{at} and cannot be rolled back; begin a new one to change "
                "its rows",
                tid=str(tx.tid),
                state=tx.state.value,
                csn=None if done is None else done.csn,
            )

    def abort_all(self, error: TidelockError) -> None:
        """End every transaction whose commit is not running, at once and without I/O.

        The agent calls this when it was fenced.
        """
        for tx in self.transactions.live():
            if tx.state is not TxState.SEALED:
                self.transactions.close(tx, TxState.ROLLED_BACK, error=error)

    # -- the one task that decides ---------------------------------------------------------------------------

    async def _stage_and_decide(
        self, tx: Transaction, stage: Callable[[], Awaitable[None]]
    ) -> Committed | None:
        try:
            await stage()
            self.transactions.require_open(tx)
        except TidelockError as error:
            await self._refuse(tx, error, pushed=False)
        except Exception as error:
            _log.exception("write_met_unforeseen_error", tid=str(tx.tid))
            refusal = UnavailableError(f"unforeseen: {error!r}; see the agent's log")
            await self._refuse(tx, refusal, pushed=False)
        tx.ending.seal()
        return await self._decide(tx)

    async def _decide(self, tx: Transaction) -> Committed | None:
        begun = self.clock()
        try:
            await self._cut_statements(tx)
            done = await self._commit_changes(tx, begun + self.settings.commit_timeout_s)
        except CommitUnknownError:
            raise  # only when the log has ended here: this boot can learn no more, the next one will
        except TidelockError as error:
            await self._refuse(tx, await self.settlement.explained(tx, error))
        except Exception as error:
            _log.exception("commit_met_unforeseen_error", tid=str(tx.tid))
            done = await self.settlement.find_out(tx)
            if done is None:
                await self._refuse(tx, UnavailableError(f"unforeseen: {error!r}; see the agent's log"))
        await self.closer.commit(tx, done)
        if done is not None:
            await self.applied.waiters.wait(done.csn, self.settings.commit_timeout_s)
            self.metrics.commits.labels("committed").inc()
            self.metrics.commit_seconds.observe(self.clock() - begun)
        return done

    async def _refuse(self, tx: Transaction, error: TidelockError, *, pushed: bool = True) -> NoReturn:
        """Roll a transaction back that certainly is not committed, and raise the error for its callers."""
        if tx.state is TxState.ROLLED_BACK:  # it was killed, or the agent fenced, while its rows were staged
            raise error
        refusal = _refusal(tx, error)
        self.metrics.commits.labels("refused").inc()
        _log.info("commit_refused", tid=str(tx.tid), error=type(refusal).__name__, reason=refusal.message)
        await self.closer.roll_back(tx, refusal, pushed=pushed)
        if refusal is error:
            raise error
        raise refusal from error

    async def _cut_statements(self, tx: Transaction) -> None:
        """Cut the running statements and wait for their end: until then their parts look like all others."""
        try:
            async with asyncio.timeout(self.settings.commit_timeout_s):
                await tx.statements.cut()
        except TimeoutError as error:
            raise UnavailableError("a statement that was running did not end in time") from error
        if tx.statements.half_applied:
            msg = (
                f"the commit of {tx.tid} was requested while a statement that removes rows was running; "
                "begin again"
            )
            raise TransactionClosedError(msg, tid=str(tx.tid), state=TxState.ROLLED_BACK.value)

    async def _commit_changes(self, tx: Transaction, deadline: float) -> Committed | None:
        tx.require_sealed()
        if not tx.staged.any and tx.progress is None:
            return None
        if tx.staged.skip is None:  # what an operator declares lost is what the others wait for
            async with tx.cuttable_wait():
                await self.require_followers(deadline)
        if tx.staged.rows:
            if tx.batch is None and not (tx.staged.memory or tx.staged.stored or tx.staged.removed):
                return await self.carriers.settle(tx, deadline)
            await self.staging.encode(tx, [tx])
        # Large parts share nothing, and their copies may take long; a compaction takes its locks during the
        # build; definitions wait for the end of the log; a serializable transaction is a batch of its own.
        if tx.staged.stored or tx.staged.definitions or not tx.data_change or tx.depends_on_reads:
            return await self.settlement.settle(tx, deadline)
        async with self.gate.batch():
            return await self.settlement.settle(tx, deadline)

    async def require_followers(self, deadline: float) -> None:
        """Delay the commit while replicas lag behind.

        Raises:
            UnavailableError: Fewer than ``copies`` replicas make progress, and one of them is far behind.
        """
        begun = self.clock()
        found = await self.delay(deadline - begun)
        if found.delay_s:
            self.metrics.commit_delay_seconds.inc(self.clock() - begun)
        if found.refused:
            msg = (
                f"fewer than `copies` replicas make progress: {', '.join(found.stuck)} is more than "
                f"max_lag={self.settings.max_lag} CSNs behind and applies nothing; see its phase in "
                "tidelock status"
            )
            raise UnavailableError(msg, replicas=list(found.stuck))


def _started(work: Coroutine[Any, Any, Committed | None], name: str) -> asyncio.Task[Committed | None]:
    """Start the task that decides; its callers may all have given up by the time that it refuses."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_heard)
    return task


def _heard(done: asyncio.Task[Committed | None]) -> None:
    """Take note of a refusal, which was logged as one; whatever else ends the task was logged as well."""
    if not done.cancelled():
        done.exception()


def _refusal(tx: Transaction, error: TidelockError) -> TidelockError:
    """Return the error with which a commit that certainly failed is answered.

    "Unavailable" tells a caller to repeat the call, but the transaction is rolled back. A commit that was
    called off says so, whichever step of it was cut.
    """
    if tx.ending.called_off:
        return tx.called_off_error()
    if not isinstance(error, UnavailableError):
        return error
    msg = f"{tx.tid} is not committed, and rolled back ({error.message}); begin again"
    return NotCommittedError(msg, **(error.details | {"tid": str(tx.tid)}))
