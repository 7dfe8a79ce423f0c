"""The SQL processes of an agent: started when needed, kept warm, ended when they overstep or nobody listens.

A statement runs in a process of its own kind so that no query can stall commits, take the agent's memory or
reach its files. Errors that come before the first bytes of a result are raised as such; a result that fails
later just ends in an error, so the caller must not let its client take the bytes before it for the whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tidelock.errors import BadRequestError, TidelockError, TooLargeError, UnavailableError, from_wire
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.sql.mutation import Affected, Ended, MutationRequest
from tidelock.replica_agent.sql.request import (
    Kind,
    Request,
    SqlRequest,
    WorkerConfig,
    pack,
    read_frame,
    select_statement,
)

__all__ = ["Mutation", "SqlPool", "SqlRequest", "Statement", "select_statement"]

#: Bytes of a result that wait in the agent for its client.
BUFFER_BYTES = 1 << 20

#: How a process ends whose allocation failed in a place that cannot raise, or that the machine had to end.
_OUT_OF_MEMORY = (-signal.SIGABRT, -signal.SIGKILL)
#: Errors of a SQL process have no HTTP status; all their classes are known here.
_NO_STATUS = 500

#: Nothing else of the agent's environment, above all no secret.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_ALLOCATORS = {
    # Memory that is reserved but unused counts as used; these reserve little. The third is DuckDB's own
    # allocator, which keeps what was freed for later by default: after a join more than twice its limit.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "DUCKDB_JE_MALLOC_CONF": "retain:false,dirty_decay_ms:0,muzzy_decay_ms:0",
    # Fixed, or glibc raises the first with the blocks that the engine frees, keeps them in a heap full of
    # holes, and a table that is loaded and spilled takes 120 bytes of memory for each of its rows.
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}


class SqlPool:
    """Runs statements in at most ``sql_workers`` processes."""

    def __init__(self, settings: AgentSettings, data_dir: Path) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._slots = asyncio.Semaphore(settings.sql_workers)
        self._waiting = 0
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._started = 0
        self._closed = False

    async def run(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Run a statement and yield its result as pieces of an Arrow IPC stream; see :meth:`statement`."""
        async with self.statement(request) as statement:
            async for piece in statement.pieces():
                yield piece

    @contextlib.asynccontextmanager
    async def mutate(self, request: MutationRequest) -> AsyncIterator[Mutation]:
        """Begin a mutation: what it affects is known on entry; otherwise as :meth:`statement`."""
        async with self.statement(request) as statement:
            assert statement.affected is not None, "a mutation begins with what it affects"
            yield Mutation(statement.affected, statement)

    @contextlib.asynccontextmanager
    async def statement(self, request: Request) -> AsyncIterator[Statement]:
        """Begin a statement: on entry its first rows are there, or what it is going to change is known.

        Leaving before its end ends it. At its end it gives its process back, so that whoever has taken all of
        its rows may begin another one.

        Raises:
            BadRequestError, UnknownTableError, StandbyError, SnapshotTooOldError, CorruptError: See
                :class:`tidelock.replica_agent.sql.session.Session`.
            TooLargeError: It needs more memory or time than it may have.
            UnavailableError: Too many statements wait already, none ended in time, or the agent stops.
        """
        frame = _frame_of(request)
        async with contextlib.AsyncExitStack() as place:
            await place.enter_async_context(self._slot())
            worker = await self._worker()
            self._busy.add(worker)
            place.push_async_callback(self._give_back, worker)
            frames = await place.enter_async_context(contextlib.aclosing(worker.run(frame)))
            yield Statement(await anext(frames), frames, place.aclose)

    async def _give_back(self, worker: _Worker) -> None:
        self._busy.discard(worker)
        if worker.reusable and not self._closed:
            self._idle.append(worker)
        else:
            await worker.end()

    async def close(self) -> None:
        """End all processes; statements under way fail."""
        self._closed = True
        for worker in (*self._idle, *self._busy):
            await worker.end()
        self._idle.clear()

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Wait for one of the places, in order of arrival."""
        if self._waiting >= self._settings.sql_waiting_max:
            raise UnavailableError(
                f"{self._waiting} statements wait for a SQL process (sql_waiting_max); try again later, use "
                "another replica, or raise sql_workers"
            )
        self._waiting += 1
        try:
            async with asyncio.timeout(self._settings.sql_timeout_s):
                await self._slots.acquire()
        except TimeoutError as error:
            raise UnavailableError(
                "no SQL process became free in time; try again later, or raise sql_workers"
            ) from error
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()

    async def _worker(self) -> _Worker:
        if self._closed:
            raise UnavailableError("this replica stops and takes no more statements; use another")
        while self._idle:
            worker = self._idle.pop()
            if worker.reusable:
                return worker
            await worker.end()
        self._started += 1
        return await _Worker.start(self._settings, self._data_dir, self._started)


class Statement:
    """A statement under way.

    Attributes:
        affected: What it is going to change, or None if it only reads.
        ended: What it told at its end; None before :meth:`pieces` is through.
    """

    def __init__(
        self,
        first: tuple[Kind, bytes],
        frames: AsyncIterator[tuple[Kind, bytes]],
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        self.affected: Affected | None = None
        self.ended: Ended | None = None
        self._first: tuple[Kind, bytes] | None = first
        self._frames, self._leave = frames, leave
        if first[0] is Kind.AFFECTED:
            self.affected = msgspec.json.decode(first[1], type=Affected)
            self._first = None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the rows as pieces of one Arrow IPC stream; errors as :meth:`SqlPool.statement`."""
        if self._first is not None:
            yield self._first[1]
        async for kind, payload in self._frames:
            if kind is Kind.END:
                self.ended = msgspec.json.decode(payload, type=Ended)
                break
            yield payload
        await self._leave()


@dataclass(frozen=True, slots=True)
class Mutation:
    """A statement under way that changes a table."""

    affected: Affected
    _statement: Statement

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the rows to add; as :meth:`Statement.pieces`."""
        return self._statement.pieces()

    @property
    def ended(self) -> Ended:
        """What it told at its end, when :meth:`pieces` is through."""
        assert self._statement.ended is not None, "all pieces were taken"
        return self._statement.ended


class _Worker:
    """One SQL process, and the socket to it."""

    def __init__(
        self,
        process: Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        config: WorkerConfig,
        timeout_s: float,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._config = config
        self._timeout_s = timeout_s
        self._free = False
        self._ended = False
        self._stalled = False

    @classmethod
    async def start(cls, settings: AgentSettings, data_dir: Path, number: int) -> _Worker:
        """Start a process and wait until it is ready; the time does not count as that of a statement."""
        config = WorkerConfig(
            data_dir=str(data_dir),
            temp_dir=str(data_dir / "run" / f"sql-{number}"),
            memory_bytes=settings.sql_memory_bytes,
            engine_bytes=int(settings.sql_memory_bytes * settings.sql_engine_share),
            temp_bytes=settings.sql_temp_bytes,
            threads=settings.sql_threads,
        )
        ours, theirs = socket.socketpair()
        try:
            await asyncio.to_thread(_make_empty, Path(config.temp_dir))
            process = await asyncio.create_subprocess_exec(
                # -P: a module in the agent's working directory must not shadow a library.
                *(sys.executable, "-P", "-m", "tidelock.replica_agent.sql.worker"),
                *(str(theirs.fileno()), msgspec.json.encode(config).decode()),
                stdin=DEVNULL,
                stdout=DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=_ALLOCATORS | {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )
            reader, writer = await asyncio.open_connection(sock=ours, limit=BUFFER_BYTES)
        except BaseException as error:
            ours.close()  # a process that was started sees it, and ends
            if isinstance(error, OSError):
                raise UnavailableError(f"no SQL process could be started: {error}") from error
            raise
        finally:
            theirs.close()
        worker = cls(process, reader, writer, config, settings.sql_timeout_s)
        try:
            async with asyncio.timeout(settings.worker_start_timeout_s):
                await read_frame(reader)  # READY
        except BaseException as error:
            await worker.end()
            if isinstance(error, TimeoutError | asyncio.IncompleteReadError | ConnectionError):
                raise UnavailableError("a SQL process did not start; look at the replica's log") from error
            raise
        worker._free = True
        return worker

    @property
    def reusable(self) -> bool:
        """Whether it can be given a request."""
        return self._free and self._process.returncode is None

    async def run(self, frame: bytes) -> AsyncGenerator[tuple[Kind, bytes], None]:
        """Run one statement and yield its frames to the end.

        The time that the caller takes for them does not count as the statement's own.
        """
        clock = asyncio.get_running_loop().time
        left_s = self._timeout_s
        self._free = False
        self._writer.write(frame)
        while True:
            asked = clock()
            kind, payload = await self._frame(left_s)
            left_s -= clock() - asked
            if kind in {Kind.DATA, Kind.AFFECTED}:
                with self._patience():
                    yield kind, payload
                continue
            self._free = kind is not Kind.FATAL
            if kind is Kind.END:
                yield kind, payload
                return
            raise from_wire(_NO_STATUS, msgspec.json.decode(payload))

    async def end(self) -> None:
        """End the process and remove what it left."""
        self._ended = True
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._writer.close()
        await asyncio.to_thread(shutil.rmtree, self._config.temp_dir, ignore_errors=True)

    async def _frame(self, left_s: float) -> tuple[Kind, bytes]:
        try:
            async with asyncio.timeout(left_s):
                return await read_frame(self._reader)
        except TimeoutError as error:
            raise TooLargeError(
                f"the statement ran longer than {self._timeout_s:g} s (sql_timeout_s); let it read less",
                limit=self._timeout_s,
            ) from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise await self._gone() from error

    async def _gone(self) -> TidelockError:
        """Return why the process has ended in the middle of a statement."""
        status = await self._process.wait()
        if self._stalled:
            return UnavailableError(f"nobody took the rows of the statement for {self._timeout_s:g} s")
        if status in _OUT_OF_MEMORY and not self._ended:
            limit = self._config.memory_bytes
            return TooLargeError(
                f"the statement needs more than {limit} bytes of memory (sql_memory_bytes); let it keep less",
                limit=limit,
            )
        return UnavailableError(f"the SQL process ended in the middle of the statement (status {status})")

    @contextlib.contextmanager
    def _patience(self) -> Iterator[None]:
        """End the process if the caller does not come back for more."""
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._stall)
        try:
            yield
        finally:
            timer.cancel()

    def _stall(self) -> None:
        self._stalled = True
        self._process.kill()


def _frame_of(request: Request) -> bytes:
    try:
        return pack(Kind.REQUEST, msgspec.json.encode(request))
    except (TypeError, UnicodeEncodeError) as error:
        raise BadRequestError(f"the statement or a parameter is no JSON value: {error}") from error


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
