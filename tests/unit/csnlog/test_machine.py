"""The common form of the state machines: the checks after a step, and the story of a broken machine."""

from __future__ import annotations

import pytest

from tests.support.log_records import in_log
from tests.support.machines.committing import Bench, begun, proposal, tid
from tests.support.machines.copies_story import rules
from tidelock.csnlog.core import committer_messages as commits
from tidelock.csnlog.core import follower_messages as follows
from tidelock.csnlog.core import phase
from tidelock.csnlog.core.batch import ElementRole, LogLimits
from tidelock.csnlog.core.committer import Committer, Flight
from tidelock.csnlog.core.follower import Follower
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, Tid
from tidelock.csnlog.core.machine import STORY_STEPS, InvariantError
from tidelock.csnlog.core.model import Record, RecordKind
from tidelock.csnlog.core.phase import FollowerPhase, Sign
from tidelock.csnlog.core.refusals import CorruptLog, Doubt, Reject, Requeue, judge
from tidelock.csnlog.core.results import Reason, Unknown
from tidelock.replication.core.copies import Copies
from tidelock.replication.core.messages import Applied, Deadline, PartHeld
from tidelock.replication.core.model import CopyPlace
from tidelock.replication.core.prefix import Prefix

R1 = ReplicaId("r1")


def committer(*, thorough: bool) -> Committer:
    """A committer with one waiting transaction."""
    machine = Committer(R1, begun(R1), 0, LogLimits(), thorough=thorough)
    machine.step(commits.Propose(proposal(1)))
    return machine


def test_a_broken_invariant_raises_with_the_last_steps() -> None:
    """The error names machine and contradiction, and has the events and instructions in order."""
    machine = committer(thorough=False)
    machine.step(commits.LinkChanged(connected=True, session=1))
    machine.flight = Flight.COMMIT
    with pytest.raises(InvariantError, match=r"Committer contradicts itself: a commit under way") as caught:
        machine.step(commits.DeadlinePassed("1-r1-1-9"))
    assert caught.value.details["machine"] == "Committer"
    assert caught.value.story == [
        f"> ('Propose', '{tid(1)}')",
        "> LinkChanged(connected=True, session=1)",
        "< DrawNonce()",
        "> DeadlinePassed(tid='1-r1-1-9')",
    ]


def test_a_story_is_bounded() -> None:
    """A story keeps the last steps, and the last events of a long step."""
    machine = committer(thorough=False)
    for number in range(3 * STORY_STEPS):
        machine.step(commits.DeadlinePassed(f"1-r1-1-{number + 100}"))
    story = machine.story()
    assert len(story) == STORY_STEPS
    assert story[-1] == f"> DeadlinePassed(tid='1-r1-1-{3 * STORY_STEPS + 99}')"
    machine.step(*(commits.Propose(proposal(number)) for number in range(2, 3 * STORY_STEPS)))
    assert len(machine.story()) == 2 * STORY_STEPS - 1


def test_a_story_does_not_keep_what_messages_carry() -> None:
    """A story keeps only the numbers of records, entries and proposals, so its memory is bounded."""
    machine = Follower(Csn(1), 4)
    machine.step(commits.LinkChanged(connected=True, session=1))
    machine.step(follows.Got(Csn(1), in_log(Csn(1), Record(RecordKind.GENESIS, R1, 0))))
    machine.step(follows.Poked(in_log(Csn(2), Record(RecordKind.COMMIT, R1, 0))))
    machine.step(follows.Got(Csn(2), in_log(Csn(2), Record(RecordKind.COMMIT, R1, 0))))
    assert "> ('Got', 1)" in machine.story()
    assert "> ('Poked', 2)" in machine.story()
    assert "< 'Took'" in machine.story()
    assert not any("Record(" in line for line in machine.story())


def test_cheap_invariants_are_checked_always_and_all_of_them_by_a_thorough_machine() -> None:
    """A tid that waits in the line of another one is found only by the check of all invariants."""
    for thorough in (False, True):
        machine = committer(thorough=thorough)
        machine.pending.queue[tid(2)] = machine.pending.queue[tid(1)]
        event = commits.DeadlinePassed("1-r1-1-9")
        if thorough:
            with pytest.raises(InvariantError, match="under another tid"):
                machine.step(event)
        else:
            assert machine.step(event) == ()


def test_an_event_that_cannot_come_breaks_the_follower() -> None:
    """A pair of phase and sign that the table lacks is a contradiction."""
    machine = Follower(Csn(1), 4)
    with pytest.raises(InvariantError, match="'probe found' cannot come while the follower is 'anchoring'"):
        machine.step(follows.Probed(Csn(1), exists=True))


def test_an_answer_that_was_not_asked_for_breaks_the_committer() -> None:
    """The result of a commit that was never sent is a contradiction."""
    machine = committer(thorough=False)
    with pytest.raises(InvariantError, match="the answer to a commit that was not sent"):
        machine.step(commits.CommitEnded(Unknown("lost")))


def test_prefix_and_copies_tell_their_story_too() -> None:
    """Prefix and copies also raise an error with their story."""
    prefix = Prefix(Csn(1), 0, apply_records_max=3)
    prefix.step(PartHeld(PartId("r1-1-1")))
    with pytest.raises(InvariantError, match="Prefix contradicts itself: CSN 7 was applied") as caught:
        prefix.step(Applied(Csn(7)))
    assert caught.value.story == ["> PartHeld(part='r1-1-1')", "> Applied(csn=7)"]
    copies = Copies(R1, rules())
    copies._places[R1] = CopyPlace("d1", R1)
    with pytest.raises(InvariantError, match="Copies contradicts itself: the home counts as its own peer"):
        copies.step(Deadline(Tid(Csn(1), R1, 1, 1)))


def test_a_state_that_was_saved_can_be_restored() -> None:
    """A machine in a restored state has that state, whatever it was before."""
    bench = Bench()
    bench.serve_all()
    bench.propose(proposal(1))
    other = Committer(R1, begun(R1), 0, LogLimits())
    other.restore(bench.machine.snapshot())
    assert other.snapshot() == bench.machine.snapshot()
    assert hash(other.snapshot()) == hash(bench.machine.snapshot())


def test_every_phase_says_what_is_to_be_done_next() -> None:
    """The follower's sets of phases have each phase once."""
    sets = (phase.ANCHORING, phase.ANCHOR_MISSED, phase.STREAMING, phase.MISSED, phase.QUIET)
    assert sorted(one.value for some in sets for one in some) == sorted(one.value for one in FollowerPhase)


def test_a_hint_is_taken_in_every_phase() -> None:
    """Links and own commits come at any time; all other signs belong to a phase."""
    assert {before for before, sign in phase.TABLE if sign is Sign.HINT} == set(FollowerPhase)


@pytest.mark.parametrize(
    ("part", "reason", "expected"),
    [
        (ElementRole.OWN, Reason.NOT_CONNECTED, Requeue.PAUSE),
        (ElementRole.TABLE, Reason.TOO_LARGE, Requeue.HALVE),
        (ElementRole.FENCE, Reason.BAD_VERSION, Doubt.FENCE),
        (ElementRole.EPOCH, Reason.BAD_VERSION, Requeue.READ_EPOCH),
        (ElementRole.HEAD, Reason.BAD_VERSION, Reject(commits.Cause.HEAD_MOVED)),
        (ElementRole.LABEL, Reason.NODE_EXISTS, Reject(commits.Cause.LABEL_EXISTS)),
        (ElementRole.SKIP, Reason.NODE_EXISTS, Reject(commits.Cause.DECLARED_LOST)),
        (ElementRole.OWN, Reason.NODE_EXISTS, CorruptLog.CORRUPT),
        (ElementRole.FENCE, Reason.NO_NODE, CorruptLog.CORRUPT),
        (ElementRole.TABLE, Reason.DENIED, CorruptLog.CORRUPT),
    ],
)
def test_a_refusal_is_judged_by_element_and_reason(
    part: ElementRole, reason: Reason, expected: object
) -> None:
    """A refusal that is impossible in a correct history is corrupt."""
    assert judge(part, reason) == expected
