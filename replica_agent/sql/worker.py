"""A SQL process: runs one statement at a time and streams the result back."""

from __future__ import annotations

from tidelock.replica_agent.config import lean_start

if __name__ == "__main__":  # not in a process that imports this module
    lean_start.leave_out_packages()

import queue
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import duckdb
import msgspec
import pyarrow as pa

from tidelock.errors import TidelockError, TooLargeError
from tidelock.replica_agent.sql.changes import ChangedRows
from tidelock.replica_agent.sql.engine import Engine
from tidelock.replica_agent.sql.mutating import MutationRun
from tidelock.replica_agent.sql.mutation import MutationRequest, MutationResult
from tidelock.replica_agent.sql.reading import insert_select, query
from tidelock.replica_agent.sql.request import (
    STOP,
    AnswerKind,
    ChangesRequest,
    Request,
    SqlConfig,
    SqlRequest,
    pack_answer,
)
from tidelock.replica_agent.sql.session import SqlSession
from tidelock.replica_agent.workers import child
from tidelock.replica_agent.workers.limits import limit_memory

#: Bytes of a result that are collected before they are sent: small results arrive whole or as an error.
SEND_BYTES = 256 * 1024
#: Bytes of a frame of results: the agent has one frame of each process in memory.
FRAME_BYTES = 1 << 20
#: Bytes of a record batch that will be staged.
BATCH_BYTES = 1 << 20
#: Seconds between two interruptions of a statement: one that comes between two queries of it has no effect.
INTERRUPT_S = 0.02


class StoppedError(Exception):
    """The agent does not want the rest of the statement."""


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request, as the thread that receives and the thread that runs it know it.

    Attributes:
        request: The request.
        stopped: Set when the agent does not want its rows any more.
    """

    request: Request
    stopped: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # an interrupted connection must be open
    _session: SqlSession | None = None

    def runs_in(self, session: SqlSession) -> None:
        """Take note of the session that runs it."""
        self._session = session

    def require_wanted(self) -> None:
        """Raise StoppedError if its rows are not wanted any more."""
        if self.stopped.is_set():
            raise StoppedError

    def stop(self) -> None:
        """Interrupt it until it has ended."""
        self.stopped.set()
        while not self._over.wait(INTERRUPT_S):
            with self._lock:
                if self._session is not None and not self._over.is_set():
                    self._session.connection.interrupt()

    def end(self) -> None:
        """Release its session."""
        with self._lock:
            self._over.set()
        if self._session is not None:
            self._session.close()


def main() -> NoReturn:
    """Serve requests until the agent's side of the socket is closed."""
    given = child.begin(ignored=(signal.SIGINT,))
    config = msgspec.json.decode(given.config, type=SqlConfig)
    waiting: queue.SimpleQueue[RunningRequest] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(given.connection, waiting), daemon=True).start()
    limit_memory(config.memory_bytes)
    given.connection.sendall(child.STARTED)
    engine = Engine(config)
    while True:
        _serve(given.connection, engine, waiting.get())


def _receive(connection: socket.socket, waiting: queue.SimpleQueue[RunningRequest]) -> None:
    """Receive requests; the process ends, whatever it is doing, when the agent has ended.

    The agent stops no request that it knows to have ended, and sends the next one when it knows that.
    """
    running: RunningRequest | None = None
    for frame in child.requests(connection):
        if frame != STOP:
            running = RunningRequest(msgspec.json.decode(frame, type=Request))
            waiting.put(running)
        elif running is not None:
            running.stop()


def _serve(connection: socket.socket, engine: Engine, running: RunningRequest) -> None:
    """Run one request and send its frames."""
    session = None
    try:
        session = SqlSession(engine, running.request)
        running.runs_in(session)
        ended = _answer(session, running, connection)
    except Exception as error:
        found = (
            session.translate(error) if session is not None else TidelockError(f"no SQL session: {error!r}")
        )
        # After these errors the process may hold memory forever, or be in a worse state.
        fatal = type(found) in {TidelockError, TooLargeError} and not _was_stopped(error)
        kind = AnswerKind.FATAL if fatal else AnswerKind.ERROR
        connection.sendall(pack_answer(kind, msgspec.json.encode(found.to_wire())))
    else:
        connection.sendall(pack_answer(AnswerKind.END, msgspec.json.encode(ended)))
    finally:
        running.end()


def _was_stopped(error: Exception) -> bool:
    """Return whether a statement was given up; Arrow's reader raises OSError for DuckDB's exception."""
    return isinstance(error, StoppedError | duckdb.InterruptException) or "INTERRUPT Error" in str(error)


def _answer(session: SqlSession, running: RunningRequest, connection: socket.socket) -> MutationResult:
    """Send what a statement affects, if it changes a table, and its rows; returns the report at its end."""
    request = running.request
    if isinstance(request, ChangesRequest):
        changes = ChangedRows(session, request)
        pieces = (piece for batch in changes.batches() for piece in _pieces(batch))
        _stream(changes.schema, pieces, connection, running)
        return MutationResult()
    if isinstance(request, SqlRequest):
        insert = insert_select(session, request)
        if insert is None:
            result = query(session, request)
            _stream(result.schema, result, connection, running)
            return MutationResult(reads=session.reads())
        request = MutationRequest(
            request.csn, request.tid, insert.table, insert.rows, request.adopted, request.defined
        )
    run = MutationRun(session, request)
    connection.sendall(pack_answer(AnswerKind.AFFECTED, msgspec.json.encode(run.plan.affected)))
    pieces = (piece for batch in run.batches() for piece in _pieces(batch))
    _stream(run.schema, pieces, connection, running)
    return run.ended()


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch, since the agent accepts no message above a limit."""
    rows = max(1, batch.num_rows * BATCH_BYTES // max(batch.nbytes, 1))
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def _stream(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    connection: socket.socket,
    running: RunningRequest,
) -> None:
    """Send rows as an Arrow IPC stream; its end is written only after all rows."""
    frames = _Frames(connection)
    writer = pa.ipc.new_stream(frames, schema)
    for batch in batches:
        running.require_wanted()
        writer.write_batch(batch)
    writer.close()
    frames.flush()


class _Frames:
    """The file of the IPC writer; sends collected bytes, blocks while the agent does not read."""

    closed = False  # asked for by pyarrow

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pieces: list[bytes] = []
        self._length = 0

    def write(self, data: bytes) -> int:
        self._pieces.append(data)
        self._length += len(data)
        if self._length >= SEND_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        data = memoryview(b"".join(self._pieces))
        self._pieces, self._length = [], 0
        for begin in range(0, len(data), FRAME_BYTES):
            self._connection.sendall(pack_answer(AnswerKind.DATA, bytes(data[begin : begin + FRAME_BYTES])))


if __name__ == "__main__":
    main()
