"""The group committer: gives transactions their CSN and decides unknown outcomes. Pure.

A machine (:mod:`tidelock.csnlog.core.machine`); its messages are in
:mod:`tidelock.csnlog.core.committer_messages`.

**Promises.** A tid gets at most one CSN (I1). ``Committed`` and ``Rejected`` are what happened (I17). Only a
caller whose time is up gets ``Undecided``, and even then the committer finds out the outcome. Queue, batch
and bytes are bounded (I16).

**State.** :class:`CommitterState`: the link to ZooKeeper, the one request under way, the own fence, the
epoch, and the transactions between ``commit()`` and their CSN (:mod:`tidelock.csnlog.core.pending`).

**Events.** Commands (a proposal, a deadline, what the follower has met, the link) may arrive at any time.
Each request gets exactly one answer. **Instructions.** Requests to the store, of which at most one is under
way, and decisions for callers. Proposals that arrive while a request is under way form the next batch.

**Method.** A commit multi can end in three ways:

* *Ok*: the path of the record contains the CSN of the whole batch. A CSN that was known before the batch was
  sent says that ZooKeeper was set back: the committer stops.
* *Refused*: the multi certainly was not applied. The refused element tells which transactions it concerns
  (:mod:`tidelock.csnlog.core.refusals`): those tids end, or fence or epoch are read again; the others are
  sent again.
* *Unknown*: the multi may have been applied or may still be. Reading decides nothing, not even after sync():
  on a real ensemble the record appeared 0.6 s after the log had been read as empty (F1). So the
  committer first *writes*: it raises its own fence by compare-and-set with a fresh nonce, repeated until the
  raise is decided. From then on nothing sent under the old fence can be applied. Then it reads the log to its
  end in the session that has seen the raised fence. A tid that is in the log is committed; a tid that is not
  never was, and is sent again under the new fence.

A new ZooKeeper session may read from a server that lags behind. So in a new session the fence is raised
before any read counts as the newest (F3). If a raise finds a nonce that is not ours, another replica has
fenced this one (F2c); that is final. Even then the log is searched for a batch in doubt first, so
that no caller of a committed transaction gets "aborted".

A transaction can be called off until it has a CSN: it is dropped from the queue; from a batch it is dropped
when the batch certainly was not applied. Its callers hear what happened, not what was asked for.

**Invariants.** A commit is under way with a batch that is not in doubt; a batch with no commit under way is
in doubt. A committer that has ended holds no transaction. No tid is held twice. Only tids of the batch can be
expired.

**Not promised.** The order of tids inside the log is not the order of their proposals. The committer does not
know which parts exist or which replicas hold them.
"""

from __future__ import annotations

import enum
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core import committer_messages as msg
from tidelock.csnlog.core.batch import LogLimits, Rollover, choose, plan, victims
from tidelock.csnlog.core.fence import FenceFinding, OwnFence
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, epoch_of, sequence_of
from tidelock.csnlog.core.imprint import used_csn
from tidelock.csnlog.core.machine import Machine
from tidelock.csnlog.core.model import SessionState
from tidelock.csnlog.core.pending import Pending, PendingState, SentBatch
from tidelock.csnlog.core.refusals import CorruptLog, Doubt, Reject, Requeue, judge
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Written
from tidelock.errors import CorruptError


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


class CommitterState(msgspec.Struct, frozen=True):
    """The whole state of a :class:`Committer`.

    Attributes:
        connected: The store has a connection.
        session: The ZooKeeper session.
        paused: A request has failed, and the pause before the next request is not over.
        flight: The one request under way.
        final: The decision on all further transactions, once the committer has ended.
        fence: What is known of the own fence.
        fenced: Another replica has raised the fence; the log is still searched for a batch in doubt.
        raise_above: Raises are requested until the fence is above this.
        doubted: The fence under which a multi was refused because of its fence; -1 = the fence is not in
            doubt.
        epoch: The open epoch; None = it has to be read.
        epoch_version: The version of ``csn/epoch`` in which ``epoch`` was read.
        end: The largest CSN known.
        sent_after: The largest CSN that was known when the request under way was sent.
        tids_max: Transactions in the next batch; lowered while the store finds requests too large.
        tick: A record without transactions is wanted, unless another record comes first.
        pending: The transactions between ``commit()`` and their CSN.
    """

    connected: bool
    session: int
    paused: bool
    flight: Flight
    final: msg.Rejected | None
    fence: OwnFence
    fenced: bool
    raise_above: int
    doubted: int
    epoch: int | None
    epoch_version: int
    end: Csn
    sent_after: Csn
    tids_max: int
    tick: bool
    pending: PendingState


class Committer(Machine[msg.Event, msg.Instruction, CommitterState]):
    """The state machine; see the module. The fields are those of :class:`CommitterState`.

    Args:
        home: The own replica.
        state: What the start of this agent wrote to the own session znode.
        fence: The data version of that write.
        limits: The bounds.
        thorough: Check all invariants after every step.
    """

    __slots__ = (
        *("connected", "session", "paused", "flight", "final", "fence", "fenced", "raise_above", "doubted"),
        *(
            "epoch",
            "epoch_version",
            "end",
            "sent_after",
            "tids_max",
            "tick",
            "_out",
            "home",
            "limits",
            "pending",
        ),
    )

    def __init__(
        self, home: ReplicaId, state: SessionState, fence: int, limits: LogLimits, *, thorough: bool = True
    ) -> None:
        super().__init__(thorough=thorough)
        self.home: Final = home
        self.limits: Final = limits
        self.pending: Final = Pending(home, limits)
        self.connected = False
        self.session = 0
        self.paused = False
        self.flight = Flight.NONE
        self.final: msg.Rejected | None = None
        self.fence = OwnFence(tree.session(home), state, fence)
        self.fenced = False
        self.raise_above = -1
        self.doubted = -1
        self.epoch: int | None = None
        self.epoch_version = 0
        self.end = self.sent_after = CSN_NONE
        self.tids_max = limits.batch_tids_max
        self.tick = False
        self._out: list[msg.Instruction] = []

    def snapshot(self) -> CommitterState:
        """Return the whole state."""
        return CommitterState(
            connected=self.connected,
            session=self.session,
            paused=self.paused,
            flight=self.flight,
            final=self.final,
            fence=self.fence,
            fenced=self.fenced,
            raise_above=self.raise_above,
            doubted=self.doubted,
            epoch=self.epoch,
            epoch_version=self.epoch_version,
            end=self.end,
            sent_after=self.sent_after,
            tids_max=self.tids_max,
            tick=self.tick,
            pending=self.pending.snapshot(),
        )

    def restore(self, state: CommitterState) -> None:
        """Go back to a state that :meth:`snapshot` has returned."""
        self.connected, self.session, self.paused = state.connected, state.session, state.paused
        self.flight, self.final = state.flight, state.final
        self.fence, self.fenced = state.fence, state.fenced
        self.raise_above, self.doubted = state.raise_above, state.doubted
        self.epoch, self.epoch_version = state.epoch, state.epoch_version
        self.end, self.sent_after = state.end, state.sent_after
        self.tids_max, self.tick = state.tids_max, state.tick
        self.pending.restore(state.pending)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is one that no correct history leads to."""
        self._check_step()
        self.pending.check_invariants()

    def _check_step(self) -> None:
        batch = self.pending.batch
        if self.flight is Flight.COMMIT:
            assert batch is not None, "a commit under way without its batch"
            assert not batch.in_doubt, "a batch in doubt was sent again before it was decided"
        elif batch is not None:
            assert batch.in_doubt, "a batch that is neither under way nor in doubt"
        if self.final is not None:
            assert batch is None, f"ended with a batch: {sorted(self.pending.sent)}"
            assert not self.pending.queue, f"ended with {len(self.pending.queue)} transactions in line"
        self.pending.check_step()

    def _react(self, events: tuple[msg.Event, ...]) -> tuple[msg.Instruction, ...]:
        try:
            for event in events:
                if self.final is None:
                    self._take(event)
                elif isinstance(event, msg.Propose):
                    self.pending.propose(event.proposal, self.final)
            self._advance()
        except (CorruptError, ValueError) as error:
            self._halt(str(error))
        out = (*self.pending.answers, *self._out)
        self.pending.answers, self._out = [], []
        return out

    # ------------------------------------------------------------------------------------------- events

    def _take(self, event: msg.Event) -> None:
        match event:
            case msg.Propose(proposal):
                self.pending.propose(proposal, msg.Rejected(msg.Cause.FENCED) if self.fenced else None)
            case msg.Followed(end, own):
                self.end = max(self.end, end)
                if own:
                    self.pending.met(dict(own))
            case msg.TickWanted():
                self.tick = True
            case msg.DeadlinePassed(tid):
                self.pending.expire(tid)
            case msg.CallOff(tid):
                self.pending.call_off(tid)
            case msg.LinkChanged(connected, session):
                self.connected, self.session, self.paused = connected, session, False
            case msg.Resumed():
                self.paused = False
            case msg.StopAsked(reason):
                self._halt(reason)
            case msg.FenceWanted(above):
                self.raise_above = max(self.raise_above, above)
            case msg.FenceDoubted(used):
                if used >= self.fence.version:
                    self.doubted = used
            case _:
                self.flight = Flight.NONE
                self._answered(event)

    def _answered(self, answer: msg.StoreAnswer) -> None:
        """Process the answer to the request under way."""
        match answer:
            case msg.CommitEnded(result):
                self._commit_ended(result)
            case msg.NonceDrawn(nonce):
                self.fence = self.fence.raised_by(nonce)
            case msg.RaiseEnded(result, session):
                self._fence_learned(*self.fence.ended(result, session))
            case msg.FenceRead(result, session):
                self._fence_learned(*self.fence.seen(result, session))
            case msg.EpochRead(result):
                self._epoch_read(result)
            case msg.LogRead(own_csns, session):
                self._log_read(own_csns, session)
            case msg.RolloverEnded(result):
                self._rollover_ended(result)
            case _:
                assert_never(answer)

    def _commit_ended(self, result: msg.MultiResult) -> None:
        batch = self.pending.batch
        assert batch is not None, "the answer to a commit that was not sent"
        match result:
            case Ok(value=values):
                csn = self._new_csn(str(values[-1]))
                self.end, self.tids_max = max(self.end, csn), self.limits.batch_tids_max
                self.pending.landed(csn)
                self.pending.batch, self.tick = None, False
            case Unknown():
                self.pending.doubt()
            case Refused() if batch.csn is not None:
                raise CorruptError(f"a commit was refused although its record is in the log at {batch.csn}")
            case Refused():
                self._refused(batch, result)

    def _refused(self, batch: SentBatch, refused: Refused) -> None:
        """Reject the transactions that the refused element concerns; keep the others: nothing was applied."""
        element = batch.plan.elements[refused.index]
        rejected: dict[str, msg.Rejected] = {}
        judgement = judge(element.part, refused.reason)
        match judgement:
            case Requeue.PAUSE:
                self._retry_later()
            case Requeue.HALVE:
                if len(batch.items) == 1:
                    limit = msg.Rejected(msg.Cause.TOO_LARGE, "the store's limit of a request")
                    rejected = {batch.items[0].tid: limit}
                self.tids_max = max(1, len(batch.items) // 2)
            case Requeue.READ_EPOCH:
                self.epoch = None
            case Doubt.FENCE:
                self.doubted = batch.fence
            case Reject(cause):
                about = sorted(victims(element, batch.items))
                rejected = dict.fromkeys(about, msg.Rejected(cause, element.path))
            case CorruptLog.CORRUPT:
                pass  # raised below, once the transactions are marked as not sent
            case _:
                assert_never(judgement)
        self.pending.requeue(rejected)
        if judgement is CorruptLog.CORRUPT:
            raise CorruptError(f"the store refused {element.path} of a commit with {refused.reason.value}")

    def _log_read(self, own_csns: dict[str, Csn] | None, session: int) -> None:
        """Decide the batch in doubt, if the log was read behind the raised fence."""
        if own_csns is None:
            self._retry_later()
            return
        behind_fence = self.pending.batch is not None and session == self.fence.session
        if behind_fence and not self.pending.landed_if_in(own_csns):
            self.pending.requeue({})

    def _epoch_read(self, result: msg.ReadResult) -> None:
        if isinstance(result, Ok):
            self.epoch, self.epoch_version = codec.decode_epoch(result.value.data), result.value.version
        else:
            self._retry_later()

    def _new_csn(self, path: str) -> Csn:
        """Return the CSN of a record that was made just now; CorruptError if it was taken before that."""
        csn = tree.csn_of(path)
        if csn <= self.sent_after:
            raise CorruptError(used_csn(csn, self.sent_after))
        return csn

    def _rollover_ended(self, result: msg.MultiResult) -> None:
        match result:
            case Ok(value=(_, _, str(end), _, Written(version=version))):
                closed = self._new_csn(end)
                self.end = max(self.end, closed)
                self.epoch, self.epoch_version = epoch_of(closed) + 1, version
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

    def _fence_learned(self, fence: OwnFence, finding: FenceFinding) -> None:
        self.fence = fence
        match finding:
            case FenceFinding.RAISED:
                self.doubted = -1
                self._out.append(msg.FenceRaised(fence.version, fence.session))
            case FenceFinding.FOREIGN:
                self.doubted, self.fenced = -1, True
                self._out.append(msg.FenceLost())
            case FenceFinding.READ:
                self.doubted = fence.version
            case FenceFinding.UNCHANGED if self.fenced:
                self.fence = replace(fence, session=self.session)
            case FenceFinding.UNCHANGED | FenceFinding.AGAIN:
                # The refusal came from a newer state than this read: the server lags behind.
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
        """Issue the next request if none is under way: first what is in doubt, then what waits."""
        in_doubt = self.pending.batch is not None
        if self.final is not None or self.flight is not Flight.NONE:
            return
        if self.fenced and not in_doubt:
            self.final = msg.Rejected(msg.Cause.FENCED)
            self.pending.drop(self.final)
            self._out.append(msg.Fenced())
        elif not self.connected or self.paused:
            return
        elif self.doubted >= 0 or (self.fenced and self.fence.session != self.session):
            self._send(Flight.FENCE_READ, msg.ReadFence())
        elif not self.fenced and self._must_raise():
            if self.fence.pending:
                self._send(Flight.RAISE, msg.SendRaise(self.fence.ops()))
            else:
                self._send(Flight.NONCE, msg.DrawNonce())
        elif in_doubt:
            self._send(Flight.LOG_READ, msg.ReadLog(self.session))
        elif self.epoch is None:
            self._send(Flight.EPOCH_READ, msg.ReadEpoch())
        elif self.pending.queue or self.tick:
            self._send_next(self.epoch)

    def _send_next(self, epoch: int) -> None:
        """Send the next batch, or first close the epoch when its numbers reach their limit.

        A batch without transactions is a tick: it is decided like any other, but nobody waits for it, and it
        is not sent again.
        """
        fence, version = self.fence.version, self.epoch_version
        if epoch_of(self.end) == epoch and sequence_of(self.end) + 1 >= self.limits.epoch_limit:
            self._send(Flight.ROLLOVER, msg.SendRollover(Rollover(self.home, fence, epoch, version)))
            return
        items = choose(self.pending.queue.values(), self.home, self.limits, self.tids_max)
        commit = plan(items, home=self.home, fence=fence, epoch=epoch, epoch_version=version)
        self.pending.send(SentBatch.of(commit, fence))
        self.tick = False
        self._send(Flight.COMMIT, msg.SendCommit(commit))

    def _send(self, flight: Flight, instruction: msg.Instruction) -> None:
        self.flight, self.sent_after = flight, self.end
        self._out.append(instruction)

    def _retry_later(self) -> None:
        self.paused = True
        self._out.append(msg.RetryLater())

    def _halt(self, reason: str) -> None:
        """Stop: what was sent is not judged any more; what waits was certainly not sent."""
        self.final, self.flight = msg.Rejected(msg.Cause.STOPPED, reason), Flight.NONE
        self.pending.drop(self.final)
        self._out.append(msg.Halted(reason))
