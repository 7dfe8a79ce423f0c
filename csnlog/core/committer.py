"""The group committer: how transactions get their CSN, and how an unknown outcome is decided. Pure.

Pure: events in, instructions out (:mod:`tidelock.csnlog.core.committer_messages`); no clock, thread, socket
or randomness.

**Promises.** A tid gets at most one CSN (I1). ``Committed`` and ``Rejected`` are what happened (I17);
``Undecided`` is said only to a caller whose time is up, and even then the outcome is found out. Queue, batch
and bytes are bounded (I16).

**How.** At most one request of the committer is under way; what arrives meanwhile makes the next batch. Three
things can happen to a commit multi:

* *Ok*: the path of the record tells the CSN of the whole batch.
* *Refused*: it certainly was not applied. The refused element tells whom it concerns: those tids end, or
  fence or epoch are
  read again; the others are sent again.
* *Unknown*: it may have been applied or may still be. Reading decides nothing, not even after sync(): on a
  real ensemble
  the record appeared 0.6 s after the log had been read as empty (F1). So the committer first
  *writes*: it raises its own fence by compare-and-set with a fresh nonce, repeated until that is decided.
  From then on nothing sent under the old fence can land. Then it reads the log to its end in the session that
  has seen the raised fence. A tid that is there is committed; one that is not never was, and is sent again
  under the new fence.

A new ZooKeeper session may read from a server that lags behind, so there the fence is raised before anything
is read for "newest" (F3). A raise that finds a nonce which is not ours means that another has fenced this
replica (F2c): final. Even then a batch in doubt is looked up first, so that nobody is told "aborted" of a
committed transaction.

**Not promised.** The order of tids inside the log is not that of their proposals. The committer does not know
which parts exist or who holds them.

State is a handful of immutable values, :meth:`Committer.snapshot` and :meth:`Committer.restore` copy it, so
that tests can explore every order of events and failures with this very code.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import Final

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.batch import LogLimits, Part, Rollover, choose, plan, victims
from tidelock.csnlog.core.committer_messages import (
    Cause,
    CommitEnded,
    DeadlinePassed,
    DrawNonce,
    EpochRead,
    Event,
    Fenced,
    FenceDoubted,
    FenceRead,
    FenceWanted,
    Followed,
    Halted,
    Instruction,
    LinkChanged,
    LogRead,
    MultiResult,
    NonceDrawn,
    Propose,
    Raised,
    RaiseEnded,
    ReadEpoch,
    ReadFence,
    ReadLog,
    ReadResult,
    Rejected,
    Resumed,
    RetryLater,
    RolloverEnded,
    SendCommit,
    SendRaise,
    SendRollover,
    StopAsked,
)
from tidelock.csnlog.core.fence import Finding, OwnFence
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, epoch_of, sequence_of
from tidelock.csnlog.core.model import SessionState
from tidelock.csnlog.core.pending import Batch, Pending
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.errors import CorruptError

#: Whom a refused element is about, besides fence and epoch; anything else should not be possible.
CAUSES: Final = {
    (Part.TABLE, Reason.BAD_VERSION): Cause.TABLE_CHANGED,
    (Part.TABLE, Reason.NO_NODE): Cause.TABLE_CHANGED,
    (Part.DEFINITION, Reason.BAD_VERSION): Cause.TABLE_CHANGED,
    (Part.DEFINITION, Reason.NO_NODE): Cause.TABLE_CHANGED,
    (Part.DEFINITION, Reason.NODE_EXISTS): Cause.TABLE_EXISTS,
    (Part.LABEL, Reason.NODE_EXISTS): Cause.LABEL_EXISTS,
    (Part.LABEL, Reason.BAD_VERSION): Cause.LABEL_MOVED,
    (Part.LABEL, Reason.NO_NODE): Cause.LABEL_MOVED,
    (Part.LABELS, Reason.BAD_VERSION): Cause.LABEL_MOVED,
    (Part.HEAD, Reason.BAD_VERSION): Cause.HEAD_MOVED,
}


class Flight(enum.Enum):
    """The one request under way."""

    NONE = "none"
    NONCE = "nonce"
    COMMIT = "commit"
    ROLLOVER = "rollover"
    RAISE = "raise"
    FENCE_READ = "fence read"
    EPOCH_READ = "epoch read"
    LOG_READ = "log read"


class Committer:
    """The state machine; see the module. ``step`` is its only way to change.

    Args:
        home: The own replica.
        state: What the start of this agent wrote to the own session znode.
        fence: The data version of that write.
        limits: The bounds.
    """

    _STATE = (
        *("connected", "session", "paused", "flight", "final"),
        *("fence", "fenced", "raise_above", "doubted", "epoch", "epoch_version", "end", "tids_max"),
    )
    __slots__ = (*_STATE, "_out", "home", "limits", "pending")

    def __init__(self, home: ReplicaId, state: SessionState, fence: int, limits: LogLimits) -> None:
        self.home: Final = home
        self.limits: Final = limits
        self.pending: Final = Pending(home, limits)
        self.connected = False
        self.session = 0
        self.paused = False
        self.flight = Flight.NONE
        self.final: Rejected | None = None
        self.fence = OwnFence(tree.session(home), state, fence)
        #: Another has raised the fence; what is in doubt is still looked up.
        self.fenced = False
        #: A raise was asked for until the fence is above this.
        self.raise_above = -1
        #: The fence was refused to somebody while it was this; -1 = it is not in doubt.
        self.doubted = -1
        #: None = to be read.
        self.epoch: int | None = None
        self.epoch_version = 0
        #: The largest CSN known.
        self.end = CSN_NONE
        #: Transactions in the next batch; lowered while the store finds requests too large.
        self.tids_max = limits.batch_tids_max
        self._out: list[Instruction] = []

    def snapshot(self) -> tuple[object, ...]:
        """Return the whole state: hashable, comparable, and immutable throughout."""
        return (*(getattr(self, name) for name in self._STATE), *self.pending.snapshot())

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Go back to a state that :meth:`snapshot` has returned."""
        for name, value in zip(self._STATE, snapshot, strict=False):
            setattr(self, name, value)
        self.pending.restore(snapshot[len(self._STATE) :])

    def step(self, *events: Event) -> tuple[Instruction, ...]:
        """Take events, one after the other, and return what is to be done after the last, in this order."""
        try:
            for event in events:
                if self.final is None:
                    self._take(event)
                elif isinstance(event, Propose):
                    self.pending.propose(event.proposal, self.final)
            self._advance()
        except (CorruptError, ValueError) as error:
            self._halt(str(error))
        out = (*self.pending.answers, *self._out)
        self.pending.answers, self._out = [], []
        return out

    def check_invariants(self) -> None:
        """Raise AssertionError where the state is none that a correct history leads to."""
        self.pending.check_invariants()
        batch = self.pending.batch
        if self.flight is Flight.COMMIT:
            assert batch is not None, "a commit under way without its batch"
            assert not batch.in_doubt, "a batch in doubt was sent again before it was decided"
        elif batch is not None:
            assert batch.in_doubt, "a batch that is neither under way nor in doubt"
        assert self.final is None or not self.pending.tids, f"final, with tids left: {self.pending.tids}"

    # ------------------------------------------------------------------------------------------- events

    def _take(self, event: Event) -> None:
        match event:
            case Propose(proposal):
                self.pending.propose(proposal, Rejected(Cause.FENCED) if self.fenced else None)
            case Followed(end, own):
                self.end = max(self.end, end)
                if own:
                    self.pending.met(dict(own))
            case DeadlinePassed(tid):
                self.pending.expire(tid)
            case LinkChanged(connected, session):
                self.connected, self.session, self.paused = connected, session, False
            case Resumed():
                self.paused = False
            case StopAsked(reason):
                self._halt(reason)
            case FenceWanted(above):
                self.raise_above = max(self.raise_above, above)
            case FenceDoubted(used):
                if used >= self.fence.version:
                    self.doubted = used
            case _:
                self.flight = Flight.NONE
                self._answered(event)

    def _answered(self, event: Event) -> None:
        """Take the answer to the request under way."""
        match event:
            case CommitEnded(result):
                self._commit_ended(result)
            case NonceDrawn(nonce):
                self.fence = self.fence.raised_by(nonce)
            case RaiseEnded(result, session):
                self._found(*self.fence.ended(result, session))
            case FenceRead(result, session):
                self._found(*self.fence.seen(result, session))
            case EpochRead(result):
                self._epoch_read(result)
            case LogRead(found, session):
                self._log_read(found, session)
            case RolloverEnded(result):
                self._rollover_ended(result)

    def _commit_ended(self, result: MultiResult) -> None:
        batch = self.pending.batch
        assert batch is not None, "the answer to a commit that was not sent"
        match result:
            case Ok(value=values):
                csn = tree.csn_of(str(values[-1]))
                self.end, self.tids_max = max(self.end, csn), self.limits.batch_tids_max
                self.pending.landed(csn)
                self.pending.batch = None
            case Unknown():
                self.pending.doubt()
            case Refused() if batch.csn is not None:
                raise CorruptError(f"a commit was refused although its record is in the log at {batch.csn}")
            case Refused():
                self._refused(batch, result)

    def _refused(self, batch: Batch, refused: Refused) -> None:
        """The batch was certainly not applied: reject whom the refused element is about, keep the others."""
        element = batch.plan.elements[refused.index]
        rejected: dict[str, Rejected] = {}
        surprise = False
        if refused.reason is Reason.NOT_CONNECTED:
            self._retry_later()
        elif refused.reason is Reason.TOO_LARGE:
            if len(batch.items) == 1:
                rejected[batch.items[0].tid] = Rejected(Cause.TOO_LARGE, "the store's limit of a request")
            self.tids_max = max(1, len(batch.items) // 2)
        elif element.part is Part.FENCE and refused.reason is Reason.BAD_VERSION:
            self.doubted = batch.fence
        elif element.part is Part.EPOCH and refused.reason is Reason.BAD_VERSION:
            self.epoch = None
        elif cause := CAUSES.get((element.part, refused.reason)):
            rejected = dict.fromkeys(victims(element, batch.items), Rejected(cause, element.path))
        else:
            surprise = True
        self.pending.requeue(rejected)
        if surprise:
            raise CorruptError(f"the store refused {element.path} of a commit with {refused.reason.value}")

    def _log_read(self, found: dict[str, Csn] | None, session: int) -> None:
        """Decide the batch in doubt, if this was read behind the raised fence."""
        if found is None:
            self._retry_later()
            return
        behind_fence = self.pending.batch is not None and session == self.fence.session
        if behind_fence and not self.pending.landed_if_in(found):
            self.pending.requeue({})

    def _epoch_read(self, result: ReadResult) -> None:
        if isinstance(result, Ok):
            self.epoch, self.epoch_version = codec.decode_epoch(result.value.data), result.value.version
        else:
            self._retry_later()

    def _rollover_ended(self, result: MultiResult) -> None:
        match result:
            case Ok(value=(_, _, str(end), _, int(version))):
                self.end = max(self.end, tree.csn_of(end))
                self.epoch, self.epoch_version = epoch_of(tree.csn_of(end)) + 1, version
            case Unknown():
                self.raise_above = max(self.raise_above, self.fence.version)
                self.epoch = None
            case Refused(reason=Reason.NOT_CONNECTED):
                self._retry_later()
            case Refused(reason=Reason.BAD_VERSION, index=0):
                self.doubted = self.fence.version
            case Refused(reason=Reason.BAD_VERSION, index=1):
                self.epoch = None
            case _:
                raise CorruptError(f"the roll-over of epoch {self.epoch} ended {result}")

    # -------------------------------------------------------------------------------------------- fence

    def _found(self, fence: OwnFence, finding: Finding) -> None:
        self.fence = fence
        match finding:
            case Finding.RAISED:
                self.doubted = -1
                self._out.append(Raised(fence.version, fence.session))
            case Finding.FOREIGN:
                self.doubted, self.fenced = -1, True
            case Finding.LOOK:
                self.doubted = fence.version
            case Finding.UNCHANGED if self.fenced:
                self.fence = replace(fence, session=self.session)
            case Finding.UNCHANGED | Finding.AGAIN:
                # What was refused is newer than this read: the server lags behind.
                self._retry_later()

    def _must_raise(self) -> bool:
        fence, batch = self.fence, self.pending.batch
        return (
            bool(fence.pending)
            or fence.session != self.session
            or self.raise_above >= fence.version
            or (batch is not None and batch.in_doubt and batch.fence >= fence.version)
        )

    # ------------------------------------------------------------------------------------------ advance

    def _advance(self) -> None:
        """Give the next request, if none is under way: what is in doubt first, then what waits."""
        in_doubt = self.pending.batch is not None
        if self.final is not None or self.flight is not Flight.NONE:
            return
        if self.fenced and not in_doubt:
            self.final = Rejected(Cause.FENCED)
            self.pending.drop(self.final)
            self._out.append(Fenced())
        elif not self.connected or self.paused:
            return
        elif self.doubted >= 0 or (self.fenced and self.fence.session != self.session):
            self._send(Flight.FENCE_READ, ReadFence())
        elif not self.fenced and self._must_raise():
            if self.fence.pending:
                self._send(Flight.RAISE, SendRaise(self.fence.ops()))
            else:
                self._send(Flight.NONCE, DrawNonce())
        elif in_doubt:
            self._send(Flight.LOG_READ, ReadLog(self.session))
        elif self.epoch is None:
            self._send(Flight.EPOCH_READ, ReadEpoch())
        elif self.pending.queue:
            self._send_next(self.epoch)

    def _send_next(self, epoch: int) -> None:
        """Send the next batch, or close the epoch first when its numbers come to their limit."""
        fence, version = self.fence.version, self.epoch_version
        if epoch_of(self.end) == epoch and sequence_of(self.end) + 1 >= self.limits.epoch_limit:
            self._send(Flight.ROLLOVER, SendRollover(Rollover(self.home, fence, epoch, version)))
            return
        items = choose(self.pending.queue, self.home, self.limits, self.tids_max)
        commit = plan(items, home=self.home, fence=fence, epoch=epoch, epoch_version=version)
        self.pending.send(Batch.of(commit, fence))
        self._send(Flight.COMMIT, SendCommit(commit))

    def _send(self, flight: Flight, instruction: Instruction) -> None:
        self.flight = flight
        self._out.append(instruction)

    def _retry_later(self) -> None:
        self.paused = True
        self._out.append(RetryLater())

    def _halt(self, reason: str) -> None:
        """Stop: nothing that was sent is judged any more, what waits was certainly not sent."""
        self.final, self.flight = Rejected(Cause.STOPPED, reason), Flight.NONE
        self.pending.drop(self.final)
        self._out.append(Halted(reason))
