"""The phase of this replica: how it follows the log, for the progress that it publishes, status and log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.model import BlockedBy, ReplicaPhase
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.states import Condition
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replication.apply import Applier
from tidelock.replication.core.phase import PhaseReport, PhaseWatch, Signs
from tidelock.replication.disk_room import DiskRoom

_log = structlog.get_logger("phase")


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OwnPhase:
    """Watches how this replica follows the log.

    Attributes:
        clock: Monotonic seconds.
        wall_ms: Wall time (Unix, ms), for people.
    """

    applier: Applier
    room: DiskRoom
    membership: Membership
    watch: PhaseWatch
    metrics: Metrics
    condition: Condition
    clock: Callable[[], float]
    wall_ms: Callable[[], int]
    #: The CSN from which on it has caught up; None while the end of the log is not known.
    _aim: Csn | None = field(default=None, init=False)
    _report: PhaseReport = field(default=PhaseReport(ReplicaPhase.STARTING), init=False)
    _since_ms: int = field(default=0, init=False)

    def catch_up_to(self, aim: Csn) -> None:
        """Note the CSN that this boot has to apply before it follows."""
        self._aim = aim

    @property
    def blocked_by(self) -> BlockedBy | None:
        """The part that the last look has found to hold this replica back."""
        return self._report.blocked_by

    def look(self) -> tuple[PhaseReport, int]:
        """Return the phase, and the time since when it is this one (Unix, ms)."""
        applier = self.applier
        signs = Signs(
            # A clone that fetches starts: nobody leaves because of it (rule clone).
            caught_up=not self.condition.fetches
            and self._aim is not None
            and applier.snapshot_csn >= self._aim,
            movement=applier.movement(),
            waits=applier.waiting > 0,
            blocked=applier.blocked,
            full=applier.no_room or self.room.low,
        )
        report = self.watch.observe(signs, self.clock())
        self.condition.stuck = self._why_no_begin(report)
        if report != self._report or not self._since_ms:
            self._say(report)
            self._report, self._since_ms = report, self.wall_ms()
        return self._report, self._since_ms

    def _why_no_begin(self, report: PhaseReport) -> str:
        """Return why transactions begin elsewhere, "" if they may begin here.

        If all disks are full, they begin here: truncating a table makes room.
        """
        if not report.stuck:
            full = report.phase is ReplicaPhase.FULL and self.membership.has_well_peer()
            return "its disk is full" if full else ""
        blocked = self.applier.blocked
        if self.applier.trouble is not None or blocked is None:
            return f"it cannot apply the log: {self.applier.trouble or 'its catalog takes no records'}"
        lacked = f"CSN {blocked.csn} lacks {blocked.part} of {blocked.tid}"
        return f"it cannot apply the log: {lacked}: {blocked.reason}"

    def _say(self, report: PhaseReport) -> None:
        self.metrics.phase.state(report.phase.value)
        blocked = report.blocked_by
        details = {} if blocked is None else {"csn": blocked.csn, "tid": blocked.tid, "part": blocked.part}
        trouble = report.phase in {ReplicaPhase.BLOCKED, ReplicaPhase.FULL}
        say = _log.warning if trouble else _log.info
        say("phase", before=self._report.phase.value, now=report.phase.value, **details)
