"""The clock of everything that is forgotten: outcomes, labels and history.

Its time is the log's time, which one wrong wall clock cannot move (:mod:`tidelock.csnlog.core.log_time`). It
also never goes faster than twice the monotonic clock of this process. So whatever happens to wall clocks,
nothing is forgotten before half its retention has really passed here. The time is kept in the catalog: an
agent that was down goes on from there, at the double rate until it has caught up.

Where most wall clocks were wrong, the log's time steps back, and outcomes get earlier times. So does this
clock, even if the log's time has long gone on when it looks: the catalog keeps the lowest of these times
until this clock has seen it. Otherwise what happened a moment ago would be as old as that step is long.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.catalog_writes import set_meta

#: Milliseconds of this clock in one of the monotonic clock, at most; above 1, so that a clock that is behind
#: after a downtime catches up.
RATE_MAX: Final = 2


def advanced(before_ms: int, log_ms: int, elapsed_ms: int) -> int:
    """Return the clock's time: that of the log, bounded by its own pace; it follows a log that steps back."""
    return min(log_ms, before_ms + RATE_MAX * elapsed_ms)


@dataclass(slots=True, eq=False, repr=False)
class RetentionClock:
    """The clock of one boot.

    Attributes:
        reader: The catalog.
        monotonic: Seconds.
        wall_ms: Unix time by the clocks that are known, in ms; it begins the clock of a new catalog.
    """

    reader: CatalogReader
    monotonic: Callable[[], float]
    wall_ms: Callable[[], int]
    #: The newest applied CSN, and when it was first seen here (monotonic seconds).
    _newest: Csn = field(default=CSN_NONE, init=False)
    _newest_s: float = field(default=0.0, init=False)
    _time_ms: int | None = field(default=None, init=False)
    _at_s: float = field(default=0.0, init=False)
    #: The lowest time to which the log has stepped back, as it was seen last; None if it has not.
    _seen_ms: int | None = field(default=None, init=False)

    def now_ms(self) -> int:
        """Return the present time (Unix, ms) for decisions about what is old."""
        now_s, log_ms = self.monotonic(), self.log_ms()
        if self._time_ms is None:
            kept = self.reader.meta("retention_ms")
            # A catalog without this clock may hold a time of the log that one wrong clock has made.
            self._time_ms, self._at_s = (self.wall_ms() if kept is None else kept), now_s
        self._time_ms = advanced(self._time_ms, log_ms, int((now_s - self._at_s) * 1000))
        self._at_s = now_s
        self._seen_ms = self.reader.meta("healed_to_ms")
        if self._seen_ms is not None:
            self._time_ms = min(self._time_ms, self._seen_ms)
        return self._time_ms

    def newest_before(self, kept_s: float) -> Csn:
        """Return the CSN that was the newest one so many seconds ago, 0 if no CSN existed then."""
        return self.reader.csn_at(self.now_ms() - int(kept_s * 1000)) or CSN_NONE

    def save(self, db: sqlite3.Connection) -> None:
        """Keep the time in the catalog; a job."""
        if self._time_ms is None:
            return
        set_meta(db, retention_ms=self._time_ms)
        # Not a lower one that has come since this clock has looked.
        db.execute("DELETE FROM meta WHERE key = 'healed_to_ms' AND value >= ?", (self._seen_ms,))

    def log_ms(self) -> int:
        """Return the log's time (Unix, ms): the newest record's, and the time since it was applied here.

        It is for decisions that cost nothing when they are wrong: after a downtime it is right at once.
        """
        now_s, newest = self.monotonic(), self.reader.snapshot_csn()
        if newest != self._newest:
            self._newest, self._newest_s = newest, now_s
        return int(self.reader.meta("time_ms")) + int((now_s - self._newest_s) * 1000)
