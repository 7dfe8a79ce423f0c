"""Disks: real files below a temporary folder, of which a power cut takes what was not fsynced.

The product's own file layer runs on them. Each fsync that it asks for is noted: of a file its length, of a
folder its names. At a power cut everything else may be there or not, by chance, as the promises of POSIX have
it: a name may be missing or stand for what it stood for before, a file may be shorter, or have zeros at its
end. Of the catalog it may take the last commits that were not forced, by cutting SQLite's log.

Calls that the product hands to threads run in the loop, after a while, each as a whole. One that is under way
at a crash has been carried out or not, and at a power cut only some of its fsyncs count.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.sim.life import AgentLife
from tests.sim.loop import SimFuture
from tests.sim.trace import Trace

#: A call takes about so long, in seconds.
DELAY_S: Final = 0.002
#: Folders of which nothing has to survive.
_VOLATILE = ("tmp", "trash")


class SimDisk:
    """One data directory.

    Attributes:
        delay_s: How long a call takes, about.
        broken: Share of fsyncs that fail.
        full: Nothing new has room, neither in files nor in the catalog.
    """

    def __init__(self, folder: Path, chance: random.Random, trace: Trace) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.kept = folder / "kept"
        self.kept.mkdir(parents=True)
        self.delay_s = DELAY_S
        self.broken = 0.0
        self.full = False
        self._chance = chance
        self._trace = trace
        self._lengths: dict[int, int] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._jobs: dict[SimFuture, Callable[[], Any]] = {}
        #: How many bytes of SQLite's log are durable, whichever life has written them.
        self.log_durable = 0
        #: The catalog's file and log when its process died.
        self._catalog: tuple[bytes, bytes] | None = None
        #: How many more fsyncs count; None = all.
        self._fsyncs_left: int | None = None

    def calm(self) -> None:
        """Be as fast and as good as a disk should be."""
        self.delay_s, self.broken, self.full = DELAY_S, 0.0, False

    # -- calls -----------------------------------------------------------------------------------------------

    def submit(self, life: AgentLife, call: Callable[[], Any], future: SimFuture) -> None:
        """Run a call of a life after a while."""
        if life.dead:
            future.cancel()
            return
        self._jobs[future] = call
        asyncio.get_running_loop().call_later(self._delay(), self._run, future)

    def _delay(self) -> float:
        return self.delay_s * self._chance.uniform(0.2, 2.0)

    def _run(self, future: SimFuture) -> None:
        call = self._jobs.pop(future, None)
        if call is None:
            return
        try:
            result, error = call(), None
        except Exception as raised:
            result, error = None, raised
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def crash(self, *, power: bool) -> None:
        """End all calls: some under way are carried out, and nobody is told. Then the power may go."""
        jobs, self._jobs = self._jobs, {}
        for future, call in jobs.items():
            if self._chance.random() < 0.5:
                self._fsyncs_left = self._chance.randrange(4) if power else None
                try:
                    call()
                except Exception as error:  # nobody is there to hear of it
                    self._trace.comment(f"a call under way failed: {error!r}")
            future.cancel()
        self._fsyncs_left = None
        if power:
            self._cut_power()
        self._catalog = None

    # -- fsync -----------------------------------------------------------------------------------------------

    def fsync(self, fd: int, path: Path) -> None:
        """Note what is durable from here on.

        Raises:
            OSError: The disk fails.
        """
        if self._fsyncs_left is not None:
            if self._fsyncs_left == 0:
                return
            self._fsyncs_left -= 1
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._chance.random() < self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        facts = os.fstat(fd)
        if stat.S_ISDIR(facts.st_mode):
            self._names[path] = _files(path)
            for name, inode in self._names[path].items():
                self._keep(path / name, inode)
        else:
            self._lengths[facts.st_ino] = facts.st_size
            self._keep(path, facts.st_ino)

    def _keep(self, path: Path, inode: int) -> None:
        """Keep a file that has a durable name or durable content, whatever becomes of it."""
        if not (self.kept / str(inode)).exists():
            os.link(path, self.kept / str(inode))

    @property
    def log_bytes(self) -> int:
        """The length of SQLite's log."""
        log = self.data / "catalog.db-wal"
        return log.stat().st_size if log.exists() else 0

    def catalog_written(self) -> None:
        """Note the catalog's files as its process dies."""
        file, log = self.data / "catalog.db", self.data / "catalog.db-wal"
        self._catalog = file.read_bytes(), log.read_bytes() if log.exists() else b""

    def _cut_catalog(self) -> None:
        if self._catalog is None:
            return
        (file, log), self._catalog = self._catalog, None
        if self.log_durable < len(log):
            length = self._chance.randint(self.log_durable, len(log))
            (self.data / "catalog.db-shm").unlink(missing_ok=True)
            (self.data / "catalog.db").write_bytes(file)
            (self.data / "catalog.db-wal").write_bytes(log[:length])
            self._trace.note("catalog cut", len(log) - self.log_durable, len(log) - length)

    def _cut_power(self) -> None:
        self._cut_catalog()
        self.log_durable = self.log_bytes  # what is left
        folders = [path for top in ("parts", "packs") for path in sorted((self.data / top).glob("*"))]
        folders += [self.data / name for name in _VOLATILE]
        for folder in folders:
            if folder.exists():
                self._forget_names(folder)
        self._names = {folder: _files(folder) for folder in folders if folder in self._names}

    def _forget_names(self, folder: Path) -> None:
        now, durable = _files(folder), self._names.get(folder, {})
        for name in sorted(now.keys() | durable.keys()):
            if now.get(name) != durable.get(name) and self._chance.random() < 0.5:
                (folder / name).unlink(missing_ok=True)
                if name in durable:
                    os.link(self.kept / str(durable[name]), folder / name)
                self._trace.note("undone", name)
            if (folder / name).exists():
                self._forget_content(folder / name)

    def _forget_content(self, path: Path) -> None:
        facts = path.stat()
        durable = self._lengths.get(facts.st_ino, 0)
        if facts.st_size > durable:
            length = self._chance.randint(durable, facts.st_size)
            os.truncate(path, length)
            if self._chance.random() < 0.3:
                os.truncate(path, facts.st_size)
            self._trace.note("torn", path.name, length)


def _files(folder: Path) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries if entry.is_file()}


class DiskOs:
    """Stands for the module ``os`` in the product's file layer.

    Args:
        disks: Finds the disk that a path lies on.
    """

    def __init__(self, disks: Callable[[Path], SimDisk | None]) -> None:
        self._disks = disks

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, fd: int) -> None:
        """Make durable, on a simulated disk."""
        path = Path(f"/proc/self/fd/{fd}").readlink()
        disk = self._disks(path)
        if disk is not None:
            disk.fsync(fd, path)
