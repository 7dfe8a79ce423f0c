"""What an agent does again and again: progress, leases, others' undecided transactions, cleaning."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from tidelock.csnlog.cluster.bootstrap import keep_alive
from tidelock.csnlog.cluster.replica_progress import read_standing
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.codec import encode_progress
from tidelock.csnlog.core.ids import CSN_NONE
from tidelock.csnlog.core.model import PROGRESS_OPEN_MAX, Progress
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Link, SetData
from tidelock.csnlog.log import LogState
from tidelock.csnlog.reading import read_tail
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import LeaseExpiredError
from tidelock.replica_agent.compaction.compactor import TICK_S
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import ALLOWED, Action
from tidelock.replica_agent.lifecycle.local import Local
from tidelock.replica_agent.lifecycle.wiring import Machinery
from tidelock.replica_agent.replicas.undecided import UndecidedResolver
from tidelock.replica_agent.snapshots.garbage_collection import GarbageCollection
from tidelock.replica_agent.storage.unused_files import remove_late
from tidelock.replica_agent.transactions.ending.outcome_retention import OutcomeRetention
from tidelock.replica_agent.transactions.outcomes.rules import UNDECIDED

PeriodicTask = Callable[[], Coroutine[Any, Any, object]]

_LEASE_TICK_S = 0.25


class BackgroundTasks:
    """The chores of one life."""

    def __init__(self, settings: AgentSettings, local: Local, machinery: Machinery, store: ZkStore) -> None:
        self._settings, self._local, self._machinery, self._store = settings, local, machinery, store
        self._operations = machinery.operations
        self._published: Progress | None = None
        catalog, log, data_dir = local.catalog, machinery.log, settings.data_dir
        self._collection = GarbageCollection(
            settings, data_dir, catalog, local.files, store, machinery.operations.metrics.collected_parts.inc
        )
        self._outcomes = OutcomeRetention(self._operations.replica, catalog, store, log.fenced)
        self._janitor = UndecidedResolver(
            local.catalog,
            outcome=lambda tid: machinery.operations.outcomes.outcome(tid, UNDECIDED),
            forget=self._operations.acceptor.forget,
            fetching=lambda: machinery.fetcher.early() | machinery.operations.foreign.tids(),
        )

    def chores(self) -> list[tuple[str, float, PeriodicTask]]:
        """Return (name, seconds between two runs, what to do)."""
        settings = self._settings
        return [
            ("progress", settings.progress_interval_s, self._publish_progress),
            ("leases", _LEASE_TICK_S, self._end_leases),
            ("undecided", settings.undecided_check_s, self._if_collecting(self._janitor.look)),
            ("alive", settings.member_refresh_s, self.keep_alive),
            ("locks", settings.lock_sweep_interval_s, self._if_collecting(self._sweep_locks)),
            ("clean", settings.clean_interval_s, self._if_collecting(self._clean)),
            ("compaction", TICK_S, self._machinery.compactor.tick),
            ("history", settings.horizon_interval_s, self._if_collecting(self._keep_history)),
        ]

    def _if_collecting(self, work: PeriodicTask) -> PeriodicTask:
        """Leave a chore out while the agent's state takes nothing away."""

        async def when_allowed() -> None:
            if Action.COLLECT in ALLOWED[self._operations.condition.state]:
                await work()

        return when_allowed

    async def keep_alive(self) -> None:
        """Let the sign of life stand in the present ZooKeeper session; the next run repeats what fails."""
        if self._store.link is Link.CONNECTED:
            await keep_alive(self._store, self._operations.session)

    async def _publish_progress(self) -> None:
        """Tell ZooKeeper how far this replica is, if that has changed; tail and horizon depend on it.

        And so does what compaction merges on the long transactions that are open.
        """
        operations, reached = self._operations, self._local.waiters.reached
        oldest = min(operations.transactions.oldest_snapshot(reached), operations.snapshots.oldest(reached))
        heeded = operations.transactions.long_snapshots()[:PROGRESS_OPEN_MAX]
        told = operations.session.told
        progress = Progress(reached, oldest, tuple(heeded), told if told > reached else CSN_NONE)
        operations.metrics.oldest.set(oldest)
        if progress != self._published and self._machinery.log.state is LogState.FOLLOWING:
            change = SetData(tree.progress(operations.replica), encode_progress(progress))
            if isinstance(await self._machinery.log.fenced((change,)), Ok):
                self._published = progress

    async def _end_leases(self) -> None:
        operations = self._operations
        for tx in operations.transactions.expired(self._local.waiters.reached):
            await operations.commits.rollback(
                tx,
                LeaseExpiredError(
                    f"transaction {tx.tid} was rolled back: no sign of life for its lease of {tx.lease_s} s; "
                    "begin a new one",
                    tid=str(tx.tid),
                ),
            )
        await operations.snapshots.sweep()
        operations.metrics.open_transactions.set(len(operations.transactions.live()))
        operations.metrics.staged_memory.set(operations.transactions.memory_bytes)

    async def _sweep_locks(self) -> None:
        """Delete removal locks that nobody needs any more."""
        tail = await read_tail(self._store) or CSN_NONE
        standing = await read_standing(self._store)
        await self._operations.locks.sweep(tail if standing is None else standing.locks_needed_from(tail))
        self._operations.metrics.locks.set(self._operations.locks.held)

    async def _clean(self) -> None:
        await remove_late(self._local.catalog, self._local.files)
        await asyncio.to_thread(self._local.files.empty_trash)
        now, settings = time.time(), self._settings
        await self._outcomes.forget(
            int((now - settings.outcome_retention_s) * 1000),
            int((now - settings.stream_label_retention_s) * 1000),
        )

    async def _keep_history(self) -> None:
        """Move horizon and tail, then delete what they have passed, whoever has moved them."""
        await self._operations.snapshots.forget_ended()
        try:
            await self._operations.history.advance()
        finally:
            await self._collection.run()
            self._show_history()

    def _show_history(self) -> None:
        reader, metrics = self._local.catalog.reader, self._operations.metrics
        metrics.horizon.set(reader.horizon())
        metrics.tail.set(reader.meta("tail"))
        metrics.pins.set(self._operations.history.describe()["pins"])
