"""The stager: batches in packs, and parts that arrive twice."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId, Tid, part_id
from tidelock.errors import DiskFullError, UnavailableError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.pack_index import recover
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
    meta = PartMeta(part_id(PEER, 1, number), TableId("default.t"), "", 1, len(data), checksum(data))
    return StagedBytes(meta, data, TID)


def packs(folder: Path) -> list[Path]:
    """Return all packs that are not empty."""
    return [path for path in (folder / "packs").rglob("*") if path.is_file() and path.stat().st_size]


async def test_what_waits_shares_a_pack(tmp_path: Path, catalog: Catalog, stager: Stager) -> None:
    """While the first batch is written the others collect: two files for ten calls, all bytes in place."""
    await asyncio.gather(*(stager.store([small(number)], []) for number in range(10)))
    assert len(packs(tmp_path)) <= 2
    assert not [path for path in catalog.reader.packs() if (tmp_path / path).stat().st_size]
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
    assert path.read_bytes().startswith(small(1).data)


@pytest.mark.parametrize("point", ["partfs.fsync.before", "agent.catalog.before"])
async def test_a_batch_that_fails_leaves_nothing(
    tmp_path: Path, catalog: Catalog, stager: Stager, point: str
) -> None:
    """Neither bytes nor rows remain; its pack's name is used again, so names do not pile up."""
    await stager.store([small(1)], [])
    named = catalog.reader.packs()
    with faults.armed(point, "enospc"):
        for number in (2, 3):
            with pytest.raises(DiskFullError):
                await stager.store([small(number)], [TID])
    assert catalog.reader.packs() == named
    assert len(packs(tmp_path)) == 1
    assert not list((tmp_path / "trash").iterdir())
    assert catalog.reader.part(small(2).meta.part) is None
    for number in range(2, 2 + len(named)):
        await stager.store([small(number)], [TID])
    assert catalog.reader.packs() == []
    assert len(packs(tmp_path)) == 1 + len(named)


async def test_a_batch_that_is_stored_keeps_its_bytes(
    tmp_path: Path, catalog: Catalog, stager: Stager
) -> None:
    """Also where its caller was told of an error: a row names them."""
    await stager.store([small(0)], [])
    with faults.armed("agent.catalog.after", "eio"), pytest.raises(UnavailableError):
        await stager.store([small(1)], [])
    await asyncio.gather(*(stager.store([small(number)], []) for number in range(2, 40)))
    await read_back(catalog, tmp_path, *range(40))


async def read_back(catalog: Catalog, folder: Path, *numbers: int) -> None:
    """Require that these parts have their rows and their bytes."""
    files = PartFs(folder)
    for number in numbers:
        row = catalog.reader.part(small(number).meta.part)
        assert row is not None
        assert row.held is not None
        assert files.read(row.held) == small(number).data


class PowerCut:
    """A data directory as a power cut leaves it: with the catalog of an earlier moment, and all packs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._catalog: dict[str, bytes] = {}

    def durable(self) -> None:
        """Note that the catalog keeps all that it has now."""
        self._catalog = {path.name: path.read_bytes() for path in self._folder.glob("catalog.db*")}

    def leaves(self, folder: Path) -> Path:
        """Make the data directory behind the cut."""
        shutil.copytree(self._folder / "packs", folder / "packs")
        for name, data in self._catalog.items():
            (folder / name).write_bytes(data)
        (folder / "catalog.db-shm").unlink()
        return folder


@pytest.fixture
async def behind_the_cut(
    tmp_path: Path, catalog: Catalog, stager: Stager, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Catalog, PartFs]]:
    """The catalog lacks the rows of four batches, whose packs are durable but for what the parameter does."""
    cut = PowerCut(tmp_path)
    await stager.store([small(1)], [TID])
    await catalog.force()
    cut.durable()
    for number in range(2, 6):
        await stager.store([small(number)], [Tid(Csn(1), PEER, 1, number)])
    path = tmp_path / str(catalog.reader.part(small(3).meta.part).file)  # type: ignore[union-attr]
    whole = path.read_bytes()
    path.write_bytes(request.param(whole))
    left = cut.leaves(tmp_path / "left")
    files = PartFs(left)
    files.open()
    found = Catalog(left, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    yield found, files
    await found.close()


def _torn(whole: bytes) -> bytes:
    return whole[:-7]


def _zeros(whole: bytes) -> bytes:
    return bytes(len(whole))


def _one_bit(whole: bytes) -> bytes:
    return bytes([whole[0] ^ 1]) + whole[1:]


def _empty(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("behind_the_cut", [lambda whole: whole], ids=["whole"], indirect=True)
async def test_parts_that_only_their_packs_know_get_their_rows(
    behind_the_cut: tuple[Catalog, PartFs],
) -> None:
    """A home was told that they are durable here: parts and marks are there again."""
    catalog, files = behind_the_cut
    assert catalog.reader.part(small(2).meta.part) is None
    assert await recover(catalog, files) == 4
    await read_back(catalog, files.data_dir, 1, 2, 3, 4, 5)
    assert set(catalog.reader.prepared()) == {str(TID), *(f"1-r2-1-{number}" for number in range(2, 6))}
    assert catalog.reader.packs() == []
    named, undo = catalog.reader.files()
    assert files.sweep(named, undo).missing == ()
    assert len(packs(files.data_dir)) == 5


@pytest.mark.scenario("S57")
@pytest.mark.parametrize("behind_the_cut", [_torn, _zeros, _one_bit, _empty], indirect=True)
async def test_a_pack_that_is_not_whole_was_never_acknowledged(
    behind_the_cut: tuple[Catalog, PartFs],
) -> None:
    """Its parts stay unknown, and the start deletes it; the others are found."""
    catalog, files = behind_the_cut
    assert await recover(catalog, files) == 3
    await read_back(catalog, files.data_dir, 1, 2, 4, 5)
    assert catalog.reader.part(small(3).meta.part) is None
    assert "1-r2-1-3" not in catalog.reader.prepared()
    named, undo = catalog.reader.files()
    files.sweep(named, undo)
    assert len(packs(files.data_dir)) == 4


@pytest.mark.parametrize("behind_the_cut", [lambda whole: whole], ids=["whole"], indirect=True)
async def test_what_is_forgotten_for_good_is_not_found_again(
    behind_the_cut: tuple[Catalog, PartFs],
) -> None:
    """A pack whose parts were dropped is an undo row; a crash before its end does not bring it back."""
    catalog, files = behind_the_cut
    await recover(catalog, files)
    unused = await catalog.write(lambda db: jobs.drop_undecided(db, ["1-r2-1-1"]))
    assert len(unused) == 5, "all five parts are of one transaction"
    assert await recover(catalog, files) == 0
    assert catalog.reader.part(small(2).meta.part) is None


async def test_rows_of_a_pack_are_not_forced(
    catalog: Catalog, stager: Stager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of packs are, and marks that come without parts, which no pack would say again."""
    said: list[bool] = []
    set_forced = catalog._set_forced

    def note(db: sqlite3.Connection, *, forced: bool) -> None:
        said.append(forced)
        set_forced(db, forced=forced)

    monkeypatch.setattr(catalog, "_set_forced", note)
    for number in range(1, 4):
        await stager.store([small(number)], [])
    assert said == [True, False, False, False]
    await stager.store([], [TID])
    assert said[4:] == [True]
