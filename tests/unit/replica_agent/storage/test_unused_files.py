"""Files whose deletion failed are deleted when the disk allows it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.errors import DiskFullError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.unused_files import remove_files, remove_late
from tidelock.replication.core.model import Location, PartMeta
from tidelock.replication.partfs import PartFs

PART: Final = PartId("r1-1-1")
TID: Final = Tid(Csn(1), ReplicaId("r1"), 1, 1)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """An empty catalog."""
    made = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    yield made
    await made.close()


@pytest.fixture
def files(tmp_path: Path) -> PartFs:
    """The files beside it."""
    made = PartFs(tmp_path)
    made.open()
    return made


async def written(catalog: Catalog, files: PartFs) -> Location:
    """A part's file with its undo row and nothing else."""
    path = files.part_path(PART)
    await catalog.write(lambda db: jobs.note_undo(db, [path]))
    sink = files.begin(PART)
    sink.write(b"bytes")
    return sink.finish()


async def test_what_could_not_go_goes_later(tmp_path: Path, catalog: Catalog, files: PartFs) -> None:
    """The disk is full: the undo row stays until there is room, and is then deleted without a restart."""
    location = await written(catalog, files)
    with faults.armed("agent.catalog.before", "enospc"), pytest.raises(DiskFullError):
        await remove_files(catalog, files, [location.file])
    assert catalog.reader.files() == (set(), [location.file])
    await remove_late(catalog, files)
    assert catalog.reader.files() == (set(), [])
    assert not (tmp_path / location.file).exists()
    await remove_late(catalog, files)
    assert not catalog.late_removals


async def test_a_file_with_a_row_stays(tmp_path: Path, catalog: Catalog, files: PartFs) -> None:
    """Its row could not be dropped either: the file is deleted after the row, not before."""
    location = await written(catalog, files)
    meta = PartMeta(PART, TableId("default.t"), "", 1, location.length, "0" * 32)
    staged = jobs.StagedPart(meta, location, TID)
    await catalog.write(lambda db: jobs.add_staged(db, [staged], []))
    catalog.late_removals.add(location.file)
    await remove_late(catalog, files)
    assert (tmp_path / location.file).exists()
    unused = await catalog.write(lambda db: jobs.drop_undecided(db, [str(TID)]))
    await remove_files(catalog, files, unused)
    assert not (tmp_path / location.file).exists()
    assert not catalog.late_removals
