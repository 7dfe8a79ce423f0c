"""A worker process as its agent sees it: started, configured, spoken with in frames, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelock.errors import UnavailableError
from tidelock.replica_agent.workers.frames import pack, read_frame

#: Variables that a worker gets of the agent's environment. The others may hold the secret (TIDELOCK_SECRET).
_KEPT: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class WorkerDiedError(Exception):
    """The process has ended, or has closed its socket on its way to its end.

    Attributes:
        status: Its exit code; negative: the signal that ended it.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the process ended with status {status}")
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program of a worker process, and its limits.

    Attributes:
        what: Names it in messages: "a ...".
        module: Full name of a module that calls :func:`tidelock.replica_agent.workers.child.begin`.
        start_timeout_s: How long its start may take.
        environment: Variables of it. Of the agent's it gets only those by which Python is found.
        sockets: Sockets that it shares with the agent.
        buffer_bytes: Bytes from the process that wait in the agent; twice as many make the process wait.
    """

    what: str
    module: str
    start_timeout_s: float
    environment: Mapping[str, str]
    sockets: tuple[socket.socket, ...] = ()
    buffer_bytes: int = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerProcess:
    """A running worker. Made by :meth:`start`; :meth:`end` has to be called in any case.

    Attributes:
        process: The process.
        reader: Frames from it.
        writer: Frames to it.
    """

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, program: Program, config: bytes) -> WorkerProcess:
        """Start a process, send its configuration, and return when it says that it has started.

        Raises:
            UnavailableError: It could not be started, ended at once, or took longer than it may.
        """
        worker = None
        try:
            async with asyncio.timeout(program.start_timeout_s):
                worker = await cls._spawn(program)
                worker.send(config)
                await worker.receive()
        except BaseException as error:
            if worker is not None:
                await worker.end()
            if isinstance(error, OSError | WorkerDiedError):  # TimeoutError is an OSError
                why = str(error) or f"it took longer than {program.start_timeout_s:g} s"
                raise UnavailableError(
                    f"a {program.what} did not start ({why}); look at the replica's log"
                ) from error
            raise
        return worker

    @classmethod
    async def _spawn(cls, program: Program) -> WorkerProcess:
        ours, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        descriptors = [theirs.fileno(), *(shared.fileno() for shared in program.sockets)]
        try:
            process = await asyncio.create_subprocess_exec(
                # -P: a module in the agent's working directory must not shadow a library.
                *(sys.executable, "-P", "-m", program.module),
                *map(str, (os.getpid(), *descriptors)),
                stdin=DEVNULL,
                stdout=DEVNULL,
                pass_fds=descriptors,
                env=environment | dict(program.environment),
            )
            reader, writer = await asyncio.open_connection(sock=ours, limit=program.buffer_bytes)
        except BaseException:
            ours.close()  # a process that was started sees it, and ends
            raise
        finally:
            theirs.close()
        return cls(process=process, reader=reader, writer=writer)

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    @property
    def runs(self) -> bool:
        """Whether it has not ended, as far as the agent knows."""
        return self.process.returncode is None

    def send(self, payload: bytes) -> None:
        """Send a frame; what is sent to a process that has gone is dropped, :meth:`receive` tells."""
        if not self.writer.is_closing():
            self.writer.write(pack(payload))

    async def receive(self) -> bytes:
        """Return the next frame.

        Raises:
            WorkerDiedError: There is none, the process has ended.
        """
        try:
            return await read_frame(self.reader)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise WorkerDiedError(await self.process.wait()) from error

    def kill(self) -> None:
        """Have it end at once; :meth:`receive` tells when it has."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def end(self) -> None:
        """End it, whatever it is doing, and return when it has ended."""
        self.writer.close()
        self.kill()
        await self.process.wait()
