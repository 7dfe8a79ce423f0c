"""Catalogs of earlier formats: they are converted at the start, and keep all that they held."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from tests.support.project.source import ROOT
from tidelock.csnlog.core.ids import Csn, Stamp, TableId
from tidelock.errors import ConfigError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_schema import FORMAT, MIGRATIONS

#: For each format that can be read a catalog that holds CSNs 2 to 4, as its version made it.
CATALOGS = ROOT / "tests/testdata/catalogs"


def made(folder: Path, number: int) -> Path:
    """Make a catalog of an earlier format."""
    with closing(sqlite3.connect(folder / "catalog.db")) as db:
        db.executescript((CATALOGS / f"format-{number}.sql").read_text())
    return folder


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Catalog]:
    """Open a catalog as an agent does."""
    catalog = Catalog(folder, initial={"replica": "other", "disk": "other"}, cache_bytes=1 << 20)
    try:
        yield catalog
    finally:
        await catalog.close()


def columns(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return the columns of each table, in their order."""
    with closing(sqlite3.connect(folder / "catalog.db")) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: db.execute(f"PRAGMA table_info({name})").fetchall() for name in sorted(names)}


@pytest.mark.parametrize("number", sorted(MIGRATIONS))
async def test_a_catalog_of_an_earlier_format_keeps_what_it_held(tmp_path: Path, number: int) -> None:
    """Its identity, position, times and outcomes; of the records before nobody knows stamp or digest."""
    async with opened(made(tmp_path, number)) as catalog:
        reader = catalog.reader
        assert (reader.meta("format"), reader.meta("replica"), reader.meta("disk")) == (FORMAT, "r1", "d1")
        assert (reader.meta("boot"), reader.meta("fence"), reader.snapshot_csn()) == (2, 3, 4)
        assert (reader.csn_at(3999), reader.outcome("1-r1-1-1")) == (3, (2, 2000))
        assert (reader.meta("last_digest"), reader.meta("zxid_max")) == ("", 0)
        applied = jobs.AppliedRecord(Csn(5), 5000, [], {}, Stamp(77, 5001), "ab")
        await catalog.write(lambda db: jobs.apply(db, [applied]))
        assert (reader.meta("last_digest"), reader.meta("zxid_max")) == ("ab", 77)
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as db:
        assert db.execute("SELECT csn, czxid FROM csns").fetchall() == [
            (2, None),
            (3, None),
            (4, None),
            (5, 77),
        ]


@pytest.mark.parametrize("number", sorted(MIGRATIONS))
async def test_a_converted_catalog_has_the_columns_of_a_new_one(tmp_path: Path, number: int) -> None:
    """Statements that name no columns, and people who read the file, meet one form only."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    async with opened(made(old, number)), opened(new):
        assert columns(old) == columns(new)


async def test_a_catalog_of_a_format_before_all_known_ones_is_left_alone(tmp_path: Path) -> None:
    """The error names the formats that this version reads, and the file does not change."""
    made(tmp_path, min(MIGRATIONS))
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as db:
        db.execute("UPDATE meta SET value = 1 WHERE key = 'format'")
        db.commit()
    with pytest.raises(ConfigError, match=f"has catalog format 1, this version reads 3 to {FORMAT}"):
        Catalog(tmp_path, initial={}, cache_bytes=1 << 20)
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() == (1,)


async def test_a_catalog_of_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    """An agent of a version before is refused, and has made no table in the file of its successor."""
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as db:
        db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value)")
        db.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT + 1,))
        db.commit()
    with pytest.raises(ConfigError, match=f"has catalog format {FORMAT + 1}"):
        Catalog(tmp_path, initial={}, cache_bytes=1 << 20)
    assert list(columns(tmp_path)) == ["meta"]


async def test_a_converted_catalog_keeps_the_lost_parts(tmp_path: Path) -> None:
    """Versions of format 5 had this table already."""
    made(tmp_path, 5)
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as db:
        row = ("r1-1-1", "default.t", 5, 3, "1-r1-1-1", "ann", "burnt", "", 7000)
        db.execute("INSERT INTO skips VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        db.commit()
    async with opened(tmp_path) as catalog:
        assert [one.part for one in catalog.reader.skipped()] == ["r1-1-1"]


async def test_a_converted_catalog_knows_the_last_change_of_each_table(tmp_path: Path) -> None:
    """As far as its parts and definitions tell; compaction is no change."""
    made(tmp_path, 4)
    part = (
        "INSERT INTO parts VALUES (?, ?, '', 1, 1, 'c', 't', ?, ?, 'u', ?, ?, NULL, 0, NULL, NULL, 'part', "
        "'held')"
    )
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as db:
        db.execute("INSERT INTO tables VALUES ('default.t', 0, 2, '{}', '', '', 'active')")
        db.execute("INSERT INTO tables VALUES ('default.new', 0, 3, '{}', '', '', 'active')")
        db.execute(part, ("r1-1-1", "default.t", 3, 1, 4, 0))
        db.execute(part, ("r1-1-2", "default.t", 4, 0, None, 1))
        db.commit()
    async with opened(tmp_path) as catalog:
        assert catalog.reader.last_change(TableId("default.t")) == 3
        assert catalog.reader.last_change(TableId("default.new")) == 3
        assert catalog.reader.last_change(TableId("default.none")) is None
