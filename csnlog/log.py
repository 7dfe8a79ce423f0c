"""The CSN log as an agent uses it: commit, follow, barrier, find (rules commit, follow).

The rules are in the pure cores (:mod:`tidelock.csnlog.core.committer`,
:mod:`tidelock.csnlog.core.follower`). This module turns their decisions into results and errors, and holds
the operations that need a write and reads of one session: ``fenced``, ``barrier``, ``fence_out``, ``find``.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.batch import LogLimits, Proposal
from tidelock.csnlog.core.commit_errors import to_error
from tidelock.csnlog.core.committer_messages import (
    CallOff,
    Cause,
    CommitDecision,
    DeadlinePassed,
    FenceDoubted,
    FenceWanted,
    TickWanted,
    Undecided,
)
from tidelock.csnlog.core.fence import seize
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, Tid
from tidelock.csnlog.core.imprint import UNKNOWN, Imprint
from tidelock.csnlog.core.labels import LabelRead
from tidelock.csnlog.core.model import LogRecord, SessionState
from tidelock.csnlog.core.results import Committed, LogReading, Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Check, LinkState, Op, Store, Written
from tidelock.csnlog.engine import NONCE_BYTES, Deliverer, Engine, LogClocks
from tidelock.csnlog.reading import read_page
from tidelock.errors import CommitUnknownError, FencedError, UnavailableError

__all__ = ["CsnLog", "LogLimits", "LogState", "Proposal"]

#: How often an operation is repeated because its session changed meanwhile.
_ATTEMPTS: Final = 3


class LogState(enum.Enum):
    """The abilities of this replica's log. The last three states are final: the agent must start again."""

    FOLLOWING = "following"
    #: No connection, or a new one that has not shown yet that ZooKeeper holds the history that was followed:
    #: nothing is committed, and the newest CSN is not known.
    SUSPENDED = "suspended"
    #: Another replica has raised this one's fence: nothing new is accepted, every fenced write is refused.
    #: Commits that were in doubt are still looked up, so that no committed transaction is called aborted.
    FENCING = "fencing"
    #: They are decided: all open transactions are aborted, no lock is held.
    FENCED = "fenced"
    #: Records that this replica lacks are deleted: it must clone.
    TOO_LATE = "too_late"
    #: The log, or ZooKeeper, contains something that this replica cannot pass.
    STOPPED = "stopped"


class CsnLog:
    """One replica's access to the log; belongs to one event loop.

    Args:
        store: The replica's session to ZooKeeper. It is not closed by this class.
        session: The boot of the agent that has begun
            (:func:`tidelock.csnlog.cluster.bootstrap.open_session`).
        limits: The bounds.
        clocks: The clocks that go into records.
        deliver: Receives records in the order of the log, each once, END records of epochs included; the next
            records are delivered when it has returned, so it may take its time. :meth:`find` does not search
            the records that it has accepted. An exception from it stops the log.
        on_state: Called at every change of state, with the reason for people ("" if there is none).
        on_fence: Called with the own fence after every raise of it.
        thorough: Check all invariants of the machines after every step.
    """

    def __init__(
        self,
        store: Store,
        *,
        session: OwnSession,
        limits: LogLimits,
        clocks: LogClocks,
        deliver: Deliverer,
        on_state: Callable[[LogState, str], None],
        on_fence: Callable[[int], None] = lambda _: None,
        thorough: bool = True,
    ) -> None:
        self._store: Final = store
        self._own: Final = session
        self._limits: Final = limits
        self._clocks: Final = clocks
        self._on_state, self._on_fence = on_state, on_fence
        self._saved_fence = session.fence
        self._notified: LogState | None = None
        self._engine: Final = Engine(
            store=store,
            own=session,
            limits=limits,
            clocks=clocks,
            deliver=deliver,
            on_answer=self._answered,
            on_change=self._changed,
            thorough=thorough,
        )
        #: Callers of commit() by tid.
        self._callers: dict[str, set[asyncio.Future[CommitDecision]]] = {}
        #: Callers that wait for a change of fence or state.
        self._waiting: set[asyncio.Future[None]] = set()

    # ------------------------------------------------------------------------------------------- state

    @property
    def state(self) -> LogState:
        """The present abilities of the log."""
        engine = self._engine
        if self._is_fenced():
            return LogState.FENCED
        if engine.too_late is not None:
            return LogState.TOO_LATE
        if engine.stopped:
            return LogState.STOPPED
        if engine.committer.fenced:
            return LogState.FENCING
        follows = self._store.link is LinkState.CONNECTED and not engine.doubting
        return LogState.FOLLOWING if follows else LogState.SUSPENDED

    @property
    def reason(self) -> str:
        """The reason why the log has ended, for people; "" while it has not."""
        if self._engine.committer.fenced:
            return "another replica has raised the fence of this one"
        return self._engine.stopped

    @property
    def fenced_by(self) -> SessionState | None:
        """The session that another agent or replica has written over this one; None while not fenced."""
        return self._engine.committer.fence.state if self._is_fenced() else None

    @property
    def fence(self) -> int:
        """The version of the own session znode that every multi checks."""
        return self._engine.committer.fence.version

    @property
    def end(self) -> Csn:
        """The largest CSN that this replica has seen. Larger CSNs may exist: see :meth:`barrier`."""
        follower = self._engine.follower
        return max(self._engine.committer.end, follower.position if follower is not None else CSN_NONE)

    def deciding(self, tid: Tid) -> bool:
        """Return whether a commit of this tid is queued, under way or in doubt: do not judge it meanwhile."""
        return self._engine.committer.pending.decides(str(tid))

    # ----------------------------------------------------------------------------------------- life

    async def start(self, position: Csn, last: Imprint = UNKNOWN) -> None:
        """Begin to follow: deliver all records after CSN ``position``, the last CSN that is applied here.

        Args:
            position: That CSN.
            last: The imprint of its record. If ZooKeeper holds another one there, the log stops.
        """
        self._engine.link_changed()
        self._engine.start(position, last)

    async def close(self) -> None:
        """End everything under way. Commits that were sent and not answered end with CommitUnknownError."""
        await self._engine.close()
        self._wake()

    # ----------------------------------------------------------------------------------------- commit

    async def commit(self, proposal: Proposal, *, timeout_s: float) -> Committed:
        """Commit a sealed transaction; a call may be repeated, since a tid never gets a second CSN.

        Raises:
            TableChangedError, TableExistsError, LabelExistsError, LabelMovedError, HeadMovedError,
            MembersChangedError, TooLargeError, FencedError: Certainly not committed.
            UnavailableError: Certainly not committed: not sent within the time, the queue is full, or the log
                has ended.
            TransactionClosedError: Certainly not committed: :meth:`call_off` was in time.
            CommitUnknownError: Sent, and the outcome is not known yet. It is found out in the background:
                repeat the call, or search with :meth:`find`.
        """
        if self._engine.follower is None:
            raise UnavailableError(
                "the log is not running on this replica; try another one", tid=proposal.tid
            )
        loop = asyncio.get_running_loop()
        caller: asyncio.Future[CommitDecision] = loop.create_future()
        callers = self._callers.setdefault(proposal.tid, set())
        callers.add(caller)
        deadline = DeadlinePassed(proposal.tid)
        timer = loop.call_later(timeout_s, self._engine.tell, deadline)
        try:
            self._engine.propose(proposal)
            decision = await caller
        except asyncio.CancelledError:
            if len(callers) == 1:
                self._engine.tell(deadline)
            raise
        finally:
            timer.cancel()
            callers.discard(caller)
            if not callers and self._callers.get(proposal.tid) is callers:
                del self._callers[proposal.tid]
        if isinstance(decision, Committed):
            return decision
        raise to_error(proposal, decision)

    def call_off(self, tid: Tid) -> None:
        """Keep a transaction out of the log if it can still be helped; callers of commit() hear the truth."""
        self._engine.tell(CallOff(str(tid)))

    async def decided(self, tid: Tid) -> Committed | None:
        """Return the commit of a transaction that was just proposed, or None, once that is certain.

        Raises:
            CommitUnknownError: The log has ended on this replica before it was decided.
        """
        pending = self._engine.committer.pending
        while pending.decides(str(tid)) and not self._engine.broken:
            caller: asyncio.Future[CommitDecision] = asyncio.get_running_loop().create_future()
            self._callers.setdefault(str(tid), set()).add(caller)
            await caller
        if self._engine.broken or str(tid) in pending.abandoned:
            raise CommitUnknownError(
                f"tid {tid}: the log has ended on this replica before it was decided; ask outcome()",
                tid=str(tid),
            )
        csn = pending.remembered.get(str(tid))
        return None if csn is None else Committed(csn)

    def _answered(self, tid: str, decision: CommitDecision) -> None:
        for caller in self._callers.pop(tid, set()):
            if not caller.done():
                caller.set_result(decision)

    def tick(self) -> None:
        """Write a record without transactions soon, so that the log's time goes on; nobody is told of it."""
        self._engine.tell(TickWanted())

    # ----------------------------------------------------------------------------------------- writes

    async def fenced(self, ops: tuple[Op, ...]) -> Ok[tuple[object, ...]] | Refused | Unknown:
        """Apply a multi under the own fence; results and the index of a refusal do not count the fence check.

        After an Unknown the call may take until the connection is back: use a timeout where that matters.

        When this returns Unknown the fence has been raised, so the multi cannot be applied later: a read then
        shows what happened. (Or the log has ended on this replica, see ``state``; then another replica has to
        find out.)

        Raises:
            FencedError: Another replica has raised the fence; nothing was applied.
        """
        while True:
            self._engine.link_changed()
            self._refuse_if_fenced()
            if not await self._proven():
                return Refused(Reason.NOT_CONNECTED)
            used = self.fence
            begun_s = self._clocks.begun()
            result = await self._store.multi((Check(tree.session(self._own.replica), used), *ops))
            match result:
                case Ok(value=(_, *values)):
                    self._clocks.answered(result.value, begun_s)
                    return Ok(tuple(values))
                case Refused(reason=Reason.BAD_VERSION, index=0):
                    # Our own raise or another replica's came between: find out which.
                    self._engine.tell(FenceDoubted(used))
                    await self._fence_above(used)
                case Refused(reason=Reason.NO_NODE, index=0):
                    self._engine.stop(
                        "expected the own session znode, found none; check whether ZooKeeper was restored"
                    )
                    return Refused(Reason.NO_NODE)
                case Refused(reason, index):
                    return Refused(reason, max(index - 1, 0))
                case _:
                    self._engine.tell(FenceWanted(used))
                    # If the log ends meanwhile, no raise is possible, and the correct answer is still
                    # "unknown".
                    with contextlib.suppress(FencedError, UnavailableError):
                        await self._fence_above(used)
                    return Unknown("the fenced multi ended unknown; it can land no later")

    async def _fence_above(self, used: int) -> None:
        """Wait until the own fence is above ``used``; FencedError or UnavailableError if it never will be."""
        while True:
            self._refuse_if_fenced()
            if self.fence > used:
                return
            if self._engine.stopped or self._engine.closed:
                raise UnavailableError(
                    f"the log has ended on this replica: {self._engine.stopped or 'closed'}"
                )
            await self._next_change()

    async def barrier(self) -> Csn:
        """Return the largest CSN that exists: no commit that was acknowledged before the call is above it.

        This is a fenced write, then a read of the log to its end in the same session: a read alone may be
        stale, even after sync() (Z7).

        Raises:
            FencedError: Another replica has raised the fence.
            UnavailableError: Not connected, or the session changed again and again.
        """
        async for session in self._sessions():
            result = await self.fenced(())
            if isinstance(result, Refused):
                raise UnavailableError(f"ZooKeeper refused a barrier: {result.reason.value}; try again")
            if isinstance(result, Ok) and self._store.session == session:
                records = await self._engine.read_to_end(session)
                if records is not None:
                    return max([self.end, *(one.csn for one in records[-1:])])
        raise UnavailableError("the session to ZooKeeper changed repeatedly during a barrier; try again")

    async def head(self, *, patience_s: float = 0.0) -> tuple[int, Csn]:
        """Return the version of ``csn/head``, and the largest CSN of the log as read after that.

        Both may be old; then a multi that checks the version is refused. No CSN that existed when the version
        was read is above the returned CSN.

        Args:
            patience_s: Longest wait for a connection that was lost; :class:`LogLimits` has another bound.

        Raises:
            FencedError: Another replica has raised the own fence.
            UnavailableError: Not connected, or the session changed again and again.
        """
        return await self._version_and_end(tree.HEAD, patience_s)

    async def tables(self, *, patience_s: float = 0.0) -> tuple[int, Csn]:
        """Return the version of ``tables``, which every definition raises, as :meth:`head` does."""
        return await self._version_and_end(tree.TABLES, patience_s)

    async def tags(self) -> tuple[int, Csn]:
        """Return the version of ``tags``, which every change of tags raises, as :meth:`head` does."""
        return await self._version_and_end(tree.TAGS)

    async def _version_and_end(self, path: str, patience_s: float = 0.0) -> tuple[int, Csn]:
        async for session in self._sessions(patience_s):
            node = await self._store.get(path)
            if not isinstance(node, Ok) or self._store.session != session:
                continue
            records = await self._engine.read_to_end(session)
            if records is not None:
                return node.value.version, max([self.end, *(one.csn for one in records[-1:])])
        raise UnavailableError("ZooKeeper could not be read; try again")

    async def fence_out(self, replica: ReplicaId, boot: int, *, gone: bool = False) -> int | None:
        """Fence a boot of another replica that gives no sign of life: raise its boot and its fence.

        After that nothing of that boot can be committed any more, so a read of the log decides all of its
        transactions. The caller must know that the replica has been silent for long enough; this method only
        checks its sign of life in ZooKeeper, since the replica may just have returned.

        Args:
            replica: The replica.
            boot: The boot to end.
            gone: The process of this boot is known to be gone. Its sign of life in ZooKeeper, which stays for
                the time of its session, does not count.

        Returns:
            The data version that this call has written to the replica's session znode, which is its fence
            now. Until the fence is raised again, a multi that deletes the replica's locks checks this
            version. None when another replica, or its own next start, was first, when it shows a sign of
            life, or when ZooKeeper gave no answer: ask for the outcome again.

        Raises:
            FencedError: Another replica has raised the own fence.
            UnavailableError: Not connected.
        """
        await self._connected_session()
        node = await self._store.get(tree.session(replica))
        alive = await self._store.exists(tree.alive(replica))
        if not isinstance(node, Ok) or not isinstance(alive, Ok) or (alive.value is not None and not gone):
            return None
        change = seize(tree.session(replica), node.value, boot, secrets.token_hex(NONCE_BYTES))
        if change is None:
            return None
        match await self.fenced((change,)):
            case Ok(value=(Written(version=version),)):
                return version
        return None

    # ------------------------------------------------------------------------------------------ reads

    async def find(self, tid: Tid, *, newest: bool = False) -> LogReading:
        """Search ZooKeeper for a transaction of any replica.

        The session znode of its home is read first, then the log to its end in the same session. That order
        matters (F2): a home that is fenced between two reads in the other order may have committed in
        between. The caller has to search the records that ``deliver`` has accepted.

        Args:
            tid: The transaction.
            newest: The read includes every write that was acknowledged before the call. It costs a write.

        Raises:
            FencedError: Another replica has raised the own fence.
            UnavailableError: Not connected, or the session changed again and again.
        """
        async for session in self._sessions():
            if newest and not isinstance(await self.fenced(()), Ok):
                continue
            node = await self._store.get(tree.session(tid.home))
            if isinstance(node, Unknown) or (isinstance(node, Refused) and node.reason is not Reason.NO_NODE):
                continue
            if self._store.session != session:
                continue
            records = await self._engine.read_to_end(session)
            if records is None:
                continue
            boot = codec.decode_session(node.value.data).boot if isinstance(node, Ok) else None
            end = max([self.end, *(one.csn for one in records[-1:])])
            return LogReading(boot, self._commit_in_records(str(tid), records), end)
        raise UnavailableError("ZooKeeper could not be read; try again", tid=str(tid))

    def _commit_in_records(self, tid: str, records: tuple[LogRecord, ...]) -> Committed | None:
        """Search records that the catalog may not have for a tid: just read, taken, or being delivered."""
        follower = self._engine.follower
        taken = follower.ready if follower is not None else ()
        for one in (*records, *taken, *self._engine.delivering):
            if any(entry.tid == tid for entry in one.record.tids):
                return Committed(one.csn)
        return None

    async def label(self, name: str, *, newest: bool = False, patience_s: float = 0.0) -> LabelRead:
        """Read a label. The read decides nothing for a commit: the multi checks the versions that were read.

        Args:
            name: The label.
            newest: The read includes every commit that was acknowledged before the call.
            patience_s: As for :meth:`head`.

        Raises:
            FencedError: Another replica has raised the own fence.
            UnavailableError: Not connected, or the session changed again and again.
            CorruptError, UpgradeNeededError: The znode cannot be read.
        """
        async for session in self._sessions(patience_s):
            if newest and not isinstance(await self.fenced(()), Ok):
                continue
            parent = await self._store.get(tree.LABELS)
            node = await self._store.get(tree.label(name))
            if not isinstance(parent, Ok) or self._store.session != session:
                continue
            if isinstance(node, Ok):
                state = codec.decode_label(node.value.data)
                return LabelRead(state, node.value.version, parent.value.version)
            if isinstance(node, Refused) and node.reason is Reason.NO_NODE:
                return LabelRead(None)
        raise UnavailableError("ZooKeeper could not be read; try again", label=name)

    async def records(self, after: Csn, limit: int) -> list[LogRecord]:
        """Return at most ``limit`` records after a CSN from ZooKeeper, as far as they are kept there.

        Raises:
            UnavailableError: Not connected.
            CorruptError: A record cannot be read.
        """
        await self._connected_session()
        return await read_page(
            self._store, after, limit, read_ahead=self._limits.read_ahead, skips=self._own.skips
        )

    # ----------------------------------------------------------------------------------------- changes

    def _is_fenced(self) -> bool:
        committer = self._engine.committer
        return committer.final is not None and committer.final.cause is Cause.FENCED

    def _refuse_if_fenced(self) -> None:
        if self._engine.committer.fenced:
            raise FencedError(
                f"replica {self._own.replica} was fenced by another; its open transactions are aborted: "
                "begin again",
                replica=self._own.replica,
            )

    def _sessions(self, patience_s: float = 0.0) -> _Sessions:
        """Return the sessions of an operation whose steps must be of one session, one for each attempt."""
        until_s = asyncio.get_running_loop().time() + min(patience_s, self._limits.patience_s)
        return _Sessions(lambda: self._connected_session(until_s), self._limits.retry_s)

    async def _connected_session(self, until_s: float = 0.0) -> int:
        """Return the present session; one that was lost may come back until then, in the time of the loop.

        Raises:
            FencedError: Another replica has raised the fence.
            UnavailableError: There is no connection, or the log has ended.
        """
        while True:
            self._require_running()
            session = self._store.session
            if self._store.link is LinkState.CONNECTED and await self._proven():
                return session
            self._require_running()
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise UnavailableError(
                    "this replica has no connection to ZooKeeper; try again or another replica"
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._next_change()

    def _require_running(self) -> None:
        self._refuse_if_fenced()
        if self._engine.stopped:
            raise UnavailableError(f"the log has ended on this replica: {self._engine.stopped}")
        if self._engine.follower is None or self._engine.closed:
            raise UnavailableError("the log is not running on this replica; try another one")

    async def _proven(self) -> bool:
        """Wait until ZooKeeper has shown the history that was taken; return False where it cannot now.

        Before that nothing is written: a ZooKeeper that was set back has the same versions for other things.
        """
        engine = self._engine
        while engine.follower is not None and not engine.proven:
            if engine.stopped or engine.closed or self._store.link is not LinkState.CONNECTED:
                return False
            await self._next_change()
        return True

    async def _next_change(self) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(change)
        try:
            await change
        finally:
            self._waiting.discard(change)

    def _changed(self) -> None:
        if self._engine.broken:
            for tid in list(self._callers):
                self._answered(tid, Undecided())
        self._wake()
        if self.fence > self._saved_fence:
            self._saved_fence = self.fence
            self._on_fence(self.fence)
        state = self.state
        if state is not self._notified:
            self._notified = state
            self._on_state(state, self.reason)

    def _wake(self) -> None:
        for change in self._waiting:
            if not change.done():
                change.set_result(None)


class _Sessions:
    """The sessions of one operation, until it returns or all attempts are used up.

    Args:
        connected: Returns the present session, or raises.
        retry_s: Pause before each attempt but the first one.
    """

    def __init__(self, connected: Callable[[], Awaitable[int]], retry_s: float) -> None:
        self._connected, self._retry_s = connected, retry_s
        self._attempts = 0

    def __aiter__(self) -> _Sessions:
        return self

    async def __anext__(self) -> int:
        if self._attempts == _ATTEMPTS:
            raise StopAsyncIteration
        if self._attempts:
            await asyncio.sleep(self._retry_s)
        self._attempts += 1
        return await self._connected()
