"""The SQL processes of an agent: started on demand, kept warm, ended and replaced when over a limit.

A statement runs in a separate process so that no query can stall commits, take the agent's memory or reach
its files. Errors before the first bytes of a result are raised as such. A result that fails later just ends
in an error, so the caller must not let its client take the bytes before it for the whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from tidelock.errors import BadRequestError, UnavailableError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.sql.mutation import Affected, MutationRequest, MutationResult
from tidelock.replica_agent.sql.process import SqlProcess
from tidelock.replica_agent.sql.request import AnswerKind, Request, SqlRequest, select_statement

_log = structlog.get_logger("sql")

__all__ = ["Mutation", "RunningStatement", "SqlPool", "SqlRequest", "select_statement"]


class SqlPool:
    """Runs statements in at most ``sql_workers`` processes."""

    def __init__(self, settings: AgentSettings, data_dir: Path) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._slots = asyncio.Semaphore(settings.sql_workers)
        self._waiting = 0
        self._idle: list[SqlProcess] = []
        self._busy: set[SqlProcess] = set()
        self._spare: asyncio.Task[None] | None = None
        self._started = 0
        self._closed = False

    async def run(self, request: Request) -> AsyncGenerator[bytes, None]:
        """Run a statement and yield its result as pieces of an Arrow IPC stream; see :meth:`statement`."""
        async with self.statement(request) as statement:
            async for piece in statement.pieces():
                yield piece

    @contextlib.asynccontextmanager
    async def mutate(self, request: MutationRequest) -> AsyncIterator[Mutation]:
        """Begin a mutation: its effects are known on entry; otherwise as :meth:`statement`."""
        async with self.statement(request) as statement:
            affected = statement.affected
            assert affected is not None, "a mutation begins with what it affects"
            yield Mutation(affected, statement)

    @contextlib.asynccontextmanager
    async def statement(self, request: Request) -> AsyncIterator[RunningStatement]:
        """Begin a statement: on entry its first rows have arrived, or its effects are known.

        Leaving the context before the statement's end has its process give it up. At its end it releases its
        process, so that a caller with all rows may begin another one.

        Raises:
            BadRequestError, UnknownTableError, StandbyError, SnapshotTooOldError, CorruptError: See
                :class:`tidelock.replica_agent.sql.session.SqlSession`.
            TooLargeError: It needs more memory or time than the limits allow.
            UnavailableError: Too many statements wait already, no other one ended in time, or the agent
                stops.
        """
        encoded = _encoded(request)
        async with contextlib.AsyncExitStack() as place:
            await place.enter_async_context(self._slot())
            worker = await self._worker()
            self._busy.add(worker)
            place.push_async_callback(self._give_back, worker)
            answers = await place.enter_async_context(contextlib.aclosing(worker.run(encoded)))
            yield RunningStatement(first=await anext(answers), answers=answers, leave=place.aclose)

    async def _give_back(self, worker: SqlProcess) -> None:
        try:
            await worker.stop()
        finally:
            self._busy.discard(worker)
            if worker.reusable and not self._closed:
                self._idle.append(worker)
            else:
                await worker.end()
                if not self._closed and self._spare is None:
                    self._spare = asyncio.create_task(self._start_spare(), name="spare SQL process")

    async def _start_spare(self) -> None:
        """Start a process in place of one that has ended, so that the next statement need not wait for it."""
        try:
            self._idle.append(await self._start())
        except UnavailableError as error:  # the statement that needs a process will start it, or be told
            _log.warning("spare_sql_process_failed", error=error.message)
        finally:
            self._spare = None

    async def close(self) -> None:
        """End all processes; statements under way fail."""
        self._closed = True
        if self._spare is not None:
            self._spare.cancel()
            await asyncio.wait([self._spare])
        for worker in (*self._idle, *self._busy):
            await worker.end()
        self._idle.clear()

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Wait for a free slot, in order of arrival."""
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

    async def _worker(self) -> SqlProcess:
        if self._closed:
            raise UnavailableError("this replica stops and takes no more statements; use another")
        if not self._idle and self._spare is not None:
            await asyncio.wait([self._spare])  # it has begun before another one could
        while self._idle:
            worker = self._idle.pop()
            if worker.reusable:
                return worker
            await worker.end()
        return await self._start()

    async def _start(self) -> SqlProcess:
        self._started += 1
        return await SqlProcess.start(settings=self._settings, data_dir=self._data_dir, number=self._started)


@dataclass(slots=True, kw_only=True, eq=False)
class RunningStatement:
    """A statement under way.

    Attributes:
        first: The first answer of the process.
        answers: The other answers.
        leave: Releases its process.
        ended: The report at its end; None before the end of :meth:`pieces`.
    """

    first: tuple[AnswerKind, bytes]
    answers: AsyncIterator[tuple[AnswerKind, bytes]]
    leave: Callable[[], Awaitable[None]]
    ended: MutationResult | None = field(default=None, init=False)

    @property
    def affected(self) -> Affected | None:
        """The parts that it changes, or None if it only reads."""
        kind, payload = self.first
        return msgspec.json.decode(payload, type=Affected) if kind is AnswerKind.AFFECTED else None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the rows as pieces of one Arrow IPC stream; errors as :meth:`SqlPool.statement`."""
        kind, payload = self.first
        if kind is not AnswerKind.AFFECTED:
            yield payload
        async for kind, payload in self.answers:
            if kind is AnswerKind.END:
                self.ended = msgspec.json.decode(payload, type=MutationResult)
                break
            yield payload
        await self.leave()


@dataclass(frozen=True, slots=True)
class Mutation:
    """A statement under way that changes a table."""

    affected: Affected
    _statement: RunningStatement

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the rows to add; as :meth:`RunningStatement.pieces`."""
        return self._statement.pieces()

    @property
    def ended(self) -> MutationResult:
        """The report at its end, once :meth:`pieces` has ended."""
        assert self._statement.ended is not None, "all pieces were taken"
        return self._statement.ended


def _encoded(request: Request) -> bytes:
    try:
        return msgspec.json.encode(request)
    except (TypeError, UnicodeEncodeError) as error:
        raise BadRequestError(f"the statement or a parameter is not a JSON value: {error}") from error
