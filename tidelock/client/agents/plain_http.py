"""HTTP requests with a small body and a small answer, at the least cost: transactions of one request.

A request over urllib3 costs a client half a millisecond, much more than the rows of a small transaction.
Here headers and body leave in one piece, on a connection of the standard library that is kept open. Each
connection is used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import weakref
from typing import Final

from urllib3.util.wait import wait_for_read

from tidelock.client.agents import forks

#: Connections to one agent that are kept open for the next request.
KEPT_MAX: Final = 64


class NotSentError(Exception):
    """No connection: nothing of the request has left."""


class LostError(Exception):
    """No whole answer: the request may have been carried out."""


class PlainHttp:
    """Connections to all agents; any number of threads may use one object at once.

    Args:
        scheme: `http` or `https`.
        headers: The headers of every request, besides those that its body needs.
        connect_s: How long to wait for a connection.
    """

    def __init__(self, scheme: str, headers: dict[str, str], connect_s: float) -> None:
        self._kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._connect_s = connect_s
        self._kept = _Kept()
        # A user may forget to close a client; its sockets are not left to the garbage collector.
        weakref.finalize(self, self._kept.close)
        forks.register(self)

    def after_fork(self) -> None:
        """Leave the connections to the parent."""
        self._kept.after_fork()

    def close(self) -> None:
        """Close the connections; those that are in use when their requests end."""
        self._kept.close()

    def post(
        self, address: str, path: str, body: bytes, *, content_type: str, read_s: float
    ) -> tuple[int, bytes]:
        """Send a body and return status and body of the answer.

        Raises:
            NotSentError: The agent cannot be reached.
            LostError: No whole answer within `read_s`.
        """
        connection = self._take(address)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {address}\r\n{self._headers}"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            assert connection.sock is not None, "a connection that is taken is open"
            connection.sock.settimeout(read_s)
            connection.sock.sendall(head.encode("latin-1") + body)
            with contextlib.closing(http.client.HTTPResponse(connection.sock, method="POST")) as response:
                response.begin()
                text = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise LostError(_words(error)) from error
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._kept.give_back(address, connection)
        return response.status, text

    def _take(self, address: str) -> http.client.HTTPConnection:
        while connection := self._kept.take(address):
            # An agent that was stopped, or was tired of waiting, has closed it: then it is readable.
            if connection.sock is not None and not wait_for_read(connection.sock, timeout=0):
                return connection
            connection.close()
        return self._connect(address)

    def _connect(self, address: str) -> http.client.HTTPConnection:
        connection = self._kind(address, timeout=self._connect_s)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise NotSentError(_words(error)) from error
        return connection


class _Kept:
    """Open connections that no request uses, by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[http.client.HTTPConnection]] = {}
        self._closed = False

    def take(self, address: str) -> http.client.HTTPConnection | None:
        """Return a connection, which may have ended meanwhile; None if there is none."""
        with self._lock:
            idle = self._idle.get(address)
            return idle.pop() if idle else None

    def give_back(self, address: str, connection: http.client.HTTPConnection) -> None:
        """Keep a connection for the next request, or close it."""
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if not self._closed and len(idle) < KEPT_MAX:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all, and keep none from now on."""
        with self._lock:
            self._closed = True
            self._close_all()

    def after_fork(self) -> None:
        """Close the copies of a child: its parent's connections stay open by that."""
        self._lock = threading.Lock()  # a thread of the parent may hold the other one
        self._close_all()

    def _close_all(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
