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

import msgspec

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
    #: Tags or horizon are not what they were when they were read.
    TAGS_MOVED = "tags_moved"
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


class Rejected(msgspec.Struct, frozen=True):
    """Certainly not committed. ``detail`` names the table, label or limit."""

    cause: Cause
    detail: str = ""


class Undecided(msgspec.Struct, frozen=True):
    """The caller's time is up and the outcome is not known. The committer keeps finding it out."""


CommitDecision = Committed | Rejected | Undecided

# --------------------------------------------------------------------------------------------------- events


class LinkChanged(msgspec.Struct, frozen=True):
    """The new state of the store's link and session."""

    connected: bool
    session: int


class Propose(msgspec.Struct, frozen=True):
    """A caller requests a commit; a repeated request for the same tid joins the one under way."""

    proposal: Proposal

    @property
    def brief(self) -> tuple[str, str]:
        """The name and the tid."""
        return "Propose", self.proposal.tid


class DeadlinePassed(msgspec.Struct, frozen=True):
    """The caller of this tid waits no longer."""

    tid: str


class CallOff(msgspec.Struct, frozen=True):
    """This tid is not to be committed if it can still be helped; its callers are answered with the truth."""

    tid: str


class NonceDrawn(msgspec.Struct, frozen=True):
    """A unique random text; the answer to :class:`DrawNonce`."""

    nonce: str


class CommitEnded(msgspec.Struct, frozen=True):
    """Result of :class:`SendCommit`."""

    result: MultiResult


class RolloverEnded(msgspec.Struct, frozen=True):
    """Result of :class:`SendRollover`."""

    result: MultiResult


class RaiseEnded(msgspec.Struct, frozen=True):
    """Result of :class:`SendRaise`."""

    result: MultiResult
    session: int


class FenceRead(msgspec.Struct, frozen=True):
    """Result of :class:`ReadFence`: the own session znode."""

    result: ReadResult
    session: int


class EpochRead(msgspec.Struct, frozen=True):
    """Result of :class:`ReadEpoch`."""

    result: ReadResult


class LogRead(msgspec.Struct, frozen=True):
    """Result of :class:`ReadLog`: the CSN of each own tid met, or None when the end was not reached."""

    own_csns: dict[str, Csn] | None
    session: int

    @property
    def brief(self) -> tuple[str, int | None, int]:
        """The number of own tids, and the session."""
        return "LogRead", None if self.own_csns is None else len(self.own_csns), self.session


class Followed(msgspec.Struct, frozen=True):
    """The follower has all records up to ``end``; ``own`` lists this replica's tids in the new records."""

    end: Csn
    own: tuple[tuple[str, Csn], ...] = ()

    @property
    def brief(self) -> tuple[str, Csn, int]:
        """The end, and the number of own tids."""
        return "Followed", self.end, len(self.own)


class TickWanted(msgspec.Struct, frozen=True):
    """The log's time is to go on: write a record without transactions, unless others wait for theirs."""


class FenceWanted(msgspec.Struct, frozen=True):
    """A fenced multi ended Unknown under the fence ``above``: raise the fence beyond it."""

    above: int


class FenceDoubted(msgspec.Struct, frozen=True):
    """A multi was refused because of its fence ``used``: find out who raised the fence."""

    used: int


class StopAsked(msgspec.Struct, frozen=True):
    """The log must go no further on this replica."""

    reason: str


class Resumed(msgspec.Struct, frozen=True):
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


class SendCommit(msgspec.Struct, frozen=True):
    """Send the commit multi."""

    plan: CommitPlan

    @property
    def brief(self) -> tuple[str, str, int]:
        """The first tid, "" for a tick, and the number of tids."""
        return "SendCommit", next((item.tid for item in self.plan.batch), ""), len(self.plan.batch)


class SendRollover(msgspec.Struct, frozen=True):
    """Close the epoch and open the next one."""

    plan: Rollover


class SendRaise(msgspec.Struct, frozen=True):
    """Raise the own fence: the only write that checks no fence."""

    ops: tuple[Op, ...]


class DrawNonce(msgspec.Struct, frozen=True):
    """Answer with :class:`NonceDrawn`."""


class ReadFence(msgspec.Struct, frozen=True):
    """Read the own session znode."""


class ReadEpoch(msgspec.Struct, frozen=True):
    """Read ``csn/epoch``."""


class ReadLog(msgspec.Struct, frozen=True):
    """Read the log to its end in this session, from the first record that no :class:`Followed` covers."""

    session: int


class AnswerCallers(msgspec.Struct, frozen=True):
    """Answer all callers that wait for this tid."""

    tid: str
    decision: CommitDecision


class FenceRaised(msgspec.Struct, frozen=True):
    """The new own fence, seen in this session: nothing sent under a lower fence can be applied any more."""

    fence: int
    session: int


class FenceLost(msgspec.Struct, frozen=True):
    """Another replica has raised the fence: nothing new is accepted; a batch in doubt is still looked up."""


class Fenced(msgspec.Struct, frozen=True):
    """Another replica raised the fence. Final: open transactions are aborted, no lock may be assumed held."""


class Halted(msgspec.Struct, frozen=True):
    """The committer found an impossible state, and stops (I15). Final."""

    reason: str


class RetryLater(msgspec.Struct, frozen=True):
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
