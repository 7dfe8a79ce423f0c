"""Takes away what no snapshot needs any more: parts, their files, definitions, times, manifests.

The horizon that is seen in ZooKeeper is durable in the catalog before the first delete, and readers compare
their CSN with it in the SQLite transaction that reads the rows. So whoever reads below it is told so, and
never takes a part that is gone for one that never was (rule horizon; I6, I12). A table with a retention
of its own (property ``retention_s``) has a horizon of its own here, which is noted in the same transaction.

Rows go first, with their files noted as undo; then the files. A crash anywhere leaves what the next start, or
the next run, finishes.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from tidelock.csnlog import faults
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Store
from tidelock.errors import UnavailableError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage import catalog_garbage as rules
from tidelock.replica_agent.storage.catalog import Catalog, Job
from tidelock.replica_agent.storage.catalog_garbage import Collectables, Removed
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replication.partfs import PartFs

COLLECT = faults.step("agent.collect")

_log = structlog.get_logger("collection")
#: Rows without files that one catalog transaction may delete: they cost little.
_ROWS_MAX = 1000

T = TypeVar("T")
R = TypeVar("R")
#: Looks for at most so many things that may go.
Find = Callable[[Collectables, int], list[T]]
#: Deletes parts that were found; returns the files that hold nothing any more.
Forget = Callable[[sqlite3.Connection, list[PartId]], list[str]]


def newest_before(reader: CatalogReader, kept_s: float) -> Csn:
    """Return the CSN that was the newest one so many seconds ago, 0 if there was none."""
    return reader.csn_at(int((time.time() - kept_s) * 1000)) or CSN_NONE


class GarbageCollection:
    """Collects on one replica.

    Args:
        data_dir: Where the catalog is.
        collected: Told how many parts were deleted.
    """

    def __init__(
        self,
        settings: AgentSettings,
        data_dir: Path,
        catalog: Catalog,
        files: PartFs,
        store: Store,
        collected: Callable[[int], None],
    ) -> None:
        """Collect nothing yet."""
        self._settings, self._data_dir, self._collected = settings, data_dir, collected
        self._catalog, self._files, self._store = catalog, files, store
        #: Something may go that was not looked for since: a start may follow a run that was cut.
        self._due = True

    async def run(self) -> None:
        """Note what ZooKeeper says, and delete all that may go.

        Raises:
            DiskFullError, UnavailableError: The rest goes with the next run.
        """
        horizon, tail = await self._store.get(tree.HORIZON), await self._store.get(tree.TAIL)
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
        """Make durable what is promised no more, if that is more than before."""
        reader = self._catalog.reader
        kept = {table: newest_before(reader, kept_s) for table, kept_s in reader.retentions().items()}
        before = reader.table_horizons()
        moved = horizon > reader.horizon() or tail > reader.meta("tail") or kept.keys() != before.keys()
        if moved or any(before[table] < min(csn, horizon) for table, csn in kept.items()):
            await self._catalog.write(lambda db: rules.note_horizon(db, horizon, tail, kept))
            self._due = True

    async def _collect(self) -> None:
        parts = await self._delete(_removed_parts(), rules.collect_parts)
        manifests = await self._delete(_old_manifests, rules.collect_manifests)
        await self._catalog.write(rules.collect_tables)
        csns = await self._look(lambda found, _: found.unused_csns())
        for begin in range(0, len(csns), _ROWS_MAX):
            await self._at_leisure(partial(_call, rules.collect_csns, csns[begin : begin + _ROWS_MAX]))
        self._collected(parts)
        if parts or manifests:
            _log.info("collected", parts=parts, manifests=manifests, horizon=self._catalog.reader.horizon())

    async def _delete(self, find: Find[Removed], forget: Forget) -> int:
        """Delete parts, batch by batch, rows first; returns how many."""
        gone = 0
        late = self._catalog.late_removals
        while some := await self._look(find):
            # A write that fails may be stored all the same; then the chore of late removals finds the files.
            files = {one.file for one in some if one.file is not None}
            late |= files
            await COLLECT.before()
            unused = await self._at_leisure(partial(_call, forget, [one.part for one in some]))
            await COLLECT.after()
            late -= files.difference(unused)
            await remove_files(self._catalog, self._files, unused)
            gone += len(some)
        return gone

    async def _look(self, find: Find[T]) -> list[T]:
        """Look for what may go, in a thread: it may be far between what stays."""

        def look() -> list[T]:
            with closing(Collectables(self._data_dir)) as found:
                return find(found, self._settings.collect_batch_parts)

        return await asyncio.to_thread(look)

    async def _at_leisure(self, job: Job[T]) -> T:
        """Run a job, and leave the catalog to others for as long as it took."""
        begun = time.monotonic()
        done = await self._catalog.write(job)
        await asyncio.sleep(time.monotonic() - begun)
        return done


def _call(job: Callable[[sqlite3.Connection, T], R], argument: T, db: sqlite3.Connection) -> R:
    return job(db, argument)


def _removed_parts() -> Find[Removed]:
    """Return a search that goes on behind what it has found: what other tables keep is not passed again."""
    after: Removed | None = None

    def find(found: Collectables, limit: int) -> list[Removed]:
        nonlocal after
        some = found.removed_parts(after, limit)
        after = some[-1] if some else after
        return some

    return find


def _old_manifests(found: Collectables, limit: int) -> list[Removed]:
    return found.old_manifests(limit)
