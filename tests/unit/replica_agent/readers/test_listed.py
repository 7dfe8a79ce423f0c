"""Parts that are listed as one file, over random catalogs: the listing, an oracle, and the names."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.replicas.datadir import TIME_MS, DataDir
from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.replica_agent.footers.combined import length_of
from tidelock.replica_agent.readers.catalog import FolderRow, SnapshotCatalog
from tidelock.replica_agent.readers.paths import CombinedName, combined_of, part_of

TABLE = TableId("default.t")
SMALL, LAST = 1000, 12


@dataclass(frozen=True)
class Made:
    """A part of a random catalog."""

    part: str
    path: str
    csn: int
    removed: int | None
    length: int
    form: str | None

    def visible(self, at: int) -> bool:
        """Return whether it is there at a CSN."""
        return self.csn <= at and (self.removed is None or self.removed > at)


@st.composite
def catalogs(draw: st.DrawFn) -> list[Made]:
    """Parts of three folders and two tables' worth of forms, small and large, some of them removed."""
    made: list[Made] = []
    for number in range(draw(st.integers(0, 40))):
        csn = draw(st.integers(2, LAST))
        removed = draw(st.none() | st.none() | st.integers(csn + 1, LAST + 1))
        made.append(
            Made(
                # Ids of several replicas: their order is not that of the CSNs.
                f"{draw(st.sampled_from(['a', 'r1', 'r10', 'r2']))}-1-{number}",
                draw(st.sampled_from(["", "d=1", "d=1/e=x"])),
                csn,
                removed,
                draw(st.sampled_from([1, 7, 341, SMALL - 1, SMALL, 5 * SMALL])),
                draw(st.sampled_from([None, "f", "f", "f", "g"])),
            )
        )
    return made


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataDir:
    """A catalog whose parts a test replaces; there are no files."""
    made = DataDir(tmp_path_factory.mktemp("listed") / "r1")
    with made.sql() as db:
        times = [(csn, TIME_MS + csn) for csn in range(2, LAST + 1)]
        db.executemany("INSERT INTO csns VALUES (?, ?, 1, NULL, NULL)", times)
    made.set(snapshot_csn=LAST)
    return made


@pytest.fixture(scope="module")
def catalog(data: DataDir) -> Iterator[SnapshotCatalog]:
    """The catalog as readers use it."""
    made = SnapshotCatalog(data.path)
    yield made
    made.close()


def fill(data: DataDir, parts: Sequence[Made]) -> None:
    """Let these be the parts of the table."""
    sql = """
        INSERT INTO parts (part, table_name, path, rows, length, checksum, creation_tid, creation_csn,
                           removal_tid, removal_csn, form, kind, state)
        VALUES (?, ?, ?, 1, ?, '', 'c', ?, ?, ?, ?, 'part', 'held')
    """
    with data.sql() as db:
        db.execute("DELETE FROM parts")
        for one in parts:
            removal = "x" if one.removed else None
            db.execute(sql, (one.part, TABLE, one.path, one.length, one.csn, removal, one.removed, one.form))


def runs(parts: Sequence[Made], at: int) -> list[list[Made]]:
    """Return the files of a folder: parts that follow each other, small and of one form, are together."""
    found: list[list[Made]] = []
    seen = sorted((one for one in parts if one.visible(at)), key=lambda one: (one.csn, one.part))
    for form, run in itertools.groupby(seen, lambda one: one.form if one.length < SMALL else None):
        together = list(run)
        found += [[one] for one in together] if form is None else [together]
    return found


def listed(row: FolderRow) -> list[dict[str, int | str]]:
    """Return the entries of a folder."""
    entries: list[dict[str, int | str]] = json.loads(b"[" + row.entries + b"]")
    return entries


@given(parts=catalogs(), at=st.integers(1, LAST))
def test_parts_that_follow_each_other_are_one_file(
    data: DataDir, catalog: SnapshotCatalog, parts: list[Made], at: int
) -> None:
    """Each visible part is in exactly one file, in order; its name leads back to its parts at this CSN."""
    fill(data, parts)
    rows = {row.folder: row for row in catalog.listed(TABLE, Csn(at), SMALL, 64)}
    assert set(rows) == {one.path for one in parts if one.visible(at)}
    for path, row in rows.items():
        files = runs([one for one in parts if one.path == path], at)
        assert row.files == len(files)
        for entry, run in zip(listed(row), files, strict=True):
            name, total = str(entry["pathSuffix"]), sum(one.length for one in run)
            assert entry["modificationTime"] == TIME_MS + run[-1].csn
            if len(run) == 1:
                assert (part_of(name), entry["length"]) == (run[0].part, total)
                continue
            combined = combined_of(name)
            assert combined == CombinedName(PartId(run[-1].part), len(run), total)
            assert entry["length"] == length_of(total)
            found = catalog.combined_parts(combined, TABLE, path, Csn(at))
            assert [*found] == [one.part for one in run]
            assert row.combined[name] == found
        assert row.length == sum(int(entry["length"]) for entry in listed(row))


@given(parts=catalogs(), most=st.integers(2, 5))
def test_a_file_has_no_more_parts_than_allowed(
    data: DataDir, catalog: SnapshotCatalog, parts: list[Made], most: int
) -> None:
    """All parts are listed once, and each run of one form is cut."""
    fill(data, parts)
    met: list[str] = []
    for row in catalog.listed(TABLE, Csn(LAST), SMALL, most):
        for entry in listed(row):
            name = str(entry["pathSuffix"])
            combined = combined_of(name)
            if combined is None:
                met.append(str(part_of(name)))
                continue
            assert 2 <= combined.parts <= most
            met += catalog.combined_parts(combined, TABLE, row.folder, Csn(LAST))
    assert sorted(met) == sorted(one.part for one in parts if one.visible(LAST))


@given(parts=catalogs())
def test_without_combined_files_each_part_is_listed(
    data: DataDir, catalog: SnapshotCatalog, parts: list[Made]
) -> None:
    """The setting 0."""
    fill(data, parts)
    found = catalog.listed(TABLE, Csn(LAST), 0, 64)
    names = [part_of(str(entry["pathSuffix"])) for row in found for entry in listed(row)]
    assert sorted(map(str, names)) == sorted(one.part for one in parts if one.visible(LAST))


def test_a_name_of_another_csn_leads_to_no_parts(data: DataDir, catalog: SnapshotCatalog) -> None:
    """A part in the middle is gone, or has another length: never are other rows read under the name."""
    parts = [Made(f"r1-1-{number}", "", number + 2, None, 10, "f") for number in range(4)]
    fill(data, [*parts[:2], Made("r1-1-2", "", 4, 8, 10, "f"), parts[3]])
    name = CombinedName(PartId("r1-1-3"), 4, 40)
    assert [*catalog.combined_parts(name, TABLE, "", Csn(7))] == [one.part for one in parts]
    assert catalog.combined_parts(name, TABLE, "", Csn(8)) == ()
    assert catalog.combined_parts(name, TABLE, "", Csn(4)) == ()
    assert catalog.combined_parts(name, TABLE, "d=1", Csn(7)) == ()
    assert catalog.combined_parts(name, TableId("default.u"), "", Csn(7)) == ()
    assert catalog.combined_parts(CombinedName(PartId("r1-1-3"), 4, 41), TABLE, "", Csn(7)) == ()
    assert catalog.combined_parts(CombinedName(PartId("r9-1-3"), 4, 40), TABLE, "", Csn(7)) == ()


@pytest.mark.parametrize(
    "name",
    [
        "r1-1-1.parquet",
        "combined1-r1-1-3-4-40",
        "combined1-r1-1-4-40.parquet",
        "combined1-r1-1-3-0-40.parquet",
        "combined1-r1-1-3-04-40.parquet",
        "combined1-r1-1-3-4-.parquet",
        "combined1-r1-1-3-1000-40.parquet",
        "combined1-R-1-3-4-40.parquet",
        "combined1-r1-1-3-٤-40.parquet",
        "x-combined1-r1-1-3-4-40.parquet",
    ],
)
def test_what_is_no_name_of_a_combined_file(name: str) -> None:
    """Also no part has such a name."""
    assert combined_of(name) is None


def test_a_name_is_read_as_it_is_written() -> None:
    """Below any folder."""
    name = CombinedName(PartId("r1-1-3"), 64, 1 << 25)
    assert combined_of(f"d=1/{name}") == name
    assert part_of(str(name)) is None
