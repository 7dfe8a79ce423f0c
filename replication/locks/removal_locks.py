"""Takes removal locks in ZooKeeper and gives them back (rule removals).

The rules are in :mod:`tidelock.replication.core.lock_rules`, what this replica holds in
:mod:`tidelock.replication.core.lock_book`. What is promised:

* Of two transactions whose scopes overlap at most one gets its locks: the first locker. The other hears of a
  conflict at once. Both may only be refused where a third one stands in the way of one of them.
* A lock is deleted only under the session version of its holder's replica: by this replica under its own
  fence, or under the version that it has just written itself into the session znode of a silent replica
  (F5). The lock of a committed removal stays until the tail has passed its CSN.
* Whatever becomes of a request, its answer or its caller: a lock of this life stands in the book until it is
  known to be gone, and goes with :meth:`Locks.sweep` if not before.

What is not promised is that no part was removed: a lock is taken first, then the catalog is asked for
removals above the statement's CSN. A lock may be taken whose former holder's removal the tail has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableName, Tid
from tidelock.csnlog.core.results import Outcome
from tidelock.csnlog.core.store import Op, Store
from tidelock.errors import TransactionClosedError
from tidelock.replication.core.lock_book import Book
from tidelock.replication.core.lock_rules import LockAsk, LockInfo, LockLimits, conflict, worth_waiting
from tidelock.replication.locks.requests import RETRY_S, LockStore, MultiResult
from tidelock.replication.locks.sweeper import LockSweeper
from tidelock.replication.locks.taker import InTheWayError, LockTaker


class Locks:
    """The removal locks of one replica in one life; lives in one event loop.

    Args:
        replica: The own id.
        boot: The own life.
        store: The replica's session to ZooKeeper, for reads.
        fenced: Sends a multi under the own fence: :meth:`tidelock.csnlog.log.CsnLog.fenced`.
        outcome: Says what became of a transaction: the own session's word on its living ones, the log, the
            catalog. It must not call a tid aborted that may still commit. It may raise UnavailableError.
        fence_home: Fences the present life of a replica that has been silent for long, and returns the data
            version that this very call has written to its session znode; None if it did not.
        silent: The replicas that ``fence_home`` would fence.
        clock: Monotonic seconds.
        limits: The bounds.
        pause: Waits for so many seconds.
        book: What is held already; for those who run the methods again from their beginning.
    """

    def __init__(
        self,
        *,
        replica: ReplicaId,
        boot: int,
        store: Store,
        fenced: Callable[[tuple[Op, ...]], Awaitable[MultiResult]],
        outcome: Callable[[Tid], Awaitable[Outcome]],
        fence_home: Callable[[ReplicaId], Awaitable[int | None]],
        silent: Callable[[], Collection[ReplicaId]],
        clock: Callable[[], float],
        limits: LockLimits,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        book: Book | None = None,
    ) -> None:
        self._book = book if book is not None else Book()
        self._clock, self._limits = clock, limits
        self._zookeeper = LockStore(store, fenced, clock, pause)
        self._janitor = LockSweeper(
            replica=replica,
            boot=boot,
            zookeeper=self._zookeeper,
            book=self._book,
            outcome=outcome,
            fence_home=fence_home,
            silent=silent,
            clock=clock,
            limits=limits,
        )
        self._taker = LockTaker(
            zookeeper=self._zookeeper,
            book=self._book,
            janitor=self._janitor,
            outcome=outcome,
            limits=limits,
        )
        #: How many calls of take() run for a transaction, and those that were given back meanwhile.
        self._taking: dict[Tid, int] = {}
        self._ended: set[Tid] = set()

    @property
    def held(self) -> int:
        """How many locks this replica holds, those of committed removals and those about to go included."""
        return len(self._book)

    async def take(
        self, tid: Tid, ask: LockAsk, *, at: Csn, merge: bool = False, wait_s: float = 0.0
    ) -> None:
        """Lock parts, or more than parts, for a transaction of this home; what it holds already stays held.

        When this returns no other transaction that overlaps is undecided, and none is committed above ``at``
        as far as locks tell: **then ask the catalog** for removals (for ranges of keys: for any change) above
        ``at``, since locks go when the tail has passed. When it raises, all that *this call* has taken is
        given back; what earlier calls have taken stays until :meth:`release`.

        Args:
            tid: The transaction.
            ask: What to lock; see :class:`~tidelock.replication.core.lock_rules.LockAsk`.
            at: The CSN that the statement reads at. Who is committed up to there is in nobody's way.
            merge: It is a compaction: it never waits, and others wait for it.
            wait_s: How long to wait for other transactions. For a compaction a user's statement waits at
                least ``compaction_lock_wait_s`` whatever this is.

        Raises:
            SerializationConflictError: Another transaction holds a lock that overlaps (``table``, ``holder``
                and ``part``, ``partition`` or ``keys``), or is committed above ``at`` (then with its
                ``csn``). ``merge`` says whether it is a compaction: if that is committed, the same rows are
                in other parts above ``csn``.
            TooLargeError: More locks than ``locks_max`` for the transaction or ``table_locks_max`` for the
                table.
            TransactionClosedError: :meth:`release` was called meanwhile.
            FencedError: Another replica has raised the fence of this one; no lock may be assumed held.
            UnavailableError: No connection to ZooKeeper, or the table is locked and unlocked all the time.
            CorruptError: A lock that may be in the way cannot be read.
        """
        begun = self._clock()
        self._taking[tid] = self._taking.get(tid, 0) + 1
        try:
            while True:
                try:
                    await self._taker.take(tid, ask, at, merge=merge)
                    break
                except InTheWayError as met:
                    waits = worth_waiting(
                        met.lock,
                        met.found,
                        merge=merge,
                        waited_s=self._clock() - begun,
                        wait_s=wait_s,
                        merge_wait_s=self._limits.compaction_lock_wait_s,
                    )
                    if not waits or tid in self._ended:
                        raise conflict(met.lock, tid, csn=met.csn) from None
                await self._zookeeper.pause(RETRY_S)
            if tid in self._ended:
                await self._release(tid, others=self._taking[tid] - 1)
                raise TransactionClosedError(
                    f"transaction {tid} was ended while it waited for locks", tid=str(tid)
                )
        finally:
            self._taking[tid] -= 1
            if not self._taking[tid]:
                del self._taking[tid]
                self._ended.discard(tid)

    async def release(self, tid: Tid) -> None:
        """Give back everything that a transaction holds which is not committed, and never will be.

        Never raises: what ZooKeeper does not take now goes with :meth:`sweep`. A :meth:`take` that still runs
        for it gives back what it gets.
        """
        if tid in self._taking:
            self._ended.add(tid)
        await self._release(tid, others=self._taking.get(tid, 0))

    def committed(self, tid: Tid, csn: Csn) -> None:
        """Keep the locks of a transaction that is committed until the tail has passed its CSN."""
        self._book.commit(tid, csn)

    async def sweep(self, tail: Csn) -> None:
        """Delete what nobody needs any more: a chore, and the first thing after a start. Never raises.

        Locks that could not be given back; those of this replica's former lives that were never committed;
        those of removals that are committed below ``tail`` (csn/tail, as read from ZooKeeper: every replica
        that can commit has applied them); from time to time the same for replicas that have long been silent.
        """
        await self._janitor.sweep(tail)

    async def locked_parts(self, table: TableName) -> frozenset[PartId]:
        """Return the parts of a table that somebody has locked, a moment ago: no promise, just a hint.

        Raises:
            UnavailableError: There is no connection to ZooKeeper now.
        """
        return await self._zookeeper.locked_parts(self._zookeeper.call(0.0), table)

    async def listed(self) -> list[LockInfo]:
        """Return all locks of the cluster, by table and name. What cannot be read is left out, and logged.

        Raises:
            UnavailableError: ZooKeeper could not be read.
        """
        return await self._zookeeper.scan(self._zookeeper.call(self._limits.connect_wait_s))

    async def _release(self, tid: Tid, *, others: int) -> None:
        """Give back what a transaction holds, while so many (other) calls of take() run for it.

        What is under way for those is for them to give back: nobody else may delete what is not certain.
        """
        self._book.leave([lock for lock in self._book.held(tid) if lock.certain or not others])
        await self._janitor.give_back()
