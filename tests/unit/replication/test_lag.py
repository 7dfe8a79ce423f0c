"""The delay of commits while replicas lag behind: whom a home waits for, how long, and when it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.csnlog.core.ids import Csn, ReplicaId, csn, epoch_of
from tidelock.csnlog.core.model import ClusterState, ReplicaPhase
from tidelock.replication.core.lag import (
    Epochs,
    LagLimits,
    LagVerdict,
    LagWatch,
    csns_behind,
    delay_s,
    epochs_of,
)
from tidelock.replication.core.model import Peer

_LIMITS = LagLimits(max_lag=10, delay_max_s=2.0, stalled_after_s=5.0, epochs=Epochs(1000))
_OWN = Csn(100)
_STUCK = [ReplicaPhase.BLOCKED, ReplicaPhase.FULL]


def peer(
    name: str,
    snapshot: int,
    phase: ReplicaPhase = ReplicaPhase.FOLLOWING,
    *,
    alive: bool = True,
    struck: bool = False,
) -> Peer:
    """Return a member at a snapshot CSN."""
    return Peer(ReplicaId(name), "", "", "d", alive, struck, Csn(snapshot), phase)


def verdict(*peers: Peer) -> LagVerdict:
    """Return the verdict of a home that sees its peers for the first time."""
    return LagWatch(_LIMITS).judge(peers, _OWN, 0.0, 2)


def test_a_home_waits_for_replicas_that_follow_and_lag() -> None:
    """Dead and struck replicas, and those within max_lag, delay no commit (F14)."""
    found = verdict(
        peer("r2", 90),
        peer("r3", 88),
        peer("r4", 85),
        peer("r5", 1, alive=False),
        peer("r6", 1, struck=True),
        peer("r7", 120),
    )
    assert found == LagVerdict(1.0, ("r4", "r3"), frozenset({"r3", "r4"}))  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", [*_STUCK, ReplicaPhase.STARTING])
def test_no_commit_waits_for_a_replica_that_makes_no_progress(phase: ReplicaPhase) -> None:
    """A replica that is starting, blocked or full gets no faster by waiting; `copies` others go on (I14)."""
    found = verdict(peer("r2", 100), peer("r3", 1, phase))
    assert (found.delay_s, found.behind, found.refused) == (0.0, (), False)
    assert found.far == {"r3"}


def test_a_replica_that_comes_back_stops_nobody() -> None:
    """A replica that has missed 5,000 CSNs delays no commit, also where it is needed for `copies`."""
    assert not verdict(peer("r2", -4900, ReplicaPhase.STARTING)).refused
    assert verdict(peer("r2", -4900, ReplicaPhase.STARTING)).delay_s == 0.0


def test_commits_are_refused_where_a_stuck_replica_is_needed() -> None:
    """If fewer than `copies` replicas make progress, the log would grow in ZooKeeper without a bound."""
    blocked = ReplicaPhase.BLOCKED
    assert verdict(peer("r2", 89, blocked)).refused
    assert verdict(peer("r2", 89, blocked), peer("r3", 100, alive=False)).refused
    assert not verdict(peer("r2", 90, blocked)).refused  # it is not far behind yet
    assert not verdict(peer("r2", 89, blocked), peer("r3", 1, ReplicaPhase.STARTING)).refused
    assert verdict(peer("r2", 89, blocked)).stuck == ("r2",)


def test_a_full_replica_makes_progress_while_it_applies() -> None:
    """Its reserve takes what is committed; only when that has stopped it is one that the shard lacks."""
    watch, full = LagWatch(_LIMITS), peer("r2", 80, ReplicaPhase.FULL)
    assert [watch.judge([full], _OWN, at_s, 2).refused for at_s in (0.0, 4.9, 5.0)] == [False, False, True]
    assert not watch.judge([peer("r2", 81, ReplicaPhase.FULL)], _OWN, 6.0, 2).refused


def test_a_replica_that_applies_nothing_is_not_waited_for_whatever_it_says() -> None:
    """A frozen process goes on to say that it follows; after a while no commit waits for it."""
    watch, frozen = LagWatch(_LIMITS), peer("r2", 80)
    delays = [watch.judge([frozen], _OWN, at_s, 2).delay_s for at_s in (0.0, 4.9, 5.0, 9.0)]
    assert delays == [2.0, 2.0, 0.0, 0.0]
    assert not watch.judge([frozen], _OWN, 9.0, 2).refused
    assert watch.judge([peer("r2", 81)], _OWN, 10.0, 2).delay_s == 1.8


def test_the_time_of_a_stall_counts_from_the_lag_on() -> None:
    """A replica that was quiet because the log was quiet is not called stalled when the log moves on."""
    watch = LagWatch(_LIMITS)
    assert watch.judge([peer("r2", 50)], Csn(50), 0.0, 2).delay_s == 0.0
    assert watch.judge([peer("r2", 50)], Csn(75), 100.0, 2).delay_s == 2.0
    assert watch.judge([peer("r2", 50)], Csn(76), 104.9, 2).delay_s == 2.0
    assert watch.judge([peer("r2", 50)], Csn(76), 105.0, 2).delay_s == 0.0


@given(st.integers(0, 10_000), st.integers(1, 2000))
def test_the_delay_grows_with_the_lag_and_is_bounded(lag: int, max_lag: int) -> None:
    """No commit is delayed up to max_lag, none for longer than the longest delay, and more lag is no less."""
    found = delay_s(lag, max_lag, 2.0)
    assert 0.0 <= found <= 2.0
    assert (found == 0.0) == (lag <= max_lag)
    assert (found == 2.0) == (lag >= 2 * max_lag)
    assert found <= delay_s(lag + 1, max_lag, 2.0)


def test_distance_across_epochs_is_one_step() -> None:
    """A roll-over of the log is one step, not 2^31 of them."""
    assert csns_behind(csn(4, 49), csn(5, 1), Epochs(50)) == 2
    assert csns_behind(csn(3, 49), csn(5, 1), Epochs(50)) == 52
    assert csns_behind(csn(5, 1), csn(4, 49), Epochs(50)) == 0


def test_an_epoch_that_a_rebuild_has_closed_has_the_records_that_it_has() -> None:
    """Behind the closed one the next epoch begins; epochs before and after it are whole ones."""
    epochs = Epochs(50, closed=csn(4, 8))
    assert csns_behind(csn(4, 7), csn(5, 1), epochs) == 3
    assert csns_behind(csn(4, 8), csn(5, 1), epochs) == 2
    assert csns_behind(csn(3, 49), csn(5, 1), epochs) == 11
    assert csns_behind(csn(4, 2), csn(4, 8), epochs) == 6
    assert csns_behind(csn(5, 49), csn(6, 1), epochs) == 2
    assert csns_behind(csn(4, 7), csn(6, 1), epochs) == 53


@pytest.mark.parametrize("applied", [csn(0, 41), csn(3, 0)])
def test_the_distance_to_a_tree_that_was_made_again(applied: Csn) -> None:
    """A replica that it was made of is behind by the closing record and the new ones."""
    cluster = ClusterState("c", 1, 2, 1_000_000_000, "new", {"disk 1": applied, "disk 2": Csn(40)})
    end = csn(epoch_of(applied) + 1, 0)
    assert csns_behind(applied, end, epochs_of(cluster)) == 2
    assert csns_behind(csn(7, 5), csn(8, 5), epochs_of(ClusterState("c", 1, 2, 100))) == 100
