"""The history of commits: a row for each transaction and table, which outlives what it tells of."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.replicas.datadir import DataDir
from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.csnlog.core.model import AddPart, ChangeTable, DefineTable, Entry, RemovePart, SkipPart
from tidelock.replica_agent.storage import catalog_writes, commit_history
from tidelock.replica_agent.storage.catalog_writes import AppliedRecord, AppliedTid

T, NAME = TableId("default.t"), "default.t"
COLUMNS = "action, rows_added, rows_removed, parts_added, parts_removed"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A catalog with a table of two parts, of three and two rows; transaction 5-r1-1-6 removes the first."""
    made = DataDir(tmp_path / "data")
    made.create_table(2, NAME, pa.schema([("a", pa.int64())]))
    [first] = made.insert(3, {NAME: pa.table({"a": [1, 2, 3]})})
    made.insert(4, {NAME: pa.table({"a": [4, 5]})})
    made.remove(6, first.part)
    with made.sql() as connection:
        yield connection


def noted(db: sqlite3.Connection, csn: int, *tids: AppliedTid, time_ms: int = 1000) -> list[tuple[Any, ...]]:
    """Note a record and return the rows of its CSN."""
    db.execute("INSERT OR REPLACE INTO csns VALUES (?, ?, 1, NULL, NULL)", (csn, time_ms))
    commit_history.note(db, [AppliedRecord(Csn(csn), time_ms, tids, {})])
    return db.execute(f"SELECT {COLUMNS} FROM history WHERE csn = ? ORDER BY tid", (csn,)).fetchall()


def tid(*entries: Entry, change: bool = True, **more: Any) -> AppliedTid:
    """Return the transaction that the fixture's removal is of."""
    return AppliedTid("5-r1-1-6", entries, None, change, **more)


def part(name: str, rows: int) -> AddPart:
    """Return the entry of a part."""
    return AddPart(T, PartId(name), "", rows, 1, "00")


def definition(version: int) -> dict[str, Any]:
    """Return a definition; only whether it drops the table counts here."""
    return {"name": NAME} if version < 2 else {"name": NAME, "dropped": True}


GONE = RemovePart(T, PartId("r1-1-1"))


@pytest.mark.parametrize(
    ("entries", "change", "row"),
    [
        ([part("a", 7), part("b", 1)], True, ("insert", 8, 0, 2, 0)),
        ([GONE], True, ("delete", 0, 3, 0, 1)),
        ([GONE, part("a", 2)], True, ("change", 2, 3, 1, 1)),
        ([GONE, part("a", 3)], False, ("compact", 3, 3, 1, 1)),
        ([DefineTable(T, 0, definition(0))], True, ("create", 0, 0, 0, 0)),
        ([DefineTable(T, 1, definition(1))], True, ("alter", 0, 0, 0, 0)),
        ([ChangeTable(T, 2, definition(2))], True, ("drop", 0, 3, 0, 1)),
        ([SkipPart(T, PartId("x"), 9, Csn(4), "t", "ann", "burnt", 1)], True, ("lost", 0, 9, 0, 1)),
    ],
    ids=["insert", "delete", "change", "compact", "create", "alter", "drop", "lost"],
)
def test_a_transaction_is_noted_with_what_it_has_changed(
    db: sqlite3.Connection, entries: Sequence[Entry], change: bool, row: tuple[Any, ...]
) -> None:
    """Rows that were removed are those of the parts that the transaction has taken out of the table."""
    assert noted(db, 6, tid(*entries, change=change)) == [row]


def test_a_row_has_all_that_it_shows(db: sqlite3.Connection) -> None:
    """Name, time, label and the user's own data stay when table, outcome and parts are forgotten."""
    one = AppliedTid("5-r1-1-7", [part("a", 1)], "load", True, 4, None, {"user": "ann"})
    noted(db, 6, one)
    db.execute("DELETE FROM tables")
    db.execute("DELETE FROM parts")
    assert db.execute(
        "SELECT tid, table_name, name, time_ms, label, batch, meta FROM history"
    ).fetchall() == [("5-r1-1-7", NAME, NAME, 1000, "load", 4, '{"user": "ann"}')]


def test_riders_have_their_rows_and_their_carrier_has_none(db: sqlite3.Connection) -> None:
    """Rows of several transactions in one part are counted once, for the transaction whose rows they are."""
    carrier = AppliedTid("5-r1-1-1", [part("a", 5)], None, True)
    riders = [
        AppliedTid(f"5-r1-1-{number}", [], None, True, carrier=carrier.tid, rows={T: rows})
        for number, rows in [(2, 2), (3, 3)]
    ]
    assert noted(db, 7, carrier, *riders) == [("insert", 2, 0, 0, 0), ("insert", 3, 0, 0, 0)]


def test_a_part_that_was_declared_lost_adds_no_rows(db: sqlite3.Connection) -> None:
    """The part never became visible."""
    db.execute("INSERT INTO skips VALUES ('a', ?, 7, 6, 't', 'ann', '', '', 1)", (NAME,))
    assert noted(db, 6, tid(part("a", 7), part("b", 1))) == [("insert", 1, 0, 1, 0)]


@pytest.mark.parametrize("batches", [[1, 1, 1], [1, 2], [2, 1], [3]])
def test_times_of_wrong_clocks_are_mended(db: sqlite3.Connection, batches: list[int]) -> None:
    """When the time of the log steps back, the rows take over the times of the CSNs, however they come."""
    rider = AppliedTid("5-r1-1-7", [], None, True, carrier="5-r1-1-6", rows={T: 1})
    said = {10: (5000, 5000), 11: (9_000_000, 5500), 12: (6000, 6000)}
    left = [AppliedRecord(Csn(csn), ms, [rider], {}, agreed_ms=agreed) for csn, (ms, agreed) in said.items()]
    for count in batches:
        catalog_writes.apply(db, left[:count])
        commit_history.note(db, left[:count])
        del left[:count]
    assert db.execute("SELECT time_ms FROM history ORDER BY csn").fetchall() == [(5000,), (5500,), (6000,)]


def test_the_oldest_rows_go_by_time_and_by_number(db: sqlite3.Connection) -> None:
    """Rows go from the oldest on, a bounded number at once, and no newer row before them."""
    for csn in range(10, 20):
        noted(db, csn, tid(part(f"p{csn}", 1)), time_ms=csn)
    assert commit_history.prune(db, before_ms=0, excess=-90, limit=5) == 0
    assert commit_history.prune(db, before_ms=13, excess=-90, limit=2) == 2
    assert commit_history.prune(db, before_ms=13, excess=-92, limit=5) == 1
    assert commit_history.prune(db, before_ms=13, excess=3, limit=5) == 3
    assert db.execute("SELECT csn FROM history ORDER BY csn").fetchall() == [(csn,) for csn in range(16, 20)]
