"""Records that an operator has had skipped, in the catalog: what it notes, and what reads the notes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidelock.csnlog.core.ids import Csn, Stamp
from tidelock.csnlog.core.model import SkippedRecord
from tidelock.errors import CorruptError
from tidelock.replica_agent.cloning.manifest import check_skips, install, write_manifest
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog

WORD = SkippedRecord(
    csn=Csn(3), zxid=7, digest="ab", by="ann", why="rolled back", time_ms=9, tids=("1-r1-1-7",), closes=True
)


def opened(folder: Path, replica: str = "r1") -> Catalog:
    """Open the catalog of a folder."""
    folder.mkdir(exist_ok=True)
    return Catalog(folder, initial={"replica": replica, "disk": "d1"}, cache_bytes=1 << 20)


def empty(csn: int, time_ms: int, skip: SkippedRecord | None = None) -> jobs.AppliedRecord:
    """Return a record without transactions; a skipped one names no clocks."""
    return jobs.AppliedRecord(
        Csn(csn), time_ms, [], {}, Stamp(csn + 4, 1), "ab", 0 if skip else time_ms, skip
    )  # fmt: skip


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A catalog that has passed over a record."""
    made = opened(tmp_path / "r1")
    await made.write(lambda db: jobs.apply(db, [empty(2, 2000), empty(3, 2000, WORD), empty(4, 4000)]))
    yield made
    await made.close()


async def test_a_catalog_notes_what_it_has_passed_over(catalog: Catalog, tmp_path: Path) -> None:
    """Together with the CSN and over restarts; stamp and digest are those of the real record."""
    assert catalog.reader.skipped_records() == {Csn(3): WORD}
    await catalog.close()
    again = opened(tmp_path / "r1")
    assert again.reader.skipped_records() == {Csn(3): WORD}
    assert (again.reader.meta("zxid_max"), again.reader.snapshot_csn()) == (8, 4)
    await again.close()


async def test_times_that_are_made_again_leave_a_skipped_record_at_the_time_before(catalog: Catalog) -> None:
    """It says nothing of the time, so it is no reason to step back further."""
    await catalog.write(lambda db: jobs.apply(db, [empty(5, 3000)]))
    found = await catalog.write(lambda db: db.execute("SELECT csn, time_ms FROM csns").fetchall())
    assert found == [(2, 2000), (3, 2000), (4, 2000), (5, 3000)]


async def test_a_clone_has_the_notes_of_its_source(catalog: Catalog, tmp_path: Path) -> None:
    """It starts like its source, whether the log has the record or not."""
    path = tmp_path / "manifest"
    write_manifest(tmp_path / "r1", path)
    check_skips(path, {Csn(3): WORD})
    own = opened(tmp_path / "r2", "r2")
    await own.write(lambda db: install(db, path, disk="d2", files=(), found=()))
    assert own.reader.skipped_records() == {Csn(3): WORD}
    await own.close()


async def test_a_source_that_shows_the_record_is_not_cloned(tmp_path: Path) -> None:
    """It was fenced and has not noticed yet; the clone would have to be thrown away at its start."""
    source = opened(tmp_path / "r1")
    await source.write(lambda db: jobs.apply(db, [empty(2, 2000), empty(3, 3000)]))
    path = tmp_path / "manifest"
    write_manifest(tmp_path / "r1", path)
    await source.close()
    check_skips(path, {})
    check_skips(path, {Csn(4): WORD})
    with pytest.raises(CorruptError, match="has applied the record of CSN 3, which ann has had skipped"):
        check_skips(path, {Csn(3): WORD})
