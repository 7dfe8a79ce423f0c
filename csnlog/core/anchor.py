"""Where a follower goes on behind its start position: a decision table of the questions and answers. Pure.

The record at the start position tells the number that follows it, unless that record is missing. Then these
questions are asked one after the other, in one session (F9, S21):

1. A fenced write, so that the reads behind it are the newest.
2. The record at the position.
3. The tail. Below the position: ZooKeeper is older than this replica. Beyond the next record: too late.
4. The record behind the position: it follows in the same epoch.
5. The directory of the next epoch. If it is there, the deleted record closed its epoch; otherwise a record
   would follow it.
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

    #: The record is there: its kind tells what follows.
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
    """What an answer says."""

    WRITTEN = "written"
    THERE = "there"
    ABSENT = "absent"
    #: The tail has not passed the position, so nothing may have deleted its record.
    TAIL_BELOW = "tail below"
    #: All up to the position is deleted, and nothing behind it.
    TAIL_AT = "tail at"
    #: More than what this replica has is deleted.
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
    """Return what a step asks, and about which record; ValueError when numbers have run out."""
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
    """Return the step that a question of the chain belongs to."""
    asked = (inquiry.question, inquiry.csn)
    return next(step for step in Step if question_of(step, position) == asked)


def decide(step: Step, position: Csn, finding: Finding) -> Step | End:
    """Return the next question, or how the chain ends.

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
