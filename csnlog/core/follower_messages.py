"""The events that the follower receives and the instructions that it issues. Pure.

See :mod:`tidelock.csnlog.core.committer_messages` for the meaning of ``session`` and ``brief``. Records are
immutable, so a record that was read stays valid forever. The *absence* of a record is valid for one session
and one moment only.
"""

from __future__ import annotations

import enum
from typing import ClassVar

import msgspec

from tidelock.csnlog.core.committer_messages import LinkChanged, Resumed, RetryLater
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.model import LogRecord


class Unreadable(msgspec.Struct, frozen=True):
    """Bytes that this version of Tidelock cannot read as a record."""

    reason: str


class Absent(enum.Enum):
    """The answer that a znode does not exist."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


class ChainQuestion(enum.Enum):
    """One step of an inquiry."""

    #: A write that changes nothing: reads that follow it in its session are the newest. Answer: True.
    BARRIER = "barrier"
    #: The record. Answer: LogRecord, Unreadable or ABSENT.
    RECORD = "record"
    #: Whether the record exists; arms a watch. Answer: bool.
    PROBE = "probe"
    #: ``csn/tail``. Answer: int.
    TAIL = "tail"
    #: How many children the directory of the record's epoch has. Answer: int, or ABSENT.
    COUNT = "count"
    #: Their sequence numbers. Answer: tuple of int.
    LIST = "list"


Finding = LogRecord | Unreadable | Absent | bool | int | tuple[int, ...]


class Chain(enum.Enum):
    """The purpose of a chain of questions."""

    #: Where to go on behind the position, and whether ZooKeeper holds the record there as it was taken.
    ANCHOR = "anchor"
    #: Why a record is missing although a later one exists.
    GAP = "gap"
    #: Whether a follower that rests has missed something.
    RECHECK = "recheck"


class Inquiry(msgspec.Struct, frozen=True):
    """A chain of questions, asked one after the other in one session.

    Attributes:
        number: Number of the request under way; it identifies late answers to earlier requests.
        chain: The purpose of the chain.
        question: The question under way.
        csn: The record that the question is about.
        session: The session of all answers so far, 0 before the first.
    """

    number: int
    chain: Chain
    question: ChainQuestion
    csn: Csn
    session: int = 0


# --------------------------------------------------------------------------------------------------- events


class Got(msgspec.Struct, frozen=True):
    """A record was read, or is known because this replica wrote it."""

    csn: Csn
    record: LogRecord | Unreadable

    @property
    def brief(self) -> tuple[str, Csn]:
        """The name and the number."""
        return "Got", self.csn


class Missed(msgspec.Struct, frozen=True):
    """A record did not exist when it was read."""

    csn: Csn


class Failed(msgspec.Struct, frozen=True):
    """A record could not be read."""

    csn: Csn


class Probed(msgspec.Struct, frozen=True):
    """Result of :class:`Probe`; None = it failed and no watch is armed."""

    csn: Csn
    exists: bool | None


class Woken(msgspec.Struct, frozen=True):
    """The watch on this record fired. A hint: it may fire for nothing, and it may not fire."""

    csn: Csn


class Poked(msgspec.Struct, frozen=True):
    """This replica has written this record, so all records below exist too. The content saves the read."""

    record: LogRecord

    @property
    def brief(self) -> tuple[str, Csn]:
        """The name and the number."""
        return "Poked", self.record.csn


class Learned(msgspec.Struct, frozen=True):
    """Result of :class:`Inquire`; ``finding`` None = it failed."""

    number: int
    session: int
    finding: Finding | None

    @property
    def brief(self) -> tuple[str, int, int, object]:
        """Number and session, and the finding if it is small."""
        return "Learned", self.number, self.session, _small(self.finding)


class Delivered(msgspec.Struct, frozen=True):
    """The receiver has accepted what :class:`Deliver` handed over, and accepts more."""


class Tick(msgspec.Struct, frozen=True):
    """``recheck_s`` has passed."""


#: Something that has happened without the follower, or a notification from its receiver.
FollowCommand = LinkChanged | Resumed | Woken | Poked | Delivered | Tick
#: The result of a request.
FollowAnswer = Got | Missed | Failed | Probed | Learned
FollowEvent = FollowCommand | FollowAnswer

# --------------------------------------------------------------------------------------------- instructions


class Get(msgspec.Struct, frozen=True):
    """Read a record; several may be under way."""

    csn: Csn


class Probe(msgspec.Struct, frozen=True):
    """Ask whether a record exists and watch for its creation, in one request."""

    csn: Csn


class Inquire(msgspec.Struct, frozen=True):
    """Ask one question of a chain. The chain is sound because each is asked after the last was answered."""

    number: int
    question: ChainQuestion
    csn: Csn


class Proven(msgspec.Struct, frozen=True):
    """Over this connection ZooKeeper holds the history that was taken: requests may rely on it."""


class Took(msgspec.Struct, frozen=True):
    """The next records of the log, in order; they need not be delivered yet."""

    records: tuple[LogRecord, ...]
    brief: ClassVar = "Took"


class Deliver(msgspec.Struct, frozen=True):
    """Hand these records over, in order, and answer with :class:`Delivered`."""

    records: tuple[LogRecord, ...]
    brief: ClassVar = "Deliver"


class TooLate(msgspec.Struct, frozen=True):
    """Records that this replica lacks are already deleted; only a clone helps. Final."""

    tail: Csn


class Stopped(msgspec.Struct, frozen=True):
    """The record at ``csn`` cannot be passed: it is unreadable here, or impossible (I15). Final."""

    csn: Csn
    reason: str


FollowInstruction = Get | Probe | Inquire | Proven | Took | Deliver | TooLate | Stopped | RetryLater


def _small(finding: Finding | None) -> object:
    match finding:
        case LogRecord():
            return finding.record.kind
        case tuple():
            return len(finding)
        case _:
            return finding
