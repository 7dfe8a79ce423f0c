"""Implicit pins: a snapshot's path stays readable for a while after its last read, on every replica.

A reader of ``/snapshots/<csn>/...`` holds no lease. So the replica that serves it pins the CSN itself, once
for all its readers, and renews that pin only while reads go on: at most one write to ZooKeeper in a quarter
of ``unpinned_ttl_s`` for each CSN. A CSN that a client has pinned, at any replica, needs no implicit pin.

The answer does not depend on the pin: reads do not wait for it, and go on when ZooKeeper does not answer. If
the horizon has passed a CSN, it cannot be pinned; it is served only as long as the table's retention allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import TidelockError, UnknownTransactionError
from tidelock.replica_agent.readers.messages import READ_REPORT_SHARE
from tidelock.replica_agent.snapshots.pinned import Snapshots

_log = structlog.get_logger("read_pins")

#: Share of ``unpinned_ttl_s`` after which a pin is renewed if its CSN is still read.
_RENEWED_SHARE = 0.25


@dataclass(slots=True, eq=False, repr=False)
class ImplicitPins:
    """The pins of one replica.

    Attributes:
        ttl_s: How long a CSN stays pinned after its last read.
        most: Most CSNs that are pinned at a time; further ones are not pinned.
        pinned: Returns whether any client in the cluster has pinned a CSN.
        clock: Monotonic seconds.
    """

    snapshots: Snapshots
    ttl_s: float
    most: int
    pinned: Callable[[Csn], Awaitable[bool]]
    clock: Callable[[], float]
    #: The pin of each CSN, and the time when it was made or renewed last.
    _pins: dict[Csn, tuple[str, float]] = field(default_factory=dict, init=False)
    #: The last time when a CSN needed no pin, or could not have one.
    _left: dict[Csn, float] = field(default_factory=dict, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _busy: set[Csn] = field(default_factory=set, init=False)

    def read(self, csn: Csn) -> None:
        """Pin a CSN that is read, or renew its pin, in the background."""
        if csn in self._busy:
            return
        now = self.clock()
        if csn in self._pins:
            if now - self._pins[csn][1] >= self.ttl_s * _RENEWED_SHARE:
                self._begin(csn, self._renew(csn))
        elif now - self._left.get(csn, now - self.ttl_s) >= self.ttl_s * READ_REPORT_SHARE:
            self._forget_old(now)
            if len(self._pins) + len(self._busy) < self.most:
                self._begin(csn, self._pin(csn))

    def read_from(self, csn: Csn) -> None:
        """Pin the start of a read of everything from a CSN on; a recent pin of an older CSN suffices.

        So a client that follows a table, and begins at a new CSN each time, does not leave a pin at each CSN.
        """
        made_after = self.clock() - self.ttl_s * _RENEWED_SHARE
        if not any(older <= csn and made > made_after for older, (_, made) in self._pins.items()):
            self.read(csn)

    async def close(self) -> None:
        """Cancel running work; the pins expire."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, csn: Csn, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except TidelockError as error:
                self._left[csn] = self.clock()
                _log.info("not_pinned", csn=csn, reason=error.message)
            finally:
                self._busy.discard(csn)

        self._busy.add(csn)
        task = asyncio.create_task(run(), name=f"pin {csn}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pin(self, csn: Csn) -> None:
        if self.snapshots.holds(csn) or await self.pinned(csn):
            self._left[csn] = self.clock()
            return
        # It is renewed only a while after the last renewal, so its lease is longer by that time.
        pin = await self.snapshots.pin(csn, self.ttl_s * (1 + _RENEWED_SHARE + READ_REPORT_SHARE))
        self._pins[csn] = (pin.id, self.clock())

    async def _renew(self, csn: Csn) -> None:
        pin = self._pins[csn][0]
        try:
            await self.snapshots.renew(pin)
        except UnknownTransactionError:
            del self._pins[csn]
            await self._pin(csn)
        else:
            self._pins[csn] = (pin, self.clock())

    def _forget_old(self, now: float) -> None:
        """Forget what has expired."""
        self._pins = {csn: pin for csn, pin in self._pins.items() if now - pin[1] < 2 * self.ttl_s}
        self._left = {csn: at for csn, at in self._left.items() if now - at < self.ttl_s * READ_REPORT_SHARE}
