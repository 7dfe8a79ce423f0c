"""When a replica is struck without an operator: silence, standstill, records and bytes held back (I16)."""

from __future__ import annotations

import pytest

from tidelock.csnlog.core.ids import NO_STAMP, Csn, ReplicaId
from tidelock.csnlog.core.model import MemberState, Progress, Roster, SessionState
from tidelock.csnlog.core.store import Node
from tidelock.replication.core.lag import Epochs
from tidelock.replication.core.membership_rules import MemberReading, MembersReading
from tidelock.replication.core.strike_rules import (
    ZNODE_BYTES,
    LogLength,
    StandstillWatch,
    StrikeLimits,
    held_back,
    reason_to_strike,
    to_strike,
)

R1, R2, R3 = (ReplicaId(name) for name in ("r1", "r2", "r3"))
LIMITS = StrikeLimits(strike_timeout_s=60.0, max_records=100, max_records_bytes=1_000_000)


def member(snapshot: int, state: str = "serving") -> MemberReading:
    """Return a replica at a snapshot CSN."""
    progress = Progress(Csn(snapshot), Csn(snapshot))
    return MemberReading(MemberState(), SessionState(1, "d", "n", state), 1, progress, 1, alive=True)


def reading(end: int, **replicas: MemberReading) -> MembersReading:
    """Return a reading of these replicas."""
    named = {ReplicaId(name): found for name, found in replicas.items()}
    return MembersReading(Node(b"", 0, 0, 0, NO_STAMP), Roster(2), named, Csn(end), Epochs(1000), 10)


@pytest.mark.parametrize(
    ("behind", "silent_s", "standing_s", "record_bytes", "reason"),
    [
        (100, 59.0, 59.0, 0.0, ""),
        (1, 60.0, 0.0, 0.0, "silent for 60 s"),
        (1, 0.0, 60.0, 0.0, "applied nothing for 60 s"),
        (101, 0.0, 0.0, 0.0, "101 records, more than max_records=100"),
        (100, 0.0, 0.0, 1_000_000 / 100 - ZNODE_BYTES + 1, "bytes of ZooKeeper"),
    ],
)
def test_each_bound_is_a_reason(
    behind: int, silent_s: float, standing_s: float, record_bytes: float, reason: str
) -> None:
    """At the bound of records and bytes nothing happens, above it the replica is struck."""
    seen = reading(500, r2=member(500 - behind))
    log = LogLength(records=500, kept=10, record_bytes=record_bytes)
    found = reason_to_strike(R2, seen, LIMITS, silent_s=silent_s, standing_s=standing_s, log=log)
    assert reason in found
    assert bool(found) is bool(reason)


def test_a_clone_takes_as_long_as_it_takes() -> None:
    """A replica that clones is not struck for standing still, but for what it holds back."""
    watch = StandstillWatch()

    def reason(end: int, now: float) -> str:
        log = LogLength(records=end - 450, kept=50, record_bytes=0.0)
        seen = reading(end, r2=member(450, "cloning"))
        watch.note(seen, now)
        standing_s = watch.standing_s(R2, now)
        return reason_to_strike(R2, seen, LIMITS, silent_s=0.0, standing_s=standing_s, log=log)

    assert not reason(500, 0.0)
    assert not reason(500, 999.0)
    assert not reason(600, 999.0)
    assert "101 records" in reason(601, 999.0)


def test_a_clone_does_not_hold_back_what_is_kept_anyway() -> None:
    """It begins at the tail, and its next boot is there still until it has shown its position.

    With as many records kept as a replica may hold back, each clone was struck at once.
    """
    log = LogLength(records=200, kept=100, record_bytes=0.0)
    for state in ("cloning", "serving"):
        seen = reading(500, r2=member(300, state))
        assert not reason_to_strike(R2, seen, LIMITS, silent_s=0.0, standing_s=0.0, log=log)


def test_the_time_of_a_clone_counts_no_second_later() -> None:
    """Its next boot serves before it has shown how far its clone has brought it."""
    watch = StandstillWatch()
    for now in (0.0, 500.0, 1000.0):
        watch.note(reading(500, r1=member(500), r2=member(450, "cloning")), now)
        assert watch.standing_s(R2, now) == 0.0
    watch.note(reading(500, r1=member(500), r2=member(450)), 1001.0)
    assert watch.standing_s(R2, 1001.0) == 1.0
    watch.note(reading(500, r1=member(500), r2=member(450)), 1061.0)
    assert watch.standing_s(R2, 1061.0) == 61.0


def test_standing_still_counts_only_while_there_is_something_to_apply() -> None:
    """A quiet log makes no replica stand still; each step of a slow one begins the time again."""
    watch = StandstillWatch()
    watch.note(reading(10, r1=member(10), r2=member(5), r3=member(5)), 0.0)
    watch.note(reading(10, r1=member(10), r2=member(5), r3=member(6)), 50.0)
    watch.note(reading(10, r1=member(10), r2=member(5), r3=member(6)), 70.0)
    assert [watch.standing_s(one, 70.0) for one in (R1, R2, R3)] == [0.0, 70.0, 20.0]
    watch.note(reading(10, r1=member(10), r2=member(5, "struck"), r3=member(6)), 71.0)
    assert watch.standing_s(R2, 71.0) == 0.0


def test_the_one_that_is_furthest_behind_is_struck_first() -> None:
    """One at a time, and never the observer itself."""
    seen = reading(500, r1=member(1), r2=member(200), r3=member(100))
    assert to_strike({R1: "a", R2: "b", R3: "c"}, seen, R1) == R3
    assert to_strike({R1: "a", R2: "", R3: ""}, seen, R1) is None


def test_what_a_replica_holds_back_is_estimated() -> None:
    """A znode costs memory beside the bytes of its record (finding 3: about 1.2 KB for 361 bytes)."""
    assert held_back(8_000, 361.0).bytes == pytest.approx(8_000 * 1161, rel=0.01)
