"""A task's uploads, against a double of an agent's file system: whole files, or a refusal in words."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.support.spark.hdfs_client import JOB
from tidelock.errors import RefusedError, TidelockError, UnavailableError
from tidelock.spark.source import folder
from tidelock.spark.source.folder import Folder

TOKEN = "tl1.eyJhIjoxfQ.c2VjcmV0"
PLACE = f"_temporary/0/_temporary/attempt_1/city=Zürich%2F/part-00000-{JOB}-c000.parquet"


class Agent(ThreadingHTTPServer):
    """Takes files, unless `mode` says what goes wrong."""

    daemon_threads = True

    def __init__(self) -> None:
        self.mode = ""
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Uploads are cut; that is what some tests are about."""

    @property
    def folder(self) -> Folder:
        """Its one folder."""
        return Folder(f"webhdfs://127.0.0.1:{self.server_address[1]}/transactions/{TOKEN}/default/t")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Agent

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""

    def do_PUT(self) -> None:
        """Take an operation."""
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.server.asked.append((url.path, query))
        place = unquote(url.path.partition("/default/t/")[2])
        mode = self.server.mode
        if query["op"] == "RENAME":
            self._answer(200, b'{"boolean": %b}' % (b"false" if mode == "in the way" else b"true"))
        elif mode == "refuse at once":
            self._refuse("AccessControlException", "the token's transaction has ended")
        elif mode == "standby":
            self._refuse("StandbyException", "stopping")
        elif "data" not in query:
            host = f"127.0.0.1:{self.server.server_address[1]}"
            self._answer(307, b"", Location=f"http://{host}{url.path}?{url.query}&data=true")
        elif mode == "refuse in the middle":
            self.rfile.read(min(10, int(self.headers.get("Content-Length", 10))))
            self._refuse("AccessControlException", "too large")
            self.close_connection = True
        elif mode == "cut":
            self.close_connection = True
        else:
            self.server.files[place] = self._body()
            self._answer(201, b"")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _refuse(self, kind: str, message: str) -> None:
        told = {"RemoteException": {"exception": kind, "javaClassName": kind, "message": message}}
        self._answer(403, json.dumps(told).encode())

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent that takes files."""
    with Agent() as found:
        yield found
        found.shutdown()


@pytest.mark.parametrize("pieces", [[], [10], [7, 5, 0, 12, 3], [100], [100, 100, 1]])
def test_files_arrive_whole_or_piece_by_piece(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, pieces: list[int]
) -> None:
    """Small ones as a whole, large ones piece by piece, at their place."""
    monkeypatch.setattr(folder, "PIECE_BYTES", 10)
    upload = agent.folder.upload(PLACE)
    data = b""
    for number, size in enumerate(pieces):
        piece = bytes([number]) * size
        assert upload.write(piece) == size
        data += piece
    upload.flush()
    assert not upload.closed
    upload.finish()
    assert agent.files == {PLACE: data}
    assert upload.length == len(data)
    assert [query.get("overwrite") for _, query in agent.asked] == ["false", "false"]


def test_what_is_abandoned_does_not_arrive(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether anything was sent of it or not; the Parquet writer may write on."""
    monkeypatch.setattr(folder, "PIECE_BYTES", 10)
    for size in (5, 50):
        upload = agent.folder.upload(PLACE)
        upload.write(bytes(size))
        upload.abandon()
        assert upload.write(b"a footer") == 8
    assert agent.files == {}


@pytest.mark.parametrize(
    ("mode", "error", "message"),
    [
        ("refuse at once", RefusedError, "has ended"),
        ("refuse in the middle", TidelockError, "too large|has not taken a file"),
        ("standby", UnavailableError, "stopping"),
        ("cut", UnavailableError, "has not taken a file"),
    ],
)
@pytest.mark.parametrize("size", [5, 10_000_000])
def test_refusals_are_told_without_the_token(
    agent: Agent, mode: str, error: type[Exception], message: str, size: int
) -> None:
    """What the agent says is told, whenever it says it; nothing that is told shows the token."""
    agent.mode = mode
    upload = agent.folder.upload(PLACE)

    def send() -> None:
        for _ in range(size // 1_000_000):
            upload.write(bytes(1_000_000))
        upload.finish()

    with pytest.raises(error, match=message) as found:
        send()
    upload.abandon()
    assert found.value.__cause__ is None
    assert TOKEN not in f"{found.value}{agent.folder!r}{upload!r}"


def test_an_agent_that_has_gone_is_told(agent: Agent) -> None:
    """An agent that has gone."""
    there = agent.folder
    agent.shutdown()
    agent.server_close()
    with pytest.raises(UnavailableError, match="no connection to the agent"):
        there.upload(PLACE).finish()


def test_rename_sends_the_target_encoded_twice(agent: Agent) -> None:
    """The path of the target travels in the query, percent-encoded twice where its names are."""
    agent.folder.rename("_temporary/0/_temporary/a", "_temporary/0/task_a")
    ((path, query),) = agent.asked
    assert path == f"/webhdfs/v1/transactions/{TOKEN}/default/t/_temporary/0/_temporary/a"
    assert query == {
        "op": "RENAME",
        "destination": f"/transactions/{TOKEN}/default/t/_temporary/0/task_a",
    }
    agent.mode = "in the way"
    with pytest.raises(RefusedError, match="cannot become"):
        agent.folder.rename("a", "b")
