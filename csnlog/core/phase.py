"""The phases of a follower, and the table of the phase that each event leads to. Pure.

A phase says what is known of the next record. Its *hinted* half says that something may have created that
record since: a watch that fired, an own commit, a new link. A hinted follower reads without a probe first,
and does not believe a "no" to a question that it asked before the hint.

A pair that is not in the table cannot occur in a correct history.
"""

from __future__ import annotations

import enum
from typing import Final


class _Fast(enum.Enum):
    """An enum whose members are hashed by identity, since each is a key in every step."""

    __hash__ = object.__hash__


class FollowerPhase(_Fast):
    """The knowledge of the next record; until the start position was read again, that is the next record."""

    #: The record at the start position has to be read again.
    ANCHORING = "anchoring"
    ANCHORING_HINTED = "anchoring, hinted"
    #: It did not exist: a chain of questions tells why.
    ANCHOR_MISSED = "anchor missed"
    ANCHOR_MISSED_HINTED = "anchor missed, hinted"
    #: Records are read ahead while they stream in; at their end the follower probes for the next one.
    READING = "reading"
    HINTED = "hinted"
    #: The next record did not exist when it was read: it is not written yet, or there is a gap.
    MISSED = "missed"
    MISSED_HINTED = "missed, hinted"
    #: A request asks whether the next record exists and watches for its creation from then on.
    PROBING = "probing"
    PROBING_HINTED = "probing, hinted"
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
    #: The probe is sent.
    PROBE = "probe"
    #: The probe has failed, or another record is next by now.
    PROBE_VOID = "probe void"
    PROBE_FOUND = "probe found"
    PROBE_FOUND_NONE = "probe found none"
    #: A listing shows a record behind it.
    LISTED = "listed"


# Every phase is in one of these sets, which tell what to do next.
#: The start position is not explained yet.
ANCHORING: Final = frozenset({FollowerPhase.ANCHORING, FollowerPhase.ANCHORING_HINTED})
ANCHOR_MISSED: Final = frozenset({FollowerPhase.ANCHOR_MISSED, FollowerPhase.ANCHOR_MISSED_HINTED})
UNANCHORED: Final = ANCHORING | ANCHOR_MISSED
#: Records may be read.
STREAMING: Final = frozenset({FollowerPhase.READING, FollowerPhase.HINTED})
#: The next record is missing, and the follower has to find out why.
MISSED: Final = frozenset({FollowerPhase.MISSED, FollowerPhase.MISSED_HINTED})
#: Nothing has to be read, and no read is under way.
QUIET: Final = frozenset({FollowerPhase.PROBING, FollowerPhase.PROBING_HINTED, FollowerPhase.RESTING})

TABLE: Final[dict[tuple[FollowerPhase, Sign], FollowerPhase]] = {
    (FollowerPhase.ANCHORING, Sign.HINT): FollowerPhase.ANCHORING_HINTED,
    (FollowerPhase.ANCHORING_HINTED, Sign.HINT): FollowerPhase.ANCHORING_HINTED,
    (FollowerPhase.ANCHOR_MISSED, Sign.HINT): FollowerPhase.ANCHOR_MISSED_HINTED,
    (FollowerPhase.ANCHOR_MISSED_HINTED, Sign.HINT): FollowerPhase.ANCHOR_MISSED_HINTED,
    (FollowerPhase.READING, Sign.HINT): FollowerPhase.HINTED,
    (FollowerPhase.HINTED, Sign.HINT): FollowerPhase.HINTED,
    (FollowerPhase.MISSED, Sign.HINT): FollowerPhase.MISSED_HINTED,
    (FollowerPhase.MISSED_HINTED, Sign.HINT): FollowerPhase.MISSED_HINTED,
    (FollowerPhase.PROBING, Sign.HINT): FollowerPhase.PROBING_HINTED,
    (FollowerPhase.PROBING_HINTED, Sign.HINT): FollowerPhase.PROBING_HINTED,
    (FollowerPhase.RESTING, Sign.HINT): FollowerPhase.HINTED,
    (FollowerPhase.ANCHORING, Sign.MISSED_NEXT): FollowerPhase.ANCHOR_MISSED,
    (FollowerPhase.ANCHORING_HINTED, Sign.MISSED_NEXT): FollowerPhase.ANCHOR_MISSED,
    (FollowerPhase.READING, Sign.MISSED_NEXT): FollowerPhase.MISSED,
    (FollowerPhase.HINTED, Sign.MISSED_NEXT): FollowerPhase.MISSED,
    (FollowerPhase.READING, Sign.MISSED_LATER): FollowerPhase.READING,
    (FollowerPhase.HINTED, Sign.MISSED_LATER): FollowerPhase.READING,
    (FollowerPhase.MISSED, Sign.MISSED_LATER): FollowerPhase.MISSED,
    (FollowerPhase.MISSED_HINTED, Sign.MISSED_LATER): FollowerPhase.MISSED,
    (FollowerPhase.ANCHORING, Sign.ANCHORED): FollowerPhase.READING,
    (FollowerPhase.ANCHORING_HINTED, Sign.ANCHORED): FollowerPhase.HINTED,
    (FollowerPhase.ANCHOR_MISSED, Sign.ANCHORED): FollowerPhase.READING,
    (FollowerPhase.ANCHOR_MISSED_HINTED, Sign.ANCHORED): FollowerPhase.HINTED,
    (FollowerPhase.READING, Sign.TAKEN): FollowerPhase.READING,
    (FollowerPhase.HINTED, Sign.TAKEN): FollowerPhase.READING,
    (FollowerPhase.MISSED, Sign.TAKEN): FollowerPhase.READING,
    (FollowerPhase.MISSED_HINTED, Sign.TAKEN): FollowerPhase.READING,
    (FollowerPhase.PROBING, Sign.TAKEN): FollowerPhase.PROBING,
    (FollowerPhase.PROBING_HINTED, Sign.TAKEN): FollowerPhase.PROBING,
    (FollowerPhase.MISSED, Sign.NO_GAP): FollowerPhase.READING,
    (FollowerPhase.MISSED_HINTED, Sign.NO_GAP): FollowerPhase.HINTED,
    (FollowerPhase.READING, Sign.PROBE): FollowerPhase.PROBING,
    (FollowerPhase.PROBING, Sign.PROBE_VOID): FollowerPhase.READING,
    (FollowerPhase.PROBING_HINTED, Sign.PROBE_VOID): FollowerPhase.HINTED,
    (FollowerPhase.PROBING, Sign.PROBE_FOUND): FollowerPhase.HINTED,
    (FollowerPhase.PROBING_HINTED, Sign.PROBE_FOUND): FollowerPhase.HINTED,
    (FollowerPhase.PROBING, Sign.PROBE_FOUND_NONE): FollowerPhase.RESTING,
    (FollowerPhase.PROBING_HINTED, Sign.PROBE_FOUND_NONE): FollowerPhase.HINTED,
    (FollowerPhase.RESTING, Sign.LISTED): FollowerPhase.READING,
}
