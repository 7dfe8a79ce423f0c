"""Finds what to compact: the partitions that have changed since the last check, and their parts.

Partitions whose counts have not changed are not read again, so that a check of many idle tables costs
nothing. After each failed merge a partition rests for longer.

Before a group is merged, ZooKeeper is asked for the locked parts: a long transaction may hold one for hours,
at another home; then the other parts are merged without it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import msgspec

from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, TableId
from tidelock.errors import UnavailableError, UnknownTableError
from tidelock.replica_agent.compaction.planner import Candidate, Group, Limits, plan, quiet_in_s
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.part_counts import PartCounts
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.transactions.adopted_merges import AdoptedMerges
from tidelock.replication.backoff import wait_s

#: A group is at least so many times as large as the parts that are not merged (see ``Limits.target_bytes``).
_TARGETS_IN_A_GROUP = 3
#: Resting partitions that are looked at in one turn of the event loop.
_LOOKED_AT_ONCE = 1000


class MergeWork(msgspec.Struct, frozen=True):
    """A group of a table that is worth merging, and the number of parts of its partition."""

    table: TableId
    group: Group
    crowd: int


@dataclass(slots=True)
class _Rest:
    """The time until which a partition rests, unless it changes; ``failures`` in a row came before."""

    csn: Csn
    until_s: float
    failures: int = 0


def limits_of(settings: AgentSettings) -> Limits:
    """Return the bounds of groups; a part that an insert closed by its size has target size."""
    return Limits(
        parts_min=settings.compaction_parts_min,
        parts_max=settings.compaction_parts_max,
        bytes_max=settings.compaction_bytes_max,
        target_bytes=min(
            settings.compaction_target_bytes,
            settings.compaction_bytes_max // _TARGETS_IN_A_GROUP,
            settings.part_bytes_max,
        ),
        quiet_s=settings.compaction_quiet_s,
    )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Survey:
    """The knowledge of this agent about the partitions.

    Attributes:
        long_snapshots: Returns the CSNs that long transactions read at, of any home.
        locked: Returns the parts of a table that were locked a moment ago; it may raise UnavailableError.
        clock: Monotonic seconds.
        now_ms: The log's time (Unix, ms).
    """

    settings: AgentSettings
    reader: CatalogReader
    tables: Tables
    counts: PartCounts
    waiters: CsnWaiters
    long_snapshots: Callable[[], Collection[Csn]]
    locked: Callable[[TableId], Awaitable[Collection[PartId]]]
    clock: Callable[[], float]
    now_ms: Callable[[], int]
    _limits: Limits = field(init=False)
    _rests: dict[tuple[TableId, str], _Rest] = field(default_factory=dict, init=False)
    #: For each respected CSN, the merges above it that a reader at this CSN could adopt.
    _adopted: dict[Csn, AdoptedMerges] = field(default_factory=dict, init=False)
    #: Partitions in which only locked parts were left to merge.
    _only_locked: set[tuple[TableId, str]] = field(default_factory=set, init=False)
    _claimed: set[PartId] = field(default_factory=set, init=False)
    _merging: Counter[tuple[TableId, str]] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        """Derive the bounds of groups from the settings."""
        self._limits = limits_of(self.settings)

    async def due(self, mine: Callable[[TableId], bool]) -> list[MergeWork]:
        """Return the work in the tables that are ``mine``, the partition with most parts first."""
        found: list[MergeWork] = []
        self._update_eras()
        for table in self.counts.tables():
            if not mine(table) or not self._wanted(table):
                continue
            for number, (path, partition) in enumerate(self.counts.partitions(table), 1):
                if not number % _LOOKED_AT_ONCE:
                    await asyncio.sleep(0)
                if not self._resting(table, path, partition.csn):
                    found += await self.of(table, path)
                    await asyncio.sleep(0)  # thousands of partitions may have changed
        found.sort(key=lambda work: -work.crowd)
        return found

    async def of(self, table: TableId, path: str, *, thorough: bool = False) -> list[MergeWork]:
        """Return what is worth merging in one partition, and not locked; see :func:`planner.plan`."""
        self._only_locked.discard((table, path))
        at = self.waiters.reached
        parts = self._candidates(table, path, at)
        if not plan(parts, self._limits, thorough=thorough):
            if not thorough:
                wait = quiet_in_s(parts, self._limits)
                until = math.inf if wait is None else self.clock() + wait
                self._rests[table, path] = _Rest(at, until)
            return []
        locked = await self._locked_now(table)
        at = self.waiters.reached
        parts = [part for part in self._candidates(table, path, at) if part.part not in locked]
        groups = plan(parts, self._limits, thorough=thorough)
        if not groups:
            self._only_locked.add((table, path))
            self._rests[table, path] = _Rest(at, self.clock() + self.settings.compaction_retry_wait_max_s)
        return [MergeWork(table, group, len(parts)) for group in groups]

    def only_locked(self, table: TableId, path: str) -> bool:
        """Return whether only locked parts were worth merging in a partition at the last check."""
        return (table, path) in self._only_locked

    def claim(self, work: MergeWork) -> None:
        """Leave out the parts of a group from now on: they are being merged here."""
        self._claimed.update(work.group.parts)
        self._merging[work.table, work.group.path] += 1

    def release(self, work: MergeWork) -> None:
        """End the claim of a group: its merge has ended, in any way."""
        self._claimed.difference_update(work.group.parts)
        self._merging[work.table, work.group.path] -= 1

    def merging(self, table: TableId, path: str) -> bool:
        """Return whether parts of a partition are claimed."""
        return self._merging[table, path] > 0

    def tried_in_vain(self, work: MergeWork) -> None:
        """Let a partition rest after a merge that yielded or failed."""
        key = (work.table, work.group.path)
        before = self._rests.get(key)
        failures = before.failures + 1 if before else 1
        until = self.clock() + wait_s(failures, self.settings.compaction_retry_wait_max_s)
        self._rests[key] = _Rest(CSN_NONE, until, failures)

    def done(self, work: MergeWork) -> None:
        """Note a merge that succeeded: the partition may be checked again at once."""
        self._rests.pop((work.table, work.group.path), None)

    def _update_eras(self) -> None:
        """Read the CSNs of long transactions; if one has ended, its eras of parts can be merged."""
        long_snapshots = set(self.long_snapshots())
        if self._adopted.keys() - long_snapshots:
            self._rests = {key: rest for key, rest in self._rests.items() if rest.failures}
        self._adopted = {csn: self._adopted.get(csn) or AdoptedMerges() for csn in long_snapshots}

    async def _locked_now(self, table: TableId) -> Collection[PartId]:
        try:
            return await self.locked(table)
        except UnavailableError:  # the merge will meet the lock
            return ()

    def _resting(self, table: TableId, path: str, changed: Csn) -> bool:
        rest = self._rests.get((table, path))
        if rest is None or self.clock() >= rest.until_s:
            return False
        return rest.failures > 0 or rest.csn >= changed

    def _wanted(self, table: TableId) -> bool:
        try:
            _, schema = self.tables.schema(table, self.waiters.reached)
        except UnknownTableError:
            return False
        return schema.properties.get("compaction") != "off"

    def _candidates(self, table: TableId, path: str, at: Csn) -> list[Candidate]:
        now_ms = self.now_ms()
        self._update_eras()
        for csn, adopted in self._adopted.items():
            adopted.adopt(self.reader, None, at=csn, newest=at)
        return [
            Candidate(part, path, rows, length, csn, max(0.0, (now_ms - time_ms) / 1000), self._era(csn, tid))
            for part, rows, length, tid, csn, time_ms in self.reader.compactable(table, path, at)
            if part not in self._claimed
        ]

    def _era(self, csn: Csn, tid: str) -> int:
        """Return how many of the long transactions do not see the rows of a part, from its creation."""
        return sum(csn > at and tid not in adopted.tids for at, adopted in self._adopted.items())
