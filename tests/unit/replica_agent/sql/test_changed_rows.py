"""Changed rows of a data directory made by hand: the answer of a SQL process, without the process.

The oracle is the definition: bags of rows at two CSNs, one minus the other. Values are compared by their
bits, so NaN, -0.0 and similar values are distinct.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.replicas.datadir import TIME_MS, DataDir
from tests.support.replicas.mutations import config
from tests.support.rows import ALL_TYPES, batches
from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.errors import CorruptError, SnapshotTooOldError, TidelockError, UnknownTableError
from tidelock.replica_agent.sql.changes import ADDED, ChangedRows
from tidelock.replica_agent.sql.engine import Engine
from tidelock.replica_agent.sql.request import ChangesRequest
from tidelock.replica_agent.sql.scan import SnapshotTable, TableSource
from tidelock.replica_agent.sql.session import SqlSession
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.wire.ids import TableName

TABLE = TableId("default.t")
SCHEMA = pa.schema([("p", pa.int32()), ("k", pa.int64()), ("v", pa.float64())])
#: The same with columns that a unique key can have.
UNIQUE = pa.schema([pa.field(f.name, f.type, f.name == "v") for f in SCHEMA])
#: Values that are equal to each other for some engines, or to no value.
ODD = (0.0, -0.0, float("nan"), struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0], None, 1.5)

#: The kinds of rows that a commit takes away.
GONE = ("delete", "update_preimage")

Row = tuple[Any, ...]


def changes(directory: DataDir, since: int, until: int, *, files_max: int = 3, net: bool = False) -> pa.Table:
    """Return the changed rows in (since, until], as a caller of the agent would see them."""
    request = ChangesRequest(Csn(until), Csn(since), TABLE, files_max, net)
    with closing(SqlSession(Engine(config(directory)), request)) as session:
        try:
            run = ChangedRows(session, request)
            return pa.Table.from_batches(run.batches(), run.schema)
        except TidelockError:
            raise
        except Exception as error:
            raise session.translate(error) from error


def bag(table: pa.Table) -> Counter[Row]:
    """Return the rows of a table; floats by their bits."""
    views = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    columns = []
    for column in table.columns:
        view = views.get(column.type)
        chunks = column.chunks if view is None else [chunk.view(view) for chunk in column.chunks]
        columns.append([value for chunk in chunks for value in chunk.to_pylist()])
    return Counter(zip(*columns, strict=True))


def at(directory: DataDir, csn: int) -> Counter[Row]:
    """Return the rows of the table at a CSN."""
    with closing(CatalogReader(directory.path)) as reader:
        schema = TableSchema.from_definition(
            TABLE, reader.require_named(TableName(TABLE), Csn(csn)).definition
        )
        shown = reader.parts(TABLE, Csn(csn))
    source = TableSource(schema, directory.path, lambda: shown, lambda _: None)
    return bag(SnapshotTable(source).scanner().to_reader().read_all())


def by_kind(told: pa.Table) -> dict[tuple[str, int], Counter[Row]]:
    """Return changed rows by kind and CSN, without the columns of kind and CSN."""
    found: dict[tuple[str, int], Counter[Row]] = {}
    width = len(told.schema) - len(ADDED)
    for row, count in bag(told).items():
        found.setdefault((row[width], row[width + 1]), Counter())[row[:width]] += count
    return found


def applied(rows: Counter[Row], told: pa.Table) -> Counter[Row]:
    """Apply changes to rows; every deleted row must exist, and come before the inserts of its CSN."""
    rows = rows.copy()
    assert order(told) == sorted(order(told))
    kinds = by_kind(told)
    for csn in sorted({csn for _, csn in kinds}):
        for kind in GONE:
            gone = kinds.get((kind, csn), Counter())
            assert gone <= rows
            rows -= gone
        for kind in ("insert", "update_postimage"):
            rows += kinds.get((kind, csn), Counter())
    return rows


def order(told: pa.Table) -> list[tuple[int, bool]]:
    """Return CSN and "comes in" for each changed row, in the order in which they are told."""
    return [
        (row["_commit_csn"], row["_change_type"] not in GONE)
        for row in told.select(["_commit_csn", "_change_type"]).to_pylist()
    ]


def rows(*found: tuple[int | None, int | None, float | None]) -> pa.Table:
    """Return rows of the table."""
    columns = zip(*found, strict=True)
    return pa.table([pa.array(column, f.type) for column, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


@pytest.fixture
def directory(tmp_path: Path) -> DataDir:
    """Return an empty table, partitioned by p."""
    made = DataDir(tmp_path / "data")
    made.create_table(2, "t", SCHEMA, partition_by=["p"])
    return made


# -- the definition ------------------------------------------------------------------------------------------


def test_carried_rows_of_a_rewritten_part_are_no_change(directory: DataDir) -> None:
    """Rows that are carried over are no change; equal rows count as often as they come."""
    [old] = directory.insert(3, {TABLE: rows((1, 1, 1.0), (1, 2, 2.0), (1, 2, 2.0), (1, 3, 3.0))})
    directory.insert(4, {TABLE: rows((1, 1, 1.0), (1, 2, 2.0), (1, 3, 4.0), (1, 3, 4.0))})
    directory.remove(4, old.part)
    told = changes(directory, 3, 4)
    two, three, four = (next(iter(bag(rows((1, k, v))))) for k, v in ((2, 2.0), (3, 3.0), (3, 4.0)))
    assert by_kind(told) == {("delete", 4): Counter([two, three]), ("insert", 4): Counter({four: 2})}
    [time] = set(told["_commit_time"].to_pylist())
    assert int(time.timestamp() * 1000) == TIME_MS + 4
    assert told.schema == pa.schema([*SCHEMA, *ADDED])


@pytest.mark.parametrize("unique", [False, True])
def test_deletes_of_a_commit_come_before_its_inserts(tmp_path: Path, unique: bool) -> None:
    """A consumer that applies rows by key, as they come, keeps the row of the key in any partition."""
    made = DataDir(tmp_path / "data")
    key = {"unique_key": "p,k"} if unique else {}
    made.create_table(2, "t", UNIQUE if unique else SCHEMA, partition_by=["p"], properties=key)
    moved = [(p, k, float(k)) for p in (1, 2, 3) for k in range(40)]
    old = made.insert(3, {TABLE: rows(*moved)})
    made.insert(4, {TABLE: rows(*((p - 1, k, v + k % 2) for p, k, v in moved))})
    for part in old:
        made.remove(4, part.part)
    told = order(changes(made, 3, 4))
    assert told == sorted(told)
    assert {come for _, come in told} == {False, True}


def test_values_are_their_bits(directory: DataDir) -> None:
    """-0.0 differs from 0.0, and NaNs differ by their bits; nulls are equal."""
    [old] = directory.insert(3, {TABLE: rows(*((1, 1, value) for value in ODD))})
    directory.insert(4, {TABLE: rows(*((1, 1, value) for value in (-0.0, ODD[3], None, None)))})
    directory.remove(4, old.part)
    expected = {value: bag(rows((1, 1, value))) for value in (0.0, 1.5, None)}
    assert by_kind(changes(directory, 3, 4)) == {
        ("delete", 4): expected[0.0] + expected[1.5] + bag(rows((1, 1, float("nan")))),
        ("insert", 4): expected[None],
    }


def test_a_row_that_comes_very_often(directory: DataDir) -> None:
    """A row is reported as often as it occurs, in batches of bounded size."""
    many = pa.table([pa.repeat(pa.scalar(1, f.type), 70_000) for f in SCHEMA], SCHEMA)
    [old] = directory.insert(3, {TABLE: many})
    directory.insert(4, {TABLE: rows((1, 1, 1.0), (1, 2, 2.0))})
    directory.remove(4, old.part)
    told = changes(directory, 3, 4)
    assert {kind: count.total() for (kind, _), count in by_kind(told).items()} == {
        "delete": 69_999,
        "insert": 1,
    }
    assert max(len(batch) for batch in told.to_batches()) <= 32 * 1024


def test_a_table_without_changes(directory: DataDir) -> None:
    """The answer has the columns of the table even without rows."""
    assert changes(directory, 2, 2).schema.names == [*SCHEMA.names, *ADDED.names]
    with pytest.raises(UnknownTableError):
        changes(directory, 1, 1)


def test_below_the_horizon_nothing_is_told(directory: DataDir) -> None:
    """Below the horizon the answer is an error, also when a file is deleted before its read."""
    [old] = directory.insert(3, {TABLE: rows((1, 1, 1.0))})
    directory.insert(4, {TABLE: rows((1, 2, 1.0))})
    directory.remove(5, old.part)
    directory.set(horizon=4)
    assert changes(directory, 4, 5).num_rows == 1
    with pytest.raises(SnapshotTooOldError):
        changes(directory, 3, 5)
    directory.set(horizon=3)
    request = ChangesRequest(Csn(5), Csn(3), TABLE, 100)
    with closing(SqlSession(Engine(config(directory)), request)) as session:
        found = ChangedRows(session, request).batches()
        next(found)
        assert old.file is not None
        (directory.path / old.file).unlink()
        directory.set(horizon=5)
        with pytest.raises(CorruptError) as failed:
            list(found)
        assert isinstance(session.translate(failed.value), SnapshotTooOldError)


@settings(max_examples=10)
@given(before=batches(rows_min=1), after=batches(rows_min=1), share=st.booleans())
def test_rows_of_all_types_give_the_difference(
    tmp_path_factory: pytest.TempPathFactory, before: pa.RecordBatch, after: pa.RecordBatch, share: bool
) -> None:
    """A commit that removes some rows and adds others gives the difference of the bags, for all values."""
    made = DataDir(tmp_path_factory.mktemp("all") / "data")
    made.create_table(2, "t", pa.schema(ALL_TYPES.items()))
    added = [before, after] if share else [after]
    [old] = made.insert(3, {TABLE: pa.Table.from_batches([before]).combine_chunks()})
    made.insert(4, {TABLE: pa.Table.from_batches(added).combine_chunks()})
    made.remove(4, old.part)
    told = by_kind(changes(made, 3, 4))
    first, second = at(made, 3), at(made, 4)
    assert told.get(("delete", 4), Counter()) == first - second
    assert told.get(("insert", 4), Counter()) == second - first


# -- the net difference --------------------------------------------------------------------------------------


def test_rows_that_come_and_go_are_not_in_the_net_difference(directory: DataDir) -> None:
    """The difference of two CSNs has their CSN and time, and no row that both or neither of them shows."""
    [old] = directory.insert(3, {TABLE: rows((1, 1, 1.0), (1, 2, 2.0))})
    [short] = directory.insert(4, {TABLE: rows((1, 9, 9.0), (2, 9, 9.0))})[:1]
    directory.insert(5, {TABLE: rows((1, 1, 1.0), (1, 3, 3.0))})
    directory.remove(5, old.part)
    directory.remove(5, short.part)
    told = changes(directory, 3, 5, net=True)
    assert by_kind(told) == {
        ("delete", 5): bag(rows((1, 2, 2.0))),
        ("insert", 5): bag(rows((1, 3, 3.0), (2, 9, 9.0))),
    }
    assert {int(time.timestamp() * 1000) for time in told["_commit_time"].to_pylist()} == {TIME_MS + 5}
    nothing = changes(directory, 5, 5, net=True)
    assert (nothing.num_rows, nothing.schema) == (0, told.schema)


# -- tables with a unique key --------------------------------------------------------------------------------


def test_a_key_on_both_sides_is_an_update(tmp_path: Path) -> None:
    """The key includes the partition, so a row that moves into another partition is another row."""
    made = DataDir(tmp_path / "data")
    made.create_table(2, "t", UNIQUE, partition_by=["p"], properties={"unique_key": "p,k"})
    old = made.insert(3, {TABLE: rows((1, 1, 1.0), (1, 2, 2.0), (2, 3, 3.0), (2, 4, -0.0), (4, 4, 4.0))})
    made.insert(4, {TABLE: rows((1, 1, 1.0), (1, 2, 2.5), (3, 3, 3.0), (2, 4, 0.0), (2, 5, 5.0))})
    for part in old:
        made.remove(4, part.part)
    told = by_kind(changes(made, 2, 4))
    assert told == {
        ("insert", 3): at(made, 3),
        ("update_preimage", 4): bag(rows((1, 2, 2.0), (2, 4, -0.0))),
        ("update_postimage", 4): bag(rows((1, 2, 2.5), (2, 4, 0.0))),
        ("delete", 4): bag(rows((2, 3, 3.0), (4, 4, 4.0))),
        ("insert", 4): bag(rows((3, 3, 3.0), (2, 5, 5.0))),
    }


# -- random histories ----------------------------------------------------------------------------------------


@dataclass
class History:
    """Random commits: inserts, rewrites, removals, merges, each a record of the log."""

    random: Random
    directory: DataDir
    unique: bool
    csn: int = 2
    parts: dict[PartId, list[Row]] = field(default_factory=dict)

    def step(self) -> None:
        """Make one commit, or two in one record."""
        self.csn += self.random.choice([1, 1, 3])
        kinds = self.random.choice(
            [("insert",), ("rewrite",), ("rewrite",), ("merge",), ("remove",), ("merge", "rewrite")]
        )
        taken: set[PartId] = set()
        for kind in kinds:
            free = [part for part in self.parts if part not in taken]
            chosen = self.random.sample(free, min(len(free), self.random.randint(1, 3)))
            taken.update(chosen)
            getattr(self, kind)(chosen)

    def insert(self, _: Sequence[PartId]) -> None:
        """Add rows."""
        self._add([self._row() for _ in range(self.random.randint(1, 6))])

    def rewrite(self, chosen: Sequence[PartId]) -> None:
        """Change, drop and add rows of some parts, as an update, an upsert or a replaced partition does."""
        kept = [row for row in self._take(chosen) if self.random.random() < 0.8]
        changed = [(self._p(), k, self._v()) if self.random.random() < 0.3 else (p, k, v) for p, k, v in kept]
        self._add([*changed, *(self._row() for _ in range(self.random.randint(0, 2)))])

    def remove(self, chosen: Sequence[PartId]) -> None:
        """Remove parts, as a truncate does."""
        self._take(chosen)

    def merge(self, chosen: Sequence[PartId]) -> None:
        """Merge parts: compaction."""
        self._add(self._take(chosen, change=False), change=False)

    def _take(self, chosen: Sequence[PartId], *, change: bool = True) -> list[Row]:
        for part in chosen:
            self.directory.remove(self.csn, part, change=change)
        return [row for part in chosen for row in self.parts.pop(part)]

    def _add(self, found: Sequence[Row], *, change: bool = True) -> None:
        found = self._once(found) if self.unique else found
        if not found:
            return
        for part in self.directory.insert(self.csn, {TABLE: rows(*found)}, change=change):
            self.parts[part.part] = [row for row in found if f"p={_text(row[0])}" == part.path]

    def _once(self, found: Sequence[Row]) -> list[Row]:
        known = {row[:2] for there in self.parts.values() for row in there}
        kept = {row[:2]: row for row in found if row[:2] not in known}
        return list(kept.values())

    def _row(self) -> Row:
        return self._p(), self.random.randint(1, 12), self._v()

    def _p(self) -> int | None:
        return self.random.choice([1, 2, 3 if self.unique else None])

    def _v(self) -> float | None:
        return self.random.choice(ODD)


def _text(p: int | None) -> str:
    return "__HIVE_DEFAULT_PARTITION__" if p is None else str(p)


@settings(max_examples=8)
@given(seed=st.integers(0, 1 << 32), unique=st.booleans())
def test_changes_lead_from_any_csn_to_any_other(
    tmp_path_factory: pytest.TempPathFactory, seed: int, unique: bool
) -> None:
    """For each CSN they are the difference of the bags; all together they lead from one bag to the other."""
    judge(tmp_path_factory.mktemp("history") / "data", Random(seed), unique=unique, steps=8, ranges=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_long_histories_of_all_types_give_the_difference(tmp_path: Path, seed: int) -> None:
    """Long histories give the difference of the bags too."""
    judge(tmp_path / "data", Random(seed), unique=bool(seed % 2), steps=40, ranges=12)


def judge(path: Path, random: Random, *, unique: bool, steps: int, ranges: int) -> None:
    """Make a history, and compare the changes of some ranges with the rows at its CSNs."""
    history = History(random, DataDir(path), unique)
    schema, properties = (UNIQUE, {"unique_key": "p,k"}) if unique else (SCHEMA, {})
    history.directory.create_table(2, "t", schema, partition_by=["p"], properties=properties)
    for _ in range(steps):
        history.step()
    last = history.directory.meta("snapshot_csn")
    bags = {csn: at(history.directory, csn) for csn in range(2, last + 1)}
    for _ in range(ranges):
        since = random.randint(2, last)
        until = random.randint(since, last)
        told = changes(history.directory, since, until, files_max=random.choice([1, 5, 1000]))
        assert applied(bags[since], told) == bags[until]
        net = by_kind(changes(history.directory, since, until, files_max=3, net=True))
        gone = sum((net.get((kind, until), Counter()) for kind in GONE), Counter())
        come = sum((found for (kind, _), found in net.items() if kind not in GONE), Counter())
        assert (gone, come) == (bags[since] - bags[until], bags[until] - bags[since])
        assert {csn for _, csn in net} <= {until}
        kinds = by_kind(told)
        for csn in range(since + 1, until + 1):
            gone, new = (
                sum((kinds.get((kind, csn), Counter()) for kind in pair), Counter())
                for pair in (("delete", "update_preimage"), ("insert", "update_postimage"))
            )
            assert gone == bags[csn - 1] - bags[csn]
            assert new == bags[csn] - bags[csn - 1]
            if unique:
                keys = [
                    Counter(row[:2] for row in kinds.get((kind, csn), ()))
                    for kind in ("update_preimage", "update_postimage", "delete", "insert")
                ]
                assert keys[0] == keys[1]
                assert not keys[2] & keys[3]
