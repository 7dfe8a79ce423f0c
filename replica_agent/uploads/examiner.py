"""The agent's side of the examiner process: uploaded files are checked there, never in the agent."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from tidelock.errors import SchemaMismatchError, TidelockError, TooLargeError, UnavailableError, from_wire
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.uploads.examination import (
    Answer,
    ExaminationRequest,
    ExaminerConfig,
    FileFacts,
    FileRefused,
    FileSource,
)
from tidelock.replica_agent.workers.process import Program, WorkerDiedError, WorkerProcess
from tidelock.replication.core.model import Location

#: The signals by which a library ends a process over its input.
_BY_INPUT: Final = frozenset(
    {-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL}
)
#: Errors of the process have no HTTP status; all their classes are known here.
_NO_STATUS: Final = 500


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class FileExaminer:
    """Checks the files of jobs in a process that is started on demand, one request after the other.

    Attributes:
        data_dir: The folder that the places of files are relative to.
    """

    settings: AgentSettings
    data_dir: Path
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _worker: WorkerProcess | None = field(default=None, init=False)
    _warming: asyncio.Task[None] | None = field(default=None, init=False)

    def warm(self) -> None:
        """Start the process in the background, since files are about to arrive."""
        if self._warming is None and self._worker is None:
            self._warming = asyncio.create_task(self._warm(), name="examiner")

    async def _warm(self) -> None:
        try:
            async with self._turn:
                await self._running()
        except UnavailableError:
            pass  # the first check tries again, and reports it
        finally:
            self._warming = None

    async def examine(self, schema: TableSchema, places: Sequence[Location]) -> list[FileFacts]:
        """Return the rows and statistics of files, if all of them can be parts of a table.

        Raises:
            SchemaMismatchError: One of them cannot be a part; the message names the column or the damage.
            TooLargeError: The check of one needs more memory or time than the limits allow.
            UnavailableError: The process could not be started, or was ended from outside; try again.
        """
        files = [FileSource(place.file, place.offset, place.length, place.blocks) for place in places]
        request = msgspec.json.encode(ExaminationRequest(schema.id, schema.definition(), files))
        async with self._turn:
            worker = await self._running()
            try:
                worker.send(request)
                return [await self._next(worker, schema) for _ in files]
            except TidelockError:
                raise  # the process waits for the next request, or has ended
            except BaseException:
                await self._end()  # its other answers are of no use
                raise

    async def _next(self, worker: WorkerProcess, schema: TableSchema) -> FileFacts:
        limit_s = self.settings.upload_check_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                answer: Answer = msgspec.json.decode(await worker.receive(), type=Answer)
        except TimeoutError as error:
            await self._end()
            raise TooLargeError(
                f"the check of a file for table {schema.name} took longer than {limit_s:g} s "
                "(upload_check_timeout_s); write smaller files",
                limit=limit_s,
            ) from error
        except WorkerDiedError as died:
            await self._end()
            if died.status in _BY_INPUT:
                raise SchemaMismatchError(
                    f"a file for table {schema.name} cannot be read as Parquet: its damage ends the process "
                    f"that reads it ({signal.Signals(-died.status).name}); write it again",
                    table=schema.name,
                ) from died
            raise UnavailableError(
                f"the process that checks files ended with status {died.status}; try again"
            ) from died
        if isinstance(answer, FileRefused):
            raise from_wire(_NO_STATUS, msgspec.to_builtins(answer.failure))
        return answer

    async def _running(self) -> WorkerProcess:
        if self._worker is None or not self._worker.runs:
            await self._end()
            settings = self.settings
            program = Program(
                what="examiner of files",
                module="tidelock.replica_agent.uploads.examiner_process",
                start_timeout_s=settings.worker_start_timeout_s,
                environment={"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"},
            )
            config = ExaminerConfig(str(self.data_dir), settings.upload_check_memory_bytes)
            self._worker = await WorkerProcess.start(program, msgspec.json.encode(config))
        return self._worker

    async def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.end()

    async def close(self) -> None:
        """End the process; a check under way fails."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        await self._end()
