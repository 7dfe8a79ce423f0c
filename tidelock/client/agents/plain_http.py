"""HTTP requests with a small body and a small answer, at the least cost: transactions of one request.

A request over urllib3 costs a client half a millisecond, much more than the rows of a small transaction.
Here headers and body leave in one piece, on a connection of the standard library that is kept open. Each
connection is used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import http.client

from tidelock.client.agents import keepalive
from tidelock.client.agents.kept import KeptConnections


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
        dead_s: How long to wait for a sign of the other machine.
    """

    def __init__(self, scheme: str, headers: dict[str, str], connect_s: float, dead_s: float) -> None:
        self._kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._connect_s = connect_s
        self._options = keepalive.options(dead_s)
        self._kept: KeptConnections[http.client.HTTPConnection] = KeptConnections(self)

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
        connection = self._kept.take(address) or self.connect(address)
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
            raise LostError(words(error)) from error
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._kept.give_back(address, connection)
        return response.status, text

    def connect(self, address: str) -> http.client.HTTPConnection:
        """Open a connection; NotSentError if that is not possible in time."""
        connection = self._kind(address, timeout=self._connect_s)
        try:
            connection.connect()
            for option in self._options:
                connection.sock.setsockopt(*option)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise NotSentError(words(error)) from error
        return connection


def words(error: Exception) -> str:
    """Return what an error says."""
    return str(error) or type(error).__name__
