"""The index that a pack ends with, and the search for parts that only their packs know.

The rows of a pack's parts are not forced (rule write-behind). So after a power cut the catalog may lack them,
while the pack is durable and a home counts on its parts. The names of such packs are durable in the catalog
before their first byte, so a start finds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec

from tidelock.csnlog.core.ids import Tid
from tidelock.errors import CorruptError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replication.partfs import PartFs


class PackIndex(msgspec.Struct, frozen=True):
    """The index of a pack.

    Attributes:
        parts: Its parts, with all that their rows need.
        prepared: Transactions that were to be marked as prepared with it.
    """

    parts: Sequence[jobs.StagedPart]
    prepared: Sequence[Tid]


def encode(index: PackIndex) -> bytes:
    """Return the bytes that a pack ends with."""
    return msgspec.msgpack.encode(index)


async def recover(catalog: Catalog, files: PartFs) -> int:
    """Give the parts of packs their rows that a power cut has taken; return the number of these packs.

    All other packs without a row become undo rows: their batch was never acknowledged. For a start, before
    anything is answered.

    Raises:
        DiskFullError, UnavailableError: The start has to be tried again.
    """
    found = 0
    for path in catalog.reader.packs():
        if (whole := await asyncio.to_thread(read, files, path)) is not None:
            index, length = whole
            job = partial(jobs.add_staged, parts=index.parts, prepared=index.prepared, file_bytes=length)
            catalog.late_removals.update(await catalog.write(job))
            found += 1
    await catalog.write(jobs.undo_packs)
    return found


def read(files: PartFs, path: str) -> tuple[PackIndex, int] | None:
    """Return the index of a pack whose bytes are all there, and its length; None for another one."""
    found = files.find_pack(path)
    if found is None:
        return None
    index = msgspec.msgpack.decode(found.about, type=PackIndex)
    try:
        for part in index.parts:
            files.verify(part.location)
    except CorruptError:
        return None
    return index, found.length
