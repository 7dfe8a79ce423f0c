"""The group committer, second part: unknown outcomes, the own fence, foreign fences, deadlines.

F1, F2 ... are the counter-examples of docs/design/failure-scenarios.md; each interleaving there must be
impossible here.
"""

from __future__ import annotations

import pytest

from tests.support.machines.committing import LOST, R1, Bench, begun, proposal, records, tid
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.batch import LogLimits
from tidelock.csnlog.core.committer_messages import (
    Cause,
    DrawNonce,
    FenceDoubted,
    FenceRead,
    FenceWanted,
    Followed,
    LinkChanged,
    LogRead,
    ReadEpoch,
    ReadFence,
    ReadLog,
    Rejected,
    SendCommit,
    SendRaise,
    SendRollover,
    Undecided,
)
from tidelock.csnlog.core.ids import NO_STAMP, Csn
from tidelock.csnlog.core.model import RecordKind
from tidelock.csnlog.core.results import Committed, Ok, Reason, Refused
from tidelock.csnlog.core.store import Delete, Node, SetData, Written

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


# --------------------------------------------------------------------------- Unknown: write, then read


def test_a_raise_is_repeated_as_it_was(doubting: Bench) -> None:
    """The same compare-and-set with the same nonce, so that at most one of them applies."""
    doubting.lose_request()
    doubting.serve_until(SendRaise)
    first = doubting.ops()
    doubting.lose_reply()
    doubting.serve_until(SendRaise)
    assert doubting.ops() == first
    (op,) = first
    assert isinstance(op, SetData)
    assert op.version == 1
    doubting.serve()
    assert doubting.awaits(ReadFence)
    doubting.serve_all()
    assert doubting.raised == [1, 2]
    assert doubting.log() == {tid(1): [2]}


def test_a_session_change_during_the_read_raises_again(doubting: Bench) -> None:
    """Another session may read from a server that lags, so the fence is raised in it first (F3)."""
    doubting.lose_reply()
    doubting.serve_until(ReadLog)
    doubting.session += 1
    doubting.tell(LinkChanged(connected=True, session=doubting.session))
    # The old session's answer is valid, since the fence was raised there. A failed read is no answer.
    doubting.request = None
    doubting.tell(LogRead(None, 0))
    doubting.resume()
    assert doubting.awaits(DrawNonce)
    doubting.serve_all()
    assert doubting.raised == [1, 2, 3]
    assert doubting.log() == {tid(1): [2]}


def test_a_batch_in_doubt_keeps_others_waiting(doubting: Bench) -> None:
    """While a batch is in doubt nothing is sent, and the whole batch gets one outcome."""
    doubting.propose(proposal(2), proposal(3))
    doubting.serve()
    doubting.lose_reply()
    doubting.propose(proposal(4))
    doubting.serve_all()
    assert doubting.log() == {tid(1): [2], tid(2): [3], tid(3): [3], tid(4): [4]}


# ------------------------------------------------------------------------------------------ follower


def test_the_follower_may_know_first(doubting: Bench) -> None:
    """A commit learned from the log is answered at once, and the multi's answer agrees."""
    result = doubting.apply(doubting.ops())
    doubting.tell(Followed(Csn(2), ((tid(1), Csn(2)),)))
    assert doubting.verdicts == {tid(1): [Committed(Csn(2))]}
    doubting.propose(proposal(1))
    doubting.answer_multi(result)
    doubting.serve_all()
    assert doubting.verdicts == {tid(1): [Committed(Csn(2))] * 2}
    assert doubting.log() == {tid(1): [2]}


def test_what_the_follower_knows_is_not_in_doubt(doubting: Bench) -> None:
    """The reply is lost after the record was met: no raise is needed."""
    doubting.apply(doubting.ops())
    doubting.tell(Followed(Csn(2), ((tid(1), Csn(2)),)))
    doubting.answer_multi(LOST)
    assert doubting.request is None
    assert doubting.raised == [1]


@pytest.mark.parametrize("until", [DrawNonce, SendRaise, ReadLog])
def test_the_follower_ends_a_doubt_at_any_moment(doubting: Bench, until: type) -> None:
    """A running request goes on, and finds its question decided."""
    doubting.lose_reply()
    doubting.serve_until(until)
    doubting.tell(Followed(Csn(2), ((tid(1), Csn(2)),)))
    assert doubting.decision(1) == Committed(Csn(2))
    doubting.propose(proposal(2))
    doubting.serve_all()
    assert doubting.log() == {tid(1): [2], tid(2): [3]}


def test_a_tid_of_the_log_is_never_sent(bench: Bench) -> None:
    """A waiting transaction whose tid is in the log is answered from the log (I1)."""
    bench.propose(proposal(1))
    bench.propose(proposal(2))
    bench.tell(Followed(Csn(5), ((tid(2), Csn(5)),)))
    assert bench.decision(2) == Committed(Csn(5))
    bench.serve_all()
    assert bench.log() == {tid(1): [2]}


@pytest.mark.parametrize(
    "result",
    [
        Ok((None, None, Written(1, NO_STAMP), "csn/0/csn-0000000003")),
        Refused(Reason.BAD_VERSION, 1),
    ],
)
def test_log_and_multi_that_disagree_stop_the_log(doubting: Bench, result: object) -> None:
    """Two CSNs for one batch, or a refusal of a transaction in the log, prove a broken ensemble (I15)."""
    doubting.tell(Followed(Csn(2), ((tid(1), Csn(2)),)))
    doubting.answer_multi(result)  # type: ignore[arg-type]
    assert doubting.halted


# --------------------------------------------------------------------------------------------- fence


def test_a_foreign_fence_aborts_what_is_certainly_not_in_the_log(doubting: Bench) -> None:
    """A refusal by the fence with a foreign nonce is final; waiting transactions are aborted too."""
    doubting.propose(proposal(2))
    doubting.fence_by_another()
    doubting.serve_all()
    assert doubting.fenced
    assert [doubting.decision(n) for n in (1, 2)] == [FENCED, FENCED]
    doubting.propose(proposal(3))
    assert doubting.decision(3) == FENCED
    doubting.connect()
    assert doubting.request is None
    assert doubting.log() == {}


def test_a_raise_that_finds_a_foreign_nonce_does_not_hide_it(doubting: Bench) -> None:
    """F2c: an unconditional set would overwrite the foreign fence, and the part would be removed twice."""
    doubting.lose_request()
    doubting.serve_until(SendRaise)
    doubting.fence_by_another()
    doubting.serve_all()
    assert (doubting.fenced, doubting.decision(1)) == (True, FENCED)
    state = codec.decode_session(doubting.tree.get(tree.session(R1)).data)  # type: ignore[union-attr]
    assert (state.nonce, state.state) == ("foreign", "fenced")


def test_fenced_and_in_doubt_across_a_session_change(doubting: Bench) -> None:
    """A fenced replica cannot write a barrier; it reads until the session shows the foreign fence."""
    stale = doubting.tree.copy()
    doubting.lose_reply()
    doubting.fence_by_another()
    doubting.serve_until(ReadLog)
    doubting.request = None
    doubting.tell(LogRead(None, 0))
    doubting.connect()
    assert doubting.awaits(ReadFence)
    doubting.serve(stale)
    assert doubting.request is None
    doubting.resume()
    assert doubting.awaits(ReadFence)
    doubting.serve_all()
    assert doubting.decision(1) == Committed(Csn(2))


def test_a_second_foreign_raise_changes_nothing(doubting: Bench) -> None:
    """Fenced is fenced, however often."""
    doubting.lose_request()
    doubting.fence_by_another()
    doubting.serve_until(ReadLog)
    doubting.request = None
    doubting.tell(LogRead(None, 0))
    doubting.fence_by_another("again")
    doubting.connect()
    doubting.serve_all()
    assert (doubting.fenced, doubting.decision(1)) == (True, FENCED)


def test_a_server_that_lags_behind_is_not_a_foreign_fence(doubting: Bench) -> None:
    """An older nonce of our own, read after a session change, decides nothing: versions only grow."""
    old = doubting.tree.copy()
    doubting.lose_request()
    doubting.serve_until(ReadLog)
    doubting.tell(FenceWanted(2))
    doubting.serve()
    doubting.serve_until(SendRaise)
    doubting.lose_reply()
    doubting.serve_until(ReadFence)
    doubting.serve(old)
    assert (doubting.request, doubting.fenced) == (None, False)
    doubting.serve_all()
    assert (doubting.raised, doubting.fenced) == ([1, 2, 3], False)
    assert doubting.log() == {tid(1): [2]}


def test_a_raise_that_landed_late_is_our_own(bench: Bench) -> None:
    """The first attempt lands before the second, which is refused: the nonce shows no foreign fence."""
    bench.tell(FenceWanted(1))
    bench.serve_until(SendRaise)
    bench.delay()
    bench.serve_until(SendRaise)
    bench.land()
    bench.propose(proposal(1))
    bench.serve_all()
    assert (bench.raised, bench.fenced) == ([1, 2], False)
    assert bench.log() == {tid(1): [2]}


def test_the_fence_is_raised_for_others(bench: Bench) -> None:
    """If another multi of this replica ended Unknown under fence 1, the fence is raised once."""
    bench.tell(FenceWanted(1))
    bench.tell(FenceWanted(1))
    bench.serve_all()
    bench.tell(FenceWanted(1))
    bench.serve_all()
    assert bench.raised == [1, 2]


def test_a_doubted_fence_is_looked_at(bench: Bench) -> None:
    """If a multi was refused by the known fence, the session znode is read, and the fence is foreign."""
    bench.tell(FenceDoubted(0))
    assert bench.request is None
    bench.fence_by_another()
    bench.tell(FenceDoubted(1))
    bench.serve_all()
    assert bench.fenced


def test_a_session_znode_that_is_gone_stops_the_log(doubting: Bench) -> None:
    """The session znode is never deleted (F19), so this is another ensemble."""
    doubting.apply((Delete(tree.session(R1), 1),))
    doubting.lose_request()
    doubting.serve_until(SendRaise)
    doubting.serve()
    assert "it lacks replicas/r1/session" in doubting.halted
    assert doubting.decision(1) == Undecided()


@pytest.mark.parametrize(
    "node",
    [
        Node(b"garbage", 5, 0, 0, NO_STAMP),
        Node(codec.encode_session(begun(R1, 9)), 1, 0, 0, NO_STAMP),
    ],
)
def test_a_session_znode_that_cannot_be_stops_the_log(bench: Bench, node: Node) -> None:
    """Unreadable, or other data under a version that we have written: a restored ensemble (F19)."""
    bench.tell(FenceDoubted(1))
    bench.request = None
    bench.tell(FenceRead(Ok(node), bench.session))
    assert bench.halted


def test_a_fence_of_a_restored_ensemble_is_not_taken(bench: Bench) -> None:
    """Lower versions are ignored; the machine goes on asking and commits nothing."""
    bench.tell(FenceDoubted(1))
    bench.request = None
    bench.tell(FenceRead(Ok(Node(codec.encode_session(begun(R1)), 0, 0, 0, NO_STAMP)), bench.session))
    assert (bench.request, bench.paused, bench.fenced) == (None, True, False)


# --------------------------------------------------------------------------- roll-over


def test_an_unknown_roll_over_is_resolved_like_a_commit() -> None:
    """Raise first, then read the epoch: it is closed once, whether the request or the reply was lost."""
    for lose in (Bench.lose_reply, Bench.lose_request, Bench.delay):
        bench = Bench(limits=LogLimits(epoch_limit=3))
        bench.serve_all()
        bench.propose(proposal(1))
        bench.serve_all()
        bench.propose(proposal(2))
        bench.serve_until(SendRollover)
        lose(bench)
        seen = []
        while not bench.awaits(SendCommit, SendRollover):
            seen.append(type(bench.request))
            bench.serve()
        assert seen == [DrawNonce, SendRaise, ReadEpoch]
        for _ in bench.late:
            assert bench.land() == Refused(Reason.BAD_VERSION, 0)
        bench.serve_all()
        assert [record.kind for _, record in records(bench.tree)[2:]] == [
            RecordKind.COMMIT,
            RecordKind.END,
            RecordKind.COMMIT,
        ]


def test_a_roll_over_of_a_fenced_replica_is_refused() -> None:
    """Every multi is fenced (F3): a zombie cannot close an epoch."""
    bench = Bench(limits=LogLimits(epoch_limit=2))
    bench.serve_all()
    bench.tell(Followed(Csn(1)))
    bench.propose(proposal(1))
    assert bench.awaits(SendRollover)
    bench.fence_by_another()
    bench.serve_all()
    assert (bench.fenced, bench.decision(1), len(records(bench.tree))) == (True, FENCED, 2)
