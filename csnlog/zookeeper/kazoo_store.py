"""The store on a real ZooKeeper ensemble: an asyncio shell around kazoo, and the only module that imports it.

kazoo answers in a separate thread. That thread only notes what happened and wakes the event loop; everything
else runs in the loop. This module fills kazoo's gaps (Z3, Z4, Z5, Z8):

* kazoo queues requests without limit while it has no connection. Here they are refused at once, so that none
  is applied long after its caller has gone.
* kazoo reports a lost session only when a server reports it, maybe minutes later. Here the own clock makes
  the link SUSPENDED (:class:`tidelock.csnlog.zookeeper.session_monitor.SessionClock`).
* kazoo notices a dead connection only while it has nothing to send. Here the connection is cut at that same
  deadline, which makes kazoo try the next server while the session is still alive.
* kazoo drops watches with the connection. Here they fire when it is back and reading again makes sense.
* A refused multi looks like a success in kazoo. Here every element of its answer is inspected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, ZnodeStat

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import Stamp
from tidelock.csnlog.core.imprint import older_servers
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import (
    Check,
    Create,
    Delete,
    LinkState,
    Node,
    Op,
    SetData,
    Written,
    multi_bytes,
)
from tidelock.csnlog.zookeeper.connect import ConnectString
from tidelock.csnlog.zookeeper.kazoo_bridge import AsyncReply, HandshakeSocket, LoopQueue, Watch, Watches
from tidelock.csnlog.zookeeper.session_monitor import ConnectBackoff, InFlight, SessionClock, SessionMonitor
from tidelock.errors import ConfigError, UnavailableError

log = logging.getLogger("tidelock.zookeeper")
#: kazoo logs every attempt where this module logs the link once; below INFO it logs the data of every
#: request.
_kazoo_log = logging.getLogger("tidelock.zookeeper.kazoo")
_kazoo_log.setLevel(logging.ERROR)

#: kazoo wakes its thread by one byte per request, in a socket pair that takes about 270 of them and then
#: blocks.
_IN_FLIGHT_MAX: Final = 128
#: Pause before a client whose thread has ended is started again.
_REVIVE_S: Final = 1.0
#: Pause before the next check whether the root exists.
_ROOT_RETRY_S: Final = 0.05

_ANY_VERSION: Final = -1
_NEVER_CHANGED: Final = 0
_NOT_CONNECTED: Final = Refused(Reason.NOT_CONNECTED)
#: Answers that only a server gives which has processed the request.
_REASONS: Final[dict[type, Reason]] = {
    exceptions.BadVersionError: Reason.BAD_VERSION,
    exceptions.NoNodeError: Reason.NO_NODE,
    exceptions.NodeExistsError: Reason.NODE_EXISTS,
    exceptions.NotEmptyError: Reason.NOT_EMPTY,
    exceptions.NoAuthError: Reason.DENIED,
}
#: The other elements of the answer to a refused multi.
_COMPANIONS: Final = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)


class ZkStore:
    """One session on an ensemble: a :class:`~tidelock.csnlog.core.store.Store` for one event loop.

    Args:
        connect: ``host:port[,host:port...]/root``.
        session_timeout_s: Session timeout to request; see :attr:`session_timeout_s` for the granted one.
        request_timeout_s: A request without an answer after this time is Unknown.
        multi_bytes_max: A larger multi is refused before it is sent.
        connect_timeout_s: How long :meth:`open` waits for the first session.
        make_root: Whether :meth:`open` creates the root if it does not exist. Without it a missing root is
            like an empty one; callers that only read, or expect a cluster, write nothing.

    Raises:
        ConfigError: The connect string cannot be used.
    """

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_s: float,
        request_timeout_s: float,
        multi_bytes_max: int,
        connect_timeout_s: float = 15.0,
        make_root: bool = True,
    ) -> None:
        self._connect = connect
        self._address = ConnectString.parse(connect)
        self._root = self._address.root
        self._session_timeout_s = session_timeout_s
        self._multi_bytes_max = multi_bytes_max
        self._connect_timeout_s = connect_timeout_s
        self._make_root = make_root
        self._clock = SessionClock(session_timeout_s)
        self._in_flight = InFlight(limit=_IN_FLIGHT_MAX, timeout_s=request_timeout_s)
        self._monitor = SessionMonitor(
            clock=self._clock, in_flight=self._in_flight, up=self._is_up, cut=self._cut, probe=self._probe
        )
        self._inbox: LoopQueue
        self._watches: Watches
        self._handler: _Handler
        self._client: Any = None
        self._closing = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def link(self) -> LinkState:
        """CONNECTED only while the session is certainly alive, by the own clock at this moment."""
        return self._monitor.link

    @property
    def session(self) -> int:
        """Number of the present session, as the servers know it; 0 before the first session."""
        return self._monitor.session

    @property
    def session_timeout_s(self) -> float:
        """The session timeout that the servers granted; until then, the requested one."""
        return self._clock.session_timeout_s

    @property
    def newest_zxid(self) -> int:
        """The newest write that a server has shown to this client, in any of its sessions; 0 = none."""
        return int(self._client.last_zxid) if self._client is not None else 0

    async def set_back(self) -> str:
        """Return why the servers refuse this client, if they were set back behind what it has seen; else "".

        A server refuses a client that has seen more than itself, which kazoo does not tell from a server that
        is down. A client that has seen nothing is let in, and a write that it makes now has a larger zxid
        than every write before it. Where that is not so, writes that this client has seen are gone (Z20).
        """
        seen = self.newest_zxid
        fresh = ZkStore(
            self._connect,
            session_timeout_s=self._session_timeout_s,
            request_timeout_s=self._in_flight.timeout_s,
            multi_bytes_max=self._multi_bytes_max,
            connect_timeout_s=self._session_timeout_s,
            make_root=False,
        )
        try:
            await fresh.open()
            await fresh.multi(
                (Check(tree.CLUSTER, _NEVER_CHANGED),)
            )  # refused or not, it goes through the log
            found = fresh.newest_zxid
        except UnavailableError:
            return ""
        finally:
            await fresh.close()
        return older_servers(here=seen, there=found) if 0 < found < seen else ""

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` in the event loop after every change of link or session."""
        self._monitor.on_change(listener)

    async def open(self) -> None:
        """Make the first session, and the root if that is requested. To be called once.

        Raises:
            UnavailableError: There was no session, or no root, within ``connect_timeout_s``.
            ConfigError: The root does not exist and cannot be created.
        """
        self._inbox = LoopQueue()
        self._watches = Watches(self._inbox)
        self._handler = _Handler(
            self._clock,
            self._inbox,
            answered=self._in_flight.answer,
            ended=self._on_thread_end,
        )
        self._client = KazooClient(
            ",".join(self._address.servers),
            timeout=self._session_timeout_s,
            handler=self._handler,
            # For connections only: no request is ever sent a second time.
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 1.0},
            logger=_kazoo_log,
        )
        self._client.add_listener(self._listen)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                self._client.start_async()
                self._monitor.tick()
                while self.session == 0:
                    self._monitor.changed.clear()
                    await self._monitor.changed.wait()
                if self._make_root:
                    await self._ensure_root()
        except TimeoutError:
            await self.close()
            raise UnavailableError(
                f"no ZooKeeper server answered at {', '.join(self._address.servers)} within "
                f"{self._connect_timeout_s:g} s; check that it runs and that the address is right (--zk)"
            ) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session; its ephemerals are deleted at once if a server is reached, else at the timeout."""
        if self._client is None or self._closing:
            return
        self._closing = True
        self._monitor.close()
        for task in self._tasks:
            task.cancel()
        stopping = asyncio.create_task(asyncio.to_thread(self._stop))
        done, _ = await asyncio.wait({stopping}, timeout=self._in_flight.timeout_s)
        if not done:
            self._handler.cut()
        await stopping

    def _stop(self) -> None:
        with contextlib.suppress(Exception):  # the thread hangs in a connect; it is a daemon and will end
            self._client.stop()
        with contextlib.suppress(Exception):
            self._client.close()

    async def _ensure_root(self) -> None:
        names = self._root.split("/")[1:]
        ancestors = ["/" + "/".join(names[: depth + 1]) for depth in range(len(names))]
        while True:
            found = await self.exists("")
            if not isinstance(found, Ok):
                await asyncio.sleep(_ROOT_RETRY_S)
            elif found.value is not None:
                return
            else:
                for path in ancestors:
                    await self._make(path)

    async def _make(self, path: str) -> None:
        transaction = self._client.transaction()
        transaction.create(path)
        made = _of_multi((Create(path),), await self._request(transaction.commit_async), root="")
        if isinstance(made, Refused) and made.reason is Reason.DENIED:
            raise ConfigError(
                f"{path} of the connect string does not exist in ZooKeeper and may not be made there; "
                "ask the operator of the ensemble for it"
            )

    async def _revive(self) -> None:
        """Start kazoo again after its thread has ended: an answer that it cannot parse ends the thread."""
        while not self._closing:
            await asyncio.sleep(_REVIVE_S)
            try:
                await asyncio.to_thread(self._client.start_async)
            except Exception:
                log.exception("the ZooKeeper client cannot be started again yet")
            else:
                return

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def multi(self, ops: tuple[Op, ...]) -> Ok[tuple[object, ...]] | Refused | Unknown:
        """Apply all operations or none; see :class:`~tidelock.csnlog.core.store.Store`."""
        if not ops:
            return Ok(())
        if multi_bytes(ops, self._root) > self._multi_bytes_max:
            return Refused(Reason.TOO_LARGE)
        transaction = self._client.transaction()
        for op in ops:
            path = self._path(op.path)
            match op:
                case Check():
                    transaction.check(path, op.version)
                case Create():
                    transaction.create(path, op.data, ephemeral=op.ephemeral, sequence=op.sequential)
                case SetData():
                    version = _ANY_VERSION if op.version is None else op.version
                    transaction.set_data(path, op.data, version)
                case Delete():
                    transaction.delete(path, op.version)
        return _of_multi(ops, await self._request(transaction.commit_async), self._root)

    async def get(self, path: str, *, watch: Watch | None = None) -> Ok[Node] | Refused | Unknown:
        """Read a znode; see :class:`~tidelock.csnlog.core.store.Store`."""
        answer = await self._read(self._client.get_async, path, watch)
        if isinstance(answer, tuple):
            data, stat = answer
            return Ok(_node(data, stat))
        return _of_failed_read(answer)

    async def exists(self, path: str, *, watch: Watch | None = None) -> Ok[Node | None] | Refused | Unknown:
        """Return the metadata of a znode, or None; see :class:`~tidelock.csnlog.core.store.Store`."""
        answer = await self._read(self._client.exists_async, path, watch)
        if answer is None:
            return Ok(None)
        if isinstance(answer, ZnodeStat):
            return Ok(_node(b"", answer))
        return _of_failed_read(answer)

    async def children(
        self, path: str, *, watch: Watch | None = None
    ) -> Ok[tuple[str, ...]] | Refused | Unknown:
        """Return the names of the children, unordered; see :class:`~tidelock.csnlog.core.store.Store`."""
        answer = await self._read(self._client.get_children_async, path, watch, of_children=True)
        if isinstance(answer, list):
            return Ok(tuple(answer))
        return _of_failed_read(answer)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    async def _read(
        self, send: Callable[..., AsyncReply], path: str, watch: Watch | None, *, of_children: bool = False
    ) -> object:
        """Send a read and arm its watch, if one is given; return the result of :meth:`_request`."""
        if watch is None:
            return await self._request(send, self._path(path))
        armed, new = self._watches.arm((of_children, path, watch))
        answer = await self._request(send, self._path(path), armed)
        if new and isinstance(answer, Refused | Unknown | Exception):
            self._watches.forget(armed)
        return answer

    async def _request(self, send: Callable[..., AsyncReply], *args: object) -> object:
        """Hand a request to kazoo; return kazoo's answer or error, or Refused or Unknown."""
        if not await self._in_flight.place():
            return _NOT_CONNECTED
        if self.link is not LinkState.CONNECTED:
            self._in_flight.leave()
            return _NOT_CONNECTED
        reply = send(*args)
        self._in_flight.add(reply)
        return await reply.future

    def _is_up(self) -> bool:
        return self._client is not None and self._client.connected

    def _cut(self) -> None:
        self._handler.cut()

    def _probe(self) -> None:
        self._spawn(self.exists(""))

    def _listen(self, state: str) -> None:
        """Process a change of kazoo's state (in kazoo's thread)."""
        if state == KazooState.CONNECTED:
            session, _ = self._client.client_id
            self._inbox.post(self._on_connected, session)
        else:
            self._inbox.post(self._monitor.went_down)

    def _on_connected(self, session: int) -> None:
        if not self._closing:
            self._monitor.came_up(session)
            self._watches.fire_lost()

    def _on_thread_end(self) -> None:
        if not self._closing:
            log.error("the ZooKeeper client has ended unexpectedly; it is started again")
            self._spawn(self._revive())


class _Reply(AsyncReply):
    """A reply that knows kazoo's errors: an error from a server proves that the session is alive."""

    __slots__ = ()

    def set_exception(self, error: Exception) -> None:
        if type(error) in _REASONS:
            self.prove()
        super().set_exception(error)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """The functions that kazoo calls, mostly in its thread. Unlike its parent it has no callback threads."""

    def __init__(
        self,
        clock: SessionClock,
        inbox: LoopQueue,
        *,
        answered: Callable[[AsyncReply, object], None],
        ended: Callable[[], None],
    ) -> None:
        super().__init__()
        self._clock = clock
        self._patience = ConnectBackoff(clock)
        self._inbox = inbox
        self._answered = answered
        self._ended = ended
        self._socket: HandshakeSocket | None = None

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        """Run kazoo's loop in a thread, and report its end."""

        def run() -> None:
            try:
                func(*args, **kwargs)
            except Exception:
                log.exception("the thread of the ZooKeeper client failed")
            self._inbox.post(self._ended)

        return super().spawn(run)

    def async_result(self) -> _Reply:
        return _Reply(inbox=self._inbox, answered=self._answered, proved=self._clock.prove)

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def create_connection(self, *args: Any, **kwargs: Any) -> socket.socket:
        """Connect within the time of an attempt, and note the session timeout that the server grants."""
        started_s = time.monotonic()

        def noted(timeout_s: float) -> None:
            self._patience.answered()
            if timeout_s > 0:
                self._clock.session_timeout_s = timeout_s
                self._clock.prove(started_s)

        try:
            connected = super().create_connection(*args, **kwargs | {"timeout": self._patience.attempt_s})
        except TimeoutError:
            self._patience.ran_out()
            raise
        self._socket = HandshakeSocket(connected, noted)
        return self._socket

    def select(
        self, readers: list[Any], writers: list[Any], _: list[Any], timeout: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait for sockets before each transfer; kazoo's own method opens an epoll every time."""
        greeting = self._socket is not None and not self._socket.greeted
        if greeting:
            timeout = min(timeout, self._patience.attempt_s)
        poll = select.poll()
        by_number = {item.fileno(): item for item in (*readers, *writers)}
        for item in readers:
            poll.register(item, select.POLLIN)
        for item in writers:
            poll.register(item, select.POLLOUT)
        ready = {by_number[number] for number, _ in poll.poll(timeout * 1000)}
        if greeting and not ready:
            self._patience.ran_out()
        return [item for item in readers if item in ready], [item for item in writers if item in ready], []

    def cut(self) -> None:
        """Break the connection, if it exists; kazoo then tries the next server."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _node(data: bytes, stat: Any) -> Node:
    created = Stamp(stat.czxid, stat.ctime)
    return Node(data, stat.version, stat.numChildren, stat.ephemeralOwner, created, stat.mzxid)


def _of_failed_read(answer: object) -> Refused | Unknown:
    if isinstance(answer, Refused | Unknown):
        return answer
    if isinstance(answer, exceptions.NoNodeError | exceptions.NoAuthError):
        return Refused(_REASONS[type(answer)])
    return _unknown(answer)


def _of_multi(ops: tuple[Op, ...], answer: object, root: str) -> Ok[tuple[object, ...]] | Refused | Unknown:
    if isinstance(answer, Refused | Unknown):
        return answer
    if not isinstance(answer, list) or len(answer) != len(ops):
        return _unknown(answer)
    errors = [(index, item) for index, item in enumerate(answer) if isinstance(item, Exception)]
    for index, error in errors:
        if not isinstance(error, _COMPANIONS):
            reason = _REASONS.get(type(error))
            return _unknown(error) if reason is None else Refused(reason, index)
    if errors:
        return _unknown(answer)
    return Ok(tuple(_value(op, item, root) for op, item in zip(ops, answer, strict=True)))


def _value(op: Op, item: Any, root: str) -> object:
    if isinstance(op, Create):
        return item[len(root) + 1 :]
    return Written(item.version, Stamp(item.mzxid, item.mtime)) if isinstance(op, SetData) else None


def _unknown(answer: object) -> Unknown:
    if isinstance(answer, Exception):
        return Unknown(f"{type(answer).__name__}: {answer}".rstrip(": "))
    return Unknown(f"an answer that cannot be understood: {answer!r:.200}")
