"""Where the replicas stand that hold back tail and horizon, read fresh from ZooKeeper.

A replica that is struck or removed holds nothing back. That it still is one is part of what is decided by it:
the version of its session znode is checked in the multi that moves the tail or the horizon, so one that comes
back meanwhile makes the multi fail.

What the others have published may be old: it only ever grows, so an old value holds back more than it has to.
But for one whose disk was replaced: it begins at the first record again. It does what depends on the others'
looks only when it is where it was (:attr:`tidelock.csnlog.cluster.bootstrap.OwnSession.told`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId
from tidelock.csnlog.core.model import Progress
from tidelock.csnlog.core.results import Ok, Refused, Unknown
from tidelock.csnlog.core.store import Check, Op, Store

#: Applies a multi under the own fence (:meth:`tidelock.csnlog.log.CsnLog.fenced`).
Fenced = Callable[[tuple[Op, ...]], Awaitable[Ok[tuple[object, ...]] | Refused | Unknown]]

#: States of a session in which a replica holds back neither tail nor horizon.
LEFT_OUT: Final = frozenset({"struck", "removed"})


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """What one look at the replicas has shown.

    Attributes:
        progress: What those have published that are neither struck nor removed.
        left_out: Checks that the others still are; part of every multi that is decided by this look.
    """

    progress: Mapping[ReplicaId, Progress]
    left_out: tuple[Check, ...]

    @property
    def applied(self) -> Csn:
        """The largest CSN that all of them have applied."""
        return min((one.snapshot for one in self.progress.values()), default=CSN_NONE)

    def locks_needed_from(self, tail: Csn) -> Csn:
        """Return the CSN from which on locks of committed removals are needed; ``tail`` is ``csn/tail``.

        What the tail may pass is enough: it stays behind by ``log_keep_records``, for people. Where a replica
        is left out, which may come back, it is the tail itself.
        """
        return tail if self.left_out else max(tail, Csn(self.applied + 1))


async def read_standing(store: Store) -> ReplicaProgress | None:
    """Read where the replicas stand; None when a read failed.

    The caller compares the session before and after. CorruptError when a znode cannot be read as what it is.
    """
    names = await store.children(tree.REPLICAS)
    if not isinstance(names, Ok):
        return None
    replicas = [ReplicaId(name) for name in sorted(names.value)]
    sessions = await asyncio.gather(*(store.get(tree.session(replica)) for replica in replicas))
    counting: list[ReplicaId] = []
    left_out: list[Check] = []
    for replica, session in zip(replicas, sessions, strict=True):
        if not isinstance(session, Ok):
            return None
        if codec.decode_session(session.value.data).state in LEFT_OUT:
            left_out.append(Check(tree.session(replica), session.value.version))
        else:
            counting.append(replica)
    published = await asyncio.gather(*(store.get(tree.progress(replica)) for replica in counting))
    progress: dict[ReplicaId, Progress] = {}
    for replica, node in zip(counting, published, strict=True):
        if not isinstance(node, Ok):
            return None
        progress[replica] = codec.decode_progress(node.value.data)
    return ReplicaProgress(progress, tuple(left_out))
