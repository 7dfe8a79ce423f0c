"""The servers of the ensemble in memory as their readers see them: a server may lag behind the others.

Every server of ZooKeeper applies the same writes in the same order, but not at the same moment, and it
answers reads from what it has applied. Watches belong to a server as well: they fire when that server applies
the change.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Hashable

from tidelock.csnlog.core.ids import Stamp
from tidelock.csnlog.core.store import Op
from tidelock.csnlog.testing.memory_tree import TreeChanges, ZnodeTree

Watch = Callable[[], None]


class MemoryServer:
    """One server.

    Args:
        decided: Returns the tree of all decided writes, which is also this server's tree while it does not
            lag.
    """

    def __init__(self, decided: Callable[[], ZnodeTree]) -> None:
        self._decided = decided
        #: Its own tree while it lags.
        self._lagging: ZnodeTree | None = None
        self._behind: deque[tuple[tuple[Op, ...], int, Stamp]] = deque()
        #: How many writes it has applied.
        self.zxid = 0
        #: Watches by (of the children, path), in the order in which they were armed, each with the context of
        #: its arming.
        self._watches: dict[tuple[bool, str], dict[tuple[Hashable, Watch], contextvars.Context]] = {}

    @property
    def tree(self) -> ZnodeTree:
        """The tree that its readers see."""
        return self._decided() if self._lagging is None else self._lagging

    def begin_at(self, zxid: int) -> None:
        """Begin again, with the decided tree, as a server does that is started on an older disk."""
        self._lagging, self.zxid = None, zxid
        self._behind.clear()
        self._watches.clear()

    def lag(self) -> None:
        """Apply no more writes until :meth:`catch_up`."""
        if self._lagging is None:
            self._lagging = self._decided().copy()

    def catch_up(self, writes: int | None = None) -> None:
        """Apply this many decided writes; None = all, and end the lag."""
        while self._behind and writes != 0 and self._lagging is not None:
            writes = None if writes is None else writes - 1
            _, changes = self._lagging.apply(*self._behind.popleft())
            self.zxid += 1
            self.fire(changes)
        if writes is None:
            self._lagging = None

    def decided(self, ops: tuple[Op, ...], session: int, stamp: Stamp, changes: TreeChanges) -> None:
        """Process a write that is decided and is in the decided tree."""
        if self._lagging is not None:
            self._behind.append((ops, session, stamp))
            return
        self.zxid += 1
        self.fire(changes)

    def arm(self, owner: Hashable, watch: Watch, *, path: str, of_children: bool) -> None:
        """Arm a watch."""
        self._watches.setdefault((of_children, path), {})[owner, watch] = contextvars.copy_context()

    def disarm(self, owner: Hashable) -> tuple[Watch, ...]:
        """Remove and return all armed watches of an owner, as the end of its connection does."""
        taken: list[Watch] = []
        for armed in self._watches.values():
            for key in [key for key in armed if key[0] is owner]:
                del armed[key]
                taken.append(key[1])
        return tuple(taken)

    def fire(self, changes: TreeChanges) -> None:
        """Call the watches of the changed znodes, in later iterations of the loop."""
        for of_children, paths in ((False, changes.nodes), (True, changes.children)):
            for path in sorted(paths):
                for (_, watch), context in self._watches.pop((of_children, path), {}).items():
                    asyncio.get_running_loop().call_soon(watch, context=context)
