"""The agent's side of one SQL process: one statement at a time, in bounded time and memory."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from tidelock.errors import TidelockError, TooLargeError, UnavailableError, from_wire
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.sql.request import STOP, AnswerKind, SqlConfig, read_answer
from tidelock.replica_agent.workers.process import Program, WorkerDiedError, WorkerProcess

#: Bytes of a result that wait in the agent for its client.
BUFFER_BYTES: Final = 1 << 20

#: Exit statuses after an allocation that failed where no error can be raised, or after the machine ended the
#: process.
_OUT_OF_MEMORY: Final = (-signal.SIGABRT, -signal.SIGKILL)
#: Errors of a SQL process have no HTTP status; all their classes are known here.
_NO_STATUS: Final = 500

_ALLOCATORS: Final = {
    # Memory that is reserved but unused counts as used; these settings reserve little. The third is for
    # DuckDB's own allocator, which by default keeps freed memory for later: after a join more than twice its
    # limit.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "DUCKDB_JE_MALLOC_CONF": "retain:false,dirty_decay_ms:0,muzzy_decay_ms:0",
    # Fixed, because glibc otherwise raises the first one with the blocks that the engine frees, and keeps
    # these blocks in a fragmented heap. A table that is loaded and spilled then takes 120 bytes of memory for
    # each row.
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}


class ProcessUse(Enum):
    """Whether a SQL process accepts a statement, runs one, or must not be used any more."""

    FREE = "free"
    RUNNING = "running"
    SPENT = "spent"


@dataclass(slots=True, kw_only=True, eq=False)
class SqlProcess:
    """A running SQL process. Made by :meth:`start`; :meth:`end` must always be called.

    Attributes:
        process: The process.
        config: The configuration that it got at its start.
        timeout_s: Longest run of one statement.
        stop_s: Longest time to give up one.
    """

    process: WorkerProcess
    config: SqlConfig
    timeout_s: float
    stop_s: float
    _use: ProcessUse = field(default=ProcessUse.FREE, init=False)
    #: Receives an answer, even if its caller has left: half of a frame must not be lost.
    _receiving: asyncio.Task[bytes] | None = field(default=None, init=False)
    _ended: bool = field(default=False, init=False)
    _stalled: bool = field(default=False, init=False)

    @classmethod
    async def start(cls, *, settings: AgentSettings, data_dir: Path, number: int) -> SqlProcess:
        """Start a process and wait until it is ready; this time does not count as a statement's time.

        Raises:
            UnavailableError: It did not start.
        """
        config = SqlConfig(
            data_dir=str(data_dir),
            temp_dir=str(data_dir / "run" / f"sql-{number}"),
            memory_bytes=settings.sql_memory_bytes,
            engine_bytes=int(settings.sql_memory_bytes * settings.sql_engine_share),
            temp_bytes=settings.sql_temp_bytes,
            threads=settings.sql_threads,
            cut_part_bytes_min=settings.cut_part_bytes_min,
        )
        program = Program(
            what="SQL process",
            module="tidelock.replica_agent.sql.worker",
            start_timeout_s=settings.worker_start_timeout_s,
            environment=_ALLOCATORS,
            buffer_bytes=BUFFER_BYTES,
        )
        try:
            await asyncio.to_thread(_make_empty, Path(config.temp_dir))
        except OSError as error:
            raise UnavailableError(f"the folder of a SQL process cannot be created: {error}") from error
        process = await WorkerProcess.start(program, msgspec.json.encode(config))
        return cls(
            process=process, config=config, timeout_s=settings.sql_timeout_s, stop_s=settings.sql_stop_s
        )

    @property
    def reusable(self) -> bool:
        """Whether it can accept a request."""
        return self._use is ProcessUse.FREE and self.process.runs

    async def run(self, request: bytes) -> AsyncGenerator[tuple[AnswerKind, bytes], None]:
        """Run one statement and yield its answers to the end.

        The time in which the caller handles the answers does not count as the statement's time.
        """
        clock = asyncio.get_running_loop().time
        left_s = self.timeout_s
        self._use = ProcessUse.RUNNING
        self.process.send(request)
        while True:
            asked = clock()
            kind, payload = await self._answer(left_s)
            left_s -= clock() - asked
            if kind in {AnswerKind.DATA, AnswerKind.AFFECTED}:
                with self._patience():
                    yield kind, payload
                continue
            self._statement_ended(kind)
            if kind is AnswerKind.END:
                yield kind, payload
                return
            raise from_wire(_NO_STATUS, msgspec.json.decode(payload))

    async def stop(self) -> None:
        """Have the process give up the statement whose caller has left, if it runs one.

        It is reusable if that takes no longer than ``stop_s``.
        """
        if self._use is not ProcessUse.RUNNING or not self.process.runs:
            return
        clock = asyncio.get_running_loop().time
        until = clock() + self.stop_s
        self.process.send(STOP)
        with contextlib.suppress(TidelockError):
            while self._use is ProcessUse.RUNNING:
                kind, _ = await self._answer(until - clock())
                self._statement_ended(kind)

    def _statement_ended(self, kind: AnswerKind) -> None:
        """Take note of an answer which may end the statement."""
        if kind is AnswerKind.FATAL:
            self._use = ProcessUse.SPENT
        elif kind in {AnswerKind.END, AnswerKind.ERROR}:
            self._use = ProcessUse.FREE

    async def end(self) -> None:
        """End the process and remove its files."""
        self._ended = True
        await self.process.end()
        if self._receiving is not None:
            await asyncio.gather(self._receiving, return_exceptions=True)
        await asyncio.to_thread(shutil.rmtree, self.config.temp_dir, ignore_errors=True)

    async def _answer(self, left_s: float) -> tuple[AnswerKind, bytes]:
        if self._receiving is None:
            self._receiving = asyncio.create_task(self.process.receive())
        try:
            async with asyncio.timeout(left_s):
                return read_answer(await asyncio.shield(self._receiving))
        except TimeoutError as error:
            self._use = ProcessUse.SPENT
            raise TooLargeError(
                f"the statement ran longer than {self.timeout_s:g} s (sql_timeout_s); let it read less",
                limit=self.timeout_s,
            ) from error
        except WorkerDiedError as died:
            raise self._reason(died.status) from died
        finally:
            if self._receiving.done():
                self._receiving = None

    def _reason(self, status: int) -> TidelockError:
        """Return the error for a process that ended during a statement."""
        if self._stalled:
            return UnavailableError(f"no client read the rows of the statement for {self.timeout_s:g} s")
        if status in _OUT_OF_MEMORY and not self._ended:
            limit = self.config.memory_bytes
            return TooLargeError(
                f"the statement needs more than {limit} bytes of memory (sql_memory_bytes); let it keep less",
                limit=limit,
            )
        return UnavailableError(f"the SQL process ended in the middle of the statement (status {status})")

    @contextlib.contextmanager
    def _patience(self) -> Iterator[None]:
        """End the process if the caller does not ask for the next answer in time."""
        timer = asyncio.get_running_loop().call_later(self.timeout_s, self._stall)
        try:
            yield
        finally:
            timer.cancel()

    def _stall(self) -> None:
        self._stalled = True
        self.process.kill()


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
