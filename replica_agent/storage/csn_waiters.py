"""Waiting for the snapshot CSN of this replica to reach a value."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from tidelock.csnlog.core.ids import CSN_NONE, Csn


class CsnWaiters:
    """Futures ordered by the CSN they wait for; ``advance`` wakes those that are reached."""

    def __init__(self, reached: Csn = CSN_NONE) -> None:
        """Start at the CSN that is applied already."""
        self.reached = reached
        self._heap: list[tuple[Csn, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._given_up = 0

    def advance(self, csn: Csn) -> None:
        """Wake the waiters up to ``csn``: everything up to it is applied."""
        self.reached = max(self.reached, csn)
        while self._heap and self._heap[0][0] <= self.reached:
            future = heapq.heappop(self._heap)[2]
            if not future.done():
                future.set_result(None)

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

    def _forget_one(self) -> None:
        """Remove waiters that gave up, once they are the majority: a stuck replica always gets more."""
        self._given_up += 1
        if 2 * self._given_up > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].done()]
            heapq.heapify(self._heap)
            self._given_up = 0
