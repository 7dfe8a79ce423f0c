"""Garbage collection: deletes what no snapshot needs: parts, their files, definitions, times, manifests.

The horizon that is seen in ZooKeeper is durable in the catalog before the first delete, and readers compare
their CSN with it in the SQLite transaction that reads the rows. So a reader below it gets an error, and never
mistakes a deleted part for one that never existed (rule horizon; I6, I12). A table with its own retention
(property ``retention_s``) has its own horizon here, which is noted in the same transaction.

Rows are deleted first, with their files noted as undo; then the files. After a crash the next start, or the
next run, finishes the deletion.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from tidelock.csnlog import faults
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Store
from tidelock.errors import UnavailableError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage import catalog_garbage as rules
from tidelock.replica_agent.storage.catalog import Catalog, Job
from tidelock.replica_agent.storage.catalog_garbage import Collectables, Removed
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replication.partfs import PartFs

COLLECT = faults.step("agent.collect")

_log = structlog.get_logger("collection")
#: Rows without files that one catalog transaction may delete: they cost little.
_ROWS_MAX = 1000

T = TypeVar("T")
R = TypeVar("R")
#: Searches for things that may be deleted, at most so many.
Find = Callable[[Collectables, int], list[T]]
#: Deletes parts that were found; returns the files that contain no part any more.
Forget = Callable[[sqlite3.Connection, list[PartId]], list[str]]


@dataclass(slots=True, eq=False, repr=False)
class GarbageCollection:
    """Collects on one replica.

    Attributes:
            data_dir: The folder of the catalog.
            newest_before: Returns the CSN that was the newest one so many seconds ago, 0 if none existed.
            collected: Called with the number of deleted parts.
    """

    settings: AgentSettings
    data_dir: Path
    catalog: Catalog
    files: PartFs
    store: Store
    collected: Callable[[int], None]
    newest_before: Callable[[float], Csn]
    #: Something may be deleted that was not searched for yet: a start may follow an interrupted run.
    _due: bool = field(default=True, init=False)

    async def run(self) -> None:
        """Note the horizon and tail in ZooKeeper, and delete all that may be deleted.

        Raises:
            DiskFullError, UnavailableError: The next run deletes the rest.
        """
        horizon, tail = await self.store.get(tree.HORIZON), await self.store.get(tree.TAIL)
        if isinstance(horizon, Ok) and isinstance(tail, Ok):
            await self._note(codec.decode_csn(horizon.value.data), codec.decode_csn(tail.value.data))
        if self._due:
            try:
                await self._collect()
            except (OSError, sqlite3.Error, faults.Injected, faults.LostReply) as error:
                raise UnavailableError(
                    f"what is not needed any more was not all deleted ({error})"
                ) from error
            self._due = False

    async def _note(self, horizon: Csn, tail: Csn) -> None:
        """Make the bounds of the promises durable, if they have moved."""
        reader = self.catalog.reader
        kept = {table: self.newest_before(kept_s) for table, kept_s in reader.retentions().items()}
        before = reader.table_horizons()
        moved = horizon > reader.horizon() or tail > reader.meta("tail") or kept.keys() != before.keys()
        if moved or any(before[table] < min(csn, horizon) for table, csn in kept.items()):
            await self.catalog.write(lambda db: rules.note_horizon(db, horizon, tail, kept))
            self._due = True

    async def _collect(self) -> None:
        parts = await self._delete(_removed_parts(), rules.collect_parts)
        manifests = await self._delete(_old_manifests, rules.collect_manifests)
        await self.catalog.write(rules.collect_tables)
        csns = await self._read(lambda found, _: found.unused_csns())
        for begin in range(0, len(csns), _ROWS_MAX):
            await self._at_leisure(partial(_call, rules.collect_csns, csns[begin : begin + _ROWS_MAX]))
        self.collected(parts)
        if parts or manifests:
            _log.info("collected", parts=parts, manifests=manifests, horizon=self.catalog.reader.horizon())

    async def _delete(self, find: Find[Removed], forget: Forget) -> int:
        """Delete parts, batch by batch, rows first; return their number."""
        gone = 0
        late = self.catalog.late_removals
        while some := await self._read(find):
            # A failed write may be stored nevertheless; then the task for late removals finds the files.
            files = {one.file for one in some if one.file is not None}
            late |= files
            await COLLECT.before()
            unused = await self._at_leisure(partial(_call, forget, [one.part for one in some]))
            await COLLECT.after()
            late -= files.difference(unused)
            await remove_files(self.catalog, self.files, unused)
            gone += len(some)
        return gone

    async def _read(self, find: Find[T]) -> list[T]:
        """Search in a thread for what may be deleted: it may be far apart among what stays."""

        def read() -> list[T]:
            with closing(Collectables(self.data_dir)) as found:
                return find(found, self.settings.collect_batch_parts)

        return await asyncio.to_thread(read)

    async def _at_leisure(self, job: Job[T]) -> T:
        """Run a job, then leave the catalog to others for the time that the job took."""
        begun = time.monotonic()
        done = await self.catalog.write(job)
        await asyncio.sleep(time.monotonic() - begun)
        return done


def _call(job: Callable[[sqlite3.Connection, T], R], argument: T, db: sqlite3.Connection) -> R:
    return job(db, argument)


def _removed_parts() -> Find[Removed]:
    """Return a search that continues after its last result, so that it passes the kept parts only once."""
    after: Removed | None = None

    def find(found: Collectables, limit: int) -> list[Removed]:
        nonlocal after
        some = found.removed_parts(after, limit)
        after = some[-1] if some else after
        return some

    return find


def _old_manifests(found: Collectables, limit: int) -> list[Removed]:
    return found.old_manifests(limit)
