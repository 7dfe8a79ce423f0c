"""The deletion of removal locks: the own ones, and those of other replicas that have ended for good.

A lock is deleted only in a multi that checks the session version of its holder's replica (F5): the own fence
for the own locks, those of former boots included; for other replicas' locks the version that this replica has
just written itself into the session znode of a replica that has long been silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog
from msgspec.structs import replace

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, TableId, Tid
from tidelock.csnlog.core.results import Ok, Outcome, Reason, Refused
from tidelock.csnlog.core.store import Check, Delete, Op
from tidelock.errors import FencedError, TidelockError, UnavailableError, UnknownTransactionError
from tidelock.replication.core.lock_book import Book, OwnLock
from tidelock.replication.core.lock_rules import (
    LockHolderState,
    LockInfo,
    LockLimits,
    batches,
    holder_state,
    may_go,
)
from tidelock.replication.locks.requests import ROUNDS, LockCall, LockStore

_log: Final = structlog.get_logger("locks")


@dataclass(slots=True, kw_only=True, eq=False)
class LockSweeper:
    """The lock sweeper; :class:`tidelock.replication.locks.removal_locks.Locks` describes its arguments."""

    replica: ReplicaId
    boot: int
    zookeeper: LockStore
    book: Book
    outcome: Callable[[Tid], Awaitable[Outcome]]
    fence_home: Callable[[ReplicaId, int], Awaitable[int | None]]
    silent: Callable[[], Collection[ReplicaId]]
    clock: Callable[[], float]
    limits: LockLimits
    _sweeping: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _adopting: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    #: Whether the locks that former boots have left are in the book.
    _adopted: bool = field(default=False, init=False)
    #: When to scan for locks of silent replicas next.
    _scan_at: float = field(init=False)
    #: Holders of locks that are no transactions of the cluster, and were logged.
    _strangers: set[Tid] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._scan_at = self.clock()

    async def sweep(self, tail: Csn) -> None:
        """See :meth:`tidelock.replication.locks.removal_locks.Locks.sweep`."""
        async with self._sweeping:
            try:
                await self._adopt()
                self.book.pass_tail(tail)
                await self.give_back()
                await self._clear_silent(tail)
            except (UnavailableError, FencedError) as error:
                _log.debug("locks_not_swept", reason=error.message)
            except TidelockError as error:
                _log.warning("locks_not_swept", reason=error.message)

    # -- own ones ------------------------------------------------------------------------------------------

    async def give_back(self, znodes: Collection[str] | None = None) -> None:
        """Delete the locks that are to be deleted, or these of them; a remaining lock stays in the book."""
        left = {lock.znode: lock for lock in self.book.claim(znodes)}
        try:
            await self._delete(left)
        except (UnavailableError, FencedError) as error:
            _log.debug("locks_not_given_back", locks=len(left), reason=error.message)
        except TidelockError as error:
            _log.warning("locks_not_given_back", locks=len(left), reason=error.message)
        finally:
            self.book.put_back(left.values())

    async def _delete(self, left: dict[str, OwnLock]) -> None:
        """Delete locks of this replica, former boots' included; remove the deleted ones from ``left``."""
        call = self.zookeeper.call(0.0)
        for _ in range(ROUNDS):
            await self._read_uncertain(call, left)
            if not left:
                return
            for batch in batches([Delete(znode, 0) for znode in left], self.limits.multi_bytes_max):
                before = {op.path: left[op.path] for op in batch}
                left |= {znode: replace(lock, certain=False) for znode, lock in before.items()}
                result = await self.zookeeper.send(call, batch)
                if isinstance(result, Ok):
                    for znode in before:
                        del left[znode]
                elif isinstance(result, Refused) and result.reason is not Reason.NO_NODE:
                    left |= before
                    raise UnavailableError(f"ZooKeeper refused to delete locks: {result.reason.value}")
                else:
                    break

    async def _read_uncertain(self, call: LockCall, left: dict[str, OwnLock]) -> None:
        """Find out which uncertain locks exist; only a lock that was read as ours is ever deleted."""
        uncertain = [lock for lock in left.values() if not lock.certain]
        if not uncertain:
            return
        await self.zookeeper.landed(call)
        for lock in uncertain:
            if await self.zookeeper.stands(call, lock):
                left[lock.znode] = replace(lock, certain=True)
            else:
                del left[lock.znode]

    async def _adopt(self) -> None:
        """Once, take over the locks that former boots have left: no more of them can be made."""
        async with self._adopting:
            if self._adopted:
                return
            call = self.zookeeper.call(0.0)
            await self.zookeeper.see(call)
            locks = await self.zookeeper.scan(call)
            former = [one for one in locks if one.tid.home == self.replica and one.tid.boot < self.boot]
            holders = await self._holder_states(former)
            undecided = any(found is LockHolderState.LIVE for found, _ in holders.values())
            if undecided or self.zookeeper.store.session != call.session:
                return
            self._adopted = True
            self.book.adopt(
                [_own(one) for one in former if holders[one.tid][0] is LockHolderState.DEAD],
                [(csn, _own(one)) for one in former if (csn := holders[one.tid][1])],
            )

    # -- others' -------------------------------------------------------------------------------------------

    async def evict(self, lock: LockInfo) -> bool:
        """Delete a lock whose holder was not committed, if allowed; return whether to look again."""
        if lock.tid.home != self.replica:
            return await self._clear(lock.tid.home, lock.tid.boot, CSN_NONE, table=lock.table)
        if lock.tid.boot < self.boot:
            await self._adopt()
        if not self.book.is_leaving(lock.znode):
            return False
        await self.give_back({lock.znode})
        return not self.book.is_leaving(lock.znode)

    async def _clear_silent(self, tail: Csn) -> None:
        """Delete the locks of long-silent replicas that are no longer needed."""
        silent = self.silent()
        if not silent or self.clock() < self._scan_at:
            return
        self._scan_at = self.clock() + self.limits.scan_interval_s
        locks = await self.zookeeper.scan(self.zookeeper.call(0.0))
        left = [lock for lock in locks if lock.tid.home in silent]
        self._strangers.intersection_update(lock.tid for lock in locks)
        holders = await self._holder_states(left)
        going = [tid for tid, found in holders.items() if may_go(*found, tail, live=True)]
        for home in sorted({tid.home for tid in going}):
            await self._clear(home, max(tid.boot for tid in going if tid.home == home), tail)

    async def _clear(self, home: ReplicaId, boot: int, tail: Csn, table: TableId | None = None) -> bool:
        """Delete the unneeded locks of a silent replica, of one table or all; return whether that is done.

        ``boot`` is that of a holder.

        Only the version that this call has written itself gives it the right to delete them, until the fence
        is raised again. Two replicas that merely had read the same version could both delete a lock, the
        second one after a third has taken it (F5).
        """
        session = self.zookeeper.store.session
        version = await self.fence_home(home, boot)
        if version is None:
            return False
        call = self.zookeeper.call(0.0)
        left = [lock for lock in await self.zookeeper.scan(call, table) if lock.tid.home == home]
        holders = await self._holder_states(left)
        if self.zookeeper.store.session != session:  # the reads may be older than the write
            return False
        doomed: list[Op] = [
            Delete(lock.znode, 0)
            for lock in left
            if lock.tid in holders and may_go(*holders[lock.tid], tail, live=False)
        ]
        for batch in batches(doomed, self.limits.multi_bytes_max):
            if not isinstance(
                await self.zookeeper.send(call, (Check(tree.session(home), version), *batch)), Ok
            ):
                return False
        if doomed:
            _log.info("locks_evicted", home=home, locks=len(doomed))
        return not any(found is LockHolderState.LIVE for found, _ in holders.values())

    async def _holder_states(self, locks: Iterable[LockInfo]) -> dict[Tid, tuple[LockHolderState, Csn]]:
        """Return the outcomes of the holders; of those that are committed also the CSN.

        A holder that is no transaction of the cluster is left out: nobody can tell that it will not commit,
        so its lock is kept, and logged once.
        """
        holders: dict[Tid, tuple[LockHolderState, Csn]] = {}
        for tid in sorted({lock.tid for lock in locks}):
            try:
                holders[tid] = holder_state(await self.outcome(tid), CSN_NONE)
            except UnknownTransactionError as error:
                if tid not in self._strangers:
                    self._strangers.add(tid)
                    _log.warning("lock_of_no_transaction", tid=str(tid), reason=error.message)
        return holders


def _own(lock: LockInfo) -> OwnLock:
    return OwnLock(lock.znode, lock.tid, lock.scope, certain=True)
