"""The removal locks of one boot of a replica, as far as it knows: held, committed, to be given back. Pure.

Pure. A lock stands here before the request that makes it is sent, so that whatever becomes of the request, of
its answer, or of who waits for it, somebody knows what may be there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from tidelock.csnlog.core.ids import Csn, Tid
from tidelock.replication.core.lock_rules import Scope


@dataclass(frozen=True, slots=True)
class OwnLock:
    """A lock of this replica.

    Attributes:
        znode: Its path.
        tid: Its holder, of this life or a former one.
        scope: What it covers.
        certain: Whether it stands. If not it may, and has to be read: the end of a request that makes or
            deletes it is not known.
    """

    znode: str
    tid: Tid
    scope: Scope
    certain: bool = False


class Book:
    """The locks of this replica by what is to become of them."""

    def __init__(self) -> None:
        #: Of transactions that are not decided, by path.
        self._held: dict[Tid, dict[str, OwnLock]] = {}
        #: Of committed transactions: they stay until the tail has passed the CSN.
        self._committed: dict[Tid, tuple[Csn, dict[str, OwnLock]]] = {}
        #: To be deleted.
        self._leaving: dict[str, OwnLock] = {}

    def __len__(self) -> int:
        committed = sum(len(locks) for _, locks in self._committed.values())
        return sum(map(len, self._held.values())) + committed + len(self._leaving)

    def held(self, tid: Tid) -> tuple[OwnLock, ...]:
        """Return what an undecided transaction holds."""
        return tuple(self._held.get(tid, {}).values())

    def sends(self, locks: Iterable[OwnLock]) -> None:
        """Note locks of undecided transactions that are about to be made."""
        for lock in locks:
            self._held.setdefault(lock.tid, {})[lock.znode] = lock

    def stand(self, locks: Iterable[OwnLock]) -> None:
        """Note that these, which were sent, stand."""
        for lock in locks:
            self._held[lock.tid][lock.znode] = replace(lock, certain=True)

    def forget(self, locks: Iterable[OwnLock]) -> None:
        """Note that these do not stand, and will not."""
        for lock in locks:
            held = self._held.get(lock.tid, {})
            held.pop(lock.znode, None)
            if not held:
                self._held.pop(lock.tid, None)

    def leave(self, locks: Iterable[OwnLock]) -> None:
        """Those of these that are held are not wanted any more: they are to be deleted."""
        for lock in list(locks):
            known = self._held.get(lock.tid, {}).get(lock.znode)
            if known is not None:
                self.forget((known,))
                self._leaving[lock.znode] = known

    def reclaim(self, tid: Tid, znode: str) -> bool:
        """Keep a lock after all that was to be deleted; whether it was, and no delete of it is under way."""
        lock = self._leaving.get(znode)
        if lock is None or lock.tid != tid:
            return False
        del self._leaving[znode]
        self.sends((replace(lock, certain=True),))
        return True

    def is_leaving(self, znode: str) -> bool:
        """Tell whether a lock is to be deleted, and nobody is about it."""
        return znode in self._leaving

    def commit(self, tid: Tid, csn: Csn) -> None:
        """The transaction is committed: its locks stay until the tail has passed its CSN."""
        if locks := self._held.pop(tid, None):
            self._committed[tid] = (csn, locks)

    def adopt(self, locks: Iterable[OwnLock], committed: Iterable[tuple[Csn, OwnLock]]) -> None:
        """Take over locks of former lives: those that are to be deleted, and those of committed removals."""
        self.put_back(locks)
        for csn, lock in committed:
            self._committed.setdefault(lock.tid, (csn, {}))[1][lock.znode] = lock

    def pass_tail(self, tail: Csn) -> None:
        """Locks of what was committed below the tail are to be deleted."""
        for tid, (csn, locks) in list(self._committed.items()):
            if csn < tail:
                del self._committed[tid]
                self._leaving |= locks

    def claim(self, znodes: Iterable[str] | None = None) -> tuple[OwnLock, ...]:
        """Take out what is to be deleted (all of it, or these), so that nobody else deletes it meanwhile."""
        wanted = list(self._leaving) if znodes is None else [one for one in znodes if one in self._leaving]
        return tuple(self._leaving.pop(znode) for znode in wanted)

    def put_back(self, locks: Iterable[OwnLock]) -> None:
        """These were claimed, and are still to be deleted."""
        self._leaving |= {lock.znode: lock for lock in locks}

    def copy(self) -> Book:
        """Return a book that changes apart from this one."""
        twin = Book()
        twin._held = {tid: dict(locks) for tid, locks in self._held.items()}
        twin._committed = {tid: (csn, dict(locks)) for tid, (csn, locks) in self._committed.items()}
        twin._leaving = dict(self._leaving)
        return twin

    def state(self) -> Hashable:
        """Return the whole of it as one hashable value."""
        held = frozenset(lock for locks in self._held.values() for lock in locks.values())
        committed = frozenset(
            (csn, lock) for csn, locks in self._committed.values() for lock in locks.values()
        )
        return held, committed, frozenset(self._leaving.values())
