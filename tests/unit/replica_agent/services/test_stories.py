"""Stories of parts, transactions and columns: what the catalog knows, and why."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.replicas.datadir import TIME_MS, DataDir
from tests.support.replicas.sql import ORDERS, orders_and_items
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId
from tidelock.errors import SnapshotTooOldError
from tidelock.replica_agent.services.stories import Story, part_at, statistics_at, story_of
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.table_reads import TableRow

R1 = ReplicaId("r1")
DAMAGED = (
    "it was added at CSN 4, not above 6, and no commit has removed it; its bytes are damaged on this "
    "replica, which fetches them again"
)


@pytest.fixture
def directory(tmp_path: Path) -> DataDir:
    """A data directory with `orders` by year; CSN 6 removes the orders of 1994, which came at CSN 4."""
    return orders_and_items(tmp_path / "data")


@pytest.fixture
def part(directory: DataDir) -> PartId:
    """The part that CSN 4 has added and CSN 6 has removed."""
    return next(row.part for row in directory.parts(ORDERS) if row.path == "year=1994")


def table_of(path: Path, csn: Csn) -> TableRow:
    """Return the first table at a CSN."""
    with closing(CatalogReader(path)) as reader:
        return reader.tables(csn)[0]


@pytest.mark.parametrize(
    ("csn", "visible", "why"),
    [
        (3, False, "it was added at CSN 4, above 3"),
        (4, True, "it was added at CSN 4, not above 4, and it is removed at 6"),
        (6, False, "5-r1-1-6 removed it at CSN 6, not above 6"),
    ],
)
def test_a_part_is_visible_from_its_addition_to_its_removal(
    directory: DataDir, part: PartId, csn: int, visible: bool, why: str
) -> None:
    """The answer is that of every reader, with the commit that decides it."""
    found = part_at(directory.path, R1, part, Csn(csn))
    assert (found.visible, found.why, found.table) == (visible, why, ORDERS)
    assert (found.added_csn, found.added_time_ms, found.removed_csn) == (4, TIME_MS + 4, 6)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("creation_csn = NULL", "its transaction 3-r1-1-4 is not committed, as far as is applied here"),
        ("kind = 'manifest'", "it is the manifest of transaction 3-r1-1-4, which no reader sees"),
        ("removal_change = 0", "compaction replaced it at CSN 6, not above 6"),
        (
            "removal_csn = NULL, removal_tid = NULL, state = 'quarantined'",
            DAMAGED,
        ),
    ],
)
def test_every_reason_is_told(directory: DataDir, part: PartId, change: str, why: str) -> None:
    """Each way to be visible or not has a sentence of its own."""
    with directory.sql() as db:
        db.execute(f"UPDATE parts SET {change} WHERE part = ?", (part,))
    assert part_at(directory.path, R1, part, Csn(6)).why == why


def test_a_part_that_is_not_known_is_told_apart_from_a_lost_one(directory: DataDir) -> None:
    """A part without a row was never committed, was collected, or was declared lost by an operator."""
    directory.set(horizon=3)
    unknown = part_at(directory.path, R1, PartId("r9-1-1"), Csn(6))
    assert not unknown.visible
    assert "removed below the horizon 3 and deleted" in unknown.why
    with directory.sql() as db:
        db.execute("INSERT INTO skips VALUES ('r9-1-1', ?, 1, 4, 't', 'ann', 'burnt', '', 1)", (ORDERS,))
    assert part_at(directory.path, R1, PartId("r9-1-1"), Csn(6)).why == "ann declared it lost: burnt"


def test_nothing_is_said_below_the_horizon(directory: DataDir, part: PartId) -> None:
    """The parts that were visible there are not kept."""
    directory.set(horizon=5)
    with pytest.raises(SnapshotTooOldError):
        part_at(directory.path, R1, part, Csn(4))


def test_the_story_of_a_transaction_has_its_changes(directory: DataDir) -> None:
    """Label and time come from the outcome, the changes from the history; each may be forgotten alone."""
    with directory.sql() as db:
        db.execute("INSERT INTO outcomes VALUES ('3-r1-1-4', 4, 4000, 'load', 2, NULL, NULL)")
        row = (4, "3-r1-1-4", ORDERS, ORDERS, 4000, "insert", 3, 0, 2, 0, "load", 2, None)
        db.execute("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    story = story_of(directory.path, "3-r1-1-4", Csn(4))
    assert (story.time_ms, story.label, story.batch, story.carrier) == (4000, "load", 2, None)
    assert [(one.table, one.action, one.rows_added, one.home) for one in story.changes] == [
        (ORDERS, "insert", 3, "r1")
    ]
    assert story_of(directory.path, "3-r1-1-4", None) == Story()
    assert story_of(directory.path, "3-r1-1-9", Csn(4)) == Story()


def test_statistics_are_those_of_the_csn(directory: DataDir) -> None:
    """Sizes and bounds are those of the parts that are visible there."""
    row = table_of(directory.path, Csn(6))
    found = statistics_at(directory.path, row, Csn(6), [])
    assert (found.rows, found.parts, [column.distinct for column in found.columns]) == (2, 2, [None] * 3)
    assert [(column.min, column.max, column.nulls) for column in found.columns] == [
        ("3", "4", 0), ("ann", "ann", 1), ("1995", "1995", 0),
    ]  # fmt: skip
    assert [column.distinct for column in statistics_at(directory.path, row, Csn(5), [4, 2, 2]).columns] == [
        4,
        2,
        2,
    ]


def test_bounds_of_every_type_are_texts(tmp_path: Path) -> None:
    """Dates and times are ISO 8601, decimals are exact, and what parts do not say is null."""
    made = DataDir(tmp_path / "data")
    values = {
        "d": pa.array([0, 3_000_000], pa.date32()),
        "t": pa.array([0, 1_500_000], pa.timestamp("us", "UTC")),
        "n": pa.array([0, 1], pa.timestamp("us")),
        "m": pa.array(["1.50", "-2.25"]).cast(pa.decimal128(5, 2)),
        "f": pa.array([1.0, float("nan")]),
        "b": pa.array([True, None]),
        "s": pa.array(["x" * 100, "y"]),
    }
    table = pa.table(values)
    made.create_table(2, "default.t", table.schema)
    made.insert(3, {"default.t": table})
    row = table_of(made.path, Csn(3))
    found = {
        one.name: (one.min, one.max, one.nulls) for one in statistics_at(made.path, row, Csn(3), []).columns
    }
    assert found == {
        "d": ("1970-01-01", "10183-09-21", 0),
        "t": ("1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:01.500000Z", 0),
        "n": ("1970-01-01T00:00:00.000000", "1970-01-01T00:00:00.000001", 0),
        "m": ("-2.25", "1.50", 0),
        "f": (None, None, None),
        "b": ("true", "true", 1),
        "s": (None, None, 0),
    }
