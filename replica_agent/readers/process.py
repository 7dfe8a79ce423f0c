"""One reader process as the agent sees it: started, spoken with over a socketpair, and its end noticed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from typing import Any, Protocol

import structlog

from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.replica_agent.readers.config import WorkerConfig
from tidelock.replica_agent.readers.verdict import ReadAvailability

_log = structlog.get_logger("readers")


class Callbacks(Protocol):
    """What the agent does for its readers."""

    async def wait(self, csn: Csn) -> ReadAvailability:
        """Wait, at most ``wait_bound_s``, until ``csn`` is applied here, and say whether it can be served."""

    def read(self, csn: Csn) -> None:
        """Take note that a CSN is read; told now and then while that goes on."""

    def corrupt(self, part: PartId, detail: str) -> None:
        """Take note that the bytes of a part are not what the catalog says."""


class WorkerProcess:
    """A running worker. Use :meth:`start`, then :meth:`run`, and :meth:`end` in any case."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        callbacks: Callbacks,
        ready: asyncio.Event,
    ) -> None:
        """Keep both ends of the relation."""
        self._process = process
        self._reader = reader
        self._writer = writer
        self._callbacks = callbacks
        self._answers: set[asyncio.Task[None]] = set()
        self._ready = ready
        self.drained = asyncio.Event()

    @classmethod
    async def start(
        cls, listener: socket.socket, config: WorkerConfig, callbacks: Callbacks, ready: asyncio.Event
    ) -> WorkerProcess:
        """Start a process on the listening socket, or OSError; ``ready`` is set once it accepts."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a module in the agent's working directory must not shadow a library
                "-m",
                "tidelock.replica_agent.readers.worker",
                str(listener.fileno()),
                str(theirs.fileno()),
                str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(listener.fileno(), theirs.fileno()),
                env=os.environ | {"AIOHTTP_NO_EXTENSIONS": "1"},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(config.to_line())
        return cls(process, reader, writer, callbacks, ready)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    async def run(self) -> int:
        """Serve the worker's questions until it ends; returns its exit code, negative for a signal."""
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
        except ConnectionError:
            pass
        return await self._process.wait()

    def drain(self) -> None:
        """Have it refuse new reads and set ``drained`` when the running ones have ended."""
        self._send({"op": "drain"})

    def released(self, part: PartId) -> None:
        """Tell it that a part which it may have found damaged is whole."""
        self._send({"op": "released", "part": part})

    async def end(self) -> None:
        """End it, whatever it is doing, and forget the questions it asked. It has nothing to clean up."""
        self._writer.close()
        for task in self._answers:
            task.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def _take(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "ready":
                self._ready.set()
            case "drained":
                self.drained.set()
            case "wait":
                task = asyncio.create_task(self._answer(message["id"], Csn(message["csn"])))
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)
            case "read":
                self._callbacks.read(Csn(message["csn"]))
            case "corrupt":
                self._callbacks.corrupt(PartId(message["part"]), message["detail"])
            case "log":
                _log.error(message["event"], pid=self.pid, **message["fields"])
            case other:
                raise AssertionError(f"a reader sent {other!r}")

    async def _answer(self, number: int, csn: Csn) -> None:
        try:
            verdict = await self._callbacks.wait(csn)
        except Exception as error:
            _log.exception("reader.wait_failed", csn=csn)
            verdict = ReadAvailability("standby", f"this replica cannot tell about CSN {csn} now ({error})")
        self._send({"op": "verdict", "id": number, "verdict": verdict.verdict, "reason": verdict.reason})

    def _send(self, message: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")
