"""The phases of a follower, and the table of the phase that each event leads to. Pure.

A phase says what is known of the next record. Its *hinted* half says that something may have created that
record since: a watch that fired, an own commit, a new link. A hinted follower reads without looking first,
and does not believe a "no" to a question that it asked before the hint.

A pair that is not in the table cannot occur in a correct history.
"""

from __future__ import annotations

import enum
from typing import Final


class _Fast(enum.Enum):
    """An enum whose members are hashed by identity, since each is a key in every step."""

    __hash__ = object.__hash__


class Phase(_Fast):
    """The knowledge of the next record; until the start position was read again, that is the next record."""

    #: The record at the start position has to be read again.
    ANCHORING = "anchoring"
    ANCHORING_HINTED = "anchoring, hinted"
    #: It did not exist: a chain of questions tells why.
    ANCHOR_MISSED = "anchor missed"
    ANCHOR_MISSED_HINTED = "anchor missed, hinted"
    #: Records are read ahead while they stream in; at their end the follower looks whether there is more.
    READING = "reading"
    HINTED = "hinted"
    #: The next record did not exist when it was read: it is not written yet, or there is a gap.
    MISSED = "missed"
    MISSED_HINTED = "missed, hinted"
    #: A request asks whether the next record exists and watches for its creation from then on.
    LOOKING = "looking"
    LOOKING_HINTED = "looking, hinted"
    #: The next record did not exist, and a watch is armed.
    RESTING = "resting"


class Sign(_Fast):
    """The meaning of an event for the next record."""

    #: It may exist.
    HINT = "hint"
    #: It did not exist when it was read.
    MISSED_NEXT = "missed next"
    #: A record behind it did not exist when it was read.
    MISSED_LATER = "missed later"
    #: The start position was explained.
    ANCHORED = "anchored"
    #: It was taken, so another one is next.
    TAKEN = "taken"
    #: It is missing, and no record behind it is known to exist.
    NO_GAP = "no gap"
    #: The look has begun.
    LOOK = "look"
    #: The look has failed, or another record is next by now.
    LOOK_VOID = "look void"
    LOOK_FOUND = "look found"
    LOOK_FOUND_NONE = "look found none"
    #: A listing shows a record behind it.
    LISTED = "listed"


# Every phase is in one of these sets, which tell what to do next.
#: The start position is not explained yet.
ANCHORING: Final = frozenset({Phase.ANCHORING, Phase.ANCHORING_HINTED})
ANCHOR_MISSED: Final = frozenset({Phase.ANCHOR_MISSED, Phase.ANCHOR_MISSED_HINTED})
UNANCHORED: Final = ANCHORING | ANCHOR_MISSED
#: Records may be read.
STREAMING: Final = frozenset({Phase.READING, Phase.HINTED})
#: The next record is missing, and the follower has to find out why.
MISSED: Final = frozenset({Phase.MISSED, Phase.MISSED_HINTED})
#: Nothing has to be read, and no read is under way.
QUIET: Final = frozenset({Phase.LOOKING, Phase.LOOKING_HINTED, Phase.RESTING})

TABLE: Final[dict[tuple[Phase, Sign], Phase]] = {
    (Phase.ANCHORING, Sign.HINT): Phase.ANCHORING_HINTED,
    (Phase.ANCHORING_HINTED, Sign.HINT): Phase.ANCHORING_HINTED,
    (Phase.ANCHOR_MISSED, Sign.HINT): Phase.ANCHOR_MISSED_HINTED,
    (Phase.ANCHOR_MISSED_HINTED, Sign.HINT): Phase.ANCHOR_MISSED_HINTED,
    (Phase.READING, Sign.HINT): Phase.HINTED,
    (Phase.HINTED, Sign.HINT): Phase.HINTED,
    (Phase.MISSED, Sign.HINT): Phase.MISSED_HINTED,
    (Phase.MISSED_HINTED, Sign.HINT): Phase.MISSED_HINTED,
    (Phase.LOOKING, Sign.HINT): Phase.LOOKING_HINTED,
    (Phase.LOOKING_HINTED, Sign.HINT): Phase.LOOKING_HINTED,
    (Phase.RESTING, Sign.HINT): Phase.HINTED,
    (Phase.ANCHORING, Sign.MISSED_NEXT): Phase.ANCHOR_MISSED,
    (Phase.ANCHORING_HINTED, Sign.MISSED_NEXT): Phase.ANCHOR_MISSED,
    (Phase.READING, Sign.MISSED_NEXT): Phase.MISSED,
    (Phase.HINTED, Sign.MISSED_NEXT): Phase.MISSED,
    (Phase.READING, Sign.MISSED_LATER): Phase.READING,
    (Phase.HINTED, Sign.MISSED_LATER): Phase.READING,
    (Phase.MISSED, Sign.MISSED_LATER): Phase.MISSED,
    (Phase.MISSED_HINTED, Sign.MISSED_LATER): Phase.MISSED,
    (Phase.ANCHORING, Sign.ANCHORED): Phase.READING,
    (Phase.ANCHORING_HINTED, Sign.ANCHORED): Phase.HINTED,
    (Phase.ANCHOR_MISSED, Sign.ANCHORED): Phase.READING,
    (Phase.ANCHOR_MISSED_HINTED, Sign.ANCHORED): Phase.HINTED,
    (Phase.READING, Sign.TAKEN): Phase.READING,
    (Phase.HINTED, Sign.TAKEN): Phase.READING,
    (Phase.MISSED, Sign.TAKEN): Phase.READING,
    (Phase.MISSED_HINTED, Sign.TAKEN): Phase.READING,
    (Phase.LOOKING, Sign.TAKEN): Phase.LOOKING,
    (Phase.LOOKING_HINTED, Sign.TAKEN): Phase.LOOKING,
    (Phase.MISSED, Sign.NO_GAP): Phase.READING,
    (Phase.MISSED_HINTED, Sign.NO_GAP): Phase.HINTED,
    (Phase.READING, Sign.LOOK): Phase.LOOKING,
    (Phase.LOOKING, Sign.LOOK_VOID): Phase.READING,
    (Phase.LOOKING_HINTED, Sign.LOOK_VOID): Phase.HINTED,
    (Phase.LOOKING, Sign.LOOK_FOUND): Phase.HINTED,
    (Phase.LOOKING_HINTED, Sign.LOOK_FOUND): Phase.HINTED,
    (Phase.LOOKING, Sign.LOOK_FOUND_NONE): Phase.RESTING,
    (Phase.LOOKING_HINTED, Sign.LOOK_FOUND_NONE): Phase.HINTED,
    (Phase.RESTING, Sign.LISTED): Phase.READING,
}
