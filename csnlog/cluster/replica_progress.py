"""The progress of the replicas that hold back tail and horizon, read fresh from ZooKeeper.

A replica that is struck or removed holds nothing back. That it is still struck or removed is part of the
decision: the multi that moves the tail or the horizon checks the version of its session znode. So a replica
that returns meanwhile makes the multi fail.

The progress that the other replicas have published may be old. While the fence of a replica stands, its
progress only grows, so an old value holds back more than it has to. Progress goes back at one moment only: a
start without a usable catalog sets it to tail and horizon in the multi that raises the fence (rule clone).
Therefore the multi that moves tail or horizon checks the version of every session znode, which was read
before the progress: a move that was decided by the former progress is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId
from tidelock.csnlog.core.model import Progress
from tidelock.csnlog.core.results import Ok, Refused, Unknown
from tidelock.csnlog.core.roster import LEFT_OUT
from tidelock.csnlog.core.store import Check, Op, SetData, Store

#: Applies a multi under the own fence (:meth:`tidelock.csnlog.log.CsnLog.fenced`).
Fenced = Callable[[tuple[Op, ...]], Awaitable[Ok[tuple[object, ...]] | Refused | Unknown]]


class ReplicaProgress(msgspec.Struct, frozen=True):
    """The result of one read of the replicas.

    Attributes:
        progress: What the replicas have published that are neither struck nor removed.
        left_out: Checks that the other replicas are still struck or removed.
        counted: Checks that no replica in ``progress`` has begun another boot since.
    """

    progress: Mapping[ReplicaId, Progress]
    left_out: tuple[Check, ...]
    counted: tuple[Check, ...] = ()

    @property
    def unchanged(self) -> tuple[Check, ...]:
        """The checks of every multi that is decided by this read."""
        return (*self.left_out, *self.counted)

    @property
    def applied(self) -> Csn:
        """The largest CSN that all replicas in ``progress`` have applied."""
        return min((one.snapshot for one in self.progress.values()), default=CSN_NONE)


async def publish(
    fenced: Fenced, replica: ReplicaId, progress: Progress, *, force: Callable[[], Awaitable[None]]
) -> bool:
    """Publish the progress of the own replica, once it is durable there; return whether it was written.

    Others delete records and parts that all replicas have passed. So a power cut must not take this replica
    back behind the CSN that it publishes (rule write-behind).

    Args:
        fenced: Applies a multi under the own fence.
        replica: The own replica.
        progress: What its catalog shows now, or showed before.
        force: Returns when everything that the catalog shows now is durable.
    """
    await force()
    change = SetData(tree.progress(replica), codec.encode_progress(progress))
    return isinstance(await fenced((change,)), Ok)


class Members(msgspec.Struct, frozen=True):
    """The registered replicas, by what their session znodes say.

    Attributes:
        counting: The replicas that are neither struck nor removed.
        left_out: See :class:`ReplicaProgress`.
        counted: See there.
    """

    counting: tuple[ReplicaId, ...]
    left_out: tuple[Check, ...]
    counted: tuple[Check, ...]


async def read_members(store: Store) -> Members | None:
    """Read who is registered; return None when a read failed. Errors as :func:`read_progress`."""
    names = await store.children(tree.REPLICAS)
    if not isinstance(names, Ok):
        return None
    replicas = [ReplicaId(name) for name in sorted(names.value)]
    sessions = await asyncio.gather(*(store.get(tree.session(replica)) for replica in replicas))
    counting: list[ReplicaId] = []
    counted: list[Check] = []
    left_out: list[Check] = []
    for replica, session in zip(replicas, sessions, strict=True):
        if not isinstance(session, Ok):
            return None
        same = Check(tree.session(replica), session.value.version)
        if codec.decode_session(session.value.data).state in LEFT_OUT:
            left_out.append(same)
        else:
            counting.append(replica)
            counted.append(same)
    return Members(tuple(counting), tuple(left_out), tuple(counted))


async def read_published(store: Store, members: Members) -> ReplicaProgress | None:
    """Read what the members have published, after them; result and errors as :func:`read_progress`."""
    published = await asyncio.gather(*(store.get(tree.progress(replica)) for replica in members.counting))
    progress: dict[ReplicaId, Progress] = {}
    for replica, node in zip(members.counting, published, strict=True):
        if not isinstance(node, Ok):
            return None
        progress[replica] = codec.decode_progress(node.value.data)
    return ReplicaProgress(progress, members.left_out, members.counted)


async def read_progress(store: Store) -> ReplicaProgress | None:
    """Read the progress of all replicas; return None when a read failed.

    The caller compares the session before and after. Raises CorruptError when a znode cannot be decoded.
    """
    members = await read_members(store)
    return None if members is None else await read_published(store, members)


async def locks_needed_from(store: Store, tail: Csn) -> Csn | None:
    """Return the CSN from which on locks of committed removals are needed (rule lock-deletion).

    A replica takes no transaction before it has applied the largest CSN that was ever published for it, also
    where its disk was replaced, where it clones, or where it was registered and has not begun. So it needs no
    lock up to there. The tail itself stays ``log_keep_records`` behind that bound, for people. A replica that
    is struck or removed needs no lock. If it comes back, or another one is registered, it serves from the end
    of the log at its registration on. So the registration must be behind the progress that was read: the
    replicas are looked at once more after it. The bound never goes back: the audit misses no lock that was
    freed before a replica came, left, or lost its disk.

    Args:
        store: A store.
        tail: ``csn/tail``.

    Returns:
        The CSN; None if the replicas could not be read, or have changed meanwhile.

    Raises:
        CorruptError: A znode cannot be decoded.
    """
    session = store.session
    seen = await read_progress(store)
    if seen is None or not await _same_members(store, seen) or store.session != session:
        return None
    known = min((one.most for one in seen.progress.values()), default=CSN_NONE)
    return max(tail, Csn(known + 1))


async def _same_members(store: Store, seen: ReplicaProgress) -> bool:
    """Return whether the same replicas are registered, and those that were left out still are."""
    names = await store.children(tree.REPLICAS)
    if not isinstance(names, Ok) or len(names.value) != len(seen.progress) + len(seen.left_out):
        return False
    for check in seen.left_out:
        node = await store.exists(check.path)
        if not isinstance(node, Ok) or node.value is None or node.value.version != check.version:
            return False
    return True
