"""The agent's side of a worker process: started, configured, spoken with in frames, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from typing import Final

import msgspec

from tidelock.errors import UnavailableError
from tidelock.replica_agent.workers.frames import pack, read_frame

#: Variables of the agent's environment that a worker gets. The others may hold the secret (TIDELOCK_SECRET).
_KEPT: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class WorkerDiedError(Exception):
    """The process has ended, or has closed its socket because it is about to end.

    Attributes:
        status: Its exit code; negative: the number of the signal that ended it.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the process ended with status {status}")
        self.status = status


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The program of a worker process, and its limits.

    Attributes:
        what: Its name in messages: "a ...".
        module: Full name of a module that calls :func:`tidelock.replica_agent.workers.child.begin`.
        start_timeout_s: Longest time of a start.
        environment: Its environment variables, besides the agent's variables by which Python is found.
        sockets: The sockets that it shares with the agent.
        buffer_bytes: Bytes that wait in the agent; at twice as many the process waits.
    """

    what: str
    module: str
    start_timeout_s: float
    environment: Mapping[str, str]
    sockets: tuple[socket.socket, ...] = ()
    buffer_bytes: int = 64 << 10


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A running worker. Made by :meth:`start`; :meth:`end` must always be called.

    Attributes:
        process: The process.
        reader: The frames from the process.
        writer: The frames to the process.
    """

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, program: Program, config: bytes) -> WorkerProcess:
        """Start a process, send its configuration, and return when it reports that it has started.

        Raises:
            UnavailableError: It could not be started, ended at once, or took longer than ``start_timeout_s``.
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
            ours.close()  # a process that was started notices this, and ends
            raise
        finally:
            theirs.close()
        return cls(process=process, reader=reader, writer=writer)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def runs(self) -> bool:
        """Whether the process has not ended, as far as the agent knows."""
        return self.process.returncode is None

    def send(self, payload: bytes) -> None:
        """Send a frame; a frame to an ended process is dropped, and :meth:`receive` reports the end."""
        if not self.writer.is_closing():
            self.writer.write(pack(payload))

    async def receive(self) -> bytes:
        """Return the next frame.

        Raises:
            WorkerDiedError: The process has ended, so no frame follows.
        """
        try:
            return await read_frame(self.reader)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise WorkerDiedError(await self.process.wait()) from error

    def kill(self) -> None:
        """Have the process end at once; :meth:`receive` reports when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def end(self) -> None:
        """End the process, whatever it is doing, and return when it has ended."""
        self.writer.close()
        self.kill()
        await self.process.wait()
