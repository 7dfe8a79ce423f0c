"""The decision table that tells where a follower goes on behind its start position. Pure.

The record at the start position determines the number that follows it, unless that record is missing. Then
the follower asks these questions one after the other, in one session (F9, S21). It asks them as well over
each new connection, to see whether ZooKeeper still holds the last record that it has taken:

0. The record at the position. Over a new connection it is there as a rule.
1. A write that changes nothing, so that the reads behind it are the newest.
2. The record at the position.
3. The tail. Below the position: ZooKeeper is older than this replica. Beyond the next record: too late.
4. The record behind the position: it follows in the same epoch.
5. The directory of the next epoch. If it exists, the deleted record closed its epoch: had it not, another
   record would follow it.
"""

from __future__ import annotations

import enum
from typing import Final

from tidelock.csnlog.core.follower_messages import Absent, ChainQuestion, Finding, Inquiry
from tidelock.csnlog.core.ids import Csn, csn, epoch_of


class ChainStep(enum.Enum):
    """A question of the chain."""

    LOOK = "look"
    BARRIER = "barrier"
    POSITION = "position"
    TAIL = "tail"
    SUCCESSOR = "successor"
    NEXT_EPOCH = "next epoch"


class ChainEnd(enum.Enum):
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


DECISIONS: Final[dict[tuple[ChainStep, Fact], ChainStep | ChainEnd]] = {
    (ChainStep.LOOK, Fact.THERE): ChainEnd.BY_RECORD,
    (ChainStep.LOOK, Fact.ABSENT): ChainStep.BARRIER,
    (ChainStep.BARRIER, Fact.WRITTEN): ChainStep.POSITION,
    (ChainStep.POSITION, Fact.THERE): ChainEnd.BY_RECORD,
    (ChainStep.POSITION, Fact.ABSENT): ChainStep.TAIL,
    (ChainStep.TAIL, Fact.TAIL_BELOW): ChainEnd.RESTORED,
    (ChainStep.TAIL, Fact.TAIL_AT): ChainStep.SUCCESSOR,
    (ChainStep.TAIL, Fact.TAIL_BEYOND): ChainEnd.TOO_LATE,
    (ChainStep.SUCCESSOR, Fact.THERE): ChainEnd.SUCCESSOR,
    (ChainStep.SUCCESSOR, Fact.ABSENT): ChainStep.NEXT_EPOCH,
    (ChainStep.NEXT_EPOCH, Fact.THERE): ChainEnd.NEXT_EPOCH,
    (ChainStep.NEXT_EPOCH, Fact.ABSENT): ChainEnd.SUCCESSOR,
}


def question_of(step: ChainStep, position: Csn) -> tuple[ChainQuestion, Csn]:
    """Return the question of a step and the record it is about; ValueError when the numbers have run out."""
    match step:
        case ChainStep.BARRIER:
            return ChainQuestion.BARRIER, position
        case ChainStep.LOOK | ChainStep.POSITION:
            return ChainQuestion.RECORD, position
        case ChainStep.TAIL:
            return ChainQuestion.TAIL, position
        case ChainStep.SUCCESSOR:
            return ChainQuestion.RECORD, Csn(position + 1)
        case ChainStep.NEXT_EPOCH:
            return ChainQuestion.COUNT, csn(epoch_of(position) + 1, 0)


def step_of(inquiry: Inquiry, position: Csn) -> ChainStep:
    """Return the step to which a question of the chain belongs."""
    asked = (inquiry.question, inquiry.csn)
    steps = [step for step in ChainStep if question_of(step, position) == asked]
    # The first look and the one behind the barrier ask the same; only the barrier comes before the second.
    return steps[0] if len(steps) == 1 or not inquiry.session else steps[-1]


def decide(step: ChainStep, position: Csn, finding: Finding) -> ChainStep | ChainEnd:
    """Return the next question, or the end of the chain.

    Args:
        step: The question that was answered.
        position: The start position of the follower.
        finding: The answer.
    """
    return DECISIONS[step, _fact(step, position, finding)]


def _fact(step: ChainStep, position: Csn, finding: Finding) -> Fact:
    if step is ChainStep.BARRIER:
        return Fact.WRITTEN
    if step is not ChainStep.TAIL:
        return Fact.ABSENT if isinstance(finding, Absent) else Fact.THERE
    assert isinstance(finding, int), f"{finding!r} is no tail"
    if finding <= position:
        return Fact.TAIL_BELOW
    return Fact.TAIL_AT if finding == position + 1 else Fact.TAIL_BEYOND
