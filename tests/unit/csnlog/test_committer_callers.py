"""The group committer, third part: callers that give up, come back, or ask after the end."""

from __future__ import annotations

import pytest

from tests.support.machines.committing import LOST, Bench, proposal, tid
from tidelock.csnlog.core.committer_messages import (
    Cause,
    CommitEnded,
    DeadlinePassed,
    FenceDoubted,
    Followed,
    Rejected,
    SendCommit,
    StopAsked,
    Undecided,
)
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.results import Committed

FENCED = Rejected(Cause.FENCED)


@pytest.fixture
def bench() -> Bench:
    """A machine at rest: connected, fence raised to 1, epoch known."""
    made = Bench()
    made.serve_all()
    return made


@pytest.fixture
def doubting(bench: Bench) -> Bench:
    """A machine with one commit under way whose connection is about to break."""
    bench.propose(proposal(1))
    assert bench.awaits(SendCommit)
    return bench


def test_a_deadline_while_it_is_sent_is_an_unknown_commit(doubting: Bench) -> None:
    """The caller gets Undecided once; the machine finds the outcome, and answers a repeated commit()."""
    doubting.tell(DeadlinePassed(tid(1)))
    doubting.tell(DeadlinePassed(tid(1)))
    assert doubting.verdicts[tid(1)] == [Undecided()]
    doubting.lose_reply()
    doubting.serve_all()
    assert doubting.verdicts[tid(1)] == [Undecided(), Committed(Csn(2))]
    doubting.propose(proposal(1))
    assert doubting.verdicts[tid(1)] == [Undecided(), Committed(Csn(2)), Committed(Csn(2))]
    assert doubting.log() == {tid(1): [2]}


def test_a_caller_who_gave_up_is_not_committed_behind_its_back(doubting: Bench) -> None:
    """A transaction that was not applied is not sent again by itself; a repeated commit() sends it."""
    doubting.propose(proposal(2))
    doubting.serve()
    doubting.tell(DeadlinePassed(tid(2)))
    doubting.propose(proposal(3))
    doubting.lose_request()
    doubting.serve_all()
    assert doubting.verdicts[tid(2)] == [Undecided(), Rejected(Cause.DEADLINE)]
    assert doubting.log() == {tid(1): [2], tid(3): [3]}
    doubting.propose(proposal(2))
    doubting.serve_all()
    assert doubting.log()[tid(2)] == [4]


def test_a_caller_who_returns_in_time_is_served(doubting: Bench) -> None:
    """A repeated commit() joins the first one while it is in doubt, and is sent again if necessary."""
    doubting.tell(DeadlinePassed(tid(1)))
    doubting.lose_request()
    doubting.propose(proposal(1))
    doubting.serve_all()
    assert doubting.verdicts[tid(1)] == [Undecided(), Committed(Csn(2))]
    assert doubting.log() == {tid(1): [2]}


def test_a_deadline_after_the_commit_is_known_says_nothing(doubting: Bench) -> None:
    """A deadline has no effect after the follower has answered."""
    doubting.apply(doubting.ops())
    doubting.tell(Followed(Csn(2), ((tid(1), Csn(2)),)))
    doubting.tell(DeadlinePassed(tid(1)))
    assert doubting.verdicts[tid(1)] == [Committed(Csn(2))]


def test_callers_of_a_stopped_committer_are_told_the_truth(doubting: Bench) -> None:
    """A running commit stays unknown for its caller; a waiting one was certainly not sent."""
    doubting.propose(proposal(2))
    doubting.tell(StopAsked("closing"))
    assert doubting.verdicts == {tid(1): [Undecided()], tid(2): [Rejected(Cause.STOPPED, "closing")]}
    doubting.tell(CommitEnded(LOST))
    assert doubting.verdicts[tid(1)] == [Undecided()]
    doubting.propose(proposal(1), proposal(3))
    assert doubting.verdicts[tid(1)] == [Undecided()] * 2
    assert doubting.decision(3) == Rejected(Cause.STOPPED, "closing")


def test_a_committed_transaction_stays_committed_for_callers_of_a_fenced_replica(bench: Bench) -> None:
    """I17: a repeated commit() after the fence gets its CSN, not an abort."""
    bench.propose(proposal(1))
    bench.serve_all()
    bench.fence_by_another()
    bench.tell(FenceDoubted(1))
    bench.serve_all()
    bench.propose(proposal(1), proposal(2))
    assert bench.fenced
    assert (bench.decision(1), bench.decision(2)) == (Committed(Csn(2)), FENCED)
