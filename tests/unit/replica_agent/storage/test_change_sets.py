"""Change sets from a catalog made by hand: their parts, their division into pages, their end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.replicas.datadir import TIME_MS, DataDir
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import SnapshotTooOldError
from tidelock.replica_agent.storage.change_reads import ChangeReader
from tidelock.replica_agent.storage.change_sets import CsnChangePage, CsnChanges, admit

ORDERS, OTHER = TableId("default.orders"), TableId("default.other")
SCHEMA = pa.schema([("id", pa.int64()), ("year", pa.int32())])


def rows(*ids: int, year: int = 1994) -> pa.Table:
    """Rows of one partition."""
    return pa.table({"id": ids, "year": [year] * len(ids)}, SCHEMA)


@pytest.fixture
def directory(tmp_path: Path) -> DataDir:
    """`orders`: inserts at 3, 4 and 6, a merge of the first two at 5, a rewrite of its part at 7."""
    made = DataDir(tmp_path / "data")
    made.create_table(2, "orders", SCHEMA, partition_by=["year"])
    made.create_table(2, "other", SCHEMA, partition_by=["year"])
    [first] = made.insert(3, {ORDERS: rows(1, 2)})
    second, _ = made.insert(4, {ORDERS: rows(3), OTHER: rows(9)})
    [merged] = made.insert(5, {ORDERS: rows(1, 2, 3)}, change=False)
    for part in (first, second):
        made.remove(5, part.part, change=False)
    made.insert(6, {ORDERS: rows(4, 5, year=1995)})
    made.insert(7, {ORDERS: rows(1, 3)})
    made.remove(7, merged.part)
    return made


@pytest.fixture
def reader(directory: DataDir) -> Iterator[ChangeReader]:
    """Return a reader of that catalog."""
    with closing(ChangeReader(directory.path)) as found:
        yield found


def page(
    reader: ChangeReader, since: int, until: int, *, files: int = 100, size: int = 1 << 30
) -> CsnChangePage:
    """Read a page."""
    return reader.page(ORDERS, Csn(since), Csn(until), files_max=files, bytes_max=size)


def shape(found: CsnChangePage) -> list[tuple[int, list[int], list[int]]]:
    """Return CSN, rows of the parts added, rows of the parts removed."""
    return [
        (one.csn, [part.row.rows for part in one.added], [part.row.rows for part in one.removed])
        for one in found.sets
    ]


def test_what_compaction_does_is_no_change(reader: ChangeReader) -> None:
    """The inputs of a compaction stay the added parts; its output is removed like any other part."""
    found = page(reader, 1, 7)
    assert shape(found) == [(3, [2], []), (4, [1], []), (6, [2], []), (7, [2], [3])]
    assert (found.to, found.complete, found.time_ms) == (7, True, TIME_MS + 7)
    assert [one.time_ms for one in found.sets] == [TIME_MS + csn for csn in (3, 4, 6, 7)]
    assert [one.tids for one in found.sets] == [[f"{csn - 1}-r1-1-{csn}"] for csn in (3, 4, 6, 7)]


def test_a_range_begins_behind_its_first_csn(reader: ChangeReader) -> None:
    """A range is (from, to]; a range without changes is complete at its end."""
    assert shape(page(reader, 3, 6)) == [(4, [1], []), (6, [2], [])]
    nothing = page(reader, 4, 5)
    assert (nothing.sets, nothing.to, nothing.complete) == ([], 5, True)


def test_where_a_part_can_be_read(reader: ChangeReader) -> None:
    """A part can be read from its creation up to its removal, also a removal by compaction."""
    added = page(reader, 1, 3).sets[0].added[0]
    assert [csn for csn in range(1, 9) if added.visible(Csn(csn))] == [3, 4]


def test_pages_together_are_all_change_sets(reader: ChangeReader) -> None:
    """A page has as many change sets as fit, at least one; all pages together have all of them."""
    for files, expected in ((1, [3, 4, 6, 7]), (2, [4, 6, 7]), (3, [6, 7]), (4, [6, 7]), (5, [7])):
        ends, sets, since, complete = [], [], 1, False
        while not complete:
            found = page(reader, since, 7, files=files)
            ends.append(found.to)
            sets += shape(found)
            since, complete = found.to, found.complete
        assert ends == expected
        assert sets == shape(page(reader, 1, 7))
    assert len(page(reader, 1, 7, size=1).sets) == 1


def test_no_more_is_read_than_a_page_takes(reader: ChangeReader) -> None:
    """The first set that does not fit is the last one that is read."""
    known = page(reader, 1, 7).sets
    looked = 0

    def found() -> Iterator[CsnChanges]:
        nonlocal looked
        for one in known:
            looked += 1
            yield one

    admit(found(), Csn(1), Csn(7), files_max=1, bytes_max=1 << 30)
    assert looked == 2


def test_below_the_horizon_no_change_is_told(directory: DataDir, reader: ChangeReader) -> None:
    """From the horizon on all changes are returned; below it an error, rather than some of them."""
    directory.set(horizon=5)
    assert shape(page(reader, 5, 7)) == [(6, [2], []), (7, [2], [3])]
    with pytest.raises(SnapshotTooOldError) as refused:
        page(reader, 4, 7)
    assert refused.value.details["min_csn"] == 5
    with directory.sql() as db:
        db.execute("INSERT INTO table_horizons VALUES (?, 3)", (ORDERS,))
    assert [csn for csn, *_ in shape(page(reader, 3, 7))] == [4, 6, 7]
    with pytest.raises(SnapshotTooOldError):
        page(reader, 2, 7)
