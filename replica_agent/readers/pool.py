"""The reader processes of an agent: bound once, started, started again when one dies, drained, closed."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from pathlib import Path

import structlog

from tidelock.csnlog.core.ids import PartId
from tidelock.errors import ConfigError, UnavailableError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.readers import counters
from tidelock.replica_agent.readers.config import READ_TOLD_SHARE, WorkerConfig
from tidelock.replica_agent.readers.process import Callbacks, WorkerProcess

#: Pause before a port that is taken is tried again, in seconds.
BIND_PAUSE_S = 0.1
#: Pause before a worker that died is started again, in seconds; doubled up to `reader_restart_wait_max_s`
#: while it keeps dying.
RESTART_PAUSE_S = 0.1
#: A worker that lived so long has not failed at its start, in seconds.
HEALTHY_S = 30.0

_log = structlog.get_logger("readers")


class ReaderPool:
    """Runs ``reader_workers`` processes on one listening socket.

    The socket belongs to the pool, so connections that wait in it survive the death of a worker.

    Args:
        settings: Of the agent.
        data_dir: The data directory; its catalog has to exist when the pool is started.
        callbacks: What the agent does for its readers.
        api: ``host:port`` of the protocol process, on this machine.
    """

    def __init__(self, settings: AgentSettings, data_dir: Path, callbacks: Callbacks, *, api: str) -> None:
        """Nothing is bound or started yet."""
        self._api = api
        self._settings = settings
        self._data_dir = data_dir.absolute()
        self._callbacks = callbacks
        self._listener: socket.socket | None = None
        self._workers: dict[int, WorkerProcess] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._draining = False

    @property
    def port(self) -> int:
        """The port that is bound."""
        assert self._listener is not None, "not started"
        return int(self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        """``host:port`` under which clients reach the readers."""
        return f"{self._settings.advertise}:{self._settings.advertise_data_port or self.port}"

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return [worker.pid for worker in self._workers.values()]

    async def start(self) -> None:
        """Bind and start; returns when all workers accept connections.

        Raises:
            ConfigError: The address cannot be bound.
            UnavailableError: The workers do not come up; the log says why.
        """
        self._listener = await self._bind()
        counters.reset(self._run_dir, self._settings.reader_workers)
        up = [asyncio.Event() for _ in range(self._settings.reader_workers)]
        self._tasks = [asyncio.create_task(self._keep_running(slot, event)) for slot, event in enumerate(up)]
        try:
            async with asyncio.timeout(self._settings.worker_start_timeout_s):
                await asyncio.gather(*(event.wait() for event in up))
        except TimeoutError:
            await self.close()
            raise UnavailableError(
                f"the readers did not start within {self._settings.worker_start_timeout_s:g} s "
                "(worker_start_timeout_s); see the log"
            ) from None
        _log.info("readers.started", address=self.address, pids=self.pids)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new reads with "standby", wait for the running ones; False if some outlast the time."""
        self._draining = True
        for worker in self._workers.values():
            worker.drain()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(worker.drained.wait() for worker in self._workers.values()))
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End all workers, whatever they are doing, and give the port back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def released(self, part: PartId) -> None:
        """Say that a part which was reported as damaged was found whole where it lies.

        Not needed after a repair into a new file: readers notice that by themselves.
        """
        for worker in self._workers.values():
            worker.released(part)

    def counters(self) -> dict[str, int]:
        """Return the sums over all workers since :meth:`start`, by name (readers/counters.py)."""
        return counters.read(self._run_dir)

    @property
    def _run_dir(self) -> Path:
        return self._data_dir / "run"

    async def _bind(self) -> socket.socket:
        host, port = self._settings.bind, self._settings.data_port
        deadline = time.monotonic() + self._settings.bind_retry_s
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
        # Accepted sockets inherit it. A client that has enough hangs up, and what lies in the buffer was read
        # for nothing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._settings.send_buffer_bytes)
        listener.setblocking(False)
        return listener

    def _config(self, slot: int) -> WorkerConfig:
        settings = self._settings
        return WorkerConfig(
            data_dir=str(self._data_dir),
            replica=settings.replica,
            host=settings.advertise,
            port=settings.advertise_data_port or self.port,
            secret=settings.secret,
            counters_file=str(counters.path_of(self._run_dir, slot)),
            api=self._api,
            wait_bound_s=settings.wait_bound_s,
            read_chunk_bytes=settings.read_chunk_bytes,
            listing_cache_entries=settings.listing_cache_entries,
            threads=settings.reader_threads,
            read_told_s=settings.unpinned_ttl_s * READ_TOLD_SHARE,
        )

    async def _keep_running(self, slot: int, ready: asyncio.Event) -> None:
        pause_s = RESTART_PAUSE_S
        while True:
            begin = time.monotonic()
            try:
                code = await self._run(slot, ready)
                _log.error("reader.died", slot=slot, exit_code=code)
            except Exception:
                _log.exception("reader.failed", slot=slot)
            lived_s = time.monotonic() - begin
            longest_s = self._settings.reader_restart_wait_max_s
            pause_s = min(RESTART_PAUSE_S if lived_s > HEALTHY_S else 2 * pause_s, longest_s)
            await asyncio.sleep(pause_s)

    async def _run(self, slot: int, ready: asyncio.Event) -> int:
        """Run one worker in a slot until it ends; returns its exit code."""
        assert self._listener is not None
        worker = await WorkerProcess.start(self._listener, self._config(slot), self._callbacks, ready)
        self._workers[slot] = worker
        try:
            if self._draining:
                worker.drain()
            return await worker.run()
        finally:
            del self._workers[slot]
            worker.drained.set()
            await worker.end()
