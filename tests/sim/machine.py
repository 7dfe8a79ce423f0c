"""The machine as the product sees it in a simulation: clocks, unique texts, sockets, threads and processes.

The product runs unmodified from ``replica_agent.main.run`` on. Only names that its modules have imported are
replaced for the length of a run: the modules ``time``, ``secrets`` and ``random``, ``os`` in the file layer,
the web server, the client of the peers, the reader processes, the connection to ZooKeeper.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import structlog

from tests.sim.catalog import NoThread, SimCatalog
from tests.sim.disk import DiskOs
from tests.sim.life import LIFE
from tests.sim.network import Door
from tests.sim.peers import SimPeerClient
from tests.sim.sql import SimWorker
from tidelock.csnlog.core.ids import PartId
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.core.store import Store
from tidelock.csnlog.log import CsnLog, Proposal
from tidelock.errors import UnavailableError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.lifecycle import agent
from tidelock.replica_agent.lifecycle.local import Local, _sweep
from tidelock.replica_agent.services.bundle import Services
from tidelock.replica_agent.sql import pool
from tidelock.replica_agent.storage import catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.part_counts import PartCounts
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replication import partfs
from tidelock.replication.partfs import PartFs
from tidelock.replication.peers import PeerClient

if TYPE_CHECKING:
    from tests.sim.world import SimWorld

#: Wall clock at the start of a run, Unix seconds.
EPOCH_S = 1_700_000_000.0


class SimTime:
    """Stands for the module ``time``."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.monotonic = now

    def time(self) -> float:
        """Wall clock of the host in whose name this is asked."""
        life = LIFE.get(None)
        return EPOCH_S + self.monotonic() + (life.host.skew_s if life is not None else 0.0)

    def clock_gettime(self, _clock: int) -> float:
        """Return the uptime; no machine is suspended here."""
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        """Take no time: a call of a thread is one moment here."""

    def time_ns(self) -> int:
        """Wall clock, in nanoseconds."""
        return int(self.time() * 1_000_000_000)


class SimSecrets:
    """Stands for the module ``secrets``."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def token_hex(self, count: int) -> str:
        """Return a text that nobody else has."""
        return self.token_bytes(count).hex()

    def token_bytes(self, count: int) -> bytes:
        """Return bytes that nobody else has."""
        return self._chance.randbytes(count)


class SimReaders:
    """Stands for the reader processes: clients of a simulation read the files themselves.

    Other agents get parts at the data door, which is open as long as they would run.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    @staticmethod
    def counters() -> Mapping[str, int]:
        """Return no counters."""
        return {}

    async def ready(self) -> None:
        """Return at once."""

    def released(self, part: PartId) -> None:
        """Do nothing: readers ask again each time."""

    async def drain(self, seconds: float) -> None:
        """Do nothing: no read takes long."""


class SimListener:
    """Stands for the listening socket."""

    @staticmethod
    def getsockname() -> tuple[str, int]:
        """Return an address."""
        return "", 1

    def close(self) -> None:
        """Do nothing: no socket is open."""


class Site:
    """Stands for the web server's runner and its site: both of one application."""

    def __init__(self, world: SimWorld, services: Services) -> None:
        self._world = world
        self._services = services

    async def setup(self) -> None:
        """Do nothing: no web server is prepared."""

    async def start(self) -> None:
        """Answer from now on."""
        self._world.network.listen(Door.API, self._services)

    async def cleanup(self) -> None:
        """Answer no more; what runs may end."""
        self._world.network.close(Door.API, LIFE.get())
        await self._world.network.drain(LIFE.get(), self._services.settings.drain_s)


@contextmanager
def replaced(world: SimWorld, now: Callable[[], float]) -> Iterator[None]:
    """Let the product find the simulation."""

    async def open_local(settings: AgentSettings, callbacks: Any, stack: AsyncExitStack) -> Local:
        return await _open_local(world, settings, callbacks, stack)

    async def connect(_local: Local, stack: AsyncExitStack) -> Store:
        return await _connect(world, stack)

    peer_client = partial(SimPeerClient, world.network)
    stands_in = {
        time: SimTime(now),
        secrets: SimSecrets(world.chance("secrets")),
        random: world.chance("product"),
    }
    web = SimpleNamespace(
        AppRunner=lambda services, **_: Site(world, services), SockSite=lambda site, *_, **__: site
    )
    with ExitStack() as stack:
        for module in [module for name, module in sys.modules.items() if name.startswith("tidelock.")]:
            for name, value in list(vars(module).items()):
                if isinstance(value, type(sys)) and value in stands_in:
                    stack.enter_context(mock.patch.object(module, name, stands_in[value]))
                elif value is PeerClient:
                    stack.enter_context(mock.patch.object(module, name, peer_client))
        for module, name, value in (
            (agent, "open_local", open_local),
            (agent, "connect", connect),
            (agent, "application", lambda services, _damage: services),
            (agent, "web", web),
            (catalog, "threading", SimpleNamespace(Thread=NoThread, Lock=threading.Lock)),
            (partfs, "os", DiskOs(world.disk_of)),
            (pool, "SqlProcess", SimWorker),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        propose = CsnLog.commit

        async def commit(log: CsnLog, proposal: Proposal, *, timeout_s: float) -> Committed:
            world.oracle.proposed(LIFE.get(), proposal)
            return await propose(log, proposal, timeout_s=timeout_s)

        stack.enter_context(mock.patch.object(CsnLog, "commit", commit))
        before = structlog.get_config()
        structlog.configure(processors=[world.heard], cache_logger_on_first_use=False)
        stack.callback(lambda: structlog.configure(**before))
        yield


async def _open_local(
    world: SimWorld, settings: AgentSettings, callbacks: Any, stack: AsyncExitStack
) -> Local:
    """As :func:`tidelock.replica_agent.lifecycle.local.open_local`, without sockets and processes."""
    life = LIFE.get()
    life.agent = callbacks
    disk = life.host.disk
    files = PartFs(disk.data)
    files.open()
    stack.callback(files.close)
    life.on_kill.append(files.close)
    initial = {"replica": settings.replica, "disk": disk.folder.name}
    made = SimCatalog(disk, world.chance(f"catalog {disk.folder.name} {life.number}"), initial=initial)
    stack.push_async_callback(made.close)
    await _sweep(files, made)
    waiters = CsnWaiters(made.reader.snapshot_csn())
    readers: Any = SimReaders(f"{settings.advertise}:2")
    listener: Any = SimListener()
    counts, tables = PartCounts(made.reader), Tables(made.reader)
    local = Local(settings, files, made, waiters, counts, tables, listener, readers)
    world.network.listen(Door.DATA, local)
    stack.callback(world.network.close, Door.DATA, life)
    return local


async def _connect(world: SimWorld, stack: AsyncExitStack) -> Store:
    life = LIFE.get()
    if life.host.cut_off:
        await asyncio.sleep(life.host.settings.connect_timeout_s)
        raise UnavailableError("no ZooKeeper server answers")
    store = world.connect(life)
    stack.push_async_callback(store.close)
    return store
