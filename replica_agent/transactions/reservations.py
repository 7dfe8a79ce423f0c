"""Tids that clients hold in reserve: each for one transaction that comes as one request.

A client must know the tid of its transaction before the request leaves: if the answer is lost, it asks for
the outcome of that tid. So it reserves a block of tids and uses each once. A reservation ends after a time,
and an ended one is refused. It also ends when anybody asks for the outcome of its tid: a client that was told
that a transaction is not committed must never see it commit, even if its request was only late (I9).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tidelock.csnlog.core.ids import Csn, Tid


@dataclass(slots=True, eq=False, repr=False)
class Reservations:
    """The reserved tids of one home in one boot.

    Attributes:
        kept_s: How long a tid stays reserved.
        most: Most reserved tids; beyond it the oldest blocks end early.
        clock: Monotonic seconds.
    """

    kept_s: float
    most: int
    clock: Callable[[], float]
    _snapshots: dict[int, Csn] = field(default_factory=dict, init=False)  # by counter
    _blocks: deque[tuple[float, range]] = field(default_factory=deque, init=False)  # with their ends

    def __len__(self) -> int:
        """Return the number of reserved tids."""
        return len(self._snapshots)

    def add(self, counters: range, snapshot: Csn) -> None:
        """Reserve the tids of these counters."""
        self._snapshots.update(dict.fromkeys(counters, snapshot))
        self._blocks.append((self.clock() + self.kept_s, counters))
        self._end()

    def holds(self, tid: Tid) -> bool:
        """Return whether a tid of this home and boot is reserved, and not used."""
        self._end()
        return self._snapshots.get(tid.counter) == tid.snapshot

    def end(self, tid: Tid) -> None:
        """End the reservation of a tid: it is used now, or it never will be. Harmless without one."""
        if self._snapshots.get(tid.counter) == tid.snapshot:
            del self._snapshots[tid.counter]

    def _end(self) -> None:
        """End the blocks that are over, and the oldest ones beyond the limit."""
        now = self.clock()
        while self._blocks and (self._blocks[0][0] <= now or len(self._snapshots) > self.most):
            for counter in self._blocks.popleft()[1]:
                self._snapshots.pop(counter, None)
