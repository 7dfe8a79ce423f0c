"""How a transaction ends: seal, copies, group commit, apply, answer; or a rollback that leaves nothing.

``commit`` is idempotent by tid: all callers share one task, and a transaction that is no longer in memory
answers from the catalog's outcomes. A caller that gives up waiting does not stop the task: once asked for, a
commit is decided.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from enum import Enum

import structlog

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.codec import encode_definition, encode_entries
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableName, Tid
from tidelock.csnlog.core.model import AddPart, DefineTable, Entry, Manifest, RemovePart, TidRecord
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.core.store import Create, SetData
from tidelock.csnlog.log import CsnLog, LogState, Proposal
from tidelock.errors import (
    CommitUnknownError,
    HeadMovedError,
    LabelExistsError,
    LabelMovedError,
    NotCommittedError,
    TidelockError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
)
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.pack_writer import PartNumbers, StagedBytes
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replica_agent.transactions.ending.commit_batching import GroupCommitGate
from tidelock.replica_agent.transactions.ending.copies import CopyMaker
from tidelock.replica_agent.transactions.ending.labels import Labels
from tidelock.replica_agent.transactions.ending.validation import Validation
from tidelock.replica_agent.transactions.registry import Isolation, Transaction, Transactions, TxState
from tidelock.replica_agent.transactions.statements.removals import Removals
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import PartMeta
from tidelock.replication.partfs import PartFs

_log = structlog.get_logger("commit")


class WaitFor(Enum):
    """When commit() returns: the home has applied it; ``copies`` replicas have; all live replicas have."""

    HOME = "home"
    COPIES = "copies"
    ALL = "all"


WAITS = frozenset(item.value for item in WaitFor)


class Commits:
    """Decides this replica's transactions.

    Args:
        lagging: Waits while a live replica is more than ``max_lag`` behind; False when it still is after the
            given seconds.
        applied_on: Waits until the CSN is applied on ``copies`` (False) or on all live (True) replicas.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        replica: ReplicaId,
        settings: AgentSettings,
        transactions: Transactions,
        catalog: Catalog,
        files: PartFs,
        numbers: PartNumbers,
        copies: CopyMaker,
        removals: Removals,
        validation: Validation,
        labels: Labels,
        log: CsnLog,
        waiters: CsnWaiters,
        metrics: Metrics,
        lagging: Callable[[float], Awaitable[tuple[ReplicaId, ...]]],
        applied_on: Callable[[Csn, bool, float], Awaitable[tuple[ReplicaId, ...]]],
        clock: Callable[[], float],
    ) -> None:
        """Decide nothing yet."""
        self._replica, self._settings = replica, settings
        self._transactions, self._catalog, self._files, self._numbers = transactions, catalog, files, numbers
        self._copies, self._csn_log, self._waiters, self._metrics = copies, log, waiters, metrics
        self._removals, self._validation, self._labels = removals, validation, labels
        self._lagging, self._applied_on, self._clock = lagging, applied_on, clock
        self._departures = GroupCommitGate(settings.commit_gather_s)

    # -- what clients ask
    # ----------------------------------------------------------------------------------------

    async def commit(
        self,
        tid: Tid,
        *,
        wait: WaitFor,
        timeout_s: float | None,
        label: str | None = None,
        batch: int | None = None,
    ) -> Committed | None:
        """Commit and return the CSN, or None for a transaction that changed nothing.

        Args:
            tid: The transaction.
            wait: Where it is to be applied.
            timeout_s: How long to wait for that, and for the decision.
            label: Its label, where it has got none at its beginning.
            batch: Number of the batch, where the label is a streaming query's.

        Raises:
            BadRequestError: It has another label.
            RefusedError: Certainly not committed, and rolled back.
            CommitUnknownError: Not decided within ``timeout_s``; repeat the call.
        """
        timeout = self._settings.commit_timeout_s * 2 if timeout_s is None else timeout_s
        until = self._clock() + timeout
        try:
            tx = self._transactions.find(str(tid))
        except UnknownTransactionError:
            done: Committed | None = self._remembered(tid)
        else:
            if label is not None:
                tx.take_label(label, batch)
            done = await self._decided(tx, timeout)
        return None if done is None else await self.applied(tid, done, wait, until - self._clock())

    async def applied(self, tid: Tid, done: Committed, wait: WaitFor, timeout_s: float) -> Committed:
        """Return a commit, of any home, when this replica has applied it, and others as ``wait`` asks.

        Raises:
            CommitUnknownError: Not within ``timeout_s``; committed it is all the same (``csn``).
        """
        until = self._clock() + timeout_s
        if not await self._waiters.wait(done.csn, max(0.0, timeout_s)):
            msg = (
                f"{tid} is committed at CSN {done.csn}, but this replica has not applied it yet; "
                "repeat commit() to wait on"
            )
            raise CommitUnknownError(msg, tid=str(tid), csn=done.csn)
        if wait is not WaitFor.HOME:
            behind = await self._applied_on(done.csn, wait is WaitFor.ALL, until - self._clock())
            if behind:
                msg = (
                    f"{tid} is committed at CSN {done.csn}, but {', '.join(behind)} did not apply it "
                    "in time; repeat commit() to wait on"
                )
                raise CommitUnknownError(msg, tid=str(tid), csn=done.csn)
        return self._timed(tid, done)

    async def _decided(self, tx: Transaction, timeout_s: float) -> Committed | None:
        if tx.state in {TxState.COMMITTED, TxState.ROLLED_BACK}:
            if tx.state is TxState.COMMITTED:
                return tx.outcome
            self._refuse_closed(tx)
        if tx.commit_task is None:
            self._transactions.require_open(tx)
            tx.state = TxState.SEALED
            tx.commit_task = asyncio.create_task(self._decide(tx), name=f"commit {tx.tid}")
        try:
            return await asyncio.wait_for(asyncio.shield(tx.commit_task), timeout_s)
        except TimeoutError:
            if tx.outcome is not None:
                return tx.outcome  # decided, and not yet applied here
            msg = (
                f"the commit of {tx.tid} is not decided after {timeout_s:.1f} s; repeat commit(), or "
                "ask outcome(tid)"
            )
            raise CommitUnknownError(msg, tid=str(tx.tid)) from None

    def _refuse_closed(self, tx: Transaction) -> None:
        if tx.error is not None:
            raise tx.error
        msg = f"transaction {tx.tid} is rolled back; begin a new one"
        raise TransactionClosedError(msg, tid=str(tx.tid), state=tx.state.value)

    def _timed(self, tid: Tid, done: Committed) -> Committed:
        found = self._catalog.reader.outcome(str(tid))
        return Committed(done.csn, found[1] if found else done.time_ms)

    def _remembered(self, tid: Tid) -> Committed:
        found = self._catalog.reader.outcome(str(tid))
        if found:
            return Committed(*found)
        msg = (
            f"replica {self._replica} does not know {tid}: it was rolled back, or its home is "
            "another replica; ask outcome(tid)"
        )
        raise UnknownTransactionError(msg, tid=str(tid))

    async def rollback(self, tx: Transaction, error: TidelockError | None = None) -> None:
        """Roll back; harmless when that is done already.

        Raises:
            TransactionClosedError: It is committed, or its commit has been asked for and runs.
        """
        if tx.state is TxState.ROLLED_BACK:
            return
        if tx.state in {TxState.SEALED, TxState.COMMITTED}:
            msg = (
                f"transaction {tx.tid} is {tx.state.value} and cannot be rolled back; ask commit() "
                "or outcome(tid) how it ended"
            )
            raise TransactionClosedError(msg, tid=str(tx.tid), state=tx.state.value)
        await self._abort(tx, error, pushed=False)

    def abort_all(self, error: TidelockError) -> None:
        """The agent was fenced.

        Every transaction whose commit is not under way is over, at once and without I/O.
        """
        for tx in self._transactions.live():
            if tx.state is not TxState.SEALED:
                self._transactions.close(tx, TxState.ROLLED_BACK, error=error)

    # -- the one task that decides
    # -------------------------------------------------------------------------------

    async def _decide(self, tx: Transaction) -> Committed | None:
        begun = self._clock()
        try:
            await self._cut_uploads(tx)
            done = await self._commit(tx, begun + self._settings.commit_timeout_s)
        except CommitUnknownError:
            raise  # only when the log has ended here: this life can learn no more, the next one will
        except TidelockError as error:
            refusal = _refusal(tx, error)
            self._metrics.commits.labels("refused").inc()
            _log.info("commit_refused", tid=str(tx.tid), error=type(refusal).__name__, reason=refusal.message)
            await self._abort(tx, refusal, pushed=True)
            if refusal is error:
                raise
            raise refusal from error
        if done is None:  # what it has locked, it has not changed
            await self._removals.release(tx)
        else:
            self._removals.committed(tx, done.csn)
        self._transactions.close(tx, TxState.COMMITTED, outcome=done)
        self._copies.release(tx.tid)
        if done is not None:
            await self._waiters.wait(done.csn, self._settings.commit_timeout_s)
            self._metrics.commits.labels("committed").inc()
            self._metrics.commit_seconds.observe(self._clock() - begun)
        return done

    async def _cut_uploads(self, tx: Transaction) -> None:
        """Wait for the end of cut inserts: until then their finished parts look like all others."""
        try:
            async with asyncio.timeout(self._settings.commit_timeout_s):
                await tx.cut_uploads()
        except TimeoutError as error:
            raise UnavailableError("a statement that was running did not end in time") from error
        if tx.torn:
            msg = f"{tx.tid} was to be committed while a statement that removes was running; begin again"
            raise TransactionClosedError(msg, tid=str(tx.tid), state=TxState.ROLLED_BACK.value)

    async def _commit(self, tx: Transaction, deadline: float) -> Committed | None:
        tx.require_sealed()
        if not tx.changes:
            return None
        behind = await self._lagging(deadline - self._clock())
        if behind:
            msg = f"{', '.join(behind)} is still more than max_lag={self._settings.max_lag} CSNs behind"
            raise UnavailableError(msg, replicas=list(behind))
        # Large parts share nothing, and their copies may take long; a compaction takes its locks on the way;
        # a serializable one travels alone.
        if tx.stored or not tx.data_change or tx.isolation is Isolation.SERIALIZABLE:
            return await self._copy_and_log(tx, deadline)
        async with self._departures.batch():
            return await self._copy_and_log(tx, deadline)

    async def _copy_and_log(self, tx: Transaction, deadline: float) -> Committed:
        proposal = await self._proposed(tx, deadline)
        if tx.isolation is Isolation.SERIALIZABLE:
            return await self._log_validated(tx, proposal, deadline)
        return await self._log(tx, proposal, deadline)

    async def _log_validated(self, tx: Transaction, proposal: Proposal, deadline: float) -> Committed:
        """Commit what is still true at the end of the log; after a commit that came between look again."""
        while True:
            version = await self._validation.validate(tx, deadline - self._clock())
            try:
                return await self._log(tx, dataclasses.replace(proposal, head_version=version), deadline)
            except HeadMovedError:
                if self._clock() > deadline:
                    raise

    async def _proposed(self, tx: Transaction, deadline: float) -> Proposal:
        try:
            return await self._proposal(tx, deadline)
        except TidelockError:
            raise
        except Exception as error:
            _log.exception("not_proposed", tid=str(tx.tid))
            raise UnavailableError(f"unforeseen: {error!r}; see the agent's log") from error

    async def _log(self, tx: Transaction, proposal: Proposal, deadline: float) -> Committed:
        """Commit; a label that is not what it was taken for is read, and judged again."""
        if tx.batch is not None:
            proposal = await self._placed(tx, proposal, deadline)
        while True:
            try:
                return await self._log_once(proposal, deadline)
            except (LabelExistsError, LabelMovedError):
                if self._clock() > deadline:
                    raise
                proposal = await self._placed(tx, proposal, deadline)

    async def _placed(self, tx: Transaction, proposal: Proposal, deadline: float) -> Proposal:
        assert tx.label is not None
        left = max(0.1, deadline - self._clock())
        move = await self._labels.place(tx.label, tx.batch, proposal.tid, left)
        return dataclasses.replace(proposal, move=move)

    async def _log_once(self, proposal: Proposal, deadline: float) -> Committed:
        try:
            return await self._csn_log.commit(proposal, timeout_s=max(0.1, deadline - self._clock()))
        except CommitUnknownError:
            return await self._settle(proposal)

    async def _proposal(self, tx: Transaction, deadline: float) -> Proposal:
        """Return what goes into the log once every part has its copies. Until then nothing is sent there."""
        entries: tuple[Entry, ...] = (
            *tx.definitions,
            *(RemovePart(table, part) for part, table in tx.removed.items()),
            *(_entry(part) for part in tx.parts),
        )
        manifest = self._manifest(tx, entries)
        parts = tuple(tx.parts)
        holders: tuple[ReplicaId, ...] = (self._replica,)
        if parts:
            holders = await self._copies.make(
                tx.tid, parts, tuple(tx.memory.values()), deadline - self._clock()
            )
            tx.stored.update({part.part: part for part in parts})
            self._transactions.forget_memory(tx)
        if not tx.data_change:  # only now, so that it hinders nobody while it works
            await self._removals.replace_parts(tx)
        record = TidRecord(
            tid=str(tx.tid),
            entries=() if manifest else entries,
            manifest=manifest,
            holders=holders,
            label=tx.label,
            data_change=tx.data_change,
            meta=tx.meta,
            batch=tx.batch,
        )
        ddl = tuple(_defining(item) for item in tx.definitions)
        return Proposal(record, dict(tx.tables), ddl, tx.label)

    def _manifest(self, tx: Transaction, entries: tuple[Entry, ...]) -> Manifest | None:
        data = encode_entries(entries)
        if len(data) <= self._settings.inline_entries_bytes_max:
            return None
        part = self._numbers.next()
        meta = PartMeta(
            part=part,
            table=TableName(""),
            path="",
            rows=0,
            length=len(data),
            checksum=checksum(data),
            stats=None,
            kind="manifest",
        )
        self._transactions.add(tx, StagedBytes(meta, data, tx.tid))
        return Manifest(part, len(data), meta.checksum, len(entries))

    async def _settle(self, proposal: Proposal) -> Committed:
        """Ask until the outcome is known.

        The record was sent and nobody knows whether it landed. Asking again with the same tid never gives it
        a second CSN.
        """
        _log.warning("commit_unknown", tid=proposal.tid)
        while True:
            try:
                return await self._csn_log.commit(proposal, timeout_s=self._settings.commit_timeout_s)
            except CommitUnknownError:
                if self._csn_log.state not in {LogState.FOLLOWING, LogState.SUSPENDED}:
                    raise
            except UnavailableError as error:
                if self._csn_log.state not in {LogState.FOLLOWING, LogState.SUSPENDED}:
                    raise CommitUnknownError(error.message, tid=proposal.tid) from error
                raise

    async def _abort(self, tx: Transaction, error: TidelockError | None, *, pushed: bool) -> None:
        """Close first, so that nothing is added any more, and end what is running.

        Then give back rows, marks, files, locks and the peers' copies.
        """
        told = pushed or bool(tx.stored or tx.writes)  # peers may have fetched early
        stored = told or bool(tx.removed) or tx.torn
        self._transactions.close(tx, TxState.ROLLED_BACK, error=error)
        if tx.uploads:
            stored = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.commit_timeout_s):
                    await tx.cut_uploads()
        if told:
            self._copies.rolled_back(tx.tid)
        await self._removals.release(tx)
        unsealed = tx.take_unsealed()
        if stored:
            self._catalog.late_removals.update(unsealed)
            try:
                unused = await self._catalog.write(lambda db: jobs.drop_undecided(db, [str(tx.tid)]))
                await remove_files(self._catalog, self._files, sorted({*unused, *unsealed}))
            except TidelockError as failed:
                # Decided all the same: the janitor takes the rows back, and the files with them.
                _log.warning("rollback_not_cleaned", tid=str(tx.tid), reason=failed.message)


def _refusal(tx: Transaction, error: TidelockError) -> TidelockError:
    """Return what a commit that failed for certain is answered with.

    "Unavailable" tells a caller to repeat the call, but the transaction is rolled back.
    """
    if not isinstance(error, UnavailableError):
        return error
    msg = f"{tx.tid} is not committed, and rolled back ({error.message}); begin again"
    return NotCommittedError(msg, **(error.details | {"tid": str(tx.tid)}))


def _defining(item: DefineTable) -> Create | SetData:
    """Return what gives a table this definition: a create, or a set of the one before."""
    path, data = tree.table(item.table), encode_definition(item.definition)
    return SetData(path, data, item.version - 1) if item.version else Create(path, data)


def _entry(part: PartMeta) -> AddPart:
    return AddPart(part.table, part.part, part.path, part.rows, part.length, part.checksum)
