"""The removal locks of one boot of a replica, as far as it knows: held, committed, to be released. Pure.

A lock is entered in the book before the request that makes it is sent. So the book lists every lock that may
exist, whatever happens to the request, to its answer, or to its caller.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import msgspec
from msgspec.structs import replace

from tidelock.csnlog.core.ids import Csn, Tid
from tidelock.replication.core.lock_rules import Scope


class OwnLock(msgspec.Struct, frozen=True):
    """A lock of this replica.

    Attributes:
        znode: Its path.
        tid: Its holder, of this boot or a former one.
        scope: The parts or rows that it covers.
        certain: Whether the lock exists. If not, it may exist and has to be read: the end of a request that
            makes or deletes it is not known.
    """

    znode: str
    tid: Tid
    scope: Scope
    certain: bool = False


class Book:
    """The locks of this replica, grouped by what will happen to them."""

    def __init__(self) -> None:
        #: Locks of transactions that are not decided, by path.
        self._held: dict[Tid, dict[str, OwnLock]] = {}
        #: Locks of committed transactions: they are kept until the tail has passed the CSN.
        self._committed: dict[Tid, tuple[Csn, dict[str, OwnLock]]] = {}
        #: Locks to be deleted.
        self._leaving: dict[str, OwnLock] = {}

    def __len__(self) -> int:
        committed = sum(len(locks) for _, locks in self._committed.values())
        return sum(map(len, self._held.values())) + committed + len(self._leaving)

    def held(self, tid: Tid) -> tuple[OwnLock, ...]:
        """Return the locks of an undecided transaction."""
        return tuple(self._held.get(tid, {}).values())

    def sends(self, locks: Iterable[OwnLock]) -> None:
        """Note locks of undecided transactions that are about to be made."""
        for lock in locks:
            self._held.setdefault(lock.tid, {})[lock.znode] = lock

    def stand(self, locks: Iterable[OwnLock]) -> None:
        """Note that these locks, which were sent, exist."""
        for lock in locks:
            self._held[lock.tid][lock.znode] = replace(lock, certain=True)

    def forget(self, locks: Iterable[OwnLock]) -> None:
        """Note that these locks do not exist, and will not."""
        for lock in locks:
            held = self._held.get(lock.tid, {})
            held.pop(lock.znode, None)
            if not held:
                self._held.pop(lock.tid, None)

    def leave(self, locks: Iterable[OwnLock]) -> None:
        """Note those of these locks that are held as to be deleted: they are not needed any more."""
        for lock in list(locks):
            known = self._held.get(lock.tid, {}).get(lock.znode)
            if known is not None:
                self.forget((known,))
                self._leaving[lock.znode] = known

    def reclaim(self, tid: Tid, znode: str) -> bool:
        """Keep a lock that was to be deleted; return whether it was, and no delete of it is under way."""
        lock = self._leaving.get(znode)
        if lock is None or lock.tid != tid:
            return False
        del self._leaving[znode]
        self.sends((replace(lock, certain=True),))
        return True

    def is_leaving(self, znode: str) -> bool:
        """Return whether a lock is to be deleted, and no delete of it is under way."""
        return znode in self._leaving

    def commit(self, tid: Tid, csn: Csn) -> None:
        """Note that the transaction is committed: its locks are kept until the tail has passed its CSN."""
        if locks := self._held.pop(tid, None):
            self._committed[tid] = (csn, locks)

    def adopt(self, locks: Iterable[OwnLock], committed: Iterable[tuple[Csn, OwnLock]]) -> None:
        """Take over locks of former boots: those that are to be deleted, and those of committed removals."""
        self.put_back(locks)
        for csn, lock in committed:
            self._committed.setdefault(lock.tid, (csn, {}))[1][lock.znode] = lock

    def pass_tail(self, tail: Csn) -> None:
        """Note that locks of transactions committed below the tail are to be deleted."""
        for tid, (csn, locks) in list(self._committed.items()):
            if csn < tail:
                del self._committed[tid]
                self._leaving |= locks

    def claim(self, znodes: Iterable[str] | None = None) -> tuple[OwnLock, ...]:
        """Take out the locks to be deleted (all, or these), so that no other task deletes them meanwhile."""
        wanted = list(self._leaving) if znodes is None else [one for one in znodes if one in self._leaving]
        return tuple(self._leaving.pop(znode) for znode in wanted)

    def put_back(self, locks: Iterable[OwnLock]) -> None:
        """Put back locks that were claimed and are still to be deleted."""
        self._leaving |= {lock.znode: lock for lock in locks}

    def copy(self) -> Book:
        """Return a copy that changes independently of this book."""
        twin = Book()
        twin._held = {tid: dict(locks) for tid, locks in self._held.items()}
        twin._committed = {tid: (csn, dict(locks)) for tid, (csn, locks) in self._committed.items()}
        twin._leaving = dict(self._leaving)
        return twin

    def state(self) -> Hashable:
        """Return the whole book as one hashable value."""
        held = frozenset(lock for locks in self._held.values() for lock in locks.values())
        committed = frozenset(
            (csn, lock) for csn, locks in self._committed.values() for lock in locks.values()
        )
        return held, committed, frozenset(self._leaving.values())
