"""Lets the commits of this home leave together: while one batch is on its way, the next collects.

From a batch's first write to its record every step is shared by all of it: one pack file and one transaction
of the catalog here and at each peer, one push to each, one multi, one read of the record by each follower.
So the busier a replica is, the less a commit costs; a commit that finds nobody on the way leaves at once.

Only transactions whose parts are all in memory travel so; one with large parts shares nothing and would hold
the others up. A batch that is slow nevertheless, since peers do not answer, holds the next one back for a
bounded time only. Nothing depends on who travels with whom.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Batch:
    """Commits that left together; how many of them are still on their way."""

    left: int


class GroupCommitGate:
    """Decides when a sealed transaction may begin to be copied.

    Args:
        wait_max_s: Longest wait for the batch before.
    """

    def __init__(self, wait_max_s: float) -> None:
        """Nobody is on the way."""
        self._wait_max_s = wait_max_s
        self._waiting: list[asyncio.Future[_Batch]] = []
        self._last: _Batch | None = None  # the one that left last, while it is on its way
        self._timer: asyncio.Handle | None = None

    @contextlib.asynccontextmanager
    async def batch(self) -> AsyncIterator[None]:
        """Wait for the next departure, then be on the way until the block ends."""
        ticket = self._join()
        try:
            await ticket
            yield
        finally:
            if ticket.done() and not ticket.cancelled():  # it has left, even if nobody was told any more
                self._arrived(ticket.result())

    def _join(self) -> asyncio.Future[_Batch]:
        loop = asyncio.get_running_loop()
        ticket: asyncio.Future[_Batch] = loop.create_future()
        self._waiting.append(ticket)
        if self._timer is None:
            # Not at once even if nobody is on the way: others may be sealed in this very turn of the loop.
            self._timer = (
                loop.call_soon(self._depart)
                if self._last is None
                else loop.call_later(self._wait_max_s, self._depart)
            )
        return ticket

    def _depart(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tickets = [ticket for ticket in self._waiting if not ticket.done()]
        self._waiting.clear()
        if tickets:
            self._last = _Batch(len(tickets))
            for ticket in tickets:
                ticket.set_result(self._last)

    def _arrived(self, batch: _Batch) -> None:
        batch.left -= 1
        if batch is self._last and not batch.left:
            self._last = None
            if self._waiting:
                self._depart()
