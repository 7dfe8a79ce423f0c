"""A task's uploads to a stub of an agent's file system: whole files, or a refusal with its reason."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.support.spark.hdfs_client import JOB
from tidelock.client.agents import webhdfs
from tidelock.client.agents.webhdfs import StagingFolder
from tidelock.errors import (
    CorruptError,
    DiskFullError,
    RefusedError,
    StandbyError,
    TidelockError,
    TooLargeError,
    TransactionClosedError,
    UnavailableError,
)
from tidelock.replica_agent.readers import hdfs

TOKEN = "tl1.eyJhIjoxfQ.c2VjcmV0"
PATH = f"_temporary/0/_temporary/attempt_1/city=Zürich%2F/part-00000-{JOB}-c000.parquet"


class Agent(ThreadingHTTPServer):
    """An agent that accepts files, unless `mode` names a fault or is the body of a refusal."""

    daemon_threads = True

    def __init__(self) -> None:
        self.mode = ""
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing; some tests break uploads off."""

    @property
    def folder(self) -> StagingFolder:
        """The staging folder of the agent."""
        return StagingFolder(f"webhdfs://127.0.0.1:{self.server_address[1]}/transactions/{TOKEN}/default/t")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Agent

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing."""

    def do_PUT(self) -> None:
        """Answer an operation as the mode says."""
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.server.asked.append((url.path, query))
        path = unquote(url.path.partition("/default/t/")[2])
        mode = self.server.mode
        if query["op"] == "RENAME":
            self._answer(200, b'{"boolean": %b}' % (b"false" if mode == "in the way" else b"true"))
        elif mode.startswith("{"):
            self._answer(403, mode.encode())
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
            self.server.files[path] = self._body()
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
        refusal = {"RemoteException": {"exception": kind, "javaClassName": kind, "message": message}}
        self._answer(403, json.dumps(refusal).encode())

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent that accepts files."""
    with Agent() as running:
        yield running
        running.shutdown()


@pytest.mark.parametrize("chunks", [[], [10], [7, 5, 0, 12, 3], [100], [100, 100, 1]])
def test_files_arrive_whole_or_piece_by_piece(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, chunks: list[int]
) -> None:
    """Small files arrive whole, large files in chunks, at their paths."""
    monkeypatch.setattr(webhdfs, "CHUNK_BYTES", 10)
    upload = agent.folder.upload(PATH)
    data = b""
    for number, size in enumerate(chunks):
        chunk = bytes([number]) * size
        assert upload.write(chunk) == size
        data += chunk
    upload.flush()
    assert not upload.closed
    upload.finish()
    assert agent.files == {PATH: data}
    assert upload.length == len(data)
    assert [query.get("overwrite") for _, query in agent.asked] == ["false", "false"]


def test_what_is_abandoned_does_not_arrive(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """An abandoned file does not arrive, even if bytes of it were sent and the Parquet writer writes more."""
    monkeypatch.setattr(webhdfs, "CHUNK_BYTES", 10)
    for size in (5, 50):
        upload = agent.folder.upload(PATH)
        upload.write(bytes(size))
        upload.abandon()
        assert upload.write(b"a footer") == 8
    assert agent.files == {}


@pytest.mark.parametrize(
    ("mode", "error", "message"),
    [
        ("refuse at once", RefusedError, "has ended"),
        ("refuse in the middle", TidelockError, "too large|has not accepted a file"),
        ("standby", UnavailableError, "stopping"),
        ("cut", UnavailableError, "has not accepted a file"),
    ],
)
@pytest.mark.parametrize("size", [5, 10_000_000])
def test_refusals_are_told_without_the_token(
    agent: Agent, mode: str, error: type[Exception], message: str, size: int
) -> None:
    """The error has the agent's reason, whenever the agent gives it, and does not contain the token."""
    agent.mode = mode
    upload = agent.folder.upload(PATH)

    def send() -> None:
        for _ in range(size // 1_000_000):
            upload.write(bytes(1_000_000))
        upload.finish()

    with pytest.raises(error, match=message) as found:
        send()
    upload.abandon()
    assert found.value.__cause__ is None
    assert TOKEN not in f"{found.value}{agent.folder!r}{upload!r}"


@pytest.mark.parametrize(
    "error",
    [
        TooLargeError("x", limit=1),
        StandbyError("x", snapshot_csn=3),
        DiskFullError("x"),
        TransactionClosedError("x"),
        CorruptError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_refusals_keep_their_class_and_details(agent: Agent, error: TidelockError) -> None:
    """So that a caller decides by the class whether to try once more."""
    agent.mode = hdfs.refusal(error)[1].decode()
    with pytest.raises(type(error)) as found:
        agent.folder.upload(PATH).finish()
    assert (found.value.message, found.value.details) == (error.message, error.details)


@pytest.mark.parametrize("body", ['{"ok": false}', '{"RemoteException": {}}', '{"RemoteException": 1}'])
def test_an_answer_that_no_agent_has_written_is_no_refusal(agent: Agent, body: str) -> None:
    """It is that of a gateway: another replica may take the file."""
    agent.mode = body
    with pytest.raises(UnavailableError, match="without an error of an agent"):
        agent.folder.upload(PATH).finish()


def test_an_agent_that_has_gone_is_told(agent: Agent) -> None:
    """An upload to an agent that does not run is an error."""
    folder = agent.folder
    agent.shutdown()
    agent.server_close()
    with pytest.raises(UnavailableError, match="no connection to the agent"):
        folder.upload(PATH).finish()


def test_rename_sends_the_target_encoded_twice(agent: Agent) -> None:
    """The path of the target is sent in the query, percent-encoded twice where its names are encoded."""
    agent.folder.rename("_temporary/0/_temporary/a", "_temporary/0/task_a")
    ((path, query),) = agent.asked
    assert path == f"/webhdfs/v1/transactions/{TOKEN}/default/t/_temporary/0/_temporary/a"
    assert query == {
        "op": "RENAME",
        "destination": f"/transactions/{TOKEN}/default/t/_temporary/0/task_a",
    }
    agent.mode = "in the way"
    with pytest.raises(RefusedError, match="did not rename a to b"):
        agent.folder.rename("a", "b")


@pytest.mark.parametrize("reset", [True, False])
def test_a_file_of_a_replica_that_dies_is_no_fault_of_the_folder(tmp_path: Path, reset: bool) -> None:
    """Whether its connection is reset or ends early: another replica is asked then."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nPAR1")
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        serving = threading.Thread(target=serve)
        serving.start()
        port = server.getsockname()[1]
        with pytest.raises(UnavailableError):
            webhdfs.download(f"127.0.0.1:{port}", "/snapshots/1/default/t/x", tmp_path / "x", 100)
        serving.join()
