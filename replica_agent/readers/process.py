"""The agent's side of one reader process: its requests are answered, its reports passed on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import structlog

from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.replica_agent.readers import messages as msg
from tidelock.replica_agent.readers.availability import ReadAvailability
from tidelock.replica_agent.workers.process import WorkerDiedError, WorkerProcess

_log = structlog.get_logger("readers")


class Callbacks(Protocol):
    """The services of an agent for its readers."""

    async def wait(self, csn: Csn) -> ReadAvailability:
        """Wait, at most ``read_wait_s``, until ``csn`` is applied, and return whether it can be served."""

    def read(self, csn: Csn) -> None:
        """Record that a CSN is read; called now and then as long as it is read."""

    def corrupt(self, part: PartId, detail: str) -> None:
        """Record that the bytes of a part differ from the catalog."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReaderProcess:
    """A running reader: call :meth:`run`, then always :meth:`end`.

    Attributes:
        process: The process.
        callbacks: The agent.
        drained: Set when no read is running any more, after ``Drain``.
    """

    process: WorkerProcess
    callbacks: Callbacks
    drained: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _answers: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    async def run(self) -> int:
        """Answer the reader's requests until it ends; returns its exit code, negative for a signal."""
        try:
            while True:
                self._take(msgspec.json.decode(await self.process.receive(), type=msg.FromReader))
        except WorkerDiedError as died:
            return died.status

    def send(self, message: msg.ToReader) -> None:
        """Send a message; it is dropped when the process has ended."""
        self.process.send(msgspec.json.encode(message))

    async def end(self) -> None:
        """End it, whatever it is doing, and drop its open requests. It has nothing to clean up."""
        for task in self._answers:
            task.cancel()
        self.drained.set()
        await self.process.end()

    def _take(self, message: msg.FromReader) -> None:
        match message:
            case msg.Drained():
                self.drained.set()
            case msg.Wait():
                task = asyncio.create_task(self._answer(message))
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)
            case msg.CsnRead(csn=csn):
                self.callbacks.read(csn)
            case msg.CorruptPart(part=part, detail=detail):
                self.callbacks.corrupt(part, detail)
            case msg.LogError(event=event, fields=fields):
                _log.error(event, pid=self.process.pid, **fields)

    async def _answer(self, asked: msg.Wait) -> None:
        try:
            found = await self.callbacks.wait(asked.csn)
        except Exception as error:
            _log.exception("reader.wait_failed", csn=asked.csn)
            found = ReadAvailability("standby", f"this replica cannot judge CSN {asked.csn} now ({error})")
        self.send(msg.WaitAnswer(asked.id, found))
