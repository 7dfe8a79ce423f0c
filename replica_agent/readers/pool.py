"""The reader processes of an agent: bound once, started, restarted when one dies, drained, closed."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import structlog

from tidelock.csnlog.core.ids import PartId
from tidelock.errors import ConfigError, UnavailableError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.readers import counters
from tidelock.replica_agent.readers import messages as msg
from tidelock.replica_agent.readers.messages import READ_REPORT_SHARE, ReaderConfig
from tidelock.replica_agent.readers.process import Callbacks, ReaderProcess
from tidelock.replica_agent.workers.process import Program, WorkerProcess
from tidelock.replica_agent.workers.restarts import keep_running

#: Pause before a port in use is tried again, in seconds.
BIND_PAUSE_S = 0.1
#: aiohttp's C parser answers 400 to raw UTF-8 in a request line, which is how Hadoop's client sends non-ASCII
#: names. At its import aiohttp loads the certificates of all authorities, for which a reader has no use.
_ENVIRONMENT: Final = {"AIOHTTP_NO_EXTENSIONS": "1", "SSL_CERT_FILE": os.devnull}

_log = structlog.get_logger("readers")


@dataclass(slots=True, kw_only=True, eq=False)
class ReaderPool:
    """Runs ``reader_workers`` processes on one listening socket; nothing is bound before :meth:`start`.

    The socket belongs to the pool, so connections that wait in it survive the death of a worker.

    Attributes:
        settings: Settings of the agent.
        data_dir: The data directory; its catalog must exist when the pool is started.
        callbacks: The agent's services for its readers.
        api: ``host:port`` of the protocol process, on this machine.
    """

    settings: AgentSettings
    data_dir: Path
    callbacks: Callbacks
    api: str
    _listener: socket.socket | None = field(default=None, init=False)
    _workers: dict[int, ReaderProcess] = field(default_factory=dict, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    _up: list[asyncio.Event] = field(default_factory=list, init=False)
    _draining: bool = field(default=False, init=False)

    @property
    def port(self) -> int:
        """The port that is bound."""
        assert self._listener is not None, "not started"
        return int(self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        """``host:port`` under which clients reach the readers."""
        return f"{self.settings.advertise}:{self.settings.advertise_data_port or self.port}"

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        return [worker.process.pid for worker in self._workers.values()]

    async def start(self) -> None:
        """Bind and begin to start the workers, beside which the agent starts; see :meth:`ready`.

        Raises:
            ConfigError: The address cannot be bound.
        """
        self._listener = await self._bind()
        counters.reset(self._run_dir, self.settings.reader_workers)
        self._up = [asyncio.Event() for _ in range(self.settings.reader_workers)]
        self._tasks = [
            asyncio.create_task(
                keep_running(
                    functools.partial(self._run, slot, event),
                    pause_max_s=self.settings.reader_restart_wait_max_s,
                    what="reader",
                    log=_log.bind(slot=slot),
                )
            )
            for slot, event in enumerate(self._up)
        ]

    async def ready(self) -> None:
        """Return when all workers that :meth:`start` has begun to start accept connections.

        Raises:
            UnavailableError: They do not start; the log says why.
        """
        try:
            async with asyncio.timeout(self.settings.worker_start_timeout_s):
                await asyncio.gather(*(event.wait() for event in self._up))
        except TimeoutError:
            await self.close()
            raise UnavailableError(
                f"the readers did not start within {self.settings.worker_start_timeout_s:g} s "
                "(worker_start_timeout_s); see the log"
            ) from None
        _log.info("readers.started", address=self.address, pids=self.pids)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new reads with "standby", wait for the running ones; False if some outlast the time."""
        self._draining = True
        for worker in self._workers.values():
            worker.send(msg.Drain())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(worker.drained.wait() for worker in self._workers.values()))
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End all workers, whatever they are doing, and release the port."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def released(self, part: PartId) -> None:
        """Notify the readers that a part which was reported as damaged is whole at its location.

        Not needed after a repair into a new file: readers notice such a repair themselves.
        """
        for worker in self._workers.values():
            worker.send(msg.Released(part))

    def counters(self) -> dict[str, int]:
        """Return the sums over all workers since :meth:`start`, by name (readers/counters.py)."""
        return counters.read(self._run_dir)

    @property
    def _run_dir(self) -> Path:
        return self.data_dir.absolute() / "run"

    async def _bind(self) -> socket.socket:
        host, port = self.settings.bind, self.settings.data_port
        deadline = time.monotonic() + self.settings.bind_retry_s
        while True:
            try:
                return self._listen(host, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise ConfigError(
                        f"cannot bind the data address {host}:{port} ({error}); set bind and data_port"
                    ) from error
            await asyncio.sleep(BIND_PAUSE_S)

    def _listen(self, host: str, port: int) -> socket.socket:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family)
        # Accepted sockets inherit it; the answer to a client that may hang up begins with less (pacing.py).
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.settings.send_buffer_bytes)
        listener.setblocking(False)
        return listener

    def _config(self, slot: int) -> ReaderConfig:
        settings = self.settings
        return ReaderConfig(
            data_dir=str(self.data_dir.absolute()),
            replica=settings.replica,
            host=settings.advertise,
            port=settings.advertise_data_port or self.port,
            secret=settings.secret,
            counters_file=str(counters.path_of(self._run_dir, slot)),
            api=self.api,
            read_wait_s=settings.read_wait_s,
            read_chunk_bytes=settings.read_chunk_bytes,
            send_buffer_bytes=settings.send_buffer_bytes,
            listing_cache_entries=settings.listing_cache_entries,
            combined_part_bytes_max=settings.combined_part_bytes_max,
            footer_cache_entries=settings.footer_cache_entries,
            threads=settings.reader_threads,
            read_report_s=settings.unpinned_ttl_s * READ_REPORT_SHARE,
        )

    async def _run(self, slot: int, ready: asyncio.Event) -> int:
        """Run one worker in a slot until it ends, and return its exit code."""
        assert self._listener is not None
        program = Program(
            what="reader process",
            module="tidelock.replica_agent.readers.worker",
            start_timeout_s=self.settings.worker_start_timeout_s,
            environment=_ENVIRONMENT,
            sockets=(self._listener,),
        )
        process = await WorkerProcess.start(program, msgspec.json.encode(self._config(slot)))
        worker = self._workers[slot] = ReaderProcess(process=process, callbacks=self.callbacks)
        ready.set()
        try:
            if self._draining:
                worker.send(msg.Drain())
            return await worker.run()
        finally:
            del self._workers[slot]
            await worker.end()
