"""The events that the committer receives and the instructions that it issues. Pure.

The shell (:mod:`tidelock.csnlog.engine`) runs an instruction and returns its result as an event; so does the
explorer of the tests, which loses requests and replies on the way. The committer has at most one request to
the store under way, so a result needs no number.

``brief`` represents a message in the story of a machine (:mod:`tidelock.csnlog.core.machine`).

``session`` in an event is the ZooKeeper session in which the request was made *and* answered, and 0 where
those two differ. Reads of one session are ordered among themselves and behind its writes; no other order is
guaranteed (Z7).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidelock.csnlog.core.batch import CommitPlan, Proposal, Rollover
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.results import Committed, Ok, Refused, Unknown
from tidelock.csnlog.core.store import Node, Op

MultiResult = Ok[tuple[object, ...]] | Refused | Unknown
ReadResult = Ok[Node] | Refused | Unknown


class Cause(enum.Enum):
    """The reason why a transaction certainly was not committed."""

    TABLE_CHANGED = "table_changed"
    TABLE_EXISTS = "table_exists"
    #: The part was declared lost before.
    DECLARED_LOST = "declared_lost"
    LABEL_EXISTS = "label_exists"
    #: The label is not what it was when it was read; read it again.
    LABEL_MOVED = "label_moved"
    HEAD_MOVED = "head_moved"
    #: Disks, members or `copies` are not what they were when its copies were counted; count again.
    ROSTER_CHANGED = "roster_changed"
    TOO_LARGE = "too_large"
    QUEUE_FULL = "queue_full"
    #: Its time was up before it was sent, or while it was known not to have been applied.
    DEADLINE = "deadline"
    #: A client has called it off before it was sent, or while it was known not to have been applied.
    CALLED_OFF = "called_off"
    FENCED = "fenced"
    #: The log has stopped on this replica.
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Rejected:
    """Certainly not committed. ``detail`` names the table, label or limit."""

    cause: Cause
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """The caller's time is up and the outcome is not known. The committer keeps finding it out."""


CommitDecision = Committed | Rejected | Undecided

# --------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """The new state of the store's link and session."""

    connected: bool
    session: int


@dataclass(frozen=True, slots=True)
class Propose:
    """A caller requests a commit; a repeated request for the same tid joins the one under way."""

    proposal: Proposal

    @property
    def brief(self) -> tuple[str, str]:
        """The name and the tid."""
        return "Propose", self.proposal.tid


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The caller of this tid waits no longer."""

    tid: str


@dataclass(frozen=True, slots=True)
class CallOff:
    """This tid is not to be committed if it can still be helped; its callers are answered with the truth."""

    tid: str


@dataclass(frozen=True, slots=True)
class NonceDrawn:
    """A unique random text; the answer to :class:`DrawNonce`."""

    nonce: str


@dataclass(frozen=True, slots=True)
class CommitEnded:
    """Result of :class:`SendCommit`."""

    result: MultiResult


@dataclass(frozen=True, slots=True)
class RolloverEnded:
    """Result of :class:`SendRollover`."""

    result: MultiResult


@dataclass(frozen=True, slots=True)
class RaiseEnded:
    """Result of :class:`SendRaise`."""

    result: MultiResult
    session: int


@dataclass(frozen=True, slots=True)
class FenceRead:
    """Result of :class:`ReadFence`: the own session znode."""

    result: ReadResult
    session: int


@dataclass(frozen=True, slots=True)
class EpochRead:
    """Result of :class:`ReadEpoch`."""

    result: ReadResult


@dataclass(frozen=True, slots=True)
class LogRead:
    """Result of :class:`ReadLog`: the CSN of each own tid met, or None when the end was not reached."""

    own_csns: dict[str, Csn] | None
    session: int

    @property
    def brief(self) -> tuple[str, int | None, int]:
        """The number of own tids, and the session."""
        return "LogRead", None if self.own_csns is None else len(self.own_csns), self.session


@dataclass(frozen=True, slots=True)
class Followed:
    """The follower has all records up to ``end``; ``own`` lists this replica's tids in the new records."""

    end: Csn
    own: tuple[tuple[str, Csn], ...] = ()

    @property
    def brief(self) -> tuple[str, Csn, int]:
        """The end, and the number of own tids."""
        return "Followed", self.end, len(self.own)


@dataclass(frozen=True, slots=True)
class TickWanted:
    """The log's time is to go on: write a record without transactions, unless others wait for theirs."""


@dataclass(frozen=True, slots=True)
class FenceWanted:
    """A fenced multi ended Unknown under the fence ``above``: raise the fence beyond it."""

    above: int


@dataclass(frozen=True, slots=True)
class FenceDoubted:
    """A multi was refused because of its fence ``used``: find out who raised the fence."""

    used: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The log must go no further on this replica."""

    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The pause that :class:`RetryLater` requested is over."""


#: A request to the committer, or something that has happened without it.
Command = (
    LinkChanged
    | Propose
    | DeadlinePassed
    | CallOff
    | Followed
    | TickWanted
    | FenceWanted
    | FenceDoubted
    | StopAsked
    | Resumed
)
#: The result of the one request under way.
StoreAnswer = NonceDrawn | CommitEnded | RolloverEnded | RaiseEnded | FenceRead | EpochRead | LogRead
Event = Command | StoreAnswer

# --------------------------------------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class SendCommit:
    """Send the commit multi."""

    plan: CommitPlan

    @property
    def brief(self) -> tuple[str, str, int]:
        """The first tid, "" for a tick, and the number of tids."""
        return "SendCommit", next((item.tid for item in self.plan.batch), ""), len(self.plan.batch)


@dataclass(frozen=True, slots=True)
class SendRollover:
    """Close the epoch and open the next one."""

    plan: Rollover


@dataclass(frozen=True, slots=True)
class SendRaise:
    """Raise the own fence: the only write that checks no fence."""

    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class DrawNonce:
    """Answer with :class:`NonceDrawn`."""


@dataclass(frozen=True, slots=True)
class ReadFence:
    """Read the own session znode."""


@dataclass(frozen=True, slots=True)
class ReadEpoch:
    """Read ``csn/epoch``."""


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read the log to its end in this session, from the first record that no :class:`Followed` covers."""

    session: int


@dataclass(frozen=True, slots=True)
class AnswerCallers:
    """Answer all callers that wait for this tid."""

    tid: str
    decision: CommitDecision


@dataclass(frozen=True, slots=True)
class FenceRaised:
    """The new own fence, seen in this session: nothing sent under a lower fence can be applied any more."""

    fence: int
    session: int


@dataclass(frozen=True, slots=True)
class FenceLost:
    """Another replica has raised the fence: nothing new is accepted; a batch in doubt is still looked up."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another replica raised the fence. Final: open transactions are aborted, no lock may be assumed held."""


@dataclass(frozen=True, slots=True)
class Halted:
    """The committer found an impossible state, and stops (I15). Final."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Answer with :class:`Resumed` after a pause."""


Instruction = (
    SendCommit
    | SendRollover
    | SendRaise
    | DrawNonce
    | ReadFence
    | ReadEpoch
    | ReadLog
    | AnswerCallers
    | FenceRaised
    | FenceLost
    | Fenced
    | Halted
    | RetryLater
)
