"""The meaning of a refused commit multi: one table from the refused element and the reason. Pure.

A refused multi was certainly not applied. Its first refused element tells which transactions the refusal
concerns; all other transactions of the batch are sent again (F10, F21).
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from tidelock.csnlog.core import committer_messages as msg
from tidelock.csnlog.core.batch import ElementRole
from tidelock.csnlog.core.results import Reason


class Requeue(enum.Enum):
    """The action after which the whole batch is sent again; no transaction is rejected."""

    #: A pause: the request was not sent.
    PAUSE = "pause"
    #: Halving: the store finds the request too large. A transaction that is alone is rejected.
    HALVE = "halve"
    #: Reading the epoch again: it was closed.
    READ_EPOCH = "read epoch"


class Reject(msgspec.Struct, frozen=True):
    """The transactions that the element belongs to are rejected; the others are sent again."""

    cause: msg.Cause


class Doubt(enum.Enum):
    """The own fence was raised: find out by whom, then send the batch again."""

    FENCE = "fence"


class CorruptLog(enum.Enum):
    """No correct history explains the refusal: the log stops (I15)."""

    CORRUPT = "corrupt"


Judgement = Requeue | Reject | Doubt | CorruptLog

#: The meaning of a reason, whichever element was refused.
_BY_REASON: Final = {Reason.NOT_CONNECTED: Requeue.PAUSE, Reason.TOO_LARGE: Requeue.HALVE}

_BY_ELEMENT: Final[dict[tuple[ElementRole, Reason], Judgement]] = {
    (ElementRole.FENCE, Reason.BAD_VERSION): Doubt.FENCE,
    (ElementRole.EPOCH, Reason.BAD_VERSION): Requeue.READ_EPOCH,
    (ElementRole.TABLE, Reason.BAD_VERSION): Reject(msg.Cause.TABLE_CHANGED),
    (ElementRole.TABLE, Reason.NO_NODE): Reject(msg.Cause.TABLE_CHANGED),
    (ElementRole.DEFINITION, Reason.BAD_VERSION): Reject(msg.Cause.TABLE_CHANGED),
    (ElementRole.DEFINITION, Reason.NO_NODE): Reject(msg.Cause.TABLE_CHANGED),
    (ElementRole.DEFINITION, Reason.NODE_EXISTS): Reject(msg.Cause.TABLE_EXISTS),
    (ElementRole.SKIP, Reason.NODE_EXISTS): Reject(msg.Cause.DECLARED_LOST),
    (ElementRole.TAGS, Reason.BAD_VERSION): Reject(msg.Cause.TAGS_MOVED),
    (ElementRole.TAGS, Reason.NO_NODE): Reject(msg.Cause.TAGS_MOVED),
    (ElementRole.LABEL, Reason.NODE_EXISTS): Reject(msg.Cause.LABEL_EXISTS),
    (ElementRole.LABEL, Reason.BAD_VERSION): Reject(msg.Cause.LABEL_MOVED),
    (ElementRole.LABEL, Reason.NO_NODE): Reject(msg.Cause.LABEL_MOVED),
    (ElementRole.LABELS, Reason.BAD_VERSION): Reject(msg.Cause.LABEL_MOVED),
    (ElementRole.ROSTER, Reason.BAD_VERSION): Reject(msg.Cause.ROSTER_CHANGED),
    (ElementRole.HEAD, Reason.BAD_VERSION): Reject(msg.Cause.HEAD_MOVED),
}


def judge(part: ElementRole, reason: Reason) -> Judgement:
    """Return what the refusal of an element of this kind means for the batch."""
    return _BY_REASON.get(reason) or _BY_ELEMENT.get((part, reason), CorruptLog.CORRUPT)
