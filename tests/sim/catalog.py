"""The catalog without its thread: SQLite as it is, one durable transaction after the other, in the loop."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.sim.disk import SimDisk
from tests.sim.life import LIFE
from tidelock.errors import UnavailableError
from tidelock.replica_agent.storage.catalog import Catalog, Job, _Pending, _settle

T = TypeVar("T")


class NoThread:
    """Stands for the writer's thread, which never runs."""

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        """Do nothing."""

    def join(self) -> None:
        """Do nothing: the thread never ran."""


class _Teller:
    """Stands for the event loop of the callers: calls back a while after the transaction is durable."""

    def __init__(self, tell: Callable[[Callable[[], None]], None]) -> None:
        self.call_soon_threadsafe = tell

    @staticmethod
    def is_closed() -> bool:
        """Return False: the loop of a run outlives its catalogs."""
        return False


class SimCatalog(Catalog):
    """A catalog on a simulated disk."""

    def __init__(self, disk: SimDisk, chance: random.Random, *, initial: dict[str, Any]) -> None:
        self._disk = disk
        self._chance = chance
        self._life = LIFE.get()
        self._waiting: list[_Pending] = []
        self._busy = False
        #: Done when nothing is left to be written; there once the catalog is closed.
        self._idle: asyncio.Future[None] | None = None
        self._writer: sqlite3.Connection | None = None
        super().__init__(disk.data, initial=initial, cache_bytes=1 << 20)
        # SQLite has emptied its log, unless somebody else reads the catalog: then the log goes on.
        disk.log_durable = min(disk.log_durable, disk.log_bytes)
        self._writer = super()._connect()
        self._life.on_kill.append(self._die)

    def _connect(self) -> sqlite3.Connection:
        db = super()._connect()
        db.execute("PRAGMA synchronous = OFF")  # what a power cut takes is decided by the disk
        db.execute("PRAGMA wal_autocheckpoint = 0")  # its log keeps all changes of this life in order
        return db

    def _set_forced(self, db: sqlite3.Connection, *, forced: bool) -> None:
        """Do nothing: see `_connect`."""

    def _run_batch(self, db: sqlite3.Connection, batch: list[_Pending]) -> None:
        super()._run_batch(db, batch)
        if not self._behind:
            self._disk.log_durable = self._disk.log_bytes

    async def _submit(self, job: Job[T], *, forced: bool) -> T:
        if self._closed or self._life.dead:
            raise UnavailableError("the catalog is closed: the agent is stopping")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Pending(job, done, _Teller(self._tell), forced))  # type: ignore[arg-type]
        self._next()
        return await done

    async def close(self) -> None:
        """Finish what is queued, then close the file."""
        self._closed = True
        if self._busy and not self._life.dead:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        self._die()

    def _next(self) -> None:
        if self._waiting and not self._busy:
            self._busy = True
            self._later(self._work)

    def _work(self) -> None:
        assert self._writer is not None
        batch, self._waiting = self._waiting, []
        if self._disk.full:
            for item in batch:
                _settle(item, error=self._translate(sqlite3.OperationalError("database or disk is full")))
        else:
            self._run_batch(self._writer, batch)
        self._later(self._rest)

    def _rest(self) -> None:
        self._busy = False
        self._next()
        if self._idle is not None and not self._busy:
            self._idle.set_result(None)

    def _tell(self, finish: Callable[[], None]) -> None:
        self._later(finish)

    def _later(self, call: Callable[[], None]) -> None:
        def run() -> None:
            if not self._life.dead:
                call()

        asyncio.get_running_loop().call_later(self._disk.delay_s * self._chance.uniform(0.2, 1.5), run)

    def _die(self) -> None:
        if self._writer is not None:
            if not self._closed:
                self._disk.catalog_written()  # before SQLite puts its log into the file
            self._writer.close()
            self._writer = None
            self.reader.close()
        for item in self._waiting:
            item.done.cancel()
        self._waiting = []


def reading(data: Path) -> sqlite3.Connection:
    """Open a catalog for looking at it."""
    return sqlite3.connect(f"file:{data / 'catalog.db'}?mode=ro", uri=True, isolation_level=None)
