"""The log of long waits: a client that waits longer than usual says what it waits for, while it waits.

A wait is a request to an agent, or a call that is repeated. Waits of one thread are nested: the outer one
tells the purpose, the inner one the agent. One thread per client looks at them now and then. It exists only
while the client sends requests, and costs them nothing but a note.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tidelock.client.agents import forks

#: After a line about a wait the next one follows when the wait is so many times as long.
AGAIN_FACTOR: Final = 3
#: The thread ends when it has found no wait for so many looks.
_IDLE_LOOKS: Final = 100

#: Programs configure it by this name, wherever the module lies.
_log = logging.getLogger("tidelock.client.waits")


@dataclass(slots=True, eq=False)
class Wait:
    """One wait.

    Attributes:
        what: Returns what is waited for, as text.
        working: The agent works, so a long time is no surprise: a query, an insert.
        since: When it began (`time.monotonic`).
        told_after_s: Its next line is written when it is so long.
    """

    what: Callable[[], str]
    working: bool
    since: float
    told_after_s: float


class Waits:
    """The waits of one client; thread-safe.

    Args:
        after_s: The length of a wait, in seconds, from which on it is logged: as a warning, or as information
            if the agent works.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._lock = threading.Lock()
        self._running: dict[int, list[Wait]] = {}
        self._watcher: threading.Thread | None = None
        forks.register(self)

    def after_fork(self) -> None:
        """Leave the waits to the parent."""
        self._lock = threading.Lock()
        self._running = {}
        self._watcher = None

    @contextlib.contextmanager
    def during(self, what: Callable[[], str], *, working: bool = False) -> Iterator[None]:
        """Note that the calling thread waits while the block runs."""
        thread = threading.get_ident()
        waits = self._running.setdefault(thread, [])
        waits.append(Wait(what, working, time.monotonic(), self._after_s))
        if self._watcher is None:
            self._watch()
        try:
            yield
        finally:
            waits.pop()
            if not waits:
                self._running.pop(thread, None)

    def _watch(self) -> None:
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._look, name="tidelock-waits", daemon=True)
                self._watcher.start()

    def _look(self) -> None:
        pause_s = min(max(self._after_s / 4, 0.02), 0.5)
        idle = 0
        while idle < _IDLE_LOOKS:
            time.sleep(pause_s)
            idle = 0 if self._running else idle + 1
            for waits in list(self._running.values()):
                self._tell(list(waits))
        self._watcher = None
        if self._running:  # a wait that has begun since the last look
            self._watch()

    def _tell(self, nested: list[Wait]) -> None:
        idle = [number for number, wait in enumerate(nested) if not wait.working]
        shown = nested[idle[0] if idle else 0 :]
        if not shown:
            return
        waited_s = time.monotonic() - shown[0].since
        if waited_s < shown[0].told_after_s:
            return
        shown[0].told_after_s = waited_s * AGAIN_FACTOR
        level = logging.WARNING if idle else logging.INFO
        _log.log(level, "waiting for %.1f s now: %s", waited_s, ": ".join(wait.what() for wait in shown))
