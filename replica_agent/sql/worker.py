"""A SQL process: runs one statement at a time and streams the result back."""

from __future__ import annotations

import queue
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import NoReturn

import msgspec
import pyarrow as pa

from tidelock.replica_agent.config.no_pandas import leave_pandas_out

leave_pandas_out()  # before the modules below, which import pyarrow.dataset

from tidelock.errors import TidelockError, TooLargeError
from tidelock.replica_agent.sql.changes import ChangedRows
from tidelock.replica_agent.sql.mutating import MutationRun
from tidelock.replica_agent.sql.mutation import MutationRequest, MutationResult
from tidelock.replica_agent.sql.reading import insert_select, query
from tidelock.replica_agent.sql.request import (
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


def main() -> NoReturn:
    """Serve requests until the agent's side of the socket is closed."""
    given = child.begin(ignored=(signal.SIGINT,))
    config = msgspec.json.decode(given.config, type=SqlConfig)
    waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(given.connection, waiting), daemon=True).start()
    limit_memory(config.memory_bytes)
    given.connection.sendall(child.STARTED)
    while True:
        _serve(given.connection, config, waiting.get())


def _receive(connection: socket.socket, waiting: queue.SimpleQueue[Request]) -> None:
    """Receive requests; the process ends, whatever it is doing, when the agent has ended."""
    for request in child.requests(connection):
        waiting.put(msgspec.json.decode(request, type=Request))


def _serve(connection: socket.socket, config: SqlConfig, request: Request) -> None:
    """Run one request and send its frames."""
    session = None
    try:
        session = SqlSession(config, request)
        ended = _answer(session, request, connection)
    except Exception as error:
        found = (
            session.translate(error) if session is not None else TidelockError(f"no SQL session: {error!r}")
        )
        # After these errors the process may hold memory forever, or be in a worse state.
        kind = AnswerKind.FATAL if type(found) in {TidelockError, TooLargeError} else AnswerKind.ERROR
        connection.sendall(pack_answer(kind, msgspec.json.encode(found.to_wire())))
    else:
        connection.sendall(pack_answer(AnswerKind.END, msgspec.json.encode(ended)))
    finally:
        if session is not None:
            session.close()


def _answer(session: SqlSession, request: Request, connection: socket.socket) -> MutationResult:
    """Send what a statement affects, if it changes a table, and its rows; returns the report at its end."""
    if isinstance(request, ChangesRequest):
        changes = ChangedRows(session, request)
        _stream(
            changes.schema, (piece for batch in changes.batches() for piece in _pieces(batch)), connection
        )
        return MutationResult()
    if isinstance(request, SqlRequest):
        insert = insert_select(session, request)
        if insert is None:
            result = query(session, request)
            _stream(result.schema, result, connection)
            return MutationResult(reads=session.reads())
        request = MutationRequest(request.csn, request.tid, insert.table, insert.rows, request.adopted)
    run = MutationRun(session, request)
    connection.sendall(pack_answer(AnswerKind.AFFECTED, msgspec.json.encode(run.plan.affected)))
    _stream(run.schema, (piece for batch in run.batches() for piece in _pieces(batch)), connection)
    return run.ended()


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch, since the agent accepts no message above a limit."""
    rows = max(1, batch.num_rows * BATCH_BYTES // max(batch.nbytes, 1))
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def _stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch], connection: socket.socket) -> None:
    """Send rows as an Arrow IPC stream; its end is written only after all rows."""
    frames = _Frames(connection)
    writer = pa.ipc.new_stream(frames, schema)
    for batch in batches:
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
