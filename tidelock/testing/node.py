"""One server of a cluster, and what a test does to it."""

from __future__ import annotations

import contextlib
import shutil
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from tidelock.errors import ConfigError, UnavailableError
from tidelock.testing.clock import Clock
from tidelock.testing.disks import Disk

#: Time that a server may take to be ready, in seconds: some, on a quiet machine.
READY_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.05
_LOG_TAIL_LINES: Final = 10


class Node(ABC):
    """A replica, a ZooKeeper, or a Spark master or worker: a process or a container.

    Args:
        name: E.g. "r1", "z1", "w1".
        address: The IP address under which other nodes see it.
        data_dir: The folder of its data, on the host.
        disk: The file system of that folder, if it is the node's own.
        clock: The wall clock of an agent.
    """

    def __init__(
        self,
        name: str,
        address: str,
        data_dir: Path,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.data_dir = data_dir
        self._disk = disk
        self._clock = clock

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The main process, as the host sees it; None if it does not run."""

    @property
    def running(self) -> bool:
        """Whether it has a process, be it paused, or not ready yet."""
        return self.pid is not None

    @abstractmethod
    def log(self) -> str:
        """Return all that it has logged."""

    @abstractmethod
    def kill(self) -> None:
        """End all of its processes by SIGKILL, and return when they are dead; nothing if none runs."""

    @abstractmethod
    def stop(self) -> None:
        """End it in an orderly way: a replica drains."""

    @abstractmethod
    def start(self, *, timeout_s: float = READY_TIMEOUT_S, wait: bool = True) -> None:
        """Start it, with its data, unless it runs.

        Args:
            timeout_s: Longest time until it is ready.
            wait: Whether to wait until then. UnavailableError if it does not become ready.
        """

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    @abstractmethod
    def pause(self) -> None:
        """Stop all of its processes where they are, and return when they have; connections stay open."""

    @abstractmethod
    def resume(self) -> None:
        """Let its processes go on."""

    def replace(self, *, start: bool = True) -> None:
        """Kill a replica, empty its volume, and let it take its own id over from the lost one.

        Args:
            start: Start it now and wait until it is ready; otherwise a later `start` does it.
        """
        self._order_takeover()
        self.kill()
        empty(self.data_dir)
        if start:
            self.start()

    def _order_takeover(self) -> None:
        """Order that the next starts take the id over; with data that has the id, the order says nothing."""
        raise ConfigError(f"only replicas are replaced, and {self.name} is none; kill and start it")

    def set_clock(self, offset_s: float) -> None:
        """Put a replica's wall clock so many seconds ahead of the true time from now on; 0: it is right."""
        if self._clock is None:
            raise ConfigError(f"only replicas have clocks that a test sets, and {self.name} is none")
        self._clock.set(offset_s)

    def disk_free(self) -> int:
        """Return the bytes that are free where its data is."""
        return shutil.disk_usage(self.data_dir).free

    def full_disk(self) -> AbstractContextManager[None]:
        """Leave no byte on its disk for the block; what it deletes itself meanwhile is free again."""
        if self._disk is None:
            raise ConfigError(
                f"expected a disk of {self.name}'s own, found a folder of a shared one; make the cluster "
                "with disk_bytes, and fill the disk of a replica"
            )
        return self._disk.full()

    @abstractmethod
    def ready(self) -> bool:
        """Return whether it serves clients, as far as this process can see it over the network."""

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until it is ready; UnavailableError with the end of its log after the timeout."""
        deadline = time.monotonic() + timeout_s
        while not self.ready():
            if time.monotonic() > deadline:
                raise self._not_ready(timeout_s)
            time.sleep(_POLL_S)

    def _not_ready(self, timeout_s: float) -> UnavailableError:
        tail = " | ".join(self.log().splitlines()[-_LOG_TAIL_LINES:])
        state = f"is not ready after {timeout_s:.0f} s" if self.running else "has ended"
        return UnavailableError(f"{self.name} {state}; its log ends: {tail}")


def text_of(*files: Path) -> str:
    """Return the text of log files, one after the other; nothing of one that does not exist."""
    found = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            found.append(file.read_text(encoding="utf-8", errors="replace"))
    return "".join(found)


def empty(folder: Path) -> None:
    """Delete all that is in a folder, which may be the root of a disk."""
    for item in folder.iterdir():
        if item.name == "lost+found":
            continue
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink()
