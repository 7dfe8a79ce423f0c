"""Waiting for the snapshot CSN of this replica to reach a value."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Final

from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.errors import UnavailableError

#: Waiters that are woken in one iteration of the event loop: what each does then takes a fraction of a
#: millisecond, and a record may be waited for by a thousand.
_PER_TURN: Final = 64


class CsnWaiters:
    """Futures ordered by the CSN they wait for; ``advance`` wakes those that are reached."""

    def __init__(self, reached: Csn = CSN_NONE) -> None:
        """Start at the CSN that is applied already."""
        self.reached = reached
        self._heap: list[tuple[Csn, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._given_up = 0

    def advance(self, csn: Csn) -> None:
        """Wake the waiters up to ``csn``, a few in each iteration: everything up to it is applied."""
        self.reached = max(self.reached, csn)
        self._wake()

    def _wake(self) -> None:
        woken = 0
        while self._heap and self._heap[0][0] <= self.reached:
            if woken == _PER_TURN:
                asyncio.get_running_loop().call_soon(self._wake)
                return
            future = heapq.heappop(self._heap)[2]
            if not future.done():
                future.set_result(None)
                woken += 1

    async def wait(self, csn: Csn, timeout_s: float) -> bool:
        """Return True as soon as ``csn`` is applied, False after ``timeout_s``."""
        if csn <= self.reached:
            return True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._heap, (csn, next(self._order), future))
        try:
            await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return False
        finally:
            if future.cancelled():
                self._forget_one()
        return True

    async def require(self, csn: Csn, timeout_s: float) -> None:
        """Return as soon as ``csn`` is applied; UnavailableError if it is not after ``timeout_s``."""
        if not await self.wait(csn, max(0.0, timeout_s)):
            raise UnavailableError(f"CSN {csn} was not applied here in time; try again", csn=csn)

    def _forget_one(self) -> None:
        """Remove waiters that gave up, once they are the majority: a stuck replica always gets more."""
        self._given_up += 1
        if 2 * self._given_up > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].done()]
            heapq.heapify(self._heap)
            self._given_up = 0
