"""The proxy that breaks the network in tests: each fault does what it says, and nothing else."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.faults.proxy import MULTI, Action, Direction, Proxy, _Units, nth_request
from tests.support.waiting import eventually

TIMEOUT_S: Final = 20.0
HELLO: Final = b"\0" * 16


def frame(xid: int, opcode: int = 1, payload: bytes = b"") -> bytes:
    """Return a request in the form of ZooKeeper's."""
    body = xid.to_bytes(4, "big") + opcode.to_bytes(4, "big") + payload
    return len(body).to_bytes(4, "big") + body


class Echo(socketserver.ThreadingTCPServer):
    """A server that keeps what it receives and sends it back."""

    daemon_threads = True

    def __init__(self) -> None:
        self.received = b""

        class Handler(socketserver.BaseRequestHandler):
            def handle(handler) -> None:  # noqa: N805 - self is the server around it
                while received := handler.request.recv(4096):
                    self.received += received
                    handler.request.sendall(received)

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        """The address of the server."""
        return f"127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def echo() -> Iterator[Echo]:
    """An echo server in a thread."""
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    """A proxy in front of the echo server."""
    with Proxy(echo.address) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: Proxy) -> Iterator[Callable[[], socket.socket]]:
    """A function that opens connections through the proxy."""
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        host, _, port = proxy.address.rpartition(":")
        opened.append(socket.create_connection((host, int(port)), TIMEOUT_S))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def client(connect: Callable[[], socket.socket], echo: Echo) -> socket.socket:
    """A connection that has greeted, as a ZooKeeper client does with its first frame."""
    client = connect()
    exchange(client, len(HELLO).to_bytes(4, "big") + HELLO)
    echo.received = b""
    return client


def receive(client: socket.socket, count: int) -> bytes:
    """Receive exactly this number of bytes."""
    received = b""
    while len(received) < count:
        chunk = client.recv(count - len(received))
        assert chunk, f"the connection ended after {received!r}"
        received += chunk
    return received


def exchange(client: socket.socket, sent: bytes) -> None:
    """Send bytes, and require that they come back."""
    client.sendall(sent)
    assert receive(client, len(sent)) == sent


def assert_broken(client: socket.socket) -> None:
    """Require that the connection is broken, and that no byte was received on it."""
    with pytest.raises(ConnectionError):
        client.recv(1)


def test_bytes_pass_unchanged_and_are_counted(client: socket.socket, proxy: Proxy) -> None:
    """Without a fault bytes arrive as they were sent, and are counted by unit, connection and size."""
    before = proxy.counters.bytes_to_client
    exchange(client, frame(1) + frame(2, payload=b"x" * 300_000))
    eventually(lambda: proxy.counters.units_to_client == 3)
    assert proxy.counters.connections == 1
    assert proxy.counters.units_to_server == 3
    assert proxy.counters.bytes_to_client == before + 12 + 300_012


def test_end_of_stream_travels(connect: Callable[[], socket.socket]) -> None:
    """Bytes that one side sent before it closed its half still arrive, and then the end of the stream."""
    client = connect()
    client.sendall(b"ruok")
    client.shutdown(socket.SHUT_WR)
    assert receive(client, 4) == b"ruok"
    assert client.recv(1) == b""


def test_other_protocols_pass_without_a_hook(
    client: socket.socket, connect: Callable[[], socket.socket], proxy: Proxy
) -> None:
    """A stream without length prefixes passes as it is, and no hook is asked about it."""
    proxy.hook(lambda _: Action.LOSE_REQUEST)
    other = connect()
    exchange(other, b"GET / HTTP/1.1\r\n\r\n")
    exchange(other, b"x")
    assert proxy.counters.lost_requests == 0


def test_unreachable_server_breaks_the_connection() -> None:
    """Clients lose their connection if the proxy cannot reach its server."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        with Proxy(f"127.0.0.1:{silent.getsockname()[1]}") as proxy:
            host, _, port = proxy.address.rpartition(":")
            with (
                pytest.raises(ConnectionError),
                socket.create_connection((host, int(port)), TIMEOUT_S) as client,
            ):
                client.recv(1)


def test_a_cut_breaks_open_connections_once(
    client: socket.socket, connect: Callable[[], socket.socket], proxy: Proxy
) -> None:
    """A cut breaks the open connections once; a new connection to the same address works."""
    assert proxy.cut() == 1
    assert_broken(client)
    exchange(connect(), frame(1))
    assert proxy.counters.cut == 1


def test_refusing_breaks_new_connections_until_healed(
    client: socket.socket, connect: Callable[[], socket.socket], proxy: Proxy
) -> None:
    """Refusing breaks new connections, not old ones; healing ends it."""
    proxy.refuse()
    with pytest.raises(ConnectionError):  # at once, or at the first use
        connect().recv(1)
    exchange(client, frame(1))
    proxy.heal()
    exchange(connect(), frame(1))
    assert proxy.counters.refused == 1


def test_black_hole_to_server(client: socket.socket, echo: Echo, proxy: Proxy) -> None:
    """Requests vanish while the server's direction is black; they arrive after healing."""
    proxy.black_hole(Direction.TO_SERVER)
    client.sendall(frame(1))
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(1)
    assert echo.received == b""
    client.settimeout(TIMEOUT_S)
    proxy.heal()
    assert receive(client, 12) == frame(1)


def test_black_hole_to_client(client: socket.socket, echo: Echo, proxy: Proxy) -> None:
    """Requests arrive and their replies vanish while the client's direction is black."""
    proxy.black_hole(Direction.TO_CLIENT)
    client.sendall(frame(1))
    eventually(lambda: echo.received == frame(1))
    assert proxy.counters.units_to_client == 1  # the greeting
    proxy.heal()
    assert receive(client, 12) == frame(1)


def test_black_hole_then_cut_delivers_nothing(client: socket.socket, echo: Echo, proxy: Proxy) -> None:
    """Bytes in transit on a broken connection do not arrive after healing."""
    proxy.black_hole()
    client.sendall(frame(1))
    proxy.cut()
    proxy.heal()
    assert_broken(client)
    assert echo.received == b""


def test_a_lost_reply_has_reached_the_server(client: socket.socket, echo: Echo, proxy: Proxy) -> None:
    """The server has got the request, the client loses the connection instead of the reply."""
    proxy.lose_reply()
    client.sendall(frame(1))
    assert_broken(client)
    assert echo.received == frame(1)
    assert proxy.counters.lost_replies == 1


def test_a_lost_request_never_reaches_the_server(
    client: socket.socket, connect: Callable[[], socket.socket], echo: Echo, proxy: Proxy
) -> None:
    """The server never gets the request; the fault happens once."""
    proxy.lose_request()
    client.sendall(frame(1))
    assert_broken(client)
    exchange(connect(), frame(2))
    assert echo.received == frame(2)
    assert proxy.counters.lost_requests == 1


def test_delay_keeps_order_and_throughput(client: socket.socket, proxy: Proxy) -> None:
    """Delayed units arrive later, in order, and do not wait for each other."""
    frames = [frame(xid) for xid in range(200)]
    proxy.delay(Direction.TO_CLIENT, 0.2)
    began = time.monotonic()
    client.sendall(b"".join(frames))
    assert receive(client, 12 * 200) == b"".join(frames)
    assert time.monotonic() - began >= 0.2


def test_nth_request_loses_its_reply(client: socket.socket, echo: Echo, proxy: Proxy) -> None:
    """Exactly the chosen request loses its reply, although others are on their way before and after it."""
    requests = [
        frame(1, MULTI, b"/a"),
        frame(2, MULTI, b"/csn-"),
        frame(3, 1, b"/csn-"),
        frame(4, MULTI, b"/csn-"),
    ]
    proxy.hook(nth_request(2, Action.LOSE_REPLY, containing=b"/csn-", opcode=MULTI))
    client.sendall(b"".join(requests))
    assert receive(client, len(b"".join(requests[:3]))) == b"".join(requests[:3])
    assert_broken(client)
    assert echo.received == b"".join(requests)


def test_hooked_request_is_lost(client: socket.socket, echo: Echo, proxy: Proxy) -> None:
    """A request that the hook dooms does not reach the server; those before it do."""
    proxy.hook(nth_request(1, Action.LOSE_REQUEST, opcode=MULTI))
    exchange(client, frame(1))
    client.sendall(frame(2, MULTI))
    assert_broken(client)
    assert echo.received == frame(1)


def test_a_late_request_comes_after_the_loss(
    client: socket.socket, connect: Callable[[], socket.socket], echo: Echo, proxy: Proxy
) -> None:
    """The client loses its connection and may come back before the server gets the request."""
    proxy.hook(nth_request(1, Action.DELIVER_LATE, opcode=MULTI))
    client.sendall(frame(1, MULTI))
    assert_broken(client)
    exchange(connect(), frame(2))
    assert echo.received == frame(2)
    proxy.release()
    eventually(lambda: echo.received == frame(2) + frame(1, MULTI))
    assert proxy.counters.late_requests == 1


def test_the_greeting_is_no_request(connect: Callable[[], socket.socket], proxy: Proxy) -> None:
    """The first frame of a connection, which has no request header, is not shown to the hook."""
    shown: list[bytes] = []

    def hook(request: bytes) -> Action:
        shown.append(request)
        return Action.PASS

    proxy.hook(hook)
    client = connect()
    exchange(client, frame(0, MULTI))
    exchange(client, frame(1, MULTI))
    assert shown == [frame(1, MULTI)[4:]]


@given(bodies=st.lists(st.binary(max_size=20), max_size=8), sizes=st.lists(st.integers(1, 9), min_size=1))
def test_units_do_not_depend_on_reads(bodies: list[bytes], sizes: list[int]) -> None:
    """For any division of the bytes into reads the units are the frames."""
    frames = [len(body).to_bytes(4, "big") + body for body in bodies]
    stream = b"".join(frames)
    units, found, turn = _Units(), [], 0
    while stream:
        size = sizes[turn % len(sizes)]
        found += units.feed(stream[:size])
        stream, turn = stream[size:], turn + 1
    assert found + units.feed(b"") == frames


def test_a_torn_frame_is_passed_at_the_end() -> None:
    """The bytes of an incomplete frame are passed on at the end."""
    units = _Units()
    assert units.feed(frame(1)[:7]) == []
    assert units.feed(b"") == [frame(1)[:7]]
