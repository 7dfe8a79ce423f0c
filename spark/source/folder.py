"""The staging folder of a table in a transaction, as a task writes to it: files, by their places.

The protocol is that of Spark's committer (docs/protocol.md#file-writes): two requests to a file, and nothing
counts until the job names it. The token in the folder's address is all that a task shows. No error and no
`repr` repeats it.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlsplit

from tidelock.errors import RefusedError, UnavailableError

#: Encoded bytes are sent in pieces of at least this size; a file that is smaller goes as a whole.
PIECE_BYTES: Final = 1 << 20
#: Time to connect, and for an agent to take a piece or to answer, in seconds.
CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 120.0

_OK, _CREATED, _REDIRECTED = 200, 201, 307


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder.

    Attributes:
        url: `webhdfs://host:port/transactions/<token>/<namespace>/<table>`, as `Transaction.path` gives it.
    """

    url: str = field(repr=False)

    @property
    def token(self) -> str:
        """The token in its address."""
        return urlsplit(self.url).path.split("/")[2]

    def upload(self, place: str) -> Upload:
        """Begin a file; nothing is sent yet."""
        return Upload(self, place)

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder; errors as `locate`."""
        parts = urlsplit(self.url)
        destination = quote(f"{parts.path}/{target}", safe="")
        request = f"/webhdfs/v1{parts.path}/{quote(source)}?op=RENAME&destination={destination}"
        connection = _connect(parts.netloc)
        try:
            answer = _exchange(connection, lambda: connection.request("PUT", request))
            if answer.status != _OK:
                raise _refusal(answer)
            if not json.loads(answer.read())["boolean"]:
                raise RefusedError(f"{source} cannot become {target}")
        finally:
            connection.close()

    def locate(self, place: str) -> tuple[str, str]:
        """Ask where the bytes of a new file are to go; returns `host:port` and the target of the request.

        Raises:
            RefusedError: The agent takes no such file, or no file at all any more.
            UnavailableError: It does not answer.
        """
        parts = urlsplit(self.url)
        target = f"/webhdfs/v1{parts.path}/{quote(place)}?op=CREATE&overwrite=false"
        connection = _connect(parts.netloc)
        try:
            answer = _exchange(connection, lambda: connection.request("PUT", target))
            if answer.status != _REDIRECTED:
                raise _refusal(answer)
            at = urlsplit(answer.getheader("Location") or "")
        finally:
            connection.close()
        return at.netloc, f"{at.path}?{at.query}"


class Upload:
    """A file on its way, for Arrow's Parquet writer to write into."""

    closed = False  # asked for by pyarrow

    def __init__(self, folder: Folder, place: str) -> None:
        self.place = place
        self.length = 0
        self._folder = folder
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._connection: http.client.HTTPConnection | None = None
        self._discarding = False

    def write(self, data: bytes) -> int:
        """Append bytes; errors as `Folder.locate`."""
        if self._discarding:  # the Parquet writer ends with a footer, whatever has happened
            return len(data)
        self._pieces.append(bytes(data))
        self._waiting += len(data)
        self.length += len(data)
        if self._waiting >= PIECE_BYTES:
            self._send()
        return len(data)

    def flush(self) -> None:
        """Asked for by pyarrow; there is nothing to do before the end."""

    def finish(self) -> None:
        """Send the rest; when this returns the file is durable. Errors as `Folder.locate`."""
        if self._connection is None:
            whole = self._take()
            address, target = self._folder.locate(self.place)
            connection = self._connection = _connect(address)
            answer = _exchange(connection, lambda: connection.request("PUT", target, whole))
        else:
            if self._waiting:
                self._send()
            connection = self._connection
            answer = _exchange(connection, lambda: connection.send(b"0\r\n\r\n"))
        try:
            if answer.status != _CREATED:
                raise _refusal(answer)
        finally:
            connection.close()

    def abandon(self) -> None:
        """Cut the file: nothing of it is kept."""
        self._discarding = True
        if self._connection is not None:
            self._connection.close()

    def _send(self) -> None:
        if self._connection is None:
            address, target = self._folder.locate(self.place)
            connection = self._connection = _connect(address)

            def begin() -> None:
                connection.putrequest("PUT", target)
                connection.putheader("Transfer-Encoding", "chunked")
                connection.endheaders()

            _guarded(connection, begin)
        connection, data = self._connection, self._take()
        _guarded(connection, lambda: connection.send(b"%x\r\n%b\r\n" % (len(data), data)))

    def _take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces, self._waiting = [], 0
        return data


def _connect(address: str) -> http.client.HTTPConnection:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=CONNECT_TIMEOUT_S)
    try:
        connection.connect()
    except OSError as error:
        raise UnavailableError(
            f"no connection to the agent at {address} ({error}); if it is the transaction's home, the write "
            "fails and leaves nothing: run it again, by the same label if it has one"
        ) from error
    connection.sock.settimeout(ANSWER_TIMEOUT_S)
    return connection


def _exchange(connection: http.client.HTTPConnection, send: Callable[[], None]) -> http.client.HTTPResponse:
    """Send the last of a request and return the answer to it."""
    _guarded(connection, send)
    try:
        return connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise _no_answer(connection, error) from None


def _guarded(connection: http.client.HTTPConnection, send: Callable[[], None]) -> None:
    """Send; an agent that takes no more has mostly said why."""
    try:
        send()
    except OSError as error:
        try:
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException):
            raise _no_answer(connection, error) from None
        raise _refusal(answer) from None


def _no_answer(connection: http.client.HTTPConnection, error: Exception) -> UnavailableError:
    # Without its cause: texts of http.client may hold the request, and that the token.
    return UnavailableError(
        f"the agent at {connection.host}:{connection.port} has not taken a file ({type(error).__name__})"
    )


def _refusal(answer: http.client.HTTPResponse) -> RefusedError | UnavailableError:
    """Return what an agent says instead of taking a file."""
    try:
        told = json.loads(answer.read())["RemoteException"]
        message, kind = str(told["message"]), str(told["exception"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return UnavailableError(f"HTTP {answer.status} from something that is no agent")
    return UnavailableError(message) if kind == "StandbyException" else RefusedError(message)
