"""Bodies that an agent reads slowly: the timeout for a connection does not bound them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tidelock.client.agents.transport import Timeouts, Transport
from tidelock.errors import NoAnswerError

#: More bytes than the buffers of a loopback connection hold.
CHUNKS, CHUNK = 64, bytes(1 << 20)
CONNECT_S = 0.2


class SlowAgent:
    """A server that accepts one connection after the other, and pauses before each body."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    while self._answer(connection):
                        pass

    def _answer(self, connection: socket.socket) -> bool:
        tail = connection.recv(100)
        time.sleep(self._pause_s)
        while tail and not tail.endswith(b"0\r\n\r\n"):
            received = connection.recv(1 << 20)
            if not received:
                return False
            tail = (tail + received)[-5:]
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        return bool(tail)

    def close(self) -> None:
        """Stop the server."""
        self._listener.close()
        self._thread.join(10)


@contextlib.contextmanager
def slow_agent(pause_s: float) -> Iterator[str]:
    """The address of an agent that pauses before it reads a body."""
    agent = SlowAgent(pause_s)
    try:
        yield agent.address
    finally:
        agent.close()


def test_an_agent_may_take_a_body_slowly() -> None:
    """Rows wait for an agent that is busy with earlier ones, on a new and on a kept connection."""
    transport = Transport(scheme="http", token=None, timeouts=Timeouts(connect_s=CONNECT_S))
    with slow_agent(3 * CONNECT_S) as address:
        for _ in range(2):
            assert transport.upload(address, "/rows", (CHUNK for _ in range(CHUNKS)), answer=dict) == {}
        transport.close()


def test_an_agent_that_takes_nothing_is_given_up() -> None:
    """A frozen agent is given up after the timeout for an answer."""
    transport = Transport(scheme="http", token=None, timeouts=Timeouts(connect_s=CONNECT_S, answer_s=0.5))
    with slow_agent(4.0) as address, pytest.raises(NoAnswerError):
        transport.upload(address, "/rows", (CHUNK for _ in range(CHUNKS)), answer=dict)
    transport.close()
