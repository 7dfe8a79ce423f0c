"""The background tasks of an agent: progress, leases, undecided transactions, removal locks, cleaning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from tidelock.csnlog.cluster import replica_progress
from tidelock.csnlog.cluster.bootstrap import keep_alive
from tidelock.csnlog.cluster.replica_progress import locks_needed_from
from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.csnlog.core.model import PROGRESS_OPEN_MAX, Progress
from tidelock.csnlog.core.store import LinkState
from tidelock.csnlog.log import LogState
from tidelock.csnlog.reading import read_tail
from tidelock.errors import DiskFullError, LeaseExpiredError, TidelockError, TransactionAgeError
from tidelock.replica_agent.compaction.compactor import TICK_S
from tidelock.replica_agent.config.states import AgentAction
from tidelock.replica_agent.lifecycle.arrears import Arrears
from tidelock.replica_agent.lifecycle.wiring import AgentParts
from tidelock.replica_agent.replicas.timekeeper import Timekeeper
from tidelock.replica_agent.replicas.undecided import UndecidedResolver
from tidelock.replica_agent.snapshots.garbage_collection import GarbageCollection
from tidelock.replica_agent.storage import commit_history
from tidelock.replica_agent.storage.unused_files import remove_late
from tidelock.replica_agent.transactions.ending.abandoned_labels import AbandonedLabels
from tidelock.replica_agent.transactions.ending.outcome_retention import OutcomeRetention
from tidelock.replica_agent.transactions.outcomes.rules import UNDECIDED
from tidelock.replica_agent.transactions.transaction import Transaction, TxState

_log = structlog.get_logger("background")

PeriodicTask = Callable[[], Coroutine[Any, Any, object]]

_LEASE_TICK_S = 0.25
#: A scrubber reads so often what its rate allows meanwhile.
SCRUB_TICK_S = 0.5
#: How often it is checked in an interval of ticks whether one is due.
TICK_CHECKS = 4
#: Rows of the history of commits that are deleted in one transaction of the catalog.
HISTORY_BATCH = 2000


class BackgroundTasks:
    """The background tasks of one boot."""

    def __init__(self, parts: AgentParts, owed: Arrears) -> None:
        self._owed = owed
        means, replication = parts.means, parts.replication
        self._settings, self._local, self._store = means.settings, means.local, means.store
        self._condition, self._metrics, self._session = means.condition, means.metrics, means.session
        self._manifests = parts.manifests
        self._switches = means.switches
        self._log, self._compactor = replication.log, parts.compactor
        self._transactions, self._commits = parts.transactions.registry, parts.transactions.commits
        self._locks, self._phase = parts.transactions.locks, replication.own_phase
        self._skips = replication.skips
        self._tags = parts.services.tags
        self._snapshots, self._horizon = parts.snapshots.pinned, parts.snapshots.horizon
        #: The start has noted its boot in a forced transaction, so all that the catalog had then is durable.
        self._durable = self._local.waiters.reached
        self._strikes = replication.strikes
        self._published: Progress | None = None
        catalog = means.local.catalog
        self._collection = GarbageCollection(
            means.settings,
            means.settings.data_dir,
            catalog,
            means.local.files,
            means.store,
            means.metrics.collected_parts.inc,
            replication.retention.newest_before,
        )
        self._retention = replication.retention
        self._timekeeper = Timekeeper(
            replica=means.replica,
            settings=means.settings,
            log=replication.log,
            membership=replication.membership,
            clocks=replication.clocks,
            reader=catalog.reader,
            metrics=means.metrics,
            monotonic=time.monotonic,
        )
        self._outcomes = OutcomeRetention(means.replica, catalog, means.store, replication.log.fenced)
        self._abandoned = AbandonedLabels(
            replica=means.replica,
            store=means.store,
            fenced=replication.log.fenced,
            reader=catalog.reader,
            ended=replication.membership.ended,
            clock=time.monotonic,
        )
        self._scrubber, self._comparison = parts.scrubber, parts.comparison
        self._undecided = UndecidedResolver(
            catalog,
            outcome=partial(parts.transactions.outcomes.outcome, policy=UNDECIDED),
            rescue=parts.landing.rescue.settle,
            forget=parts.receiver.forget,
            fetching=lambda: replication.fetcher.early() | parts.uploads.peer_uploads.tids(),
        )

    def tasks(self) -> list[tuple[str, float, PeriodicTask]]:
        """Return (name, seconds between two runs, work) of each background task of an agent that works."""
        settings = self._settings
        return [
            ("skips", settings.progress_interval_s, self._learn_skip),
            ("leases", _LEASE_TICK_S, self._end_leases),
            ("undecided", settings.undecided_check_s, self._if_collecting(self._undecided.resolve_all)),
            ("alive", settings.member_refresh_s, self.keep_alive),
            ("locks", settings.lock_sweep_interval_s, self._if_collecting(self._sweep_locks)),
            ("clean", settings.clean_interval_s, self._if_collecting(self._unless_switched_off(self._clean))),
            ("compaction", TICK_S, self._compactor.tick),
            ("strikes", settings.horizon_interval_s, self._if_collecting(self._strikes.check)),
            (
                "history",
                settings.horizon_interval_s,
                self._if_collecting(self._unless_switched_off(self._move_horizon)),
            ),
            ("clocks", settings.clock_check_interval_s, self._timekeeper.check),
            ("tick", settings.tick_interval_s / TICK_CHECKS, self._if_collecting(self._timekeeper.tick)),
            ("scrub", SCRUB_TICK_S, self._if_collecting(self._scrubber.tick)),
            (
                "comparison",
                settings.compare_interval_s / TICK_CHECKS,
                self._if_serving(self._comparison.check),
            ),
        ]

    def _if_collecting(self, work: PeriodicTask) -> PeriodicTask:
        """Return work that is skipped while the agent's state does not allow deletions."""

        async def when_allowed() -> None:
            if self._condition.allows(AgentAction.COLLECT):
                await work()

        return when_allowed

    def _if_serving(self, work: PeriodicTask) -> PeriodicTask:
        """Return work that is skipped while the agent serves no snapshots."""

        async def when_allowed() -> None:
            if self._condition.allows(AgentAction.READ):
                await work()

        return when_allowed

    def _unless_switched_off(self, work: PeriodicTask) -> PeriodicTask:
        """Return work that is skipped while an operator has switched collection off."""

        async def when_on() -> None:
            if self._switches.collection:
                await work()

        return when_on

    async def keep_alive(self) -> None:
        """Write the sign of life in the present ZooKeeper session; the next run repeats a failed write."""
        if self._store.link is LinkState.CONNECTED:
            await keep_alive(self._store, self._session)

    async def publish_progress(self) -> None:
        """Publish the progress of this replica in ZooKeeper if it has changed; tail and horizon depend on it.

        The parts that compaction merges depend likewise on the open long transactions, and the delay of the
        others' commits depends on the phase.
        """
        reached = self._local.waiters.reached
        try:
            await self._make_durable(reached)
        except DiskFullError:  # the others have to hear of that, and that this replica gets no further
            reached = self._durable
        oldest = min(self._transactions.oldest_snapshot(reached), self._snapshots.oldest(reached))
        if self._owed.base:
            oldest = min(oldest, self._owed.base)  # the parts of the clone that are still fetched
        long_snapshots = self._transactions.long_snapshots()[:PROGRESS_OPEN_MAX]
        published_max = self._owed.serve_from
        report, since_ms = self._phase.look()
        progress = Progress(
            snapshot=reached,
            oldest=oldest,
            open=tuple(long_snapshots),
            published_max=published_max if published_max > reached else CSN_NONE,
            phase=report.phase,
            since_ms=since_ms,
            blocked_by=report.blocked_by,
        )
        self._metrics.oldest.set(oldest)
        if progress == self._published or self._log.state is not LogState.FOLLOWING:
            return
        force = partial(self._make_durable, reached)
        if await replica_progress.publish(self._log.fenced, self._session.replica, progress, force=force):
            self._published = progress

    async def _make_durable(self, csn: Csn) -> None:
        """Return when no power cut takes this replica back behind a CSN that it has applied."""
        if csn > self._durable:
            await self._local.catalog.force()
            self._durable = csn

    async def _learn_skip(self) -> None:
        """Look whether the part that this replica waits for was declared lost."""
        if self._phase.blocked_by is not None:
            await self._skips.learn(self._phase.blocked_by.part)

    async def _end_leases(self) -> None:
        expired = self._transactions.expired(self._local.waiters.reached)
        if not self._switches.lease_sweep:
            expired = []
        for tx in expired:
            await self._commits.roll_back(
                tx,
                LeaseExpiredError(
                    f"transaction {tx.tid} was rolled back: no sign of life for its lease of "
                    f"{tx.lease.seconds:g} s; begin a new one",
                    tid=str(tx.tid),
                ),
            )
        for tx in self._transactions.too_old():
            await self._end_too_old(tx)
        await self._snapshots.sweep(expire=self._switches.lease_sweep)
        self._metrics.open_transactions.set(len(self._transactions.live()))
        self._metrics.staged_memory.set(self._transactions.memory_bytes)

    async def _end_too_old(self, tx: Transaction) -> None:
        limit, held = self._settings.transaction_age_max_s, tx.tid.snapshot
        _log.warning("transaction_too_old", tid=str(tx.tid), age_max_s=limit, held_csn=held)
        await self._commits.roll_back(
            tx,
            TransactionAgeError(
                f"transaction {tx.tid} was rolled back: it was open for more than {limit:g} s "
                f"(transaction_age_max_s), and held the history of all tables at CSN {held}, which is free "
                "now; begin a new one, and commit more often",
                tid=str(tx.tid),
                state=TxState.ROLLED_BACK.value,
                held_csn=held,
            ),
        )

    async def _sweep_locks(self) -> None:
        """Delete removal locks that are not needed any more."""
        tail = await read_tail(self._store) or CSN_NONE
        needed_from = await locks_needed_from(self._store, tail)
        await self._locks.sweep(tail if needed_from is None else needed_from)
        self._metrics.locks.set(self._locks.held)

    async def _clean(self) -> None:
        await self._manifests.forget_unused()
        await remove_late(self._local.catalog, self._local.files)
        await asyncio.to_thread(self._local.files.empty_trash)
        now_ms, settings = self._retention.now_ms(), self._settings
        await self._local.catalog.write(self._retention.save)
        await self._outcomes.forget(
            now_ms - int(settings.outcome_retention_s * 1000),
            now_ms - int(settings.label_retention_s * 1000),
            now_ms - int(settings.stream_label_retention_s * 1000),
        )
        await self._abandoned.release()
        await self._forget_history(now_ms - int(settings.commit_history_retention_s * 1000))

    async def _forget_history(self, before_ms: int) -> None:
        """Forget the oldest commits, some at a time, since commits wait for the catalog meanwhile."""
        rows = await self._local.catalog.read(lambda reader: reader.history_rows())
        excess, gone = rows - self._settings.commit_history_rows_max, HISTORY_BATCH
        while gone == HISTORY_BATCH:
            gone = await self._local.catalog.write(
                partial(commit_history.prune, before_ms=before_ms, excess=excess, limit=HISTORY_BATCH)
            )
            excess -= gone

    async def _move_horizon(self) -> None:
        """Move horizon and tail, then delete what is below them, whichever replica moved them."""
        await self._snapshots.forget_ended()
        if self._condition.allows(AgentAction.BEGIN):
            await self._tags.end_expired()
        try:
            await self._horizon.advance()
        except TidelockError:  # but not a cancellation: then this boot is to end
            await self._collect()
            raise
        await self._collect()

    async def _collect(self) -> None:
        await self._collection.run()
        reader, metrics = self._local.catalog.reader, self._metrics
        metrics.horizon.set(reader.horizon())
        metrics.tail.set(reader.meta("tail"))
        metrics.pins.set(self._horizon.pins)
