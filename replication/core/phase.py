"""The phase of the own replica: how it follows the log, as others are to know it. Pure.

A replica that applies nothing for a while although a record waits is blocked. What it lacks may be large, so
bytes that arrive count as movement, and so does every part that the record lacked before.
"""

from __future__ import annotations

import msgspec

from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.model import BlockedBy, ReplicaPhase
from tidelock.replication.core.messages import Blocked


class Signs(msgspec.Struct, frozen=True):
    """The facts that tell the phase, as they are at one moment.

    Attributes:
        caught_up: It has applied all records that existed when its boot began.
        movement: Values of which one changes whenever it comes closer to its next record.
        waits: Records were read there and are not applied.
        blocked: The part that the next record lacks.
        full: Its disk has no room for copies.
    """

    caught_up: bool
    movement: tuple[Csn, int, int]
    waits: bool
    blocked: Blocked | None
    full: bool


class PhaseReport(msgspec.Struct, frozen=True):
    """A phase.

    Attributes:
        phase: The phase.
        blocked_by: The part that the next record lacks, if that is the reason of the phase.
        stuck: Nothing has moved for a while although a record waits; a full replica may still follow.
    """

    phase: ReplicaPhase
    blocked_by: BlockedBy | None = None
    stuck: bool = False


class PhaseWatch:
    """Tells the phase from the signs that it is given again and again.

    Args:
        blocked_after_s: How long nothing may move while a record waits.
    """

    __slots__ = ("_blocked_after_s", "_last", "_moved_s")

    def __init__(self, blocked_after_s: float) -> None:
        self._blocked_after_s = blocked_after_s
        self._last: tuple[Csn, int, int] | None = None
        self._moved_s = 0.0

    def observe(self, signs: Signs, now_s: float) -> PhaseReport:
        """Return the phase at ``now_s`` (monotonic seconds)."""
        if not signs.waits or signs.movement != self._last:
            self._last, self._moved_s = signs.movement, now_s
        stuck = signs.waits and now_s - self._moved_s >= self._blocked_after_s
        if signs.full:
            return PhaseReport(ReplicaPhase.FULL, _blocked_by(signs.blocked), stuck)
        if stuck:
            return PhaseReport(ReplicaPhase.BLOCKED, _blocked_by(signs.blocked), stuck)
        return PhaseReport(ReplicaPhase.FOLLOWING if signs.caught_up else ReplicaPhase.STARTING)


def _blocked_by(blocked: Blocked | None) -> BlockedBy | None:
    return None if blocked is None else BlockedBy(blocked.csn, blocked.tid, blocked.part)
