"""When a replica is struck without an operator: silent, stuck, or holding back too many records. Pure.

A replica that stays behind keeps every record after its place in ZooKeeper's memory, and the history after it
on all disks (I16). It is struck when it is silent, or applies nothing while the log moves on, for
``strike_timeout_s``, or holds back more than ``max_records`` records or ``max_records_bytes`` bytes of them.
It then clones before it serves. A clone begins where the log begins. The records there are kept anyway, so
it does not hold them back. The rules of :mod:`tidelock.replication.core.membership_rules` still decide
whether the others are enough.

Silence and standstill are measured by the monotonic clock of the observer, from the moment at which it saw
them first. So no wall clock strikes a replica, and an observer that starts again waits once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.model import CLONING
from tidelock.replication.core.membership_rules import MembersReading

#: Memory of ZooKeeper for a record beside its bytes: the node, its path and name, its place in the directory.
#: Measured: 8,000 records of 361 bytes filled a heap of 24 MiB, about 1.2 KB each.
ZNODE_BYTES: Final = 800


class StrikeLimits(msgspec.Struct, frozen=True):
    """The bounds; see the settings of the same names."""

    strike_timeout_s: float
    max_records: int
    max_records_bytes: int


class HeldRecords(msgspec.Struct, frozen=True):
    """The records that a replica holds back in ZooKeeper, and their bytes there, as estimated."""

    records: int
    bytes: int


class LogLength(msgspec.Struct, frozen=True):
    """The log in ZooKeeper as an observer has read it.

    Attributes:
        records: All that are there.
        kept: How many of them are kept when every replica has applied them.
        record_bytes: Mean of their bytes.
    """

    records: int
    kept: int
    record_bytes: float


def held_back(records: int, record_bytes: float) -> HeldRecords:
    """Return what a replica that is so many records behind holds back, of ``record_bytes`` bytes each."""
    return HeldRecords(records, round(records * (record_bytes + ZNODE_BYTES)))


@dataclass(slots=True)
class StandstillWatch:
    """Since when each replica has applied nothing although the log moved on, as one observer has seen it."""

    _seen: dict[ReplicaId, tuple[Csn, float]] = field(default_factory=dict)

    def note(self, seen: MembersReading, now: float) -> None:
        """Note the progress of all members at monotonic time ``now`` (seconds)."""
        before = self._seen
        self._seen = {}
        for replica in seen.members():
            at = seen.replicas[replica].progress.snapshot
            known = before.get(replica)
            # A clone takes as long as it takes, and its next boot serves before it shows its new position.
            clones = seen.replicas[replica].session.state == CLONING
            moved = known is None or known[0] != at or seen.behind(replica) == 0 or clones
            self._seen[replica] = (at, now if moved or known is None else known[1])

    def standing_s(self, replica: ReplicaId, now: float) -> float:
        """Return for how long a member has applied nothing although there was something to apply."""
        found = self._seen.get(replica)
        return 0.0 if found is None else now - found[1]


def reason_to_strike(
    replica: ReplicaId,
    seen: MembersReading,
    limits: StrikeLimits,
    *,
    silent_s: float,
    standing_s: float,
    log: LogLength,
) -> str:
    """Return why a member is to be struck, "" if it is not."""
    held = held_back(min(seen.behind(replica), max(0, log.records - log.kept)), log.record_bytes)
    if silent_s >= limits.strike_timeout_s:
        return f"it has been silent for {silent_s:.0f} s"
    if standing_s >= limits.strike_timeout_s:
        return f"it has applied nothing for {standing_s:.0f} s"
    if held.records > limits.max_records:
        return f"it holds back {held.records} records, more than max_records={limits.max_records}"
    if held.bytes > limits.max_records_bytes:
        return (
            f"it holds back {held.bytes} bytes of ZooKeeper, more than "
            f"max_records_bytes={limits.max_records_bytes}"
        )
    return ""


def to_strike(reasons: Mapping[ReplicaId, str], seen: MembersReading, by: ReplicaId) -> ReplicaId | None:
    """Return the replica to strike next, the one furthest behind; the observer never strikes itself."""
    candidates = [replica for replica, reason in reasons.items() if reason and replica != by]
    return max(candidates, key=lambda replica: (seen.behind(replica), replica), default=None)
