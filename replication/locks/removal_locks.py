"""The removal locks of a replica in ZooKeeper: taken and released (rule removals).

The rules are in :mod:`tidelock.replication.core.lock_rules`, the locks that this replica holds in
:mod:`tidelock.replication.core.lock_book`. The promises are:

* Of two transactions whose scopes overlap at most one gets its locks: the first locker. The other gets a
  conflict at once. Both may be refused only if a third one is in the way of one of them.
* A lock is deleted only under the session version of its holder's replica: by this replica under its own
  fence, or under the version that it has just written itself into the session znode of a silent replica
  (F5). The lock of a committed removal stays until the tail has passed its CSN.
* Whatever happens to a request, its answer or its caller: a lock of this boot is in the book until it is
  known to be deleted, and :meth:`Locks.sweep` deletes it if nothing did before.

The locks do not promise that no part was removed: a lock is taken first, then the catalog is asked for
removals above the statement's CSN. A lock may be taken whose former holder's removal the tail has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.results import Outcome
from tidelock.csnlog.core.store import Op, Store
from tidelock.errors import TransactionClosedError
from tidelock.replication.core.lock_book import Book
from tidelock.replication.core.lock_rules import LockAsk, LockInfo, LockLimits, conflict, worth_waiting
from tidelock.replication.locks.requests import RETRY_S, LockStore, MultiResult
from tidelock.replication.locks.sweeper import LockSweeper
from tidelock.replication.locks.taker import InTheWayError, LockTaker


class Locks:
    """The removal locks of one replica in one boot; belongs to one event loop.

    Args:
        replica: The own id.
        boot: The own boot.
        store: The replica's session to ZooKeeper, for reads.
        fenced: Sends a multi under the own fence: :meth:`tidelock.csnlog.log.CsnLog.fenced`.
        outcome: Returns the outcome of a transaction, by the own session's knowledge of its living ones, the
            log and the catalog. It must not call a tid aborted that may still commit. It may raise
            UnavailableError.
        fence_home: Fences the present boot of a replica that has been silent for long, or is gone, and
            returns the data version that this very call has written to its session znode; None if it did not.
            Its second argument is the boot of a transaction of that replica.
        silent: The replicas that ``fence_home`` would fence since they have been silent for long.
        clock: Monotonic seconds.
        limits: The bounds.
        pause: Waits for so many seconds.
        book: The locks that are held already; for callers that run the methods again from their beginning.
    """

    def __init__(
        self,
        *,
        replica: ReplicaId,
        boot: int,
        store: Store,
        fenced: Callable[[tuple[Op, ...]], Awaitable[MultiResult]],
        outcome: Callable[[Tid], Awaitable[Outcome]],
        fence_home: Callable[[ReplicaId, int], Awaitable[int | None]],
        silent: Callable[[], Collection[ReplicaId]],
        clock: Callable[[], float],
        limits: LockLimits,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        book: Book | None = None,
    ) -> None:
        self._book = book if book is not None else Book()
        self._clock, self._limits = clock, limits
        self._zookeeper = LockStore(store=store, fenced=fenced, clock=clock, pause=pause)
        self._sweeper = LockSweeper(
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
            sweeper=self._sweeper,
            outcome=outcome,
            limits=limits,
        )
        #: The number of calls of take() that run for each transaction, and the transactions released
        #: meanwhile.
        self._taking: dict[Tid, int] = {}
        self._ended: set[Tid] = set()

    @property
    def held(self) -> int:
        """The number of locks of this replica, including committed removals and locks to be deleted."""
        return len(self._book)

    async def take(
        self, tid: Tid, ask: LockAsk, *, at: Csn, merge: bool = False, wait_s: float = 0.0
    ) -> None:
        """Lock parts, or more than parts, for a transaction of this home; its earlier locks stay held.

        When this returns, no other transaction that overlaps is undecided, and none is committed above ``at``
        as far as locks show: **then ask the catalog** for removals (for ranges of keys: for any change) above
        ``at``, since locks are deleted when the tail has passed. When it raises, all locks that *this call*
        has taken are released; the locks of earlier calls stay until :meth:`release`.

        Args:
            tid: The transaction.
            ask: What to lock; see :class:`~tidelock.replication.core.lock_rules.LockAsk`.
            at: The CSN that the statement reads at. A holder that is committed up to there is in no one's
                way.
            merge: The caller is a compaction: it never waits, and others wait for it.
            wait_s: How long to wait for other transactions. A user's statement waits for a compaction at
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
                        met.state,
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
        """Release everything that a transaction holds which is not committed, and never will be.

        Never raises: :meth:`sweep` deletes the locks that ZooKeeper does not delete now. A :meth:`take` that
        still runs for the transaction releases what it gets.
        """
        if tid in self._taking:
            self._ended.add(tid)
        await self._release(tid, others=self._taking.get(tid, 0))

    def committed(self, tid: Tid, csn: Csn) -> None:
        """Keep the locks of a transaction that is committed until the tail has passed its CSN."""
        self._book.commit(tid, csn)

    async def sweep(self, tail: Csn) -> None:
        """Delete locks that are no longer needed: a background task, also run at a start. Never raises.

        These are locks that could not be released; locks of this replica's former boots that were never
        committed; locks of removals that are committed below ``tail`` (csn/tail, as read from ZooKeeper:
        every replica that can commit has applied them); from time to time the same for replicas that have
        long been silent.
        """
        await self._sweeper.sweep(tail)

    async def locked_parts(self, table: TableId) -> frozenset[PartId]:
        """Return the parts of a table that were locked a moment ago: no promise, just a hint.

        Raises:
            UnavailableError: There is no connection to ZooKeeper now.
        """
        return await self._zookeeper.locked_parts(self._zookeeper.call(0.0), table)

    async def listed(self) -> list[LockInfo]:
        """Return all locks of the cluster, by table and name. An unreadable lock is left out, and logged.

        Raises:
            UnavailableError: ZooKeeper could not be read.
        """
        return await self._zookeeper.scan(self._zookeeper.call(self._limits.connect_wait_s))

    async def _release(self, tid: Tid, *, others: int) -> None:
        """Release the locks of a transaction, while ``others`` (other) calls of take() run for it.

        Those calls release the locks that they have under way: no other task may delete what is not certain.
        """
        self._book.leave([lock for lock in self._book.held(tid) if lock.certain or not others])
        await self._sweeper.give_back()
