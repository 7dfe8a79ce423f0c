"""The group committer, third part: callers that give up, come back, or ask after the end."""

from __future__ import annotations

import pytest

from tests.support.machines.committing import LOST, Bench, begun, proposal, tid
from tidelock.csnlog.core.batch import LogLimits, Proposal
from tidelock.csnlog.core.committer import Committer
from tidelock.csnlog.core.committer_messages import (
    CallOff,
    Cause,
    CommitEnded,
    DeadlinePassed,
    FenceDoubted,
    Followed,
    Propose,
    Rejected,
    SendCommit,
    StopAsked,
    Undecided,
)
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.model import TidRecord
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


def test_a_commit_that_waits_in_the_queue_is_called_off_at_once(doubting: Bench) -> None:
    """It was certainly not sent, so its caller is told so, and it never reaches the log."""
    doubting.propose(proposal(2))
    doubting.tell(CallOff(tid(2)))
    assert doubting.verdicts[tid(2)] == [Rejected(Cause.CALLED_OFF)]
    doubting.serve_all()
    assert doubting.log() == {tid(1): [2]}


def test_a_commit_that_was_sent_is_called_off_only_if_it_was_not_applied(doubting: Bench) -> None:
    """The caller waits for the truth: the lost request is not sent again, the lost answer is a commit."""
    doubting.tell(CallOff(tid(1)))
    assert doubting.verdicts == {}
    doubting.lose_request()
    doubting.serve_all()
    assert doubting.verdicts[tid(1)] == [Rejected(Cause.CALLED_OFF)]
    assert doubting.log() == {}
    doubting.propose(proposal(2))
    doubting.tell(CallOff(tid(2)))
    doubting.lose_reply()
    doubting.serve_all()
    assert doubting.verdicts[tid(2)] == [Committed(Csn(2))]


def test_a_call_off_is_kept_when_its_caller_gives_up_and_returns(doubting: Bench) -> None:
    """A repeated commit() of a transaction that was called off does not send it again."""
    doubting.tell(CallOff(tid(1)))
    doubting.tell(DeadlinePassed(tid(1)))
    doubting.propose(proposal(1))
    doubting.lose_request()
    doubting.serve_all()
    assert doubting.verdicts[tid(1)] == [Undecided(), Rejected(Cause.CALLED_OFF)]
    assert doubting.log() == {}


def test_a_call_off_of_an_unknown_or_committed_transaction_says_nothing(doubting: Bench) -> None:
    """It comes too early or too late; what was said before stays true."""
    doubting.serve_all()
    for counter in (1, 7):
        doubting.tell(CallOff(tid(counter)))
    assert doubting.verdicts == {tid(1): [Committed(Csn(2))]}


class CountingText(str):
    """A tid that counts how often it is compared with another text."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        """Compare, and count it."""
        CountingText.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_proposal_and_its_deadline_do_not_search_the_queue() -> None:
    """While ZooKeeper is away the queue fills up: 10,000 proposals cost 4.8 s of CPU, their deadlines 4.0 s.

    The comparisons of tids are counted: a queue that is searched compares each with each.
    """
    count = 1000
    machine = Committer(ReplicaId("r1"), begun(ReplicaId("r1")), 0, LogLimits(), thorough=False)
    tids = [CountingText(tid(number)) for number in range(1, count + 1)]
    for number in range(1, count + 1):
        machine.step(Propose(proposal(number)))
    for one in tids:
        machine.step(Propose(Proposal(TidRecord(one), {})))
    proposals, CountingText.comparisons = CountingText.comparisons, 0
    answers = [said for one in tids for said in machine.step(DeadlinePassed(one))]
    assert len(answers) == count
    assert max(proposals, CountingText.comparisons) <= 5 * count
