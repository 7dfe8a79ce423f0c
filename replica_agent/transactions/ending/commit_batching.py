"""Batches the commits of this home: while one batch is on its way, the next one collects.

From the first write of a batch to its record its transactions share every step: one pack file and one
transaction of the catalog here and at each peer, one push to each peer, one multi, one read of the record by
each follower. So the busier a replica is, the less a commit costs. A commit leaves at once if no batch is on
its way.

Only transactions whose parts are all in memory are batched; one with large parts shares nothing and would
delay the others. If a batch is slow nevertheless, since peers do not answer, it holds the next one back for
a bounded time only. Correctness does not depend on the composition of a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Batch:
    """Commits that left together; ``left`` counts those that are still on their way."""

    left: int


@dataclass(slots=True, eq=False, repr=False)
class GroupCommitGate:
    """Decides when a sealed transaction may begin to be copied.

    Attributes:
        wait_max_s: Longest wait for the previous batch.
    """

    wait_max_s: float
    _waiting: list[asyncio.Future[_Batch]] = field(default_factory=list, init=False)
    _last: _Batch | None = field(default=None, init=False)  # the last batch, while it is on its way
    _timer: asyncio.Handle | None = field(default=None, init=False)

    @contextlib.asynccontextmanager
    async def batch(self) -> AsyncIterator[None]:
        """Wait until the next batch leaves; the commit is on its way until the block ends."""
        ticket = self._join()
        try:
            await ticket
            yield
        finally:
            if ticket.done() and not ticket.cancelled():  # it left, even if the task was cancelled
                self._arrived(ticket.result())

    def _join(self) -> asyncio.Future[_Batch]:
        loop = asyncio.get_running_loop()
        ticket: asyncio.Future[_Batch] = loop.create_future()
        self._waiting.append(ticket)
        if self._timer is None:
            # Not at once, even if no batch is on its way: others may be sealed in this iteration of the loop.
            self._timer = (
                loop.call_soon(self._depart)
                if self._last is None
                else loop.call_later(self.wait_max_s, self._depart)
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
