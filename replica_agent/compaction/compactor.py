"""The background task that keeps tables compact: those whose planner is this agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog

from tidelock.csnlog.core.ids import PartId, ReplicaId, TableName
from tidelock.errors import CorruptError, TidelockError
from tidelock.replica_agent.compaction.optimize import Optimizer
from tidelock.replica_agent.compaction.planner import planner_of
from tidelock.replica_agent.compaction.runner import Runner
from tidelock.replica_agent.compaction.survey import MergeWork, Survey
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.part_counts import PartCounts

_log = structlog.get_logger("compaction")

#: Seconds between two calls of :meth:`Compactor.tick`.
TICK_S = 0.25

#: Number of groups that are merged before the partitions are checked again.
_GROUPS = 64


class Compactor:
    """Merges the groups that the survey finds, at most ``compaction_concurrency`` at once.

    Args:
        members: The replicas that can plan now, including this one.
        serving: Returns whether this agent serves.
        damaged: Called with a part whose bytes are wrong here, and with the problem that was found.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        replica: ReplicaId,
        settings: AgentSettings,
        survey: Survey,
        runner: Runner,
        counts: PartCounts,
        metrics: Metrics,
        members: Callable[[], Collection[ReplicaId]],
        serving: Callable[[], bool],
        damaged: Callable[[PartId, str], None],
        clock: Callable[[], float],
    ) -> None:
        self._replica, self._on, self._counts = replica, settings.compaction, counts
        self._interval_s, self._crowd = settings.compaction_interval_s, settings.compaction_parts_max
        self._next_look_s = clock() + settings.compaction_interval_s
        self._survey, self._runner, self._metrics = survey, runner, metrics.compaction
        self._members, self._serving, self._damaged, self._clock = members, serving, damaged, clock
        self._places = asyncio.Semaphore(settings.compaction_concurrency)
        #: Runs the requests of operators.
        self.optimizer = Optimizer(
            survey=survey,
            merge=self.merge,
            counts=counts,
            serving=serving,
            retry_wait_max_s=settings.retry_wait_max_s,
            clock=clock,
        )

    async def close(self) -> None:
        """Cancel the requests of operators; the caller ends the background task."""
        await self.optimizer.close()

    async def tick(self) -> None:
        """Check the partitions when it is time, or when one has as many parts as one merge accepts."""
        if self._clock() >= self._next_look_s or self._counts.largest >= self._crowd:
            self._next_look_s = self._clock() + self._interval_s
            await self.look()

    async def look(self) -> None:
        """Merge until no group is worth merging, or none can be merged now."""
        while self._on and self._serving():
            due = (await self._survey.due(self._mine))[:_GROUPS]
            for work in due:
                self._survey.claim(work)
            if not any(await asyncio.gather(*(self._try(work) for work in due))):
                return

    def _mine(self, table: TableName) -> bool:
        return planner_of(table, self._members()) == self._replica

    async def _try(self, work: MergeWork) -> bool:
        """Merge a claimed group; a group that yields is tried again, after a longer pause each time."""
        try:
            await self.merge(work)
        except TidelockError as error:
            self._survey.tried_in_vain(work)
            what, tell = ("gave_way", _log.info) if error.retriable else ("failed", _log.error)
            facts = {"table": work.table, "path": work.group.path, "parts": len(work.group.parts)}
            tell(what, **facts, reason=error.message)
            return False
        self._survey.done(work)
        return True

    async def merge(self, work: MergeWork) -> None:
        """Merge a claimed group; errors as :meth:`Runner.run`."""
        group, begun = work.group, self._clock()
        try:
            async with self._places:
                begun = self._clock()
                csn = await self._runner.run(work.table, group)
        except TidelockError as error:
            self._metrics.merges.labels("gave_way" if error.retriable else "failed").inc()
            if isinstance(error, CorruptError) and (part := error.details.get("part")) is not None:
                self._damaged(part, error.message)
            raise
        finally:
            self._survey.release(work)
        seconds = self._clock() - begun
        self._metrics.merges.labels("done").inc()
        self._metrics.bytes.inc(group.length)
        self._metrics.seconds.observe(seconds)
        facts = {"table": work.table, "path": group.path, "parts": len(group.parts), "rows": group.rows}
        _log.info("compacted", **facts, bytes=group.length, seconds=round(seconds, 3), csn=csn)
