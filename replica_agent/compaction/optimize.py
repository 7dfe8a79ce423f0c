"""Compaction to the end, on request: every partition gets at most one part below target size."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from tidelock.csnlog.core.ids import TableId
from tidelock.errors import TidelockError, UnavailableError
from tidelock.replica_agent.compaction.survey import MergeWork, Survey
from tidelock.replica_agent.storage.part_counts import PartCounts
from tidelock.replication.backoff import wait_s

#: Pause before a partition is checked again while others merge parts of it here.
_POLL_S = 0.05


@dataclass(slots=True)
class Optimized:
    """The result of a request.

    Attributes:
        groups: Number of merges.
        parts_before: Parts of the table, or of the partition, before the request.
        parts_after: The same number after it.
        bytes: Bytes of the parts that were merged.
        done: True if nothing more can be merged, False if the time was over.
    """

    groups: int = 0
    parts_before: int = 0
    parts_after: int = 0
    bytes: int = 0
    done: bool = False

    def describe(self) -> dict[str, Any]:
        """Return the fields of the answer."""
        return asdict(self)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Optimizer:
    """Runs the requests of one agent.

    Attributes:
        merge: Merges a group; raises TidelockError.
        serving: Returns whether this agent serves.
        retry_wait_max_s: Longest pause after a merge that yielded.
        clock: Monotonic seconds.
    """

    survey: Survey
    merge: Callable[[MergeWork], Awaitable[None]]
    counts: PartCounts
    serving: Callable[[], bool]
    retry_wait_max_s: float
    clock: Callable[[], float]
    _running: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def run(self, table: TableId, path: str | None, timeout_s: float) -> Optimized:
        """Merge a table, or one partition, until nothing can be merged, and return what was done.

        Returns after ``timeout_s`` at the latest; a merge that runs then is finished nevertheless. Partitions
        that are created meanwhile are not merged.

        Raises:
            UnavailableError: This replica stops.
            CorruptError, TooLargeError, DiskFullError: A merge cannot succeed.
        """
        paths = [path] if path is not None else [found for found, _ in self.counts.partitions(table)]
        found = Optimized(parts_before=self.counts.total(table, paths))
        work = self._table(table, paths, found, self.clock() + timeout_s)
        task = asyncio.create_task(work, name="optimize")
        self._running.add(task)
        task.add_done_callback(self._ended)
        ended, _ = await asyncio.wait({task}, timeout=timeout_s)
        if ended:
            task.result()
        found.parts_after = self.counts.total(table, paths)
        return found

    async def close(self) -> None:
        """Cancel the running requests."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # it may have no waiter any more

    async def _table(self, table: TableId, paths: Collection[str], found: Optimized, until_s: float) -> None:
        for path in paths:
            if not await self._partition(table, path, found, until_s):
                return
        found.done = True

    async def _partition(self, table: TableId, path: str, found: Optimized, until_s: float) -> bool:
        """Merge one partition; return False if the time was over while something was left to merge."""
        failures = 0
        while self.serving():
            if self.survey.merging(table, path):
                await asyncio.sleep(_POLL_S)
                continue
            due = await self.survey.of(table, path, thorough=True)
            if not due and not self.survey.only_locked(table, path):
                return True
            if self.clock() >= until_s:
                return False
            if not due:  # another transaction is changing the rest
                failures += 1
                await asyncio.sleep(wait_s(failures, self.retry_wait_max_s))
                continue
            self.survey.claim(due[0])
            try:
                await self.merge(due[0])
            except TidelockError as error:
                if not error.retriable:
                    raise
                failures += 1
                await asyncio.sleep(wait_s(failures, self.retry_wait_max_s))
            else:
                failures = 0
                found.groups += 1
                found.bytes += due[0].group.length
        raise UnavailableError("this replica is stopping or suspended; try again, or ask another replica")
