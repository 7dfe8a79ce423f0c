"""The replica's catalog: one SQLite file (WAL), written by one thread in natural batches.

A job is a function of the connection. All jobs that wait when the thread becomes free share one transaction,
so they share the price of an fsync as well. A caller's future resolves only after that transaction is on
disk. If a job of a batch fails, the batch is rolled back and its jobs run again one by one, so that a failure
reaches its own caller only. Jobs must therefore depend on nothing but the database and their arguments.

:meth:`Catalog.repeatable` is for what the log of commits or a durable pack says anyway. Its transaction is
visible at once, and is durable with the next one of :meth:`Catalog.write`: a power cut may take it back, but
nothing that ``write`` has stored (rule write-behind).

At most ``jobs_max`` jobs are queued. A caller beyond that waits for a place, at most ``wait_s``, and is
refused then; if as many callers wait already, it is refused at once (I16).

Reads come in two kinds: :attr:`Catalog.reader` answers small questions in the event loop, and
:meth:`Catalog.read` runs a read of many rows in a thread of its own.

Not promised: order between jobs of different callers. Failure model: an exception of SQLite itself (disk
full, I/O error) reaches every caller of the batch and nothing of it is stored.
"""

from __future__ import annotations

import asyncio
import errno
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from tidelock.csnlog import faults
from tidelock.errors import ConfigError, CorruptError, UnavailableError
from tidelock.replica_agent.storage.catalog_damage import catalog_damage
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.catalog_schema import (
    FORMAT,
    MIGRATIONS,
    SCHEMA,
    SERVE_FROM_UNKNOWN,
)
from tidelock.replication.disk_room import DiskRoom

CATALOG = faults.step("agent.catalog")

_log = structlog.get_logger("catalog")

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]

#: Jobs that are queued, and seconds that a caller waits for a place, where the settings say nothing else.
_JOBS_MAX, _WAIT_S = 10_000, 10.0


@dataclass(slots=True)
class _Pending:
    job: Job[Any]
    done: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    forced: bool = True  # it is durable before its caller hears of it
    leave: Callable[[], None] = lambda: None  # called in the loop when the job has ended, heard or not


class Catalog:
    """Owner of ``catalog.db``: creates or converts it, writes it, and has a reader for the loop's thread.

    Args:
        data_dir: The agent's data directory.
        initial: Meta rows of a new catalog (replica, disk, ...).
        cache_bytes: SQLite page cache of the writer.
        jobs_max: Jobs that are queued at once.
        wait_s: How long a caller waits for a place in the queue.
        write_behind: Whether :meth:`repeatable` leaves out the forced write.

    Raises:
        ConfigError: The catalog was written by a newer version.
        CorruptError: SQLite cannot read the file.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        initial: dict[str, Any],
        cache_bytes: int,
        jobs_max: int = _JOBS_MAX,
        wait_s: float = _WAIT_S,
        write_behind: bool = True,
    ) -> None:
        """Open or create the catalog and start the writer thread."""
        self._path = data_dir / "catalog.db"
        self._room = DiskRoom(data_dir, replica=str(initial.get("replica", "")))
        self._cache_bytes = cache_bytes
        self._prepare(initial)
        self.reader = CatalogReader(data_dir)
        found = self.reader.meta("format")
        if found != FORMAT:
            msg = (
                f"{self._path} has catalog format {found}, this version reads {min(MIGRATIONS)} to {FORMAT}: "
                "start the version that wrote it"
            )
            raise ConfigError(msg)
        self._queue: queue.SimpleQueue[_Pending | None] = queue.SimpleQueue()
        self._jobs_max, self._wait_s = jobs_max, wait_s
        self._places = asyncio.Semaphore(jobs_max)  # of jobs that are queued or run
        self._callers = 0  # that have a place, or wait for one
        #: Files to be deleted, with their undo rows (unused_files.py); for the thread of the event loop.
        self.late_removals: set[str] = set()
        self._write_behind = write_behind
        self._closed = False
        #: Commits may be there that are not durable: those of a process that was killed too.
        self._behind = True
        self._thread = threading.Thread(target=self._run, name="catalog", daemon=True)
        self._thread.start()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, cached_statements=256)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA cache_size = -{self._cache_bytes // 1024}")
        return db

    def _prepare(self, initial: dict[str, Any]) -> None:
        """Create the catalog, or bring an earlier format to the present one."""
        try:
            db = self._connect()
            try:
                if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                    _create(db, initial)
                else:
                    _migrate(db)
            finally:
                db.close()
        except sqlite3.DatabaseError as error:
            msg = (
                f"{self._path} cannot be read as a catalog ({error}); restore the data directory, or "
                "empty it to clone anew"
            )
            raise CorruptError(msg) from error

    async def write(self, job: Job[T]) -> T:
        """Run ``job`` in the next durable transaction and return its result once it is on disk.

        Everything that was visible before is durable then, too.

        Raises:
            CorruptError: SQLite cannot read its file, the job contradicts what is stored, or the writer has
                ended: this replica cannot go on.
            DiskFullError: The disk has no room; nothing of the job is stored.
            UnavailableError: The catalog is closed, its queue is full, or SQLite failed otherwise; nothing of
                the job is stored.
        """
        return await self._submit(job, forced=True)

    async def repeatable(self, job: Job[T]) -> T:
        """Run ``job`` in the next transaction and return its result once all readers see it.

        It is durable with the next transaction of :meth:`write`. A power cut before that takes it back, and a
        start must be able to repeat it: from the log of commits, or from a pack. Errors as for :meth:`write`.
        """
        return await self._submit(job, forced=not self._write_behind)

    async def force(self) -> None:
        """Return when everything that readers see by now is durable; errors as for :meth:`write`."""
        await self._submit(lambda _: None, forced=True)

    async def _submit(self, job: Job[T], *, forced: bool) -> T:
        self._require_open()
        await self._take_place()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Pending(job, done, loop, forced, self._leave))
        return await done

    def _require_open(self) -> None:
        if self._closed:
            raise UnavailableError("the catalog is closed: the agent is stopping")

    async def _take_place(self) -> None:
        """Wait for a place in the queue; the job gives it back when it has ended."""
        if self._callers >= 2 * self._jobs_max:
            raise self._full("as many requests wait for a place")
        self._callers += 1
        try:
            async with asyncio.timeout(self._wait_s if self._places.locked() else None):
                await self._places.acquire()
        except BaseException as error:
            self._callers -= 1
            if isinstance(error, TimeoutError):
                raise self._full(f"no place was free for {self._wait_s:g} s") from error
            raise
        if self._closed:
            self._leave()
            self._require_open()

    def _leave(self) -> None:
        self._callers -= 1
        self._places.release()

    def _full(self, why: str) -> UnavailableError:
        return UnavailableError(
            f"{self._jobs_max} writes wait for the catalog (catalog_jobs_max), and {why}: the disk of this "
            "replica does not keep up; try again, or use another replica"
        )

    async def read(self, work: Callable[[CatalogReader], T]) -> T:
        """Return what ``work`` reads, in a thread: a read of many rows would hold up the event loop."""

        def run() -> T:
            with closing(CatalogReader(self._path.parent)) as reader:
                return work(reader)

        return await asyncio.to_thread(run)

    async def close(self) -> None:
        """Finish what is queued, then close the file."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
            self.reader.close()

    # -- the writer thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        batch: list[_Pending] = []
        try:
            db = self._connect()
            stop = False
            while not stop:
                batch, stop = self._next_batch()
                if batch:
                    self._run_batch(db, batch)
            db.close()
        except Exception as error:
            _log.exception("catalog_ended")
            self._refuse_all(batch, f"the writer of {self._path} has ended ({error})")

    def _next_batch(self) -> tuple[list[_Pending], bool]:
        """Wait for a job; return all jobs that wait by then, and whether the catalog is to be closed."""
        batch: list[_Pending] = []
        stop = False
        item = self._queue.get()
        while True:
            if item is None:
                stop = True
            else:
                batch.append(item)
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, stop

    def _refuse_all(self, batch: list[_Pending], reason: str) -> None:
        """Answer every job with an error from now on, until the catalog is closed."""
        stop = False
        while True:
            for item in batch:
                _settle(item, error=CorruptError(f"{reason}; start the agent again"))
            if stop:
                return
            batch, stop = self._next_batch()

    def _run_batch(self, db: sqlite3.Connection, batch: list[_Pending]) -> None:
        forced = any(item.forced for item in batch)
        try:
            self._begin(db, forced=forced)
            results = [item.job(db) for item in batch]
            CATALOG.before_blocking()
            db.execute("COMMIT")
        except Exception as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if len(batch) == 1:
                _settle(batch[0], error=self._translate(error))
            else:
                for item in batch:
                    self._run_batch(db, [item])
            return
        self._behind = not forced
        try:
            CATALOG.after_blocking()
        except Exception as error:  # the batch is stored, but its callers get an error
            for item in batch:
                _settle(item, error=self._translate(error))
            return
        for item, result in zip(batch, results, strict=True):
            _settle(item, result=result)

    def _begin(self, db: sqlite3.Connection, *, forced: bool) -> None:
        self._set_forced(db, forced=forced)
        db.execute("BEGIN IMMEDIATE")
        if forced and self._behind:
            # A transaction that changes nothing is not written, and earlier commits would stay as they are.
            db.execute("INSERT OR REPLACE INTO meta VALUES ('forced', 0)")

    def _set_forced(self, db: sqlite3.Connection, *, forced: bool) -> None:
        # In WAL mode NORMAL leaves out the fsync of a commit; FULL makes all commits before it durable too.
        db.execute(f"PRAGMA synchronous = {'FULL' if forced else 'NORMAL'}")

    def _translate(self, error: Exception) -> Exception:
        full = isinstance(error, sqlite3.OperationalError) and "full" in str(error)
        if full or (
            isinstance(error, OSError) and error.errno == errno.ENOSPC
        ):  # the latter: the fault point
            return self._room.none_left("writing the catalog", str(error))
        if isinstance(error, sqlite3.IntegrityError):
            return CorruptError(f"a change contradicts what {self._path} holds ({error})")
        if (damage := catalog_damage(error)) is not None:
            return damage
        if isinstance(error, sqlite3.Error | OSError):
            return UnavailableError(f"the catalog cannot be written ({error}); see the agent's log")
        return error


def _create(db: sqlite3.Connection, initial: dict[str, Any]) -> None:
    rows = {
        "format": FORMAT,
        "snapshot_csn": 0,
        "time_ms": 0,
        "boot": 0,
        "fence": -1,
        "tail": 0,
        "horizon": 0,
        "outcome_floor": 0,
        "last_digest": "",
        "zxid_max": 0,
        "serve_from": SERVE_FROM_UNKNOWN,
    }
    db.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA.split(";"):
        db.execute(statement)
    db.executemany("INSERT INTO meta VALUES (?, ?)", (rows | initial).items())
    db.execute("COMMIT")


def _migrate(db: sqlite3.Connection) -> None:
    """Lead the catalog from format to format, each in one transaction; leave unknown formats as they are."""
    while (found := _format(db)) in MIGRATIONS:
        db.execute("BEGIN IMMEDIATE")
        for statement in MIGRATIONS[found].split(";"):
            db.execute(statement)
        db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (found + 1,))
        db.execute("COMMIT")
        _log.info("catalog_migrated", before=found, now=found + 1)


def _format(db: sqlite3.Connection) -> int:
    row = db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
    return int(row[0]) if row is not None else 0


def _settle(item: _Pending, *, result: Any = None, error: Exception | None = None) -> None:
    def finish() -> None:
        item.leave()
        if item.done.done():
            return
        if error is None:
            item.done.set_result(result)
        else:
            item.done.set_exception(error)

    if not item.loop.is_closed():
        item.loop.call_soon_threadsafe(finish)
