"""The phase of a replica: when it counts as one that follows, and when as one that is stuck."""

from __future__ import annotations

from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId
from tidelock.csnlog.core.model import BlockedBy, ReplicaPhase
from tidelock.replication.core.messages import Blocked
from tidelock.replication.core.phase import PhaseReport, PhaseWatch, Signs

_LACKED = Blocked(Csn(7), "6-r1-1-1", PartId("r1-1-1"), "not held")
_AFTER_S = 10.0


def signs(
    snapshot: int = 6,
    lacks: int = 1,
    received: int = 0,
    *,
    waits: bool = True,
    blocked: Blocked | None = _LACKED,
    full: bool = False,
    caught_up: bool = True,
) -> Signs:
    """Return what a replica at a snapshot CSN sees of itself."""
    return Signs(caught_up, (Csn(snapshot), lacks, received), waits, blocked, full)


def phases(*seen: tuple[float, Signs]) -> list[ReplicaPhase]:
    """Return the phases of a replica at these times."""
    watch = PhaseWatch(_AFTER_S)
    return [watch.observe(found, at_s).phase for at_s, found in seen]


def test_a_replica_is_blocked_when_nothing_moves_for_a_while() -> None:
    """A short wait for a part is normal; after the bound the part, its tid and its CSN are named."""
    watch = PhaseWatch(_AFTER_S)
    assert watch.observe(signs(), 100.0) == PhaseReport(ReplicaPhase.FOLLOWING)
    assert watch.observe(signs(), 109.0) == PhaseReport(ReplicaPhase.FOLLOWING)
    blocked_by = BlockedBy(Csn(7), "6-r1-1-1", PartId("r1-1-1"))
    assert watch.observe(signs(), 110.0) == PhaseReport(ReplicaPhase.BLOCKED, blocked_by, stuck=True)
    assert watch.observe(signs(snapshot=7, waits=False, blocked=None), 111.0) == PhaseReport(
        ReplicaPhase.FOLLOWING
    )


def test_everything_that_comes_closer_to_the_next_record_is_movement() -> None:
    """A replica that applies, gets parts, or receives bytes of a large part is not blocked, however long."""
    moving = ReplicaPhase.FOLLOWING
    assert phases((0, signs()), (9, signs(snapshot=7)), (18, signs(snapshot=8))) == [moving] * 3
    assert phases((0, signs(lacks=3)), (9, signs(lacks=2)), (18, signs(lacks=1))) == [moving] * 3
    assert phases((0, signs()), (9, signs(received=1)), (18, signs(received=2))) == [moving] * 3
    assert phases((0, signs()), (9, signs()), (18, signs()))[-1] is ReplicaPhase.BLOCKED


def test_a_replica_without_waiting_records_is_never_blocked() -> None:
    """A quiet log moves nothing, and that is no trouble; the time counts from the last quiet look on."""
    quiet = signs(waits=False, blocked=None)
    assert phases((0, quiet), (50, quiet), (51, signs()), (59, signs()), (60, signs())) == [
        *[ReplicaPhase.FOLLOWING] * 4,
        ReplicaPhase.BLOCKED,
    ]


def test_a_catalog_that_takes_no_batch_is_stuck_too() -> None:
    """A record may wait although no part is missing: the catalog does not take it. No part is named then."""
    hung = signs(lacks=0, blocked=None)
    watch = PhaseWatch(_AFTER_S)
    watch.observe(hung, 0.0)
    assert watch.observe(hung, _AFTER_S) == PhaseReport(ReplicaPhase.BLOCKED, stuck=True)


def test_a_replica_starts_until_it_has_applied_what_was_there() -> None:
    """A replica that comes back says that it is starting, unless it is stuck: that is the worse news."""
    starting = signs(caught_up=False)
    assert phases((0, starting), (1, signs(snapshot=7, caught_up=False)), (2, signs(snapshot=8))) == [
        ReplicaPhase.STARTING,
        ReplicaPhase.STARTING,
        ReplicaPhase.FOLLOWING,
    ]
    assert phases((0, starting), (_AFTER_S, starting))[-1] is ReplicaPhase.BLOCKED


def test_a_full_disk_is_said_at_once_and_until_there_is_room() -> None:
    """A full disk needs no time to be believed, and the replica follows again as soon as there is room."""
    watch = PhaseWatch(_AFTER_S)
    assert watch.observe(signs(full=True), 0.0).phase is ReplicaPhase.FULL
    assert watch.observe(signs(full=True, waits=False, blocked=None), 1.0) == PhaseReport(ReplicaPhase.FULL)
    assert watch.observe(signs(), 2.0).phase is ReplicaPhase.FOLLOWING


def test_the_first_look_never_says_blocked() -> None:
    """A watch that has seen nothing yet cannot know how long a record has waited."""
    assert phases((1e9, signs(snapshot=CSN_NONE)))[0] is ReplicaPhase.FOLLOWING
