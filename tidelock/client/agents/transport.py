"""HTTP to agents: one request and its answer; each way to fail becomes an error that says what is certain.

Nothing is repeated here: the caller knows whether a repetition is safe. Three kinds of failure are
distinguished:

* the agent answered with an error: that error, rebuilt by `tidelock.errors.from_wire`;
* the request certainly did not leave: `NoConnectionError`;
* the request may have run, but no whole answer was received: `NoAnswerError`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from tidelock.client.agents import begin_order, forks, keepalive
from tidelock.client.agents.channel import Channels
from tidelock.client.agents.plain_http import LostError, NotSentError, PlainHttp
from tidelock.client.agents.waits import Waits
from tidelock.client.agents.watched import LAST_SHOW_S, SHOW_S, WatchedSocket
from tidelock.errors import (
    BadRequestError,
    NoAnswerError,
    NoConnectionError,
    TidelockError,
    from_answer,
    from_wire,
)
from tidelock.loopback_names import reachable

T = TypeVar("T")

API: Final = "/api/v1"
#: Path of the answer that costs an agent least; it needs no token.
HEALTH: Final = "/healthz"
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
BYTES: Final = "application/octet-stream"
JSON: Final = "application/json"
#: Connections to one agent that are kept open for the next request; more are opened when more threads send
#: requests at the same time.
CONNECTIONS_KEPT: Final = 64
#: A body of rows up to this size is sent as a whole, with its length.
WHOLE_BODY_BYTES_MAX: Final = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long a client waits, in seconds.

    Attributes:
        connect_s: For a connection to an agent.
        answer_s: For the answer of a silent agent; also the whole time for a commit and its repetitions.
        query_s: For the first rows of a query. It must exceed the agents' `sql_timeout_s`.
        change_s: For a statement that changes rows, which answers when they are written.
        dead_s: For a sign of the machine of an agent, while its answer is waited for (see `keepalive`).
        suspect_s: The time for which an agent that did not answer is tried after all others.
        wait_log_s: From this length on a wait is logged (see `waits`).
        members_s: After this time the list of the agents is read again, at the next request.
    """

    connect_s: float = 2.0
    answer_s: float = 60.0
    query_s: float = 330.0
    change_s: float = 1800.0
    dead_s: float = 30.0
    suspect_s: float = 10.0
    wait_log_s: float = 2.0
    members_s: float = 30.0


class Transport:
    """Keep-alive connections to all agents of a cluster; any number of threads may use one at once.

    Args:
        scheme: `http`, or `https` where a proxy in front of the agents ends TLS.
        token: The shard's shared secret, the token of a transaction, or None.

    Raises:
        BadRequestError: The token cannot be sent in a header.
    """

    def __init__(self, *, scheme: str, token: str | None, timeouts: Timeouts) -> None:
        if token and not (token.isascii() and token.isprintable() and token == token.strip()):
            raise BadRequestError(
                "expected a token of printable ASCII characters without a space at its ends, since an HTTP "
                "header contains it; check the token"
            )
        self.timeouts = timeouts
        self.waits = Waits(timeouts.wait_log_s)
        self._token = token
        self._scheme = scheme
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._pools = _pool_classes(timeouts.answer_s)
        self._watched_pools = _pool_classes(timeouts.answer_s, lives=self.lives)
        self._patience = threading.local()
        self._open_pools()
        plain = PlainHttp(scheme, self._headers, timeouts.connect_s, timeouts.dead_s)
        self._channels = Channels(plain, API, self._headers, timeouts.connect_s)
        forks.register(self)

    def _open_pools(self) -> None:
        self._pool = _pool_of(self._pools, self.timeouts.dead_s)
        self._watched_pool = _pool_of(self._watched_pools, self.timeouts.dead_s)
        self._looks = urllib3.PoolManager(num_pools=64, retries=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments of the transport, the token included."""
        made = functools.partial(Transport, scheme=self._scheme, token=self._token, timeouts=self.timeouts)
        return made, ()

    def url_of(self, address: str) -> str:
        """Return the URL of an agent."""
        return f"{self._scheme}://{address}"

    def with_token(self, token: str) -> Transport:
        """Return a copy of this transport that sends the token of a transaction instead of the secret."""
        return Transport(scheme=self._scheme, token=token, timeouts=self.timeouts)

    def after_fork(self) -> None:
        """Leave the connections to the parent."""
        self._open_pools()

    def close(self) -> None:
        """Close all connections that are not in use."""
        for pool in (self._pool, self._watched_pool, self._looks):
            pool.clear()
        self._channels.close()

    @contextlib.contextmanager
    def patiently(self) -> Iterator[None]:
        """Give agents `LAST_SHOW_S` to show that they live, for requests of this thread during the block."""
        self._patience.show_s = LAST_SHOW_S
        try:
            yield
        finally:
            del self._patience.show_s

    def lives(self, address: str) -> bool:
        """Return whether an agent answers anything within `SHOW_S`."""
        show_s = getattr(self._patience, "show_s", SHOW_S)
        timeout = urllib3.Timeout(connect=show_s, read=show_s)
        try:
            self._looks.request("GET", f"{self._scheme}://{address}{HEALTH}", redirect=False, timeout=timeout)
        except HTTPError:
            return False
        return True

    def call(
        self,
        address: str,
        method: str,
        path: str,
        *,
        answer: type[T],
        body: msgspec.Struct | None = None,
        query: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        working: bool = False,
        elsewhere: bool = False,
    ) -> T:
        """Send a request with a JSON body, or none, and return the answer.

        Args:
            address: Address of the agent.
            method: HTTP method.
            path: Path below /api/v1.
            answer: Type to which the JSON answer is decoded; fields that it does not know are left out.
            body: A request of `tidelock.wire`.
            query: Parameters of the query string.
            timeout_s: How long to wait for the answer; default: `answer_s`.
            working: The agent may have to work for long (see `waits`).
            elsewhere: The caller can ask another agent: this one is given up as soon as it is frozen.

        Raises:
            BadRequestError: The body holds a value that JSON cannot express, or the answer to a GET is no
                JSON, so that the address is probably wrong.
            NoConnectionError: The request certainly did not leave.
            NoAnswerError: No whole answer in time, or an answer of another form.
            TidelockError: The error that the agent answered.
        """
        response = self._send(
            address,
            method,
            path + _query(query),
            None if body is None else json_text(body).encode(),
            content_type=JSON,
            read_s=self.timeouts.answer_s if timeout_s is None else timeout_s,
            working=working,
            elsewhere=elsewhere,
        )
        return _decoded(response.status, response.data, address, answer, changes=method != "GET")

    def upload(
        self,
        address: str,
        path: str,
        chunks: Iterable[bytes | memoryview],
        *,
        answer: type[T],
        timeout_s: float | None = None,
    ) -> T:
        """Send a body piece by piece, one in memory at a time; answer and errors as in `call`.

        A small body is sent as a whole: chunks cost both sides a system call or more for each piece.
        """
        response = self._send(
            address, "POST", path, _whole_or_chunks(chunks), content_type=ARROW_STREAM, working=True,
            read_s=self.timeouts.answer_s if timeout_s is None else timeout_s,
        )  # fmt: skip
        return _decoded(response.status, response.data, address, answer, changes=True)

    def write(
        self,
        address: str,
        path: str,
        body: bytes,
        *,
        answer: type[T],
        timeout_s: float,
        content_type: str = BYTES,
    ) -> T:
        """Send a small body of bytes and return the answer, at the least cost; errors as in `call`."""
        begin_order.begin_all()
        try:
            with self.waits.during(
                lambda: f"POST {path.partition('?')[0]} at {address}, for at most {timeout_s:.0f} s"
            ):
                status, text = self._channels.post(
                    reachable(address), path, body, content_type=content_type, read_s=timeout_s
                )
        except NotSentError as error:
            raise _no_connection(address, str(error)) from error
        except LostError as error:
            raise _no_answer(address, str(error)) from error
        return _decoded(status, text, address, answer, changes=True)

    def stream(
        self, address: str, path: str, body: msgspec.Struct, *, elsewhere: bool = False
    ) -> urllib3.BaseHTTPResponse:
        """Send a JSON body and return the unread answer, which has status 200; errors as in `call`.

        The caller reads the answer to its end, or closes it. With `elsewhere` a read fails, too, as soon as
        the agent is frozen.
        """
        response = self._send(
            address,
            "POST",
            path,
            json_text(body).encode(),
            content_type=JSON,
            read_s=self.timeouts.query_s,
            preload=False,
            working=True,
            elsewhere=elsewhere,
        )
        if response.status != 200:  # noqa: PLR2004 - HTTP's own number
            try:
                text = response.read()
            except (HTTPError, OSError) as error:
                raise _no_answer(address, _cause(error)) from error
            finally:
                response.close()
            raise _refusal(response.status, text, address)
        return response

    def _send(
        self,
        address: str,
        method: str,
        path: str,
        body: bytes | Iterable[bytes | memoryview] | None,
        *,
        content_type: str,
        read_s: float,
        preload: bool = True,
        working: bool = False,
        elsewhere: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        begin_order.begin_all()
        headers = self._headers if body is None else {**self._headers, "Content-Type": content_type}
        try:
            with self.waits.during(
                lambda: f"{method} {path.partition('?')[0]} at {address}, for at most {read_s:.0f} s",
                working=working,
            ):
                return (self._watched_pool if elsewhere else self._pool).request(
                    method,
                    f"{self._scheme}://{reachable(address)}{API}{path}",
                    # urllib3 asks for bytes in its types and takes any buffer.
                    body=body,  # type: ignore[arg-type]
                    headers=headers,
                    timeout=urllib3.Timeout(connect=self.timeouts.connect_s, read=read_s),
                    retries=False,
                    redirect=False,
                    preload_content=preload,
                )
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise _no_connection(address, _cause(error)) from error
        except ReadTimeoutError as error:
            raise _no_answer(address, _cause(error), silent=True) from error
        except HTTPError as error:
            raise _no_answer(address, _cause(error)) from error


def _pool_of(classes: dict[str, type[urllib3.HTTPConnectionPool]], dead_s: float) -> urllib3.PoolManager:
    options = [*HTTPConnection.default_socket_options, *keepalive.options(dead_s)]
    pool = urllib3.PoolManager(num_pools=64, maxsize=CONNECTIONS_KEPT, socket_options=options)
    pool.pool_classes_by_scheme = classes
    return pool


def _pool_classes(
    send_s: float, *, lives: Callable[[str], bool] | None = None
) -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Return classes of connections that may take ``send_s`` for each piece of a body.

    urllib3 limits the sending of a body by the timeout of the connection, or by the timeout of the previous
    answer. An agent that is busy with earlier rows may receive no bytes for longer than that. With ``lives``,
    which is asked for an address, they are watched (see `watched`), but for those of TLS.
    """

    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            self.sock.settimeout(send_s)

        def putrequest(self, *args: Any, **named: Any) -> None:
            if self.sock is not None:  # kept from the request before
                self.sock.settimeout(send_s)
            super().putrequest(*args, **named)

    class Watched(Plain):
        def _new_conn(self) -> socket.socket:
            assert lives is not None, "only these connections are watched"
            host = f"[{self._dns_host}]" if ":" in self._dns_host else self._dns_host
            return WatchedSocket.take(super()._new_conn(), functools.partial(lives, f"{host}:{self.port}"))

    class Secure(Plain, HTTPSConnection):
        pass

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain if lives is None else Watched

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


def segment(text: str) -> str:
    """Return text as one segment of a path, with every character quoted that could end the segment."""
    return quote(text, safe="")


def _whole_or_chunks(chunks: Iterable[bytes | memoryview]) -> bytes | Iterable[bytes | memoryview]:
    """Return the body as bytes if it is small, otherwise its pieces."""
    pieces = iter(chunks)
    head: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        head.append(piece)
        size += len(piece)
        if size > WHOLE_BODY_BYTES_MAX:
            return itertools.chain(head, pieces)
    return b"".join(head)


def _no_connection(address: str, cause: str) -> NoConnectionError:
    return NoConnectionError(
        f"no connection to the agent at {address} ({cause}); is it running, and is that its API address?",
        address=address,
        cause=cause,
    )


def _no_answer(address: str, cause: str, **details: bool) -> NoAnswerError:
    return NoAnswerError(
        f"no whole answer from the agent at {address} ({cause}); it may have carried out the request",
        address=address,
        **details,
    )


def _cause(error: Exception) -> str:
    """Return the reason in urllib3's words, without the objects that urllib3 prints around it."""
    inner = next((item for item in error.args if isinstance(item, Exception)), error)
    return str(inner).rpartition(": ")[2] or type(inner).__name__


def _query(query: Mapping[str, Any] | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def json_text(body: msgspec.Struct) -> str:
    """Return a request as JSON, without fields that are None or False: an absent field means the same.

    A False that is not the default is sent: there its absence means something else.

    Raises:
        BadRequestError: The request holds a value that JSON cannot express.
    """
    values = ((field, getattr(body, field.name)) for field in msgspec.structs.fields(body))
    given = {
        field.encode_name: value
        for field, value in values
        if value is not None and (value is not False or field.default is not False)
    }
    try:
        return json.dumps(given, allow_nan=False, default=_no_json)
    except ValueError as error:
        raise BadRequestError(f"{error}; parameters are None, bool, int, finite float or str") from error


def _no_json(value: object) -> Any:
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    raise BadRequestError(
        f"a parameter is {value!r}, of type {type(value).__name__}; pass None, bool, int, float or str, "
        "and cast in SQL, e.g. `o_orderdate < cast(? as date)`",
        type=type(value).__name__,
    )


def _decoded(status: int, text: bytes, address: str, answer: type[T], *, changes: bool) -> T:
    if not 200 <= status < 300:  # noqa: PLR2004 - HTTP's own numbers
        raise _refusal(status, text, address)
    try:
        return msgspec.json.decode(text, type=answer)
    except ValueError as error:
        # A proxy may have replaced the answer of an agent that has done what was requested.
        if changes or isinstance(error, msgspec.ValidationError):
            raise NoAnswerError(
                f"{address} answered in another form than an agent ({error}); it may have carried out the "
                "request. Is that an agent's API address?",
                address=address,
            ) from error
        raise BadRequestError(
            f"expected JSON from {address}, found something else; is that an agent's API address?",
            address=address,
        ) from error


def _refusal(status: int, text: bytes, address: str) -> TidelockError:
    """Return the error in an answer; the error page of a proxy becomes the nearest class for its status."""
    name = "UnavailableError" if status in {502, 504} else ""  # of a gateway
    message = f"{address} answered HTTP {status}, but no error of an agent; is that an agent's API address?"
    return from_answer(status, text) or from_wire(status, {"error": name, "message": message})
