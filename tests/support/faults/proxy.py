"""A TCP proxy that makes the network fail in the ways that matter, at the place a test chooses.

It runs an event loop in a thread of its own; every method may be called from any thread and has taken effect
when it returns. What it does to bytes is only what a network can do: deliver them late, or deliver a prefix
and then break the connection. It never drops bytes in the middle of a connection that stays open, since TCP
does not do that either.

Bytes travel in units. On connections that speak ZooKeeper's protocol (length-prefixed frames) a unit is one
frame, so that faults hit whole requests and replies; on all others a unit is what one read returned.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import enum
import re
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

#: ZooKeeper's number of a multi, in a request's header.
MULTI: Final = 14
#: A length that no frame of ZooKeeper has (jute.maxbuffer is 1 MiB): the stream is something else.
FRAME_BYTES_MAX: Final = 4 << 20
#: Units on their way in one direction of one connection; then the proxy stops reading, as a full network
#: would.
QUEUE_UNITS_MAX: Final = 1024
CALL_TIMEOUT_S: Final = 30.0

_PREFIX_BYTES: Final = 4
_READ_BYTES: Final = 64 << 10
_HTTP_REQUEST: Final = re.compile(rb"((?:GET|HEAD|POST|PUT|DELETE) \S+) HTTP/1\.1\r\n")

T = TypeVar("T")
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Direction(enum.Enum):
    """The direction in which bytes go."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


class Action(enum.Enum):
    """The treatment of a request."""

    PASS = "pass"
    #: The server never gets the request, and the connection breaks: not applied, but the client cannot know.
    LOSE_REQUEST = "lose request"
    #: The server gets it, and the reply is lost with the connection: applied, but the client cannot know.
    LOSE_REPLY = "lose reply"
    #: The client loses its connection now; the server gets the request when the test calls `release`.
    #: Meanwhile the client may have come back and read a state in which the request had no effect yet.
    DELIVER_LATE = "deliver late"


#: Decides what to do with a request, given the frame without its length prefix. It runs in the proxy's
#: thread.
Hook = Callable[[bytes], Action]


@dataclasses.dataclass
class Counters:
    """The actions of the proxy so far, so that a test can prove that its fault happened."""

    connections: int = 0
    refused: int = 0
    cut: int = 0
    lost_requests: int = 0
    lost_replies: int = 0
    late_requests: int = 0
    units_to_server: int = 0
    units_to_client: int = 0
    bytes_to_server: int = 0
    bytes_to_client: int = 0
    #: Method and path of each HTTP request whose first unit was sent on.
    http_requests: list[str] = dataclasses.field(default_factory=list)


def nth_request(n: int, action: Action, *, containing: bytes = b"", opcode: int | None = None) -> Hook:
    """Return a hook that applies `action` to the n-th request (from 1) of an operation with these bytes."""
    seen = 0

    def hook(frame: bytes) -> Action:
        nonlocal seen
        if containing in frame and opcode in {None, int.from_bytes(frame[4:8], "big")}:
            seen += 1
            if seen == n:
                return action
        return Action.PASS

    return hook


class Proxy:
    """A proxy in front of `target`, a `host:port`. Use it as a context manager.

    Faults that are set hold for connections that exist and for those to come, until `heal`.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self.target = (host, int(port))
        self.counters = Counters()
        self.delay_s = dict.fromkeys(Direction, 0.0)
        self.on_request: Hook | None = None
        self.lose_next: Direction | None = None
        self.refusing = False
        self.gates = {direction: asyncio.Event() for direction in Direction}
        self.late = asyncio.Event()
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{target}", daemon=True)
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """The address for clients, `host:port`, which never changes."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    def cut(self) -> int:
        """Break all connections (clients see a reset); return how many there were. New ones pass."""

        async def cut() -> int:
            links = list(self._links)
            for link in links:
                self.counters.cut += 1
                link.abort()
            return len(links)

        return self._call(cut())

    def refuse(self) -> None:
        """From now on break every new connection at once, as a port without a listener does."""
        self._set(lambda: setattr(self, "refusing", True))

    def black_hole(self, *directions: Direction) -> None:
        """From now on nothing arrives in these directions (by default both), and nothing breaks.

        What is sent meanwhile arrives after `heal`, if the connection still lives: TCP sends it again.
        """

        def close_gates() -> None:
            for direction in directions or Direction:
                self.gates[direction].clear()

        self._set(close_gates)

    def delay(self, direction: Direction, delay_s: float) -> None:
        """From now on every unit in this direction takes this much longer; order and throughput stay."""
        self._set(lambda: self.delay_s.update({direction: delay_s}))

    def lose_reply(self) -> None:
        """Drop the next unit from a server, and break its connection."""
        self._set(lambda: setattr(self, "lose_next", Direction.TO_CLIENT))

    def lose_request(self) -> None:
        """Drop the next unit from a client, and break its connection."""
        self._set(lambda: setattr(self, "lose_next", Direction.TO_SERVER))

    def hook(self, hook: Hook | None) -> None:
        """Ask `hook` about every ZooKeeper request from now on; see `nth_request`."""
        self._set(lambda: setattr(self, "on_request", hook))

    def release(self) -> None:
        """Deliver the requests that DELIVER_LATE holds back, now and in future."""
        self._set(self.late.set)

    def heal(self) -> None:
        """End all faults. Requests that `DELIVER_LATE` holds back wait until `release`."""

        def heal() -> None:
            self.refusing = False
            self.lose_next = None
            self.on_request = None
            self.delay_s = dict.fromkeys(Direction, 0.0)
            for gate in self.gates.values():
                gate.set()

        self._set(heal)

    def count(self, direction: Direction, unit: bytes) -> None:
        """Count one unit that is sent on."""
        if direction is Direction.TO_SERVER:
            self.counters.units_to_server += 1
            self.counters.bytes_to_server += len(unit)
            if line := _HTTP_REQUEST.match(unit):
                self.counters.http_requests.append(line[1].decode())
        else:
            self.counters.units_to_client += 1
            self.counters.bytes_to_client += len(unit)

    def _set(self, change: Callable[[], object]) -> None:
        async def run() -> None:
            change()

        self._call(run())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(CALL_TIMEOUT_S)

    async def _open(self) -> None:
        for gate in self.gates.values():
            gate.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in list(self._links):
            link.server_writer.transport.abort()
        await asyncio.sleep(0)  # the loop closes aborted connections in its next turn

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            self.counters.refused += 1
            _reset(writer)
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.target)
        except OSError:
            _reset(writer)
            return
        self.counters.connections += 1
        link = _Link(self, client=(reader, writer), server=(server_reader, server_writer))
        self._links.add(link)
        try:
            # Cancelled by `_close`. Python 3.11 reports a handler that ends so as an error.
            with contextlib.suppress(asyncio.CancelledError):
                await link.run()
        finally:
            link.abort()
            self._links.discard(link)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection so that the other end sees a reset, not an orderly end."""
    # Lingering for no time is what makes the kernel send one. A socket that is closed already has been reset.
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
    writer.transport.abort()


class _Units:
    """Cuts a stream into units: frames with a length prefix, or, for other protocols, chunks as they come."""

    def __init__(self) -> None:
        self.framed = True
        self._buffer = b""

    def feed(self, received: bytes) -> list[bytes]:
        """Return the units that these bytes complete; no bytes mean the end, and complete the last unit."""
        self._buffer += received
        units = []
        while self.framed and len(self._buffer) >= _PREFIX_BYTES:
            length = int.from_bytes(self._buffer[:_PREFIX_BYTES], "big")
            if length > FRAME_BYTES_MAX:
                self.framed = False
                break
            end = _PREFIX_BYTES + length
            if len(self._buffer) < end:
                break
            units.append(self._buffer[:end])
            self._buffer = self._buffer[end:]
        if self._buffer and (not self.framed or not received):
            units.append(self._buffer)
            self._buffer = b""
        return units


class _Link:
    """One connection of a client and its connection to the server."""

    def __init__(self, proxy: Proxy, *, client: _Streams, server: _Streams) -> None:
        self.proxy = proxy
        self.client_reader, self.client_writer = client
        self.server_reader, self.server_writer = server
        self.greeted = False
        #: The number of the request whose reply is to be lost, as in both frames.
        self.doomed_reply: bytes | None = None

    async def run(self) -> None:
        """Forward both ways until both sides have ended or the link is broken."""
        async with asyncio.TaskGroup() as group:
            for direction, reader in (
                (Direction.TO_SERVER, self.client_reader),
                (Direction.TO_CLIENT, self.server_reader),
            ):
                queue: asyncio.Queue[tuple[float, bytes, bool] | None] = asyncio.Queue(QUEUE_UNITS_MAX)
                group.create_task(self._receive(direction, reader, queue))
                group.create_task(self._forward(direction, queue))

    def abort(self) -> None:
        """Break the link: the client sees a reset, the server an end; the tasks end by it."""
        _reset(self.client_writer)
        self.server_writer.close()

    async def _receive(
        self,
        direction: Direction,
        reader: asyncio.StreamReader,
        queue: asyncio.Queue[tuple[float, bytes, bool] | None],
    ) -> None:
        """Put arriving units into the queue, with the time of their delivery; None at the end."""
        units = _Units()
        received = b"-"
        while received:
            try:
                received = await reader.read(_READ_BYTES)
            except ConnectionError:
                received = b""
            due = asyncio.get_running_loop().time() + self.proxy.delay_s[direction]
            for unit in units.feed(received):
                await queue.put((due, unit, units.framed))
        await queue.put(None)

    async def _forward(
        self, direction: Direction, queue: asyncio.Queue[tuple[float, bytes, bool] | None]
    ) -> None:
        """Deliver the units of the queue when they are due, unless a fault prevents it."""
        loop = asyncio.get_running_loop()
        writer = self.server_writer if direction is Direction.TO_SERVER else self.client_writer
        alive = True
        while item := await queue.get():
            due, unit, framed = item
            await asyncio.sleep(max(0.0, due - loop.time()))
            await self.proxy.gates[direction].wait()
            # A link that is broken still empties its queues, so that its receivers see the end.
            if alive and await self._admit(direction, unit, framed=framed):
                alive = await self._send(direction, writer, unit)
        if alive and not writer.is_closing():
            with contextlib.suppress(OSError):  # the other side has closed meanwhile
                writer.write_eof()

    async def _send(self, direction: Direction, writer: asyncio.StreamWriter, unit: bytes) -> bool:
        """Send one unit and count it; False if the link is broken."""
        if writer.is_closing():
            return False
        # Before it is sent, so that a test that has seen it arrive finds it counted.
        self.proxy.count(direction, unit)
        try:
            writer.write(unit)
            await writer.drain()
        except ConnectionError:
            self.abort()
            return False
        return True

    async def _admit(self, direction: Direction, unit: bytes, *, framed: bool) -> bool:
        """Return whether a unit is delivered; break the link if a fault requires it."""
        proxy = self.proxy
        if proxy.lose_next is direction:
            proxy.lose_next = None
            self._lose(direction)
            return False
        if direction is Direction.TO_CLIENT:
            number = unit[_PREFIX_BYTES : 2 * _PREFIX_BYTES]
            if self.doomed_reply is None or self.doomed_reply != number:
                return True
            self._lose(direction)
            return False
        return await self._admit_request(unit) if framed else True

    async def _admit_request(self, unit: bytes) -> bool:
        proxy = self.proxy
        frame = unit[_PREFIX_BYTES:]
        greeted, self.greeted = self.greeted, True
        # The first frame of a connection opens the session and has no header.
        action = proxy.on_request(frame) if proxy.on_request and greeted else Action.PASS
        if action is Action.LOSE_REQUEST:
            self._lose(Direction.TO_SERVER)
            return False
        if action is Action.LOSE_REPLY:
            self.doomed_reply = frame[:_PREFIX_BYTES]
        elif action is Action.DELIVER_LATE:
            proxy.counters.late_requests += 1
            _reset(self.client_writer)
            await proxy.late.wait()
        return True

    def _lose(self, direction: Direction) -> None:
        if direction is Direction.TO_SERVER:
            self.proxy.counters.lost_requests += 1
        else:
            self.proxy.counters.lost_replies += 1
        self.abort()
