"""The answer whether a replica holds a part: after a read of all bytes, which may take long."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.replicas.catalog_port import ReplicaCatalogPort
from tidelock.replica_agent.replicas.held_parts import HeldParts
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replication.core.model import Location, PartMeta
from tidelock.replication.partfs import PartFs

ONE, OTHER = PartId("r2-1-1"), PartId("r2-1-2")
TID = Tid(Csn(1), ReplicaId("r2"), 1, 1)


class Replica:
    """The files and the catalog of a replica with two parts."""

    def __init__(self, folder: Path) -> None:
        self.files = PartFs(folder)
        self.files.open()
        self.catalog = Catalog(folder, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
        self.damaged: list[PartId] = []
        port = ReplicaCatalogPort(self.catalog, self.files, cast("Any", None), Metrics())
        self.held = HeldParts(port=port, answer_s=0.05, damaged=lambda part, _: self.damaged.append(part))

    async def store(self, part: PartId) -> Location:
        """Make a part durable."""
        sink = self.files.begin(part)
        sink.write(b"ten bytes!")
        meta = PartMeta(part, TableId("default.t"), "", 1, 10, sink.checksum)
        at = sink.finish()
        await self.catalog.write(lambda db: jobs.add_staged(db, [jobs.StagedPart(meta, at, TID)], []))
        return at

    async def told(self, part: PartId) -> bool:
        """Ask until the read has ended."""
        while (found := await self.held.holds(part)) is None:
            pass
        return found


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    """A replica."""
    made = Replica(tmp_path)
    yield made
    await made.held.close()
    await made.catalog.close()
    made.files.close()


def begin_to_answer(file: Path, data: bytes) -> None:
    """Let a file that does not answer have bytes again, and end the reads that wait for it."""
    writer = os.open(file, os.O_RDWR | os.O_NONBLOCK)
    kept = file.with_suffix(".kept")
    kept.write_bytes(data)
    kept.rename(file)
    os.close(writer)


async def test_a_part_is_held_if_its_bytes_are_right(replica: Replica, tmp_path: Path) -> None:
    """Not if they are missing, wrong or unknown; wrong ones are reported."""
    at = await replica.store(ONE)
    assert await replica.told(ONE)
    assert not await replica.told(OTHER)
    assert replica.damaged == []
    (tmp_path / at.file).write_bytes(b"ten bytes?")
    assert not await replica.told(ONE)
    assert replica.damaged == [ONE]


async def test_a_long_read_is_told_and_goes_on(replica: Replica, tmp_path: Path) -> None:
    """A file that never answers stands for a slow disk. Other parts wait for the end of that read."""
    slow = tmp_path / (await replica.store(ONE)).file
    await replica.store(OTHER)
    slow.unlink()
    os.mkfifo(slow)
    assert [await replica.held.holds(part) for part in (ONE, ONE, OTHER)] == [None, None, None]
    begin_to_answer(slow, b"ten bytes!")
    assert await replica.told(OTHER)
    assert await replica.told(ONE)


async def test_a_read_that_found_damage_is_not_told_later(replica: Replica, tmp_path: Path) -> None:
    """No replica waited for its end, and the part was fetched again since: it is read again."""
    slow = tmp_path / (await replica.store(ONE)).file
    slow.unlink()
    os.mkfifo(slow)
    assert await replica.held.holds(ONE) is None
    begin_to_answer(slow, b"ten bytes!")  # the read that waited meets a pipe, and no bytes
    while not replica.damaged:  # noqa: ASYNC110 - a thread
        await asyncio.sleep(0.01)
    assert await replica.told(ONE)
