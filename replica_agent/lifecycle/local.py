"""The parts of an agent that need no other agent: its data directory, its catalog, its two addresses."""

from __future__ import annotations

import asyncio
import secrets
import socket
from contextlib import AsyncExitStack

import msgspec
import structlog

from tidelock.csnlog.core.model import MemberState
from tidelock.errors import ConfigError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.readers.pool import ReaderPool
from tidelock.replica_agent.readers.process import Callbacks
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage import pack_index
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.part_counts import PartCounts
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replication.core.room import RoomLimits
from tidelock.replication.disk_room import DiskRoom
from tidelock.replication.partfs import PartFs

_log = structlog.get_logger("local")

BACKLOG = 1024
#: Number of unknown files whose names are logged; their total number is always logged.
_SHOWN = 20


class Local(msgspec.Struct, frozen=True):
    """The local parts of an agent, open."""

    settings: AgentSettings
    files: PartFs
    catalog: Catalog
    waiters: CsnWaiters
    counts: PartCounts
    tables: Tables
    listener: socket.socket
    readers: ReaderPool

    @property
    def member(self) -> MemberState:
        """The addresses of this replica, as they are published to the others."""
        settings = self.settings
        port = settings.advertise_api_port or self.listener.getsockname()[1]
        return MemberState(api=f"{settings.advertise}:{port}", data=self.readers.address, rack=settings.rack)


async def open_local(settings: AgentSettings, callbacks: Callbacks, stack: AsyncExitStack) -> Local:
    """Take the data directory, open the catalog, bind, start the readers; ``stack`` closes all of them.

    Raises:
        DataDirInUseError: Another agent runs on the directory.
        ConfigError: The directory belongs to another replica, or an address cannot be bound.
        CorruptError: The catalog cannot be read.
    """
    limits = RoomLimits(settings.disk_reserve_bytes, settings.disk_reserve_share, settings.disk_floor_share)
    files = PartFs(settings.data_dir, DiskRoom(settings.data_dir, replica=settings.replica, limits=limits))
    files.open()
    stack.callback(files.close)
    initial = {"replica": settings.replica, "disk": secrets.token_hex(8)}
    catalog = Catalog(
        settings.data_dir,
        initial=initial,
        cache_bytes=settings.catalog_cache_bytes,
        jobs_max=settings.catalog_jobs_max,
        wait_s=settings.catalog_wait_s,
        write_behind=settings.catalog_write_behind,
    )
    stack.push_async_callback(catalog.close)
    owner = catalog.reader.meta("replica")
    if owner != settings.replica:
        raise ConfigError(
            f"{settings.data_dir} belongs to replica {owner}, not {settings.replica}; "
            "give the right data_dir or replica"
        )
    await _sweep(files, catalog)
    listener = _bind(settings)
    stack.callback(listener.close)
    readers = ReaderPool(
        settings=settings, data_dir=settings.data_dir, callbacks=callbacks, api=_here(listener)
    )
    await readers.start()
    stack.push_async_callback(readers.close)
    waiters = CsnWaiters(catalog.reader.snapshot_csn())
    counts, tables = PartCounts(catalog.reader), Tables(catalog.reader)
    return Local(settings, files, catalog, waiters, counts, tables, listener, readers)


async def _sweep(files: PartFs, catalog: Catalog) -> None:
    """Delete files that no row names and quarantine rows without a file, before any write."""
    recovered = await pack_index.recover(catalog, files)
    await catalog.write(jobs.drop_unneeded_files)
    named, undo = catalog.reader.files()
    swept = await asyncio.to_thread(files.sweep, named, undo)
    lost = await catalog.write(lambda db: jobs.quarantine_files(db, swept.missing))
    await catalog.write(lambda db: jobs.forget_undo(db, undo))
    if swept.removed or swept.unknown or lost or recovered:
        _log.warning(
            "swept",
            packs_recovered=recovered,
            removed=len(swept.removed),
            unknown=list(swept.unknown[:_SHOWN]),
            unknown_files=len(swept.unknown),
            missing=len(swept.missing),
            parts_lost=lost,
        )


def _here(listener: socket.socket) -> str:
    """Return a listener's address for this machine; a listener on all addresses: loopback."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared with, not bound to
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(settings: AgentSettings) -> socket.socket:
    try:
        return socket.create_server((settings.bind, settings.api_port), backlog=BACKLOG)
    except OSError as error:
        address = f"{settings.bind}:{settings.api_port}"
        raise ConfigError(
            f"cannot bind the api address {address} ({error}); set bind and api_port"
        ) from error
