"""The stager: batches in packs, and parts that arrive twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableName, Tid, part_id
from tidelock.errors import DiskFullError
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.pack_writer import PartNumbers, StagedBytes, Stager
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import Location, PartMeta
from tidelock.replication.partfs import PartFs

PEER = ReplicaId("r2")
TID = Tid(Csn(1), PEER, 1, 1)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A new catalog, closed at the end."""
    made = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    yield made
    await made.close()


@pytest.fixture
def stager(tmp_path: Path, catalog: Catalog) -> Stager:
    """Return a stager of replica r1."""
    files = PartFs(tmp_path)
    files.open()
    return Stager(
        catalog=catalog, files=files, numbers=PartNumbers(ReplicaId("r1"), 1), batch_bytes_max=1 << 20
    )


def small(number: int) -> StagedBytes:
    """Return a part that r2 has made."""
    data = f"bytes of part {number}".encode()
    meta = PartMeta(part_id(PEER, 1, number), TableName("default.t"), "", 1, len(data), checksum(data))
    return StagedBytes(meta, data, TID)


def packs(folder: Path) -> list[Path]:
    """Return all pack files."""
    return [path for path in (folder / "packs").rglob("*") if path.is_file()]


async def test_what_waits_shares_a_pack(tmp_path: Path, catalog: Catalog, stager: Stager) -> None:
    """While the first batch is written the others collect: two files for ten calls, all bytes in place."""
    await asyncio.gather(*(stager.store([small(number)], []) for number in range(10)))
    assert len(packs(tmp_path)) <= 2
    files = PartFs(tmp_path)
    for number in range(10):
        row = catalog.reader.part(small(number).meta.part)
        assert row is not None
        assert row.file is not None
        assert files.read(Location(row.file, row.offset, row.length, row.blocks)) == small(number).data


async def test_a_part_that_comes_twice_is_written_once(
    tmp_path: Path, catalog: Catalog, stager: Stager
) -> None:
    """By a push and by a fetch at the same time, or again later; the mark is stored all the same."""
    await asyncio.gather(stager.store([small(1)], []), stager.store([small(1)], [TID]))
    assert len(packs(tmp_path)) == 1
    assert catalog.reader.prepared() == [str(TID)]
    await stager.store([small(1)], [TID])
    assert len(packs(tmp_path)) == 1
    (path,) = packs(tmp_path)
    assert path.read_bytes() == small(1).data


@pytest.mark.parametrize("point", ["partfs.fsync.before", "agent.catalog.before"])
async def test_a_batch_that_fails_leaves_nothing(
    tmp_path: Path, catalog: Catalog, stager: Stager, point: str
) -> None:
    """Neither bytes nor rows remain; the next batch uses the reserved name, so undo rows do not pile up."""
    await stager.store([small(1)], [])
    reserved = catalog.reader.files()[1]
    assert len(reserved) == 1
    with faults.armed(point, "enospc"):
        for number in (2, 3):
            with pytest.raises(DiskFullError):
                await stager.store([small(number)], [TID])
    assert catalog.reader.files()[1] == reserved
    assert len(packs(tmp_path)) == 1
    assert not list((tmp_path / "trash").iterdir())
    assert catalog.reader.part(small(2).meta.part) is None
    await stager.store([small(2)], [TID])
    assert (tmp_path / reserved[0]).exists()
