"""The rules of removal locks: names, coverage, conflicts, and the number of locks in a request. Pure.

A transaction that removes parts holds locks in ZooKeeper (docs/protocol.md, "Locks"): one for each
part, or one wide lock for a whole table, a partition or a range of keys. The shell that takes and releases
them is :mod:`tidelock.replication.locks.removal_locks`.

How two lockers find each other: a transaction that locks parts raises the version of ``locks/<table>`` and
looks at the wide locks afterwards. A transaction that makes a wide lock does so only while that version is
the version at which it has listed the parts' locks. So of two whose scopes overlap, the later one sees the
earlier one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, TableId, Tid
from tidelock.csnlog.core.model import LockState
from tidelock.csnlog.core.results import Aborted, Committed, Outcome, TooOld
from tidelock.csnlog.core.store import Create, Op, multi_bytes
from tidelock.errors import CorruptError, SerializationConflictError

#: Most locks that one request makes or deletes (rule removals).
LOCKS_PER_MULTI_MAX = 1000
#: Share of a request's bytes that is planned with. The rest is for the fence, and for the cluster's root,
#: which precedes every path.
_BYTES_SHARE = 0.5


# --------------------------------------------------------------------------------------------- what is locked


class OnePart(msgspec.Struct, frozen=True):
    """One part, and the path of its partition."""

    part: PartId
    path: str


class WholeTable(msgspec.Struct, frozen=True):
    """All parts of a table, including those that other transactions are just adding."""


class OnePartition(msgspec.Struct, frozen=True):
    """All parts of a partition; ``path`` as in the catalog, or its first segments."""

    path: str


class KeyRange(msgspec.Struct, frozen=True):
    """The rows with a key from ``low`` to ``high``, both included.

    Bounds are JSON values that compare with each other (numbers, texts, lists of such); None = no bound.
    A range of keys conflicts with other ranges only: a transaction that adds rows removes no part.
    """

    low: Any = None
    high: Any = None


Wide = WholeTable | OnePartition | KeyRange
Scope = OnePart | Wide


class LockAsk(msgspec.Struct, frozen=True):
    """The locks that a statement requests in one table.

    Attributes:
        table: Full table name.
        parts: Parts with the paths of their partitions.
        wide: The locks above parts.
    """

    table: TableId
    parts: Mapping[PartId, str] = msgspec.field(default_factory=dict)
    wide: tuple[Wide, ...] = ()


class LockInfo(msgspec.Struct, frozen=True):
    """One lock as it is stored in ZooKeeper."""

    znode: str
    table: TableId
    scope: Scope
    tid: Tid
    merge: bool


class LockLimits(msgspec.Struct, frozen=True):
    """The bounds of :class:`tidelock.replication.locks.removal_locks.Locks`.

    Attributes:
        locks_max: Most locks of one transaction.
        table_locks_max: Most locks of a table, those of committed removals included.
        multi_bytes_max: Largest request.
        compaction_lock_wait_s: How long a user's statement waits for a compaction.
        connect_wait_s: How long a statement waits for a connection to ZooKeeper.
        scan_interval_s: Shortest time between two scans for locks of silent replicas.
    """

    locks_max: int
    table_locks_max: int
    multi_bytes_max: int
    compaction_lock_wait_s: float
    connect_wait_s: float
    scan_interval_s: float


def overlap(one: Scope, other: Scope) -> bool:
    """Return whether two transactions must not both hold these scopes."""
    match one, other:
        case (KeyRange(), KeyRange()):
            return _at_most(one.low, other.high) and _at_most(other.low, one.high)
        case (KeyRange(), _) | (_, KeyRange()):
            return False
        case (WholeTable(), _) | (_, WholeTable()):
            return True
        case (OnePart(), OnePart()):
            return one.part == other.part
        case (OnePart(_, path), OnePartition(above)) | (OnePartition(above), OnePart(_, path)):
            return _within(path, above)
        case _:
            assert isinstance(one, OnePartition)
            assert isinstance(other, OnePartition)
            return _within(one.path, other.path) or _within(other.path, one.path)


def covers(held: Scope, wanted: Scope) -> bool:
    """Return whether the holder of the first scope need not lock the second."""
    match held, wanted:
        case (KeyRange(), KeyRange()):
            below = held.low is None or (
                wanted.low is not None and _at_most(held.low, wanted.low, unsure=False)
            )
            above = held.high is None or (
                wanted.high is not None and _at_most(wanted.high, held.high, unsure=False)
            )
            return below and above
        case (KeyRange(), _) | (_, KeyRange()):
            return False
        case (WholeTable(), _):
            return True
        case (OnePartition(path), OnePart(_, below) | OnePartition(below)):
            return _within(below, path)
        case _:
            return held == wanted


def _within(path: str, above: str) -> bool:
    return path == above or not above or path.startswith(f"{above}/")


def _at_most(low: Any, high: Any, *, unsure: bool = True) -> bool:
    """Compare two bounds, None meaning no bound; return ``unsure`` if they cannot be compared."""
    if low is None or high is None:
        return True
    try:
        return bool(low <= high)
    except TypeError:
        return unsure


# -------------------------------------------------------------------------------------------- names and bytes


def create_op(table: TableId, scope: Scope, tid: Tid, *, merge: bool) -> Create:
    """Return the operation that makes a lock."""
    znode, state = _form(table, scope, tid)
    return Create(znode, codec.encode_lock(msgspec.structs.replace(state, merge=merge)))


def _form(table: TableId, scope: Scope, tid: Tid) -> tuple[str, LockState]:
    """Return path and data of a lock."""
    match scope:
        case OnePart(part, path):
            return tree.lock(table, part), LockState(str(tid), path=path)
        case WholeTable():
            return tree.wide_lock(table, "table", "", tid), LockState(str(tid))
        case OnePartition(path):
            return tree.wide_lock(table, "partition", path, tid), LockState(str(tid), path=path)
        case KeyRange(low, high):
            about = msgspec.json.encode((low, high)).decode()
            return tree.wide_lock(table, "keys", about, tid), LockState(str(tid), low=low, high=high)


def read_lock(table: TableId, znode: str, data: bytes) -> LockInfo:
    """Decode a lock from its path and its bytes.

    Raises:
        UpgradeNeededError: A newer version has made it.
        CorruptError: It is not a lock.
    """
    state = codec.decode_lock(data)
    directory, _, name = znode.rpartition("/")
    try:
        tid = Tid.parse(state.tid)
        scope = _scope(name, state, wide=directory == tree.wide_dir(table))
    except ValueError as error:
        raise CorruptError(f"the lock {znode} cannot be read: {error}", znode=znode) from error
    return LockInfo(znode, table, scope, tid, state.merge)


def _scope(name: str, state: LockState, *, wide: bool) -> Scope:
    if not wide:
        return OnePart(PartId(name), state.path or "")
    match name.partition("-")[0]:
        case "table":
            return WholeTable()
        case "partition" if state.path is not None:
            return OnePartition(state.path)
        case "keys":
            return KeyRange(state.low, state.high)
    raise ValueError(f"{name!r} is not the name of a lock")


def wanted(ask: LockAsk, held: Iterable[Scope]) -> tuple[tuple[OnePart, ...], tuple[Wide, ...]]:
    """Return the scopes of ``ask`` that a holder of ``held`` still has to lock: parts in order, wide ones."""
    above = [one for one in held if not isinstance(one, OnePart)]
    mine = {one.part for one in held if isinstance(one, OnePart)}
    wide: list[Wide] = []
    for scope in ask.wide:
        if not any(covers(one, scope) for one in (*above, *wide)):
            wide.append(scope)
    above += wide
    parts = tuple(
        OnePart(part, path)
        for part, path in sorted(ask.parts.items())
        if part not in mine and not any(covers(one, OnePart(part, path)) for one in above)
    )
    return parts, tuple(wide)


def batches(ops: Sequence[Op], bytes_max: int) -> Iterator[tuple[Op, ...]]:
    """Split operations, in their order, into multis of at most 1,000 that stay well below ``bytes_max``."""
    room = int(bytes_max * _BYTES_SHARE)
    batch: list[Op] = []
    size = 0
    for op in ops:
        cost = multi_bytes((op,))
        if batch and (len(batch) == LOCKS_PER_MULTI_MAX or size + cost > room):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(op)
        size += cost
    if batch:
        yield tuple(batch)


# ------------------------------------------------------------------------------------------ who is in the way


class LockHolderState(enum.Enum):
    """The meaning of a lock that overlaps the requested scope, by the outcome of its holder."""

    #: Its removal is part of what the statement sees: it is in no statement's way.
    VISIBLE = "visible"
    #: Its removal is committed, and the statement does not see it: a conflict that waiting does not solve.
    COMMITTED = "committed"
    #: The holder is not decided.
    LIVE = "live"
    #: The holder is aborted: the lock will be deleted, or has to be evicted.
    DEAD = "dead"


def holder_state(outcome: Outcome, at: Csn) -> tuple[LockHolderState, Csn]:
    """Judge the holder of a lock by its outcome, for a statement that reads at ``at``; also return its CSN.

    If the outcome is too old to tell, the floor counts as the CSN: the holder has committed nothing above it.
    """
    match outcome:
        case Committed(csn) | TooOld(csn):
            return (LockHolderState.VISIBLE if csn <= at else LockHolderState.COMMITTED), csn
        case Aborted():
            return LockHolderState.DEAD, CSN_NONE
    return LockHolderState.LIVE, CSN_NONE


def may_go(found: LockHolderState, csn: Csn, tail: Csn, *, live: bool) -> bool:
    """Return whether a lock is no longer needed; ``live``: count a lock of an undecided holder too."""
    return (
        found is LockHolderState.DEAD
        or (csn != CSN_NONE and csn < tail)
        or (live and found is LockHolderState.LIVE)
    )


def worth_waiting(
    held: LockInfo,
    found: LockHolderState,
    *,
    merge: bool,
    waited_s: float,
    wait_s: float,
    merge_wait_s: float,
) -> bool:
    """Return whether a statement that met a lock should try again.

    A compaction (``merge``) never waits. Other statements wait for a compaction at least ``merge_wait_s``,
    and for any holder ``wait_s``. No statement waits for a lock whose holder is committed: it stays until the
    tail has passed.
    """
    if merge or found in {LockHolderState.COMMITTED, LockHolderState.VISIBLE}:
        return False
    return waited_s < (max(wait_s, merge_wait_s) if held.merge else wait_s)


def conflict(held: LockInfo, by: Tid, *, csn: Csn) -> SerializationConflictError:
    """Return the error for a lock in the way of transaction ``by``; ``csn`` of the holder, or CSN_NONE."""
    details: dict[str, Any] = {"table": held.table, "holder": str(held.tid)}
    what = f"table {held.table}"
    match held.scope:
        case OnePart(part):
            details["part"] = part
            what = f"part {part} of {what}"
        case OnePartition(path):
            details["partition"] = path
            what = f"partition {path or '(all)'} of {what}"
        case KeyRange(low, high):
            details["keys"] = [low, high]
            what = f"a range of keys of {what}"
        case WholeTable():
            pass
    who = f"compaction {held.tid}" if held.merge else f"transaction {held.tid}"
    if csn:
        how = f"was changed by {who} at CSN {csn}, after what {by} reads"
        details["csn"] = csn
    else:
        how = f"is being changed by {who}"
    return SerializationConflictError(
        f"{what} {how}; roll back, and run it again", merge=held.merge, **details
    )
