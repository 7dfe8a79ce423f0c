"""Whole files to and from agents: the staging folder of a table in a transaction, the files of a snapshot.

The protocol of a staging folder is the one of Spark's committer (docs/protocol.md#file-writes): a file takes
two requests, and counts only if the job names it. The token in the folder's address is a task's only
credential. No error and no `repr` contains it.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

from tidelock.errors import RefusedError, TidelockError, UnavailableError, from_answer, from_wire
from tidelock.loopback_names import reachable

#: Encoded bytes are sent in chunks of at least this size; a smaller file is sent whole.
CHUNK_BYTES: Final = 1 << 20
#: Time to connect, and for an agent to receive a chunk or to answer, in seconds.
CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 120.0

_OK, _CREATED, _REDIRECTED = 200, 201, 307


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """The staging folder.

    Attributes:
        url: `webhdfs://host:port/transactions/<token>/<namespace>/<table>`, as `Transaction.path` returns it.
    """

    url: str = field(repr=False)

    @property
    def token(self) -> str:
        """The token in the folder's address."""
        return urlsplit(self.url).path.split("/")[2]

    def upload(self, path: str) -> Upload:
        """Begin a file, whose path is relative to the folder; nothing is sent yet."""
        return Upload(self, path)

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
                raise RefusedError(f"the agent did not rename {source} to {target}")
        finally:
            connection.close()

    def link(self, path: str, source: Path) -> bool:
        """Have the agent take a file of its own machine as it is; return whether it has.

        Raises:
            OSError: The file cannot be looked at here.
            RefusedError, UnavailableError: As `locate`.
        """
        parts, found = urlsplit(self.url), source.stat()
        fields = urlencode(
            {
                "op": "CREATE",
                "overwrite": "false",
                "source": str(source.resolve()),
                "length": found.st_size,
                "mtime_ns": found.st_mtime_ns,
                "inode": found.st_ino,
            }
        )
        target = f"/webhdfs/v1{parts.path}/{quote(path)}?{fields}"
        connection = _connect(parts.netloc)
        try:
            answer = _exchange(connection, lambda: connection.request("PUT", target))
            if answer.status == _REDIRECTED:  # an agent of before
                return False
            if answer.status != _OK:
                raise _refusal(answer)
            return bool(json.loads(answer.read())["boolean"])
        finally:
            connection.close()

    def locate(self, path: str) -> tuple[str, str]:
        """Return where to send the bytes of a new file: `host:port`, and the target of the request.

        Raises:
            RefusedError: The agent does not accept this file, or accepts no file any more; of the class that
                says why, such as TooLargeError.
            UnavailableError: The agent does not answer.
        """
        parts = urlsplit(self.url)
        target = f"/webhdfs/v1{parts.path}/{quote(path)}?op=CREATE&overwrite=false"
        connection = _connect(parts.netloc)
        try:
            answer = _exchange(connection, lambda: connection.request("PUT", target))
            if answer.status != _REDIRECTED:
                raise _refusal(answer)
            location = urlsplit(answer.getheader("Location") or "")
        finally:
            connection.close()
        return location.netloc, f"{location.path}?{location.query}"


class Upload:
    """An upload of one file, as a file object that Arrow's Parquet writer writes to."""

    closed = False  # pyarrow reads it

    def __init__(self, folder: StagingFolder, path: str) -> None:
        self.path = path
        self.length = 0
        self._folder = folder
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._connection: http.client.HTTPConnection | None = None
        self._discarding = False

    def write(self, data: bytes) -> int:
        """Append bytes; errors as `StagingFolder.locate`."""
        if self._discarding:  # the Parquet writer writes a footer even after an error
            return len(data)
        self._waiting.append(bytes(data))
        self._waiting_bytes += len(data)
        self.length += len(data)
        if self._waiting_bytes >= CHUNK_BYTES:
            self._send()
        return len(data)

    def flush(self) -> None:
        """Do nothing; pyarrow calls it, and `finish` sends the rest."""

    def finish(self) -> None:
        """Send the rest; when this returns the file is durable. Errors as `StagingFolder.locate`."""
        if self._connection is None:
            whole = self._take_waiting()
            address, target = self._folder.locate(self.path)
            connection = self._connection = _connect(address)
            answer = _exchange(connection, lambda: connection.request("PUT", target, whole))
        else:
            if self._waiting_bytes:
                self._send()
            connection = self._connection
            answer = _exchange(connection, lambda: connection.send(b"0\r\n\r\n"))
        try:
            if answer.status != _CREATED:
                raise _refusal(answer)
        finally:
            connection.close()

    def abandon(self) -> None:
        """Break the upload off; the agent keeps no byte of the file."""
        self._discarding = True
        if self._connection is not None:
            self._connection.close()

    def _send(self) -> None:
        if self._connection is None:
            address, target = self._folder.locate(self.path)
            connection = self._connection = _connect(address)

            def begin() -> None:
                connection.putrequest("PUT", target)
                connection.putheader("Transfer-Encoding", "chunked")
                connection.endheaders()

            _send_or_raise(connection, begin)
        connection, data = self._connection, self._take_waiting()
        _send_or_raise(connection, lambda: connection.send(b"%x\r\n%b\r\n" % (len(data), data)))

    def _take_waiting(self) -> bytes:
        data = b"".join(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        return data


def download(address: str, path: str, target: Path, length: int) -> None:
    """Fetch a file of a snapshot; the target has all of it when this returns.

    Args:
        address: `host:port` of a replica's snapshot file system.
        path: Path of the file there.
        target: The file to write.
        length: Bytes that the file has.

    Raises:
        UnavailableError: The replica does not answer, or its answer is shorter; another replica may serve it.
        RefusedError: The replica refuses the file.
        OSError: The target cannot be written.
    """
    connection = _connect(address)
    try:
        answer = _exchange(connection, lambda: connection.request("GET", quote(path)))
        if answer.status != _OK:
            raise _refusal(answer)
        found = 0
        with target.open("wb") as file:
            while data := _piece(connection, answer):
                found += file.write(data)
    finally:
        connection.close()
    if found != length:
        raise UnavailableError(f"the agent at {address} has sent {found} bytes of {length}")


def _piece(connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> bytes:
    """Return the next bytes of an answer: what breaks here is the agent, and not the file that they go to."""
    try:
        return answer.read(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _no_answer(connection, error) from None


def _connect(address: str) -> http.client.HTTPConnection:
    host, _, port = reachable(address).rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=CONNECT_TIMEOUT_S)
    try:
        connection.connect()
    except OSError as error:
        raise UnavailableError(
            f"no connection to the agent at {address} ({error}); if the agent is the transaction's home, the "
            "write fails and leaves no rows: run it again, with the same label if it has one"
        ) from error
    connection.sock.settimeout(ANSWER_TIMEOUT_S)
    return connection


def _exchange(connection: http.client.HTTPConnection, send: Callable[[], None]) -> http.client.HTTPResponse:
    """Send the end of a request and return the answer to the request."""
    _send_or_raise(connection, send)
    try:
        return connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise _no_answer(connection, error) from None


def _send_or_raise(connection: http.client.HTTPConnection, send: Callable[[], None]) -> None:
    """Send, or raise the agent's refusal: an agent that stops receiving has usually sent an answer."""
    try:
        send()
    except OSError as error:
        try:
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException):
            raise _no_answer(connection, error) from None
        raise _refusal(answer) from None


def _no_answer(connection: http.client.HTTPConnection, error: Exception) -> UnavailableError:
    # Without the text of the cause: errors of http.client may contain the request, which contains the token.
    return UnavailableError(
        f"the agent at {connection.host}:{connection.port} has not accepted a file ({type(error).__name__})"
    )


def _refusal(answer: http.client.HTTPResponse) -> TidelockError:
    """Return the error with which an agent refuses a request to its file system."""
    try:
        body = answer.read()
        if (error := from_answer(answer.status, body)) is not None:
            return error
        refusal = json.loads(body)["RemoteException"]
        if "tidelock" in refusal:
            return from_wire(answer.status, refusal["tidelock"])
        message, kind = str(refusal["message"]), str(refusal["exception"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return UnavailableError(f"HTTP {answer.status} without an error of an agent")
    # An agent of a version before it told the class.
    return UnavailableError(message) if kind == "StandbyException" else RefusedError(message)
