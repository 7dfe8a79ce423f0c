"""The shell of committer and follower: runs their instructions against a store, in one event loop.

It holds no rule of the protocol. Each instruction becomes one call of the store, and its result the next
event. The shell adds time (pauses, the periodic probe, wall clock in records), randomness (nonces) and fault
points. It also ends everything when something fails that should not: then the log stops, it never goes on in
doubt (I15). A machine that contradicts itself gets no more events, nor does the other one; the story of its
last steps goes to the log of the agent.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, assert_never

import msgspec
import structlog

from tidelock.csnlog import faults
from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.core import committer_messages as commits
from tidelock.csnlog.core import follower_messages as follows
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.batch import CommitPlan, LogLimits, Proposal, Rollover
from tidelock.csnlog.core.committer import Committer
from tidelock.csnlog.core.follower import Follower
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.imprint import Imprint
from tidelock.csnlog.core.log_time import ClockReading
from tidelock.csnlog.core.machine import InvariantError
from tidelock.csnlog.core.model import LogRecord
from tidelock.csnlog.core.phase import UNANCHORED
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Check, LinkState, Op, Store
from tidelock.csnlog.reading import BelowTailError, find_out, read_record, read_to_end, record_exists
from tidelock.errors import CorruptError

_log: Final = structlog.get_logger("tidelock.csnlog")

COMMIT: Final = faults.step("csnlog.commit")
RAISE: Final = faults.step("csnlog.raise")
ROLLOVER: Final = faults.step("csnlog.rollover")

#: Random bytes of a nonce: enough for it to be unique.
NONCE_BYTES: Final = 12


class LogClocks(Protocol):
    """The clocks that go into records."""

    def reading(self) -> ClockReading:
        """Return the clocks of now."""

    def begun(self) -> float:
        """Return the moment at which a request begins."""

    def answered(self, values: tuple[object, ...], begun_s: float) -> None:
        """Take the results of a multi, with the stamps in them, and when it began."""


Deliverer = Callable[[list[LogRecord]], Awaitable[None]]


class _ForCommitter(msgspec.Struct, frozen=True):
    event: commits.Event


class _ForFollower(msgspec.Struct, frozen=True):
    event: follows.FollowEvent


@dataclass(slots=True, kw_only=True, eq=False)
class Engine:
    """Both machines, and the calls that are under way for them.

    Attributes:
        store: The session to ZooKeeper.
        own: The boot of this agent that has begun.
        limits: The bounds.
        clocks: The clocks that go into records.
        deliver: Receives records in order; the next records are delivered when it has returned.
        on_answer: Called with each decision on a tid.
        on_change: Called when state, fence or link may have changed.
        thorough: Check all invariants of the machines after every step.
    """

    store: Store
    own: OwnSession
    limits: LogLimits
    clocks: LogClocks
    deliver: Deliverer
    on_answer: Callable[[str, commits.CommitDecision], None]
    on_change: Callable[[], None]
    thorough: bool
    committer: Committer = field(init=False)
    follower: Follower | None = field(default=None, init=False)
    #: A machine has contradicted itself: the outcome of a commit that was sent is not found out any more.
    broken: bool = field(default=False, init=False)
    #: Records handed to ``deliver`` that it has not accepted yet.
    delivering: tuple[LogRecord, ...] = field(default=(), init=False)
    #: The reason why the log has ended, once it has.
    too_late: Csn | None = field(default=None, init=False)
    stopped: str = field(default="", init=False)
    closed: bool = field(default=False, init=False)
    _inbox: deque[_ForCommitter | _ForFollower] = field(default_factory=deque, init=False)
    _pumping: bool = field(default=False, init=False)
    _link: tuple[bool, int] = field(default=(False, 0), init=False)
    #: Number of the present connection: an answer that came over another one is none.
    _connection: int = field(default=0, init=False)
    #: The connection over which the own fence was seen to be there.
    _fence_proven: int = field(default=-1, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _timers: set[asyncio.TimerHandle] = field(default_factory=set, init=False)
    #: One callback for each watched record, so that the store does not arm it twice.
    _watches: dict[Csn, Callable[[], None]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.committer = Committer(
            self.own.replica, self.own.state, self.own.fence, self.limits, thorough=self.thorough
        )
        self.store.on_change(self.link_changed)

    # -------------------------------------------------------------------------------------------- pump

    @property
    def proven(self) -> bool:
        """Whether ZooKeeper was seen, over the present connection, to hold what was taken and written."""
        followed = self.follower is not None and self.follower.proven
        return followed and self._fence_proven == self._connection

    @property
    def doubting(self) -> bool:
        """Whether a new connection has not shown yet that ZooKeeper holds the history that was followed."""
        follower = self.follower
        return follower is not None and not self.proven and follower.phase not in UNANCHORED

    def start(self, position: Csn, last: Imprint) -> None:
        """Begin to follow behind a position, whose record has this imprint."""
        self.follower = Follower(position, self.limits.read_ahead, last=last, thorough=self.thorough)
        connected, session = self._link
        self.follow(commits.LinkChanged(connected, session))
        self._spawn(self._tick())

    def link_changed(self) -> None:
        """Report link and session to the machines, if they have changed."""
        link = (self.store.link is LinkState.CONNECTED, self.store.session)
        if self.closed or link == self._link:
            return
        self._link = link
        self._connection += 1
        # The committer gets the connection when it was seen to lead to the same log and the same fence.
        self._inbox.append(_ForCommitter(commits.LinkChanged(connected=False, session=link[1])))
        if self.follower is not None:
            self._inbox.append(_ForFollower(commits.LinkChanged(*link)))
        self._pump()
        self.on_change()

    def tell(self, event: commits.Event) -> None:
        """Give an event to the committer."""
        self.link_changed()
        self._inbox.append(_ForCommitter(event))
        self._pump()

    def propose(self, proposal: Proposal) -> None:
        """Give a transaction to the committer, with all others of this loop iteration, so that they batch."""
        if self.broken:
            # It may have been sent before, and its outcome cannot be found out any more.
            self.on_answer(proposal.tid, commits.Undecided())
            return
        self.link_changed()
        self._inbox.append(_ForCommitter(commits.Propose(proposal)))
        asyncio.get_running_loop().call_soon(self._pump)

    def follow(self, event: follows.FollowEvent) -> None:
        """Give an event to the follower."""
        self.link_changed()
        if self.follower is not None and not self.closed:
            self._inbox.append(_ForFollower(event))
            self._pump()

    def stop(self, reason: str) -> None:
        """Stop forever; the outcome of everything under way stays in doubt."""
        if not self.stopped and not self.closed:
            self.stopped = reason
            self.tell(commits.StopAsked(reason))
            self.on_change()

    async def close(self) -> None:
        """Stop, and end all calls and timers."""
        if self.closed:
            return
        self.on_change = lambda: None
        self.tell(commits.StopAsked("this agent is closing its log"))
        self.closed = True
        for timer in self._timers:
            timer.cancel()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _pump(self) -> None:
        """Let the machines process their events one by one; an instruction may cause the next event."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._inbox and not self.broken:
                self._step(self._inbox.popleft())
        except InvariantError as error:
            self._break(error)
        finally:
            self._pumping = False

    def _step(self, entry: _ForCommitter | _ForFollower) -> None:
        match entry:
            case _ForCommitter(event):
                for instruction in self.committer.step(*self._with_proposals(event)):
                    self._carry_out(instruction)
            case _ForFollower(event):
                assert self.follower is not None, "an event for a follower that was not started"
                for said in self.follower.step(event):
                    self._carry_out_of_follower(said)
            case _:
                assert_never(entry)

    def _with_proposals(self, event: commits.Event) -> list[commits.Event]:
        """Return the event, and after a proposal all proposals that follow it directly in the inbox."""
        events = [event]
        if isinstance(event, commits.Propose):
            while self._inbox:
                match self._inbox[0]:
                    case _ForCommitter(commits.Propose() as another):
                        events.append(another)
                        self._inbox.popleft()
                    case _:
                        break
        return events

    def _break(self, error: InvariantError) -> None:
        """Stop forever: a machine contradicts itself, so no instruction of either machine can be trusted."""
        _log.critical("machine_broken", reason=error.message, **error.details)
        self.broken = True
        self._inbox.clear()
        self.stopped = self.stopped or error.message
        self.on_change()

    def _carry_out(self, instruction: commits.Instruction) -> None:
        match instruction:
            case commits.AnswerCallers(tid, decision):
                self.on_answer(tid, decision)
            case commits.SendCommit(plan):
                self._spawn(self._commit(plan))
            case commits.DrawNonce():
                self.tell(commits.NonceDrawn(secrets.token_hex(NONCE_BYTES)))
            case commits.RetryLater():
                self._later(lambda: self.tell(commits.Resumed()))
            case commits.SendRaise(ops):
                self._spawn(self._raise(ops))
            case commits.SendRollover(rollover):
                self._spawn(self._roll_over(rollover))
            case commits.ReadFence():
                self._spawn(self._read_fence())
            case commits.ReadEpoch():
                self._spawn(self._read_epoch())
            case commits.ReadLog(session):
                self._spawn(self._read_log(session))
            case commits.Halted(reason):
                self.stopped = self.stopped or reason
                self.on_change()
            case commits.FenceRaised() | commits.FenceLost() | commits.Fenced():
                self.on_change()
            case _:
                assert_never(instruction)

    def _carry_out_of_follower(self, instruction: follows.FollowInstruction) -> None:
        match instruction:
            case follows.Get(number):
                self._spawn(self._get(number))
            case follows.Probe(number):
                self._spawn(self._probe(number))
            case follows.Inquire(number, question, about):
                self._spawn(self._inquire(number, question, about))
            case follows.Proven():
                self._spawn(self._prove_fence(self._connection))
            case follows.Took(records):
                self._took(records)
            case follows.Deliver(records):
                self.delivering = records
                self._spawn(self._hand_over(records))
            case commits.RetryLater():
                self._later(lambda: self.follow(commits.Resumed()))
            case follows.TooLate(tail):
                self.too_late = tail
                self.stop(
                    f"the tail {tail} has passed this replica's position in the log; clone it from "
                    "another replica"
                )
            case follows.Stopped(number, reason):
                self.stop(f"at CSN {number}: {reason}")
            case _:
                assert_never(instruction)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop(f"unforeseen: {type(error).__name__}: {error}")

    def _later(self, what: Callable[[], None]) -> None:
        def resume() -> None:
            self._timers.discard(timer)
            what()

        timer = asyncio.get_running_loop().call_later(self.limits.retry_s, resume)
        self._timers.add(timer)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.limits.recheck_s)
            self.follow(follows.Tick())

    # ------------------------------------------------------------------------------------------ writes

    async def _multi(self, step: faults.FaultStep, ops: tuple[Op, ...]) -> tuple[commits.MultiResult, int]:
        """Send a multi between two fault points; also return the session in which it was answered."""
        try:
            await step.before()
        except Exception as error:
            _log.warning("a fault point failed before a multi: nothing was sent", error=str(error))
            return Refused(Reason.NOT_CONNECTED), 0
        session, begun_s = self.store.session, self.clocks.begun()
        result = await self.store.multi(ops)
        if isinstance(result, Ok):
            self.clocks.answered(result.value, begun_s)
        if self.store.session != session:
            session = 0
        try:
            await step.after()
        except Exception as error:
            return Unknown(str(error)), 0
        return result, session

    async def _commit(self, plan: CommitPlan) -> None:
        clock = self.clocks.reading()
        ops = plan.ops(clock)
        result, _ = await self._multi(COMMIT, ops)
        if isinstance(result, Ok):
            # The follower first: it may find that the answer contradicts what was taken (I15).
            self.follow(follows.Poked(plan.made(clock, ops, result.value)))
        self.tell(commits.CommitEnded(result))

    async def _roll_over(self, rollover: Rollover) -> None:
        clock = self.clocks.reading()
        ops = rollover.ops(clock)
        result, _ = await self._multi(ROLLOVER, ops)
        if isinstance(result, Ok):
            self.follow(follows.Poked(rollover.made(clock, ops, result.value)))
        self.tell(commits.RolloverEnded(result))

    async def _raise(self, ops: tuple[Op, ...]) -> None:
        self.tell(commits.RaiseEnded(*await self._multi(RAISE, ops)))

    # ------------------------------------------------------------------------------------------- reads

    async def _prove_fence(self, connection: int) -> None:
        """Give the connection to the committer when it has shown the own fence, or a later one."""
        fence = self.committer.fence
        found = await self.store.get(fence.path)
        if isinstance(found, Ok) and fence.is_above(found.value):
            # A server that lags behind shows that, too. After the answer to a write it does not.
            await self.store.multi((Check(fence.path, fence.version),))
            found = await self.store.get(fence.path)
        if connection != self._connection or self.closed:
            return
        try:
            shown = fence.shown_by(found)
        except CorruptError as error:
            self.stop(error.message)
            return
        if not shown:
            self._later(lambda: self._spawn(self._prove_fence(connection)))
            return
        self._fence_proven = connection
        self.tell(commits.LinkChanged(*self._link))
        self.on_change()

    async def _read_fence(self) -> None:
        session = self.store.session
        result = await self.store.get(tree.session(self.own.replica))
        self.tell(commits.FenceRead(result, session if self.store.session == session else 0))

    async def _read_epoch(self) -> None:
        self.tell(commits.EpochRead(await self.store.get(tree.EPOCH)))

    async def _read_log(self, session: int) -> None:
        found: dict[str, Csn] | None = None
        try:
            records = await self.read_to_end(session)
        except BelowTailError:
            # The deleted records are known to all replicas but this one, which the follower will find out.
            records = None
        except CorruptError as error:
            self.stop(error.message)
            return
        if records is not None:
            found = dict(self._own_tids(records))
        self.tell(commits.LogRead(found, session))

    async def read_to_end(self, session: int) -> tuple[LogRecord, ...] | None:
        """Read the records that the follower has not taken; see :mod:`tidelock.csnlog.reading`."""
        if self.follower is None:
            return None
        return await read_to_end(
            self.store,
            self.follower.next,
            session=session,
            read_ahead=self.limits.read_ahead,
            skips=self.own.skips,
        )

    def _own_tids(self, records: tuple[LogRecord, ...]) -> tuple[tuple[str, Csn], ...]:
        return tuple(
            (tid.tid, one.csn)
            for one in records
            if one.record.home == self.own.replica
            for tid in one.record.tids
        )

    async def _get(self, number: Csn) -> None:
        connection = self._connection
        record = await read_record(self.store, number, self.own.skips)
        if record is None or connection != self._connection:
            self.follow(follows.Failed(number))
        elif isinstance(record, follows.Absent):
            self.follow(follows.Missed(number))
        else:
            self.follow(follows.Got(number, record))

    async def _probe(self, number: Csn) -> None:
        connection = self._connection
        exists = await record_exists(self.store, number, watch=self._watch(number))
        if exists:
            self._watches.pop(number, None)
        if connection != self._connection:
            exists = None
        self.follow(follows.Probed(number, exists))

    def _watch(self, number: Csn) -> Callable[[], None]:
        def fired() -> None:
            self._watches.pop(number, None)
            self.follow(follows.Woken(number))

        return self._watches.setdefault(number, fired)

    async def _inquire(self, number: int, question: follows.ChainQuestion, about: Csn) -> None:
        session, connection = self.store.session, self._connection
        try:
            finding = await find_out(
                self.store, question, about, watch=self._watch(about), skips=self.own.skips
            )
        except CorruptError as error:
            self.stop(error.message)
            return
        same = self.store.session == session and connection == self._connection
        self.follow(follows.Learned(number, session if same else 0, finding))

    # ---------------------------------------------------------------------------------------- delivery

    def _took(self, records: tuple[LogRecord, ...]) -> None:
        for one in records:
            self._watches.pop(one.csn, None)
        self.tell(commits.Followed(records[-1].csn, self._own_tids(records)))

    async def _hand_over(self, records: tuple[LogRecord, ...]) -> None:
        try:
            await self.deliver(list(records))
        except Exception as error:
            self.stop(f"the receiver of records failed: {type(error).__name__}: {error}")
            return
        self.delivering = ()
        self.follow(follows.Delivered())
