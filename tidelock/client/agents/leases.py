"""The heartbeat: one thread of a client that keeps all its open transactions and snapshots alive.

It starts with the first lease. It ends some seconds after the last one, so that a program with one short
transaction after the other starts one thread, and not one for each. It holds a lease weakly, so a
transaction that the program has lost is no longer kept alive and is rolled back by its home. The thread does
not exist in a child process (see `forks`): the parent keeps alive the leases that the parent opened.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Protocol

from tidelock.client.agents import forks
from tidelock.errors import TidelockError, UnavailableError

#: A lease is renewed when a third of it has passed, so two attempts may fail.
RENEWALS_PER_LEASE = 3
#: A failed renewal is repeated after this part of the lease.
RETRIES_PER_LEASE = 10
#: How long the thread waits for a new lease after the last one, in seconds.
LINGER_S = 5.0

#: Programs configure it by this name, wherever the module lies.
_log = logging.getLogger("tidelock.client.leases")


class RenewableLease(Protocol):
    """A lease that the heartbeat renews."""

    @property
    def lease_s(self) -> float:
        """Length of the lease in seconds."""

    @property
    def holder(self) -> str:
        """The replica that renews the lease."""

    def renew(self, timeout_s: float) -> None:
        """Renew the lease, waiting at most `timeout_s` for the answer.

        Raises:
            UnavailableError: The holder did not answer; try again.
            TidelockError: The lease cannot be renewed any more.
        """


class Leases:
    """All leases of one client; thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due_s: dict[weakref.ref[RenewableLease], float] = {}
        self._thread: threading.Thread | None = None
        self._sleeps_until_s = 0.0
        self._cleared = False
        forks.register(self)

    def after_fork(self) -> None:
        """Leave all leases to the parent."""
        self._changed = threading.Condition()
        self._due_s = {}
        self._thread = None

    @property
    def running(self) -> bool:
        """Return whether the thread runs."""
        return self._thread is not None

    def add(self, lease: RenewableLease, *, at_once: bool = False) -> None:
        """Renew a lease from now on; `at_once`: immediately, since the start of the lease is not known."""
        due_s = time.monotonic() + (0.0 if at_once else lease.lease_s / RENEWALS_PER_LEASE)
        with self._changed:
            self._due_s[weakref.ref(lease)] = due_s
            self._cleared = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tidelock-heartbeat", daemon=True)
                self._thread.start()
            elif due_s < self._sleeps_until_s:
                self._changed.notify()

    def remove(self, lease: RenewableLease) -> None:
        """Stop renewing a lease; harmless if it was not renewed."""
        with self._changed:
            self._due_s.pop(weakref.ref(lease), None)

    def clear(self) -> None:
        """Stop renewing all leases, and end the thread without a delay."""
        with self._changed:
            self._due_s.clear()
            self._cleared = True
            self._changed.notify()

    def _run(self) -> None:
        while (due := self._wait_for_due()) is not None:
            self._renew(due)
            # A name that stays bound during the wait would keep a lease alive that the program has dropped.
            del due

    def _wait_for_due(self) -> list[tuple[weakref.ref[RenewableLease], RenewableLease]] | None:
        """Wait for leases that are due and return them; None: no lease is left, and the thread has to end.

        It may return an empty list. Its frame ends with each call, so no name of it outlives the wait.
        """
        with self._changed:
            self._forget_the_lost()
            if not self._due_s and not self._cleared:
                self._sleep(LINGER_S)
                self._forget_the_lost()
            if not self._due_s:
                self._thread = None
                return None
            now = time.monotonic()
            if (first := min(self._due_s.values())) > now:
                self._sleep(first - now)
                return []
            return [(ref, lease) for ref, at in list(self._due_s.items()) if at <= now and (lease := ref())]

    def _forget_the_lost(self) -> None:
        for ref in [ref for ref in self._due_s if ref() is None]:
            del self._due_s[ref]

    def _sleep(self, seconds: float) -> None:
        """Wait so long, or until a lease is due earlier, or until there is none any more."""
        self._sleeps_until_s = time.monotonic() + seconds
        self._changed.wait(seconds)

    def _renew(self, due: list[tuple[weakref.ref[RenewableLease], RenewableLease]]) -> None:
        """Renew the due leases; at most one a round on a silent replica, or it would starve the others."""
        silent: set[str] = set()
        for ref, lease in due:
            again_s = lease.lease_s / RENEWALS_PER_LEASE
            try:
                if lease.holder in silent:
                    again_s = lease.lease_s / RETRIES_PER_LEASE
                else:
                    lease.renew(self._patience_s())
            except UnavailableError:
                silent.add(lease.holder)
                again_s = lease.lease_s / RETRIES_PER_LEASE
            except TidelockError:
                self.remove(lease)
                continue
            except Exception:  # or the thread would end, and with it all other leases
                _log.exception(
                    "a lease at %s could not be renewed; the renewal will be repeated", lease.holder
                )
                again_s = lease.lease_s / RETRIES_PER_LEASE
            with self._changed:
                if ref in self._due_s:
                    self._due_s[ref] = time.monotonic() + again_s

    def _patience_s(self) -> float:
        """Return how long to wait for one renewal: no longer than the shortest of all leases can bear."""
        with self._changed:
            lengths = [lease.lease_s for ref in list(self._due_s) if (lease := ref())]
        return min(lengths, default=1.0) / RENEWALS_PER_LEASE
