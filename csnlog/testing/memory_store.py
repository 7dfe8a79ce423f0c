"""The store in memory: an ensemble that keeps ZooKeeper's promises, apart from planned faults.

It serves unit tests and simulation. It runs in one event loop, keeps one total order of all requests, and has
no randomness, and no clock but the one that it is given. A request is applied when it is called; its answer
arrives in a later iteration of the loop, unless the connection breaks before. A server may lag behind for its
readers (:mod:`tidelock.csnlog.testing.memory_servers`). A client sees its own writes, and goes back in time
only where ZooKeeper allows it: after a lost answer, and in a new session.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from tidelock.csnlog.core.ids import Stamp
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Delete, LinkState, Node, Op, multi_bytes
from tidelock.csnlog.testing.memory_servers import MemoryServer, Watch
from tidelock.csnlog.testing.memory_tree import ZnodeTree

T = TypeVar("T")

_ANY_VERSION = -1
_NOT_CONNECTED = Refused(Reason.NOT_CONNECTED)
_LOST = Unknown("the connection was lost")


class RequestFault(enum.Enum):
    """The fault of one request. All faults break the connection; all but the first end Unknown."""

    #: Refused, since there was no connection to send the request over.
    NOT_CONNECTED = "not connected"
    #: Never applied.
    REQUEST_LOST = "request lost"
    #: Applied, but the answer is lost.
    REPLY_LOST = "reply lost"
    #: Applied later: when the test delivers it, or before the next write of its session at the latest. Reads
    #: of its own session do not see it until then, because another server answers them (F1).
    LATE = "late"
    #: The session expires before the request arrives; a new session is made.
    EXPIRED = "expired"
    #: Applied; then the session expires, the answer is lost, and a new session is made.
    REPLY_LOST_EXPIRED = "reply lost and session expired"


class StoreRequest(msgspec.Struct, frozen=True):
    """One request, as a plan sees it: the ``number``-th of its store, from 1. ``ops`` is empty for a read."""

    store: str
    number: int
    kind: str
    path: str = ""
    ops: tuple[Op, ...] = ()


FaultPlan = Callable[[StoreRequest], RequestFault | None]


def is_multi(call: StoreRequest) -> bool:
    """Return whether a request writes."""
    return bool(call.ops)


def nth(n: int, fault: RequestFault, when: Callable[[StoreRequest], bool] = is_multi) -> FaultPlan:
    """Return a plan with one fault, at the n-th request (from 1) for which ``when`` holds."""
    seen = 0

    def plan(call: StoreRequest) -> RequestFault | None:
        nonlocal seen
        if not when(call):
            return None
        seen += 1
        return fault if seen == n else None

    return plan


def random_faults(
    source: random.Random, *, rate: float, kinds: Collection[RequestFault] = tuple(RequestFault)
) -> FaultPlan:
    """Return a plan that gives a request one of ``kinds`` with probability ``rate``, by ``source``."""
    choices = sorted(kinds, key=lambda kind: kind.value)

    def plan(_: StoreRequest) -> RequestFault | None:
        return source.choice(choices) if source.random() < rate else None

    return plan


class EnsembleBackup(msgspec.Struct, frozen=True):
    """A state of all servers; ``zxid`` is the number of their last write."""

    tree: ZnodeTree
    zxid: int


class MemoryEnsemble:
    """The servers: one tree, its sessions and watches, and the requests that are still under way.

    Args:
        plan: Called for every request; None = no faults. It may be replaced at any time.
        multi_bytes_max: A larger multi is refused before it is sent.
        turn: Awaited between the application of a request and its answer; a simulation schedules by it.
        servers: The number of servers. The first never lags.
        reconnect: Called with the function that reconnects a client; None = reconnect in a later loop
            iteration.
        now_ms: The wall clock of the leader, for stamps.
    """

    def __init__(
        self,
        *,
        plan: FaultPlan | None = None,
        multi_bytes_max: int = 800_000,
        turn: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0),
        servers: int = 1,
        reconnect: Callable[[Callable[[], None]], object] | None = None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.plan = plan
        self.multi_bytes_max = multi_bytes_max
        self.turn = turn
        self.reconnect = reconnect or (lambda connect: asyncio.get_running_loop().call_soon(connect))
        self.now_ms = now_ms
        self.tree = ZnodeTree()
        #: Number of the last write.
        self.zxid = 0
        self._sessions = 0
        self._live: set[int] = set()
        self._late: list[tuple[int, tuple[Op, ...]]] = []
        self._clients: list[MemoryStore] = []
        self.servers = tuple(MemoryServer(lambda: self.tree) for _ in range(servers))
        #: Chooses the server of a client that connects, among the servers that are not behind the client.
        self.choose: Callable[[Sequence[MemoryServer]], MemoryServer] = lambda servers: servers[0]

    def store(self, name: str = "") -> MemoryStore:
        """Return a client with a separate session."""
        self._clients.append(MemoryStore(self, name or f"store{self._sessions + 1}"))
        return self._clients[-1]

    @property
    def late(self) -> int:
        """The number of requests that are still under way."""
        return len(self._late)

    def deliver_late(self) -> int:
        """Apply, in their order, all requests that are still under way; return how many they were."""
        late, self._late = self._late, []
        for session, ops in late:
            self._apply(ops, session)
        return len(late)

    def backup(self) -> EnsembleBackup:
        """Return the present state, as a copy of the servers' disks has it."""
        return EnsembleBackup(self.tree.copy(), self.zxid)

    def set_back(self, backup: EnsembleBackup) -> None:
        """Begin again from an older state, as servers do whose disks were restored: all connections break.

        Sessions live on that the older state knew. A server refuses a client that has seen more than it has,
        until others have written so much, or the client's session has ended.
        """
        for client in self._clients:
            client.cut()
        self._late.clear()
        self.tree, self.zxid = backup.tree.copy(), backup.zxid
        for server in self.servers:
            server.begin_at(self.zxid)

    def end_session(self, session: int) -> None:
        """End a session on the servers: its ephemerals are deleted, its requests under way are refused."""
        self._live.discard(session)
        self._late = [(owner, ops) for owner, ops in self._late if owner != session]
        for path in self.tree.owned_by(session):
            self._apply((Delete(path, _ANY_VERSION),), session)

    # The following methods are for the stores.

    def new_session(self) -> int:
        """Make a session and return its number."""
        self._sessions += 1
        self._live.add(self._sessions)
        return self._sessions

    def is_live(self, session: int) -> bool:
        """Return whether a session has not ended."""
        return session in self._live

    def write(self, ops: tuple[Op, ...], session: int) -> Ok[tuple[object, ...]] | Refused | Unknown:
        """Apply a multi, after all requests that its session has sent before."""
        own = [late for owner, late in self._late if owner == session]
        self._late = [(owner, late) for owner, late in self._late if owner != session]
        for late in own:
            self._apply(late, session)
        return self._apply(ops, session)

    def delay(self, ops: tuple[Op, ...], session: int) -> None:
        """Keep a multi under way."""
        self._late.append((session, ops))

    def _apply(self, ops: tuple[Op, ...], session: int) -> Ok[tuple[object, ...]] | Refused | Unknown:
        stamp = Stamp(self.zxid + 1, self.now_ms())
        result, changes = self.tree.apply(ops, session, stamp)
        if isinstance(result, Ok):
            self.zxid = stamp.zxid
            for server in self.servers:
                server.decided(ops, session, stamp, changes)
        return result


class MemoryStore:
    """One client of the ensemble, made by :meth:`MemoryEnsemble.store`."""

    def __init__(self, ensemble: MemoryEnsemble, name: str) -> None:
        self.name = name
        self._ensemble = ensemble
        self._session = ensemble.new_session()
        self._server = ensemble.choose(ensemble.servers)
        #: Writes that a server has shown to this client.
        self._seen = 0
        #: Listeners run in the context of the code that made the store, not of the code that breaks its
        #: connection.
        self._context = contextvars.copy_context()
        self._connected = True
        self._breaks = 0
        self._held_down = False
        self._closed = False
        self._calls = 0
        self._listeners: list[Callable[[], None]] = []
        self._lost_watches: list[Watch] = []

    @property
    def link(self) -> LinkState:
        """State of the connection; see :class:`~tidelock.csnlog.core.store.Store`."""
        return LinkState.CONNECTED if self._connected else LinkState.SUSPENDED

    @property
    def session(self) -> int:
        """Number of the present session."""
        return self._session

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change of link or session."""
        self._listeners.append(listener)

    async def set_back(self) -> str:
        """Return "": these servers let every client in."""
        return ""

    async def multi(self, ops: tuple[Op, ...]) -> Ok[tuple[object, ...]] | Refused | Unknown:
        """Apply all operations or none; see :class:`~tidelock.csnlog.core.store.Store`."""
        if not ops:
            return Ok(())
        if multi_bytes(ops) > self._ensemble.multi_bytes_max:
            return Refused(Reason.TOO_LARGE)
        return await self._send("multi", "", ops, lambda: self._ensemble.write(ops, self._session))

    async def get(self, path: str, *, watch: Watch | None = None) -> Ok[Node] | Refused | Unknown:
        """Read a znode; see :class:`~tidelock.csnlog.core.store.Store`."""

        def read() -> Ok[Node] | Refused:
            znode = self._server.tree.get(path)
            if znode is None:
                return Refused(Reason.NO_NODE)
            self._arm(watch, path)
            return Ok(znode.node)

        return await self._send("get", path, (), read)

    async def exists(self, path: str, *, watch: Watch | None = None) -> Ok[Node | None] | Refused | Unknown:
        """Return the metadata of a znode, or None; see :class:`~tidelock.csnlog.core.store.Store`."""

        def read() -> Ok[Node | None]:
            self._arm(watch, path)
            znode = self._server.tree.get(path)
            return Ok(None if znode is None else replace(znode.node, data=b""))

        return await self._send("exists", path, (), read)

    async def children(
        self, path: str, *, watch: Watch | None = None
    ) -> Ok[tuple[str, ...]] | Refused | Unknown:
        """Return the names of the children, unordered; see :class:`~tidelock.csnlog.core.store.Store`."""

        def read() -> Ok[tuple[str, ...]] | Refused:
            znode = self._server.tree.get(path)
            if znode is None:
                return Refused(Reason.NO_NODE)
            self._arm(watch, path, of_children=True)
            return Ok(tuple(znode.children))

        return await self._send("children", path, (), read)

    async def close(self) -> None:
        """End the session; ephemeral znodes are deleted at once."""
        if not self._closed:
            self._closed = True
            self._ensemble.end_session(self._session)
            self._break()

    def abandon(self) -> None:
        """End the client's process: it sends nothing more. The session lasts until it is ended."""
        self._closed = True
        self._listeners.clear()
        self._break()
        self._lost_watches.clear()

    def cut(self) -> None:
        """Break the connection; it returns in a later iteration, in the same session if that is alive."""
        self._break()
        self._ensemble.reconnect(self._reconnect)

    def suspend(self) -> None:
        """Break the connection until :meth:`resume`; the session lasts until it is ended."""
        self._held_down = True
        self._break()

    def resume(self) -> None:
        """Restore the connection, in the old session or, if that has ended, in a new one."""
        self._held_down = False
        self._ensemble.reconnect(self._reconnect)

    def expire(self) -> None:
        """Expire the session; a new session is made in a later iteration of the loop."""
        self._ensemble.end_session(self._session)
        self.cut()

    async def _send(
        self, kind: str, path: str, ops: tuple[Op, ...], apply: Callable[[], T]
    ) -> T | Refused | Unknown:
        """Send a request to the servers; return its answer if the connection holds until then."""
        result = self._arrive(kind, path, ops, apply)
        breaks = self._breaks
        await self._ensemble.turn()
        return result if breaks == self._breaks or result is _NOT_CONNECTED else _LOST

    def _arrive(
        self, kind: str, path: str, ops: tuple[Op, ...], apply: Callable[[], T]
    ) -> T | Refused | Unknown:
        """Apply a request on the servers, or the fault that the plan has for it."""
        if not self._connected:
            return _NOT_CONNECTED
        if not self._ensemble.is_live(self._session):
            self.cut()
            return Unknown("the session has expired")
        self._calls += 1
        plan = self._ensemble.plan
        fault = plan(StoreRequest(self.name, self._calls, kind, path, ops)) if plan is not None else None
        if fault is None:
            result = apply()
            if ops:  # the answer to a write comes from a server that has applied it
                self._server.catch_up()
            self._seen = self._server.zxid
            return result
        if fault in {RequestFault.REPLY_LOST, RequestFault.REPLY_LOST_EXPIRED} and ops:
            apply()
        elif fault is RequestFault.LATE and ops:
            self._ensemble.delay(ops, self._session)
        if fault in {RequestFault.EXPIRED, RequestFault.REPLY_LOST_EXPIRED}:
            self._ensemble.end_session(self._session)
        self.cut()
        return _NOT_CONNECTED if fault is RequestFault.NOT_CONNECTED else _LOST

    def _arm(self, watch: Watch | None, path: str, *, of_children: bool = False) -> None:
        if watch is not None:
            self._server.arm(self, watch, path=path, of_children=of_children)

    def _break(self) -> None:
        if self._connected:
            self._connected = False
            self._breaks += 1
            self._lost_watches.extend(self._server.disarm(self))
            self._tell()

    def _reconnect(self) -> None:
        if self._connected or self._held_down or self._closed:
            return
        if not self._ensemble.is_live(self._session):
            self._session, self._seen = self._ensemble.new_session(), 0
        as_new = [server for server in self._ensemble.servers if server.zxid >= self._seen]
        if not as_new:  # all of them were set back
            self._ensemble.reconnect(self._reconnect)
            return
        self._server = self._ensemble.choose(as_new)
        self._connected = True
        lost, self._lost_watches = self._lost_watches, []
        for watch in lost:
            self._context.copy().run(watch)
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            self._context.copy().run(listener)
