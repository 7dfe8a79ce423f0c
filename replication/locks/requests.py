"""The requests of removal locks to ZooKeeper: reads are as new as they must be, sent requests end.

A read decides something only in a session in which a write of the same call was acknowledged before: another
session may show an older state (Z7). So each call carries the session of its last write, and makes a write
that changes nothing if it has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog

from tidelock.csnlog import faults
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import PartId, TableId
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Create, LinkState, Node, Op, Store
from tidelock.errors import CorruptError, UnavailableError
from tidelock.replication.core.lock_book import OwnLock
from tidelock.replication.core.lock_rules import LockInfo, OnePart, Scope, overlap, read_lock

_log: Final = structlog.get_logger("locks")

LOCK: Final = faults.step("replication.lock")

T = TypeVar("T")
MultiResult = Ok[tuple[object, ...]] | Refused | Unknown

#: How often a request is repeated because something changed between a read and a write.
ROUNDS: Final = 50
#: Pause before a request is repeated that found no connection, or a lock that is just being deleted.
RETRY_S: Final = 0.05
#: Reads under way at once.
_READS: Final = 64
_NO_NODE: Final = Refused(Reason.NO_NODE)


@dataclass(slots=True)
class LockCall:
    """One call from outside.

    Attributes:
        until: When it stops waiting for a connection, by the clock.
        session: The session in which its last write was acknowledged, and whose reads are at least as new. 0
            = none: a write has to precede a read that decides something.
        made: The locks that it has made, or has tried to make with an unknown outcome, by path.
    """

    until: float
    session: int = 0
    made: dict[str, OwnLock] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class LockStore:
    """Reads and writes below ``locks/``.

    Attributes:
        store: The replica's session to ZooKeeper, for reads.
        fenced: Sends a multi under the own fence: :meth:`tidelock.csnlog.log.CsnLog.fenced`.
        clock: Monotonic seconds.
        pause: Waits for so many seconds.
    """

    store: Store
    fenced: Callable[[tuple[Op, ...]], Awaitable[MultiResult]]
    clock: Callable[[], float]
    pause: Callable[[float], Awaitable[None]]
    #: Multis under way, whether or not a caller still waits for them.
    _in_flight: set[asyncio.Future[MultiResult]] = field(default_factory=set, init=False)
    #: Wide locks by name. A name is never used again, so a lock that was read once stays valid.
    _wide: dict[TableId, dict[str, LockInfo]] = field(default_factory=dict, init=False)
    #: Partitions of the parts that were locked at the last read of a table.
    _partitions: dict[TableId, dict[PartId, str]] = field(default_factory=dict, init=False)

    def call(self, patience_s: float) -> LockCall:
        """Begin a call that waits at most ``patience_s`` seconds for a connection."""
        return LockCall(self.clock() + patience_s)

    async def connected(self, call: LockCall) -> None:
        """Wait for a connection, as long as the call may."""
        while self.store.link is not LinkState.CONNECTED:
            if self.clock() >= call.until:
                raise UnavailableError(
                    "this replica has no connection to ZooKeeper; try again or another replica"
                )
            await self.pause(RETRY_S)

    async def send(self, call: LockCall, ops: tuple[Op, ...]) -> MultiResult:
        """Send a multi that runs to its end, and is tracked until then, even if the caller is cancelled."""
        session = self.store.session
        request = asyncio.ensure_future(self._send_fenced(ops))
        self._in_flight.add(request)
        request.add_done_callback(self._in_flight.discard)
        result = await asyncio.shield(request)
        match result:
            case Ok() | Refused(Reason.BAD_VERSION | Reason.NODE_EXISTS | Reason.NO_NODE):
                call.session = session if self.store.session == session else 0
            case Unknown():
                call.session = 0
        return result

    async def landed(self, call: LockCall) -> None:
        """Wait for the end of all multis under way; until then no read shows what they will have done."""
        if self._in_flight:
            await asyncio.wait(set(self._in_flight))
            call.session = 0

    async def _send_fenced(self, ops: tuple[Op, ...]) -> MultiResult:
        try:
            await LOCK.before()
        except Exception as error:
            _log.warning("a fault point failed before a multi: nothing was sent", error=str(error))
            return Refused(Reason.NOT_CONNECTED)
        result = await self.fenced(ops)
        try:
            await LOCK.after()
        except Exception as error:
            return Unknown(str(error))
        return result

    async def see(self, call: LockCall) -> None:
        """Make sure that the next read is at least as new as this moment: by a write in its session."""
        for _ in range(ROUNDS):
            await self.connected(call)
            session = self.store.session
            if session and session == call.session:
                return
            if isinstance(await self.fenced(()), Ok) and self.store.session == session:
                call.session = session
        raise _unreadable()

    async def read(
        self,
        call: LockCall,
        read: Callable[[], Awaitable[Ok[T] | Refused | Unknown]],
        *,
        fresh: bool = False,
    ) -> T | None:
        """Read until there is an answer; None = no znode. ``fresh``: no older than the call's last write."""
        for _ in range(ROUNDS):
            await self.connected(call)
            if fresh:
                await self.see(call)
            result = await read()
            if not fresh or self.store.session == call.session:
                if isinstance(result, Ok):
                    return result.value
                if result == _NO_NODE:
                    return None
        raise _unreadable()

    async def fresh_wide_locks(self, call: LockCall, table: TableId) -> list[LockInfo]:
        """Return the wide locks of a table, including those that were made before the call's last write."""
        for _ in range(ROUNDS):
            names = await self.read(call, lambda: self.store.children(tree.wide_dir(table)), fresh=True)
            locks = await self.wide_locks(call, table, names or ())
            if self.store.session == call.session:
                return locks
        raise _unreadable()

    async def wide_locks(self, call: LockCall, table: TableId, names: Sequence[str]) -> list[LockInfo]:
        """Return the wide locks with these names; only locks that were never read before are read."""
        directory, known = tree.wide_dir(table), dict(self._wide.get(table, {}))
        new = [f"{directory}/{name}" for name in names if f"{directory}/{name}" not in known]
        known |= {lock.znode: lock for lock in await self.read_locks(call, table, new)}
        there = [f"{directory}/{name}" for name in names if f"{directory}/{name}" in known]
        self._wide[table] = {znode: known[znode] for znode in there}
        return list(self._wide[table].values())

    async def part_locks(
        self, call: LockCall, table: TableId, names: Sequence[str], scope: Scope
    ) -> list[LockInfo]:
        """Return the locks of a table's parts, by their names, that overlap a scope.

        Holders change, but a part stays in its partition: of the locks that were read before, only those
        whose parts overlap the scope are read again.
        """
        directory, known = tree.lock_dir(table), self._partitions.get(table, {})
        parts = [PartId(name) for name in names if name != tree.WIDE]
        asked = [part for part in parts if part not in known or overlap(OnePart(part, known[part]), scope)]
        found = await self.read_locks(call, table, [f"{directory}/{part}" for part in asked])
        paths = {one.scope.part: one.scope.path for one in found if isinstance(one.scope, OnePart)}
        self._partitions[table] = {
            part: path for part in parts if (path := paths.get(part, known.get(part))) is not None
        }
        return [lock for lock in found if overlap(lock.scope, scope)]

    async def read_locks(
        self, call: LockCall, table: TableId, znodes: Iterable[str], *, lenient: bool = False
    ) -> list[LockInfo]:
        """Read locks; deleted ones are left out, and with ``lenient`` also those that cannot be decoded."""
        left = list(znodes)
        found: list[LockInfo] = []
        while left:
            chunk, left = left[:_READS], left[_READS:]
            nodes = await asyncio.gather(*(self._get(call, znode) for znode in chunk))
            for znode, node in zip(chunk, nodes, strict=True):
                try:
                    if node is not None:
                        found.append(read_lock(table, znode, node.data))
                except CorruptError as error:
                    if not lenient:
                        raise
                    _log.warning("lock_not_readable", znode=znode, reason=error.message)
        return found

    async def _get(self, call: LockCall, znode: str) -> Node | None:
        return await self.read(call, lambda: self.store.get(znode))

    async def _children(self, call: LockCall, znode: str) -> tuple[str, ...]:
        return await self.read(call, lambda: self.store.children(znode)) or ()

    async def scan(self, call: LockCall, table: TableId | None = None) -> list[LockInfo]:
        """Return all locks of a table, or of all tables, by their paths."""
        tables = await self._children(call, tree.LOCKS) if table is None else (table,)
        found: list[LockInfo] = []
        for name in map(TableId, sorted(tables)):
            for directory in (tree.lock_dir(name), tree.wide_dir(name)):
                children = sorted(await self._children(call, directory))
                znodes = [f"{directory}/{child}" for child in children if child != tree.WIDE]
                found += await self.read_locks(call, name, znodes, lenient=True)
        return found

    async def locked_parts(self, call: LockCall, table: TableId) -> frozenset[PartId]:
        """Return the parts of a table that have locks."""
        names = await self._children(call, tree.lock_dir(table))
        return frozenset(PartId(name) for name in names if name != tree.WIDE)

    async def stands(self, call: LockCall, lock: OwnLock) -> bool:
        """Return whether a lock of ours exists, when nothing that was sent before can be applied any more."""
        node = await self.read(call, lambda: self.store.get(lock.znode), fresh=True)
        return node is not None and codec.decode_lock(node.data).tid == str(lock.tid)

    async def make_directories(self, call: LockCall, table: TableId) -> None:
        """Create the directories of a table's locks; never deleted, so that their versions never repeat."""
        await self.send(call, (Create(tree.lock_dir(table)), Create(tree.wide_dir(table))))


def _unreadable() -> UnavailableError:
    return UnavailableError("ZooKeeper could not be read: its session changed repeatedly; try again")
