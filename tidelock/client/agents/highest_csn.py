"""The highest CSN that a client has seen: what it reads next is never older (I11)."""

from __future__ import annotations

import threading

from tidelock.client.agents import forks


class HighestCsn:
    """The highest CSN that this client has committed or read, on whichever replica; never lowered (I11)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._csn = 0
        forks.register(self)

    def after_fork(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._lock = threading.Lock()

    def note(self, csn: int | None) -> None:
        """Record a CSN; None is ignored."""
        with self._lock:
            self._csn = max(self._csn, csn or 0)

    def at_least(self, min_csn: int | None) -> int | None:
        """Return the `min_csn` to send: the higher of the caller's and the recorded CSN; None for neither."""
        return max(self._csn, min_csn or 0) or None
