"""The decision table that tells where a follower goes on behind its start position. Pure.

The record at the start position determines the number that follows it, unless that record is missing. Then
the follower asks these questions one after the other, in one session (F9, S21):

1. A fenced write, so that the reads behind it are the newest.
2. The record at the position.
3. The tail. Below the position: ZooKeeper is older than this replica. Beyond the next record: too late.
4. The record behind the position: it follows in the same epoch.
5. The directory of the next epoch. If it exists, the deleted record closed its epoch: had it not, another
   record would follow it.
"""

from __future__ import annotations

import enum
from typing import Final

from tidelock.csnlog.core.follower_messages import Absent, Finding, Inquiry, Question
from tidelock.csnlog.core.ids import Csn, csn, epoch_of


class Step(enum.Enum):
    """A question of the chain."""

    BARRIER = "barrier"
    POSITION = "position"
    TAIL = "tail"
    SUCCESSOR = "successor"
    NEXT_EPOCH = "next epoch"


class End(enum.Enum):
    """How the chain ends."""

    #: The record exists: its kind determines what follows.
    BY_RECORD = "by record"
    #: The next number of the same epoch follows.
    SUCCESSOR = "successor"
    #: The first number of the next epoch follows.
    NEXT_EPOCH = "next epoch"
    #: The log lacks what this replica has applied.
    RESTORED = "restored"
    #: Records that this replica lacks are deleted.
    TOO_LATE = "too late"


class Fact(enum.Enum):
    """The meaning of an answer."""

    WRITTEN = "written"
    THERE = "there"
    ABSENT = "absent"
    #: The tail has not passed the position, so nothing may have deleted its record.
    TAIL_BELOW = "tail below"
    #: All records up to the position are deleted, and no later one.
    TAIL_AT = "tail at"
    #: More records are deleted than this replica has.
    TAIL_BEYOND = "tail beyond"


DECISIONS: Final[dict[tuple[Step, Fact], Step | End]] = {
    (Step.BARRIER, Fact.WRITTEN): Step.POSITION,
    (Step.POSITION, Fact.THERE): End.BY_RECORD,
    (Step.POSITION, Fact.ABSENT): Step.TAIL,
    (Step.TAIL, Fact.TAIL_BELOW): End.RESTORED,
    (Step.TAIL, Fact.TAIL_AT): Step.SUCCESSOR,
    (Step.TAIL, Fact.TAIL_BEYOND): End.TOO_LATE,
    (Step.SUCCESSOR, Fact.THERE): End.SUCCESSOR,
    (Step.SUCCESSOR, Fact.ABSENT): Step.NEXT_EPOCH,
    (Step.NEXT_EPOCH, Fact.THERE): End.NEXT_EPOCH,
    (Step.NEXT_EPOCH, Fact.ABSENT): End.SUCCESSOR,
}


def question_of(step: Step, position: Csn) -> tuple[Question, Csn]:
    """Return the question of a step and the record it is about; ValueError when the numbers have run out."""
    match step:
        case Step.BARRIER:
            return Question.BARRIER, position
        case Step.POSITION:
            return Question.RECORD, position
        case Step.TAIL:
            return Question.TAIL, position
        case Step.SUCCESSOR:
            return Question.RECORD, Csn(position + 1)
        case Step.NEXT_EPOCH:
            return Question.COUNT, csn(epoch_of(position) + 1, 0)


def step_of(inquiry: Inquiry, position: Csn) -> Step:
    """Return the step to which a question of the chain belongs."""
    asked = (inquiry.question, inquiry.csn)
    return next(step for step in Step if question_of(step, position) == asked)


def decide(step: Step, position: Csn, finding: Finding) -> Step | End:
    """Return the next question, or the end of the chain.

    Args:
        step: The question that was answered.
        position: The start position of the follower.
        finding: The answer.
    """
    return DECISIONS[step, _fact(step, position, finding)]


def _fact(step: Step, position: Csn, finding: Finding) -> Fact:
    if step is Step.BARRIER:
        return Fact.WRITTEN
    if step is not Step.TAIL:
        return Fact.ABSENT if isinstance(finding, Absent) else Fact.THERE
    assert isinstance(finding, int), f"{finding!r} is no tail"
    if finding <= position:
        return Fact.TAIL_BELOW
    return Fact.TAIL_AT if finding == position + 1 else Fact.TAIL_BEYOND
