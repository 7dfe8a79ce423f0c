"""The making of removal locks: locks of parts with an intention mark, then a look; wide ones after a look.

Only the order of reads and writes keeps two transactions from locking the same scope; see
:mod:`tidelock.replication.core.lock_rules`.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import Csn, TableId, Tid
from tidelock.csnlog.core.results import Ok, Outcome, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Check, Create, Node, Op, SetData
from tidelock.errors import TooLargeError, UnavailableError
from tidelock.replication.core.lock_book import Book, OwnLock
from tidelock.replication.core.lock_rules import (
    KeyRange,
    LockAsk,
    LockHolderState,
    LockInfo,
    LockLimits,
    OnePart,
    Scope,
    batches,
    create_op,
    holder_state,
    overlap,
    read_lock,
    wanted,
)
from tidelock.replication.locks.requests import RETRY_S, ROUNDS, LockCall, LockStore
from tidelock.replication.locks.sweeper import LockSweeper


class InTheWayError(Exception):
    """A lock of another transaction overlaps the request; ``csn`` of a committed holder, else CSN_NONE."""

    def __init__(self, lock: LockInfo, state: LockHolderState, csn: Csn) -> None:
        super().__init__()
        self.lock, self.state, self.csn = lock, state, csn


class _New(msgspec.Struct, frozen=True):
    """A lock that is to be made, and its operation."""

    lock: OwnLock
    op: Create


@dataclass(slots=True, kw_only=True, eq=False)
class LockTaker:
    """Takes all locks of a request, or none; :class:`~.removal_locks.Locks` describes the arguments."""

    zookeeper: LockStore
    book: Book
    sweeper: LockSweeper
    outcome: Callable[[Tid], Awaitable[Outcome]]
    limits: LockLimits
    _gates: weakref.WeakValueDictionary[TableId, asyncio.Lock] = field(
        default_factory=weakref.WeakValueDictionary, init=False
    )

    async def take(self, tid: Tid, ask: LockAsk, at: Csn, *, merge: bool) -> None:
        """Lock all of ``ask``, or nothing; raises InTheWayError, or errors as :meth:`~.locks.Locks.take`."""
        held = [lock for lock in self.book.held(tid) if lock.certain]
        here = f"{tree.lock_dir(ask.table)}/"  # partitions of other tables may have the same names
        parts, wide = wanted(ask, [lock.scope for lock in held if lock.znode.startswith(here)])
        count = len(held) + len(parts) + len(wide)
        if count > self.limits.locks_max:
            raise TooLargeError(
                f"{tid} needs {count} locks, the limit is locks_max={self.limits.locks_max}: remove fewer "
                "parts, or whole partitions (which take one lock each)",
                limit=self.limits.locks_max,
                found=count,
            )
        call = self.zookeeper.call(self.limits.connect_wait_s)
        try:
            for scope in wide:
                await self._lock_wide(call, _new(ask.table, scope, tid, merge=merge), ask.table, at)
            if parts:
                new = [_new(ask.table, scope, tid, merge=merge) for scope in parts]
                await self._lock_parts(call, new, ask.table, at)
        except asyncio.CancelledError:
            self.book.leave(call.made.values())
            raise
        except Exception:
            self.book.leave(call.made.values())
            await self.sweeper.give_back(call.made)
            raise

    async def _lock_parts(self, call: LockCall, new: list[_New], table: TableId, at: Csn) -> None:
        """Make the locks, each multi with the intention mark; when all exist, look at the wide locks."""
        node = await self.zookeeper.read(call, lambda: self.zookeeper.store.exists(tree.lock_dir(table)))
        self._require_room(table, (node.children if node is not None else 0) + len(new))
        mark, by_path = SetData(tree.lock_dir(table)), {one.op.path: one for one in new}
        for batch in batches([one.op for one in new], self.limits.multi_bytes_max):
            made = await self._create(call, (mark,), [by_path[op.path] for op in batch], table, at)
            assert made, "a write at any version was refused for its version"
        tid = new[0].lock.tid
        # One part of each partition stands for all: only their paths matter to wide locks.
        samples = {one.lock.scope.path: one.lock.scope for one in new if isinstance(one.lock.scope, OnePart)}
        for _ in range(ROUNDS):
            above = [
                lock
                for lock in await self.zookeeper.fresh_wide_locks(call, table)
                if lock.tid != tid and any(overlap(lock.scope, part) for part in samples.values())
            ]
            if not await self._has_evicted(above, at):
                return
        raise _busy(table)

    async def _lock_wide(self, call: LockCall, new: _New, table: TableId, at: Csn) -> None:
        """Make a wide lock while nothing changes that was read before."""
        async with self._gates.setdefault(table, asyncio.Lock()):
            for _ in range(ROUNDS):
                await self.zookeeper.connected(call)
                state = await self._read_conflicts(call, table, new.lock.scope)
                if state is None:
                    continue
                versions, count, locks = state
                self._require_room(table, count + 1)
                if await self._has_evicted([lock for lock in locks if lock.tid != new.lock.tid], at):
                    continue
                if await self._create(call, versions, [new], table, at):
                    return
        raise _busy(table)

    async def _read_conflicts(
        self, call: LockCall, table: TableId, scope: Scope
    ) -> tuple[tuple[Op, ...], int, list[LockInfo]] | None:
        """Read what a lock of a wide scope depends on: versions first, then the locks; None = look again.

        Returns:
            The operations that hold only while these versions have not changed, the number of locks of the
            table, and the locks that overlap.
        """
        store, directory, above = self.zookeeper.store, tree.lock_dir(table), tree.wide_dir(table)
        session = store.session
        intention = await store.exists(directory)
        below = await store.children(directory)
        wide = await store.exists(above)
        names = await store.children(above)
        if intention == Ok(None):
            await self.zookeeper.make_directories(call, table)
        match intention, below, wide, names:
            case Ok(Node() as marks), Ok(children), Ok(Node() as changes), Ok(state):
                pass
            case _:
                return None
        locks = [
            lock for lock in await self.zookeeper.wide_locks(call, table, state) if overlap(lock.scope, scope)
        ]
        if not isinstance(scope, KeyRange):
            locks += await self.zookeeper.part_locks(call, table, children, scope)
        if store.session != session:
            return None
        intact = () if isinstance(scope, KeyRange) else (Check(directory, marks.version),)
        change = SetData(above, version=changes.version)
        return (*intact, change), len(children) + len(state), locks

    async def _create(
        self, call: LockCall, first: tuple[Op, ...], batch: list[_New], table: TableId, at: Csn
    ) -> bool:
        """Make locks with one multi after other operations; False when a version in those has changed."""
        for _ in range(ROUNDS):
            if not batch:
                return True
            await self.zookeeper.connected(call)
            locks = [one.lock for one in batch]
            self.book.sends(locks)
            call.made |= {lock.znode: lock for lock in locks}
            result = await self.zookeeper.send(call, (*first, *(one.op for one in batch)))
            if isinstance(result, Ok) or (
                isinstance(result, Unknown) and await self.zookeeper.stands(call, locks[0])
            ):
                self.book.stand(locks)
                return True
            self.book.forget(locks)
            for lock in locks:
                del call.made[lock.znode]
            match result:
                case Refused(Reason.NODE_EXISTS, index):
                    taken = batch[index - len(first)]
                    if await self._is_ours(call, taken, table, at):
                        batch = [one for one in batch if one is not taken]
                case Refused(Reason.BAD_VERSION):
                    return False
                case Refused(Reason.NO_NODE):
                    await self.zookeeper.make_directories(call, table)
                case Refused(Reason.TOO_LARGE):
                    raise TooLargeError(
                        f"a lock of table {table} does not fit a request of at most "
                        f"multi_bytes_max={self.limits.multi_bytes_max}: lock a wider range",
                        limit=self.limits.multi_bytes_max,
                    )
                case Refused(Reason.DENIED):
                    raise UnavailableError("ZooKeeper denies this replica to write locks")
        raise _busy(table)

    async def _is_ours(self, call: LockCall, new: _New, table: TableId, at: Csn) -> bool:
        """Return whether this transaction holds an existing lock; False = the lock was deleted: try again."""
        node = await self.zookeeper.read(call, lambda: self.zookeeper.store.get(new.lock.znode), fresh=True)
        if node is None:
            return False
        lock = read_lock(table, new.lock.znode, node.data)
        if lock.tid != new.lock.tid:
            await self._evict(lock, *holder_state(await self.outcome(lock.tid), at))
            return False
        if self.book.reclaim(lock.tid, lock.znode):
            call.made[lock.znode] = new.lock
            return True
        await self.zookeeper.pause(RETRY_S)  # another call is just making it, or it is just being deleted
        return any(one.certain and one.znode == lock.znode for one in self.book.held(lock.tid))

    async def _has_evicted(self, locks: list[LockInfo], at: Csn) -> bool:
        """Return whether some of these overlapping locks were deleted; False = no lock is in the way.

        Raises:
            InTheWayError: A lock is in the way.
        """
        seen: set[Tid] = set()
        for lock in locks:
            if lock.tid in seen:
                continue
            state, csn = holder_state(await self.outcome(lock.tid), at)
            if state is not LockHolderState.VISIBLE:
                await self._evict(lock, state, csn)
                return True
            seen.add(lock.tid)
        return False

    async def _evict(self, lock: LockInfo, state: LockHolderState, csn: Csn) -> None:
        """Delete a lock whose holder has ended; raise InTheWayError if it is not to be deleted."""
        undecided = state in {LockHolderState.LIVE, LockHolderState.DEAD}
        if not undecided or not await self.sweeper.evict(lock):
            raise InTheWayError(lock, state, csn)

    def _require_room(self, table: TableId, count: int) -> None:
        if count > self.limits.table_locks_max:
            raise TooLargeError(
                f"table {table} would have {count} locks, the limit is "
                f"table_locks_max={self.limits.table_locks_max}: wait until all replicas have applied what "
                "was removed, or remove whole partitions (which take one lock each)",
                limit=self.limits.table_locks_max,
                found=count,
                table=table,
            )


def _new(table: TableId, scope: Scope, tid: Tid, *, merge: bool) -> _New:
    op = create_op(table, scope, tid, merge=merge)
    return _New(OwnLock(op.path, tid, scope), op)


def _busy(table: TableId) -> UnavailableError:
    return UnavailableError(f"table {table} changes its locks all the time; try again", table=table)
