"""The manifest of a clone: what it holds, and how it replaces a catalog (rule clone, F8)."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Collection
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, Stamp, TableId, Tid
from tidelock.csnlog.core.model import AddPart, Entry, RemovePart
from tidelock.errors import ClusterMismatchError, CorruptError, UpgradeNeededError
from tidelock.replica_agent.cloning.manifest import (
    FoundPart,
    ManifestFacts,
    check_manifest,
    find_parts,
    install,
    write_manifest,
)
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_schema import FORMAT, SERVE_FROM_UNKNOWN
from tidelock.replication.core.digest import RangeDigest
from tidelock.replication.core.model import Location, PartMeta
from tidelock.replication.partfs import PartFs

TABLE = TableId("default.t")
DATA = b"the bytes of a part"


def tid(number: int) -> Tid:
    """Return a transaction of r1."""
    return Tid(Csn(1), ReplicaId("r1"), 1, number)


def checksum(data: bytes = DATA) -> str:
    """Return the checksum of some bytes."""
    digest = RangeDigest()
    digest.update(data)
    return digest.checksum()


def part(number: int) -> PartId:
    """Return the id of a part."""
    return PartId(f"r1-1-{number}")


def staged(number: int) -> jobs.StagedPart:
    """Return a part of transaction `number`, in a pack."""
    meta = PartMeta(part(number), TABLE, "", 5, len(DATA), checksum())
    return jobs.StagedPart(
        meta, Location("packs/00/r1-1-90.pack", 100 * number, len(DATA), b"\0" * 8), tid(number)
    )


def add(number: int) -> AddPart:
    """Return the log entry of :func:`staged`."""
    return AddPart(TABLE, part(number), "", 5, len(DATA), checksum())


async def applied(catalog: Catalog, csn: int, number: int, *entries: Entry) -> None:
    """Apply a record with one transaction."""
    record = jobs.AppliedRecord(
        Csn(csn), csn * 1000, [jobs.AppliedTid(str(tid(number)), entries, None, True)], {}
    )
    await catalog.write(lambda db: jobs.apply(db, [record]))


async def noted(catalog: Catalog, csn: int, zxid: int) -> None:
    """Apply a record without transactions that has a stamp."""
    record = jobs.AppliedRecord(Csn(csn), csn * 1000, [], {}, stamp=Stamp(zxid, 1), agreed_ms=csn * 1000)
    await catalog.write(lambda db: jobs.apply(db, [record]))


async def stage(catalog: Catalog, *numbers: int) -> None:
    """Make parts durable whose transactions are undecided."""
    await catalog.write(lambda db: jobs.add_staged(db, [staged(number) for number in numbers], []))


def rows(
    path: Path, sql: str = "SELECT part, state, creation_csn, removal_csn FROM parts ORDER BY part"
) -> list[Any]:
    """Return rows of a database."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        return db.execute(sql).fetchall()


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[Catalog]:
    """Part 1 is collected, 2 removed above the horizon, 3 visible, 4 undecided, 5 about to be removed."""
    folder = tmp_path / "r1"
    folder.mkdir()
    made = Catalog(folder, initial={"replica": "r1", "disk": "d1", "cluster_id": "c"}, cache_bytes=1 << 20)
    await stage(made, 1, 2, 3, 4, 5)
    for csn, number in ((2, 1), (3, 2), (4, 3), (5, 5)):
        await applied(made, csn, number, add(number))
    await applied(made, 6, 6, RemovePart(TABLE, part(1)))
    await made.write(lambda db: jobs.set_meta(db, horizon=6, boot=7))
    await applied(made, 7, 7, RemovePart(TABLE, part(2)))
    await made.write(lambda db: jobs.mark_removed(db, str(tid(8)), [part(5)]))
    yield made
    await made.close()


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A catalog that is behind: parts 1 and 3 are visible, 9 is damaged."""
    folder = tmp_path / "r2"
    folder.mkdir()
    made = Catalog(folder, initial={"replica": "r2", "disk": "d2", "cluster_id": "c"}, cache_bytes=1 << 20)
    await stage(made, 1, 3, 9)
    await applied(made, 2, 1, add(1))
    await applied(made, 4, 3, add(3))
    await made.write(lambda db: jobs.quarantine(db, part(9)))
    await made.write(lambda db: jobs.set_meta(db, boot=3, clone="it is too late"))
    yield made
    await made.close()


def written(tmp_path: Path) -> tuple[Path, ManifestFacts]:
    """Write the manifest of the source."""
    path = tmp_path / "manifest"
    return path, write_manifest(tmp_path / "r1", path)


async def replace(
    own: Catalog, path: Path, files: Collection[str] = (), found: Collection[FoundPart] = ()
) -> None:
    """Put a manifest in place of a catalog."""
    await own.write(partial(install, manifest=path, disk="d3", files=files, found=found))


async def test_a_manifest_has_what_is_not_collected(source: Catalog, tmp_path: Path) -> None:
    """Visible, removed above the horizon, and undecided parts, all without bytes and without marks."""
    path, facts = written(tmp_path)
    assert facts.csn == 7
    assert rows(path) == [
        (part(2), "wanted", 3, 7),
        (part(3), "wanted", 4, None),
        (part(4), "wanted", None, None),
        (part(5), "wanted", 5, None),
    ]
    assert (
        rows(path, "SELECT removal_tid FROM parts WHERE removal_csn IS NULL AND removal_tid NOT NULL") == []
    )
    assert rows(path, "SELECT count(*) FROM files") == rows(path, "SELECT count(*) FROM undo") == [(0,)]
    assert rows(path, "SELECT key FROM meta WHERE key IN ('replica', 'disk', 'boot', 'fence')") == []
    check_manifest(path, facts.checksum)


async def test_a_manifest_replaces_the_catalog(source: Catalog, own: Catalog, tmp_path: Path) -> None:
    """Part 1 was removed and collected: it must not stay. The bytes of part 3 do, and the identity."""
    path, _ = written(tmp_path)
    await replace(own, path, files=["packs/00/r1-1-90.pack", "parts/09/r1-1-9.parquet"])
    reader = own.reader
    assert [(row.part, row.state) for row in reader.parts(TABLE, Csn(7))] == [
        (part(3), "held"),
        (part(5), "wanted"),
    ]
    assert reader.part(part(1)) is reader.part(part(9)) is None
    expected = {"replica": "r2", "disk": "d3", "boot": 3, "clone": "", "snapshot_csn": 7, "horizon": 6}
    assert {key: reader.meta(key) for key in expected} == expected
    assert (reader.meta("serve_from"), reader.meta("clone_base")) == (SERVE_FROM_UNKNOWN, 7)
    assert reader.outcome(str(tid(2))) == (3, 3000)
    assert reader.files() == ({"packs/00/r1-1-90.pack"}, ["parts/09/r1-1-9.parquet"])


async def test_parts_that_the_log_may_add_outlive_a_clone(
    source: Catalog, own: Catalog, tmp_path: Path
) -> None:
    """A commit counted this copy; the sender has not applied it, and the disk of the other copy was lost."""
    await stage(own, 10, 11, 12)
    await applied(own, 8, 10, add(10))
    await applied(own, 9, 11, add(11), RemovePart(TABLE, part(10)))
    path, facts = written(tmp_path)
    assert facts.csn == 7
    await replace(own, path)
    kept = rows(
        tmp_path / "r2/catalog.db",
        "SELECT part, creation_csn, removal_tid, removal_csn FROM parts WHERE state = 'held' ORDER BY part",
    )
    assert kept == [
        *((part(number), None, None, None) for number in (10, 11, 12)),
        (part(3), 4, None, None),
    ]
    assert {str(tid(number)) for number in (10, 11, 12)} <= {*own.reader.prepared()}
    await applied(own, 8, 10, add(10))  # the log goes on behind the manifest
    await applied(own, 9, 11, add(11), RemovePart(TABLE, part(10)))
    assert [row.part for row in own.reader.parts(TABLE, Csn(9))] == [part(11), part(3), part(5)]


@pytest.mark.parametrize("known", ["committed", "forgotten"])
async def test_parts_of_transactions_that_are_over_do_not_outlive_a_clone(
    source: Catalog, own: Catalog, tmp_path: Path, known: str
) -> None:
    """They were removed and collected since, or their commit may have been."""
    await stage(own, 10)
    await applied(source, 8, 10)
    if known == "forgotten":
        await source.write(lambda db: db.execute("DELETE FROM outcomes"))
        await source.write(lambda db: jobs.set_meta(db, outcome_floor=2))
    path, _ = written(tmp_path)
    await replace(own, path, files=["packs/00/r1-1-90.pack"])
    assert own.reader.part(part(10)) is None
    assert own.reader.prepared() == [str(tid(4))]


async def land(catalog: Catalog, *numbers: int, snapshot: int = 1) -> Tid:
    """Confirm a landing of these parts."""
    of = Tid(Csn(snapshot), ReplicaId("r9"), 1, 1)
    parts = [
        msgspec.structs.replace(one, meta=msgspec.structs.replace(one.meta, kind="landed"), tid=of)
        for one in map(staged, numbers)
    ]
    await catalog.write(lambda db: jobs.add_staged(db, parts, [of]))
    return of


async def test_rows_that_landed_here_outlive_a_clone(source: Catalog, own: Catalog, tmp_path: Path) -> None:
    """The manifest would know their commit, and knows none: they stay, with their mark and bytes."""
    landing = await land(own, 20, 21)
    path, _ = written(tmp_path)
    await replace(own, path)
    assert [(meta.part, place is not None) for meta, place in own.reader.landed(str(landing))] == [
        (part(20), True),
        (part(21), True),
    ]
    assert rows(tmp_path / "r2/catalog.db", "SELECT tid FROM prepared") == [(str(landing),)]


@pytest.mark.parametrize("ahead", ["this replica", "the sender"])
async def test_rows_that_landed_keep_their_bytes_through_their_commit(
    source: Catalog, own: Catalog, tmp_path: Path, ahead: str
) -> None:
    """One of the two has applied the record that makes them a part of the table, and the other has not."""
    landing = await land(own, 20)
    await land(source, 20)
    record = jobs.AppliedTid(str(landing), (add(20),), None, True)
    first = own if ahead == "this replica" else source
    await first.write(lambda db: jobs.apply(db, [jobs.AppliedRecord(Csn(8), 8000, [record], {})]))
    path, _ = written(tmp_path)
    await replace(own, path, files=["packs/00/r1-1-90.pack"])
    kept = own.reader.part(part(20))
    assert kept is not None
    assert (kept.state, kept.creation_csn) == ("held", None if ahead == "this replica" else 8)
    assert "packs/00/r1-1-90.pack" in own.reader.files()[0]


@pytest.mark.parametrize("brought", ["by its home", "under the label", "forgotten", "damaged here"])
async def test_landed_rows_that_may_have_come_do_not_outlive_a_clone(
    source: Catalog, own: Catalog, tmp_path: Path, brought: str
) -> None:
    """They would come twice; and half of them would keep the other half out."""
    landing = await land(own, 20)
    match brought:
        case "by its home":
            record = jobs.AppliedTid(str(landing), (), None, True)
        case "under the label":
            record = jobs.AppliedTid(str(tid(30)), (), f"landing/{landing}", True)
        case _:
            record = jobs.AppliedTid(str(tid(30)), (), None, True)
    await source.write(lambda db: jobs.apply(db, [jobs.AppliedRecord(Csn(8), 8000, [record], {})]))
    if brought == "forgotten":
        await source.write(lambda db: jobs.set_meta(db, label_floor=2))
    if brought == "damaged here":
        await own.write(lambda db: jobs.quarantine(db, part(20)))
    path, _ = written(tmp_path)
    await replace(own, path)
    assert own.reader.landed_tids() == []
    assert rows(tmp_path / "r2/catalog.db", "SELECT tid FROM prepared") == []


async def test_other_bytes_under_the_same_id_are_not_kept(
    source: Catalog, own: Catalog, tmp_path: Path
) -> None:
    """A part counts as held if length and checksum are those of the manifest."""
    path, _ = written(tmp_path)
    await own.write(
        lambda db: db.execute("UPDATE parts SET checksum = ? WHERE part = ?", ("0" * 32, part(3)))
    )
    await replace(own, path)
    kept = own.reader.part(part(3))
    assert kept is not None
    assert (kept.state, kept.checksum, kept.file) == ("wanted", checksum(), None)


async def test_files_that_no_row_names_are_kept_by_their_checksum(
    source: Catalog, own: Catalog, tmp_path: Path
) -> None:
    """The catalog is lost and the folder is not: whole files stay, others are to be deleted."""
    path, _ = written(tmp_path)
    files = PartFs(tmp_path / "r2")
    files.open()
    for number, data in ((3, DATA), (5, DATA[::-1]), (8, DATA)):
        sink = files.begin(part(number))
        sink.write(data)
        sink.finish()
    present = files.present()
    found = find_parts(files.data_dir, path, present)
    assert [one.part for one in found] == [part(3)]
    await own.write(lambda db: db.execute("DELETE FROM parts"))
    await replace(own, path, present, found)
    row = own.reader.part(part(3))
    assert row is not None
    assert row.state == "held"
    assert row.file is not None
    assert files.read(Location(row.file, row.offset, row.length, row.blocks)) == DATA
    named, undo = own.reader.files()
    assert (named, set(undo)) == ({row.file}, present - {row.file})
    files.close()


@pytest.mark.parametrize(("version", "error"), [(FORMAT + 1, UpgradeNeededError), (FORMAT - 1, CorruptError)])
async def test_a_manifest_of_another_version_is_refused(
    source: Catalog, tmp_path: Path, version: int, error: type[Exception]
) -> None:
    """The message names both versions, and which side is to be upgraded."""
    await source.write(lambda db: jobs.set_meta(db, format=version))
    path, facts = written(tmp_path)
    with pytest.raises(error, match=f"format {version}, this version reads {FORMAT}: upgrade"):
        check_manifest(path, facts.checksum)


async def test_a_damaged_manifest_is_refused(source: Catalog, tmp_path: Path) -> None:
    """One flipped bit."""
    path, facts = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="checksum"):
        check_manifest(path, facts.checksum)


@pytest.mark.parametrize(("zxid", "refused"), [(80, False), (81, True)])
async def test_the_last_catalog_of_another_history_is_not_replaced(
    own: Catalog, source: Catalog, tmp_path: Path, zxid: int, refused: bool
) -> None:
    """A struck replica has commits that a ZooKeeper which was set back has lost: they stay on its disk."""
    await noted(source, 8, 80)
    await noted(source, 9, 90)
    await noted(own, 8, zxid)
    path = tmp_path / "manifest"
    write_manifest(tmp_path / "r1", path)
    before = rows(tmp_path / "r2" / "catalog.db", "SELECT * FROM csns")
    job = partial(install, manifest=path, disk="new", files=[], found=[])
    if not refused:
        await own.write(job)
        assert own.reader.snapshot_csn() == 9
        return
    with pytest.raises(ClusterMismatchError, match=r"at CSN 8 this replica has applied .* zxid 0x51"):
        await own.write(job)
    assert rows(tmp_path / "r2" / "catalog.db", "SELECT * FROM csns") == before
    assert own.reader.meta("disk") == "d2"
