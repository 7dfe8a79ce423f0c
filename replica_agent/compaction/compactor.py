"""The background task that keeps tables compact: those whose planner is this agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import structlog

from tidelock.csnlog.core.ids import PartId, ReplicaId, TableId
from tidelock.errors import CorruptError, TidelockError
from tidelock.replica_agent.compaction.optimize import Optimizer
from tidelock.replica_agent.compaction.planner import planner_of
from tidelock.replica_agent.compaction.runner import Runner
from tidelock.replica_agent.compaction.survey import MergeWork, Survey
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.switches import Switches
from tidelock.replica_agent.storage.part_counts import PartCounts

_log = structlog.get_logger("compaction")

#: Seconds between two calls of :meth:`Compactor.tick`.
TICK_S = 0.25

#: Number of groups that are merged before the partitions are checked again.
_GROUPS = 64


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Compactor:
    """Merges the groups that the survey finds, at most ``compaction_concurrency`` at once.

    Attributes:
        members: The replicas that can plan now, including this one.
        serving: Returns whether this agent serves.
        damaged: Called with a part whose bytes are wrong here, and with the problem that was found.
        clock: Monotonic seconds.
    """

    replica: ReplicaId
    settings: AgentSettings
    switches: Switches
    survey: Survey
    runner: Runner
    counts: PartCounts
    metrics: Metrics
    members: Callable[[], Collection[ReplicaId]]
    serving: Callable[[], bool]
    damaged: Callable[[PartId, str], None]
    clock: Callable[[], float]
    #: Runs the requests of operators.
    optimizer: Optimizer = field(init=False)
    _next_check_s: float = field(init=False)
    _places: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        """Wait for one interval before the first check."""
        self._next_check_s = self.clock() + self.settings.compaction_interval_s
        self._places = asyncio.Semaphore(self.settings.compaction_concurrency)
        self.optimizer = Optimizer(
            survey=self.survey,
            merge=self.merge,
            counts=self.counts,
            serving=self.serving,
            retry_wait_max_s=self.settings.retry_wait_max_s,
            clock=self.clock,
        )

    async def close(self) -> None:
        """Cancel the requests of operators; the caller ends the background task."""
        await self.optimizer.close()

    async def tick(self) -> None:
        """Check the partitions when it is time, or when one has as many parts as one merge accepts."""
        if self.clock() >= self._next_check_s or self.counts.largest >= self.settings.compaction_parts_max:
            self._next_check_s = self.clock() + self.settings.compaction_interval_s
            await self.merge_due()

    async def merge_due(self) -> None:
        """Merge until no group is worth merging, or none can be merged now."""
        while self.switches.compaction and self.serving():
            due = (await self.survey.due(self._mine))[:_GROUPS]
            for work in due:
                self.survey.claim(work)
            if not any(await asyncio.gather(*(self._try(work) for work in due))):
                return

    def _mine(self, table: TableId) -> bool:
        return planner_of(table, self.members()) == self.replica

    async def _try(self, work: MergeWork) -> bool:
        """Merge a claimed group; a group that yields is tried again, after a longer pause each time."""
        try:
            await self.merge(work)
        except TidelockError as error:
            self.survey.tried_in_vain(work)
            event, log = ("gave_way", _log.info) if error.retriable else ("failed", _log.error)
            facts = {"table": work.table, "path": work.group.path, "parts": len(work.group.parts)}
            log(event, **facts, reason=error.message)
            return False
        self.survey.done(work)
        return True

    async def merge(self, work: MergeWork) -> None:
        """Merge a claimed group; errors as :meth:`Runner.run`."""
        group, begun = work.group, self.clock()
        try:
            async with self._places:
                begun = self.clock()
                csn = await self.runner.run(work.table, group)
        except TidelockError as error:
            self.metrics.compaction.merges.labels("gave_way" if error.retriable else "failed").inc()
            if isinstance(error, CorruptError) and (part := error.details.get("part")) is not None:
                self.damaged(part, error.message)
            raise
        finally:
            self.survey.release(work)
        seconds = self.clock() - begun
        self.metrics.compaction.merges.labels("done").inc()
        self.metrics.compaction.bytes.inc(group.length)
        self.metrics.compaction.seconds.observe(seconds)
        facts = {"table": work.table, "path": group.path, "parts": len(group.parts), "rows": group.rows}
        _log.info("compacted", **facts, bytes=group.length, seconds=round(seconds, 3), csn=csn)
