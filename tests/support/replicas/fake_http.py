"""HTTP of agents, with answers that are lost on request: the lower half of `fake_agent`."""

from __future__ import annotations

import enum
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa

from tidelock.errors import TidelockError

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Fault(enum.Enum):
    """A fault that happens to one request instead of an answer."""

    #: The connection ends before the agent has read the request.
    LOST_REQUEST = enum.auto()
    #: The agent carries the request out, and the connection ends before the answer.
    LOST_ANSWER = enum.auto()
    #: The agent does it, and a proxy answers 200 with a page of its own, or with JSON of its own.
    PAGE = enum.auto()
    OTHER_JSON = enum.auto()
    #: Rows: the connection ends after the first batch, between two chunks.
    CUT = enum.auto()
    #: Rows: the answer ends properly after the first batch, without the end mark of the Arrow stream.
    SHORT = enum.auto()
    #: Rows: no more bytes after the first batch until the cluster is closed.
    HALF = enum.auto()
    #: The agent sends no answer until the cluster is closed.
    SILENCE = enum.auto()


@dataclass
class Request:
    """A request: its method, path, query, headers and body."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> dict[str, Any]:
        """The body as JSON."""
        return dict(json.loads(self.body or b"{}"))


class Agent(Protocol):
    """The program that answers the requests."""

    requests: list[Request]
    released: threading.Event

    def next_fault(self, request: Request) -> Fault | TidelockError | None:
        """Return the fault that this request meets; None: it is answered."""

    def answer(self, request: Request) -> Any:
        """Return JSON, or the rows of a query; raise TidelockError."""


class Server(ThreadingHTTPServer):
    """The port of one agent."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._connections: set[Any] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def cut_all(self) -> None:
        """Close all connections."""
        for request in list(self._connections):
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, as some tests do on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing."""

    def _serve(self) -> None:
        agent = self.server.agent
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        path = url.path.removeprefix("/api/v1")
        request = Request(self.command, path, query, self._body(), dict(self.headers.items()))
        agent.requests.append(request)
        fault = agent.next_fault(request)
        if fault is Fault.SILENCE:
            agent.released.wait()
        if fault in {Fault.LOST_REQUEST, Fault.SILENCE}:
            self.close_connection = True
            return
        try:
            answer = fault if isinstance(fault, TidelockError) else agent.answer(request)
        except TidelockError as error:
            self._error(error.http_status, type(error).__name__, error.message, error.details)
            return
        except Exception as error:
            self._error(500, "TidelockError", f"the double has a fault: {error!r}")
            raise
        if fault is Fault.LOST_ANSWER:
            self.close_connection = True
        elif fault in {Fault.PAGE, Fault.OTHER_JSON}:
            self._body_out(200, b"<html>" if fault is Fault.PAGE else b"{}")
        elif isinstance(answer, TidelockError):
            self._error(answer.http_status, type(answer).__name__, answer.message, answer.details)
        elif isinstance(answer, pa.Table):
            self._rows(answer, fault)
        else:
            self._json(200, answer)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - http.server looks for these names

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            return b"".join(self._chunks())
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _error(self, status: int, name: str, message: str, details: dict[str, Any] | None = None) -> None:
        self._json(status, {"error": name, "message": message, "details": details or {}})

    def _json(self, status: int, value: Any) -> None:
        self._body_out(status, json.dumps(value).encode())

    def _body_out(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _rows(self, table: pa.Table, fault: Fault | TidelockError | None) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._chunk(table.schema.serialize().to_pybytes())
        for batch in table.to_batches():
            self._chunk(batch.serialize().to_pybytes())
            if fault in {Fault.CUT, Fault.SHORT, Fault.HALF}:
                break
        if fault is Fault.HALF:
            self.server.agent.released.wait()
        if fault in {Fault.CUT, Fault.HALF}:
            self.close_connection = True
            return
        if fault is not Fault.SHORT:
            self._chunk(_END_OF_STREAM)
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
