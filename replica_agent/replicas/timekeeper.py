"""Keeps the log's time going while nothing is committed, and reports a wall clock that is off.

A tick is a commit record without transactions, for all tables at once. The first of the serving replicas
writes it; each of the others waits for one interval longer than the one before it, so a first replica that
lives and does not commit is replaced, without a decision between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId
from tidelock.csnlog.core.log_time import STEP_BACK_MS
from tidelock.csnlog.log import CsnLog
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replication.clocks import Clocks

_log = structlog.get_logger("clocks")


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Timekeeper:
    """The timekeeper of one boot.

    Attributes:
        monotonic: Seconds.
    """

    replica: ReplicaId
    settings: AgentSettings
    log: CsnLog
    membership: Membership
    clocks: Clocks
    reader: CatalogReader
    metrics: Metrics
    monotonic: Callable[[], float]
    #: The end of the log as it was seen last, and since when it has been there.
    _end: Csn = field(default=CSN_NONE, init=False)
    _since_s: float = field(default=0.0, init=False)
    _off: bool = field(default=False, init=False)
    _ahead: bool = field(default=False, init=False)

    async def tick(self) -> None:
        """Let the log's time go on if nobody has committed for long enough."""
        now_s, end = self.monotonic(), self.log.end
        if end != self._end:
            self._end, self._since_s = end, now_s
        elif now_s - self._since_s >= self.settings.tick_interval_s * (1 + self._place()):
            self.log.tick()

    async def check(self) -> None:
        """Ask the peers for the time, and report the own clock if that has changed.

        If the log's time was made by wrong clocks, a tick lets it step back at once.
        """
        await self.membership.ask()
        found = self.clocks.check()
        if found.offset_s is not None:
            self.metrics.clock.offset.set(found.offset_s)
            self.metrics.clock.off.set(found.off)
            if found.off != self._off:
                say = _log.error if found.off else _log.info
                ahead_s = {name: round(ahead, 3) for name, ahead in found.ahead_s.items()}
                event = "clock_off" if found.off else "clock_right"
                say(event, offset_s=round(found.offset_s, 3), ahead_s=ahead_s)
            self._off = found.off
        ahead = self.reader.meta("time_ms") > self.clocks.now_ms() + STEP_BACK_MS
        if ahead and not self._ahead and not self._place():
            self.log.tick()
        self._ahead = ahead

    def _place(self) -> int:
        """Return how many serving replicas come before this one."""
        return sum(other < self.replica for other in self.membership.serving())
