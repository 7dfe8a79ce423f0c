"""Kept connections of small requests: whatever becomes of a client, each is closed, and none is lost open."""

from __future__ import annotations

import gc
import socket
import threading
import warnings
from collections.abc import Iterator
from typing import Final

import pytest

from tidelock.client.agents.plain_http import PlainHttp

ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
WAIT_S: Final = 20.0


class Server:
    """A server of one connection that answers a request when it is told to."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while connection.recv(1 << 16):
                self.asked.set()
                self.may_answer.wait(WAIT_S)
                connection.sendall(ANSWER)
        self.closed.set()

    def end(self) -> None:
        """End the server."""
        self._listener.close()
        self._thread.join(WAIT_S)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that ends with the test."""
    made = Server()
    yield made
    made.may_answer.set()
    made.end()


def post(http: PlainHttp, server: Server) -> tuple[int, bytes]:
    """Send a request."""
    return http.post(server.address, "/", b"{}", content_type="application/json", read_s=WAIT_S)


def test_a_client_that_nobody_closes_leaves_no_connection_open(server: Server) -> None:
    """Its connections are closed with it, without the warning that a socket was forgotten."""
    server.may_answer.set()
    http = PlainHttp("http", {}, 5.0, 30.0)
    assert post(http, server) == (200, b"{}")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del http
        gc.collect()
    assert [str(one.message) for one in warned if one.category is ResourceWarning] == []
    assert server.closed.wait(WAIT_S)


def test_a_connection_that_is_in_use_while_its_client_closes_is_closed_behind(server: Server) -> None:
    """The request gets its answer, and nobody keeps the connection after that."""
    http = PlainHttp("http", {}, 5.0, 30.0)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(post(http, server)))
    thread.start()
    assert server.asked.wait(WAIT_S)
    http.close()
    server.may_answer.set()
    thread.join(WAIT_S)
    assert answers == [(200, b"{}")]
    assert server.closed.wait(WAIT_S)


def test_a_request_that_is_interrupted_closes_its_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends it: half an answer may be on the way there."""
    http = PlainHttp("http", {}, 5.0, 30.0)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("http.client.HTTPResponse.begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        post(http, server)
    server.may_answer.set()
    assert server.closed.wait(WAIT_S)
    http.close()
