"""Columns that are added, dropped, renamed and ordered: each reader sees those of its CSN, in all rows.

A model keeps the columns and the rows of a table at each CSN. What clients, SQL, and plain readers of the
files of snapshots show at past CSNs, on every replica, is compared with it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.disks import lose_disk
from tests.support.histories.evidence import data_address, nothing_left, require_clean_audit
from tests.support.replicas.readers import send
from tests.support.spark.process import SparkProcess
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    RefusedError,
    SchemaMismatchError,
    TableChangedError,
    UnsupportedInTransactionError,
)
from tidelock.partition_paths import texts_of

#: Rows as the model keeps them: the values by the ids of their columns.
Rows = list[dict[int, Any]]
_TYPES = {"bigint": pa.int64(), "string": pa.string(), "double": pa.float64()}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which cut nearly every part, and agree at the end, with nothing left over."""
    made = module_cluster(replicas=3, settings=QUICK | {"cut_part_bytes_min": 1, "row_group_rows": 4})
    yield made
    require_clean_audit(made)
    for replica in made.replicas:
        nothing_left(made.data_dir(replica))


@pytest.fixture
def dbs(local: LocalCluster) -> Iterator[list[Database]]:
    """A client pinned to each replica; no table is left."""
    with contextlib.ExitStack() as closing:
        made = [closing.enter_context(local.connect(replica)) for replica in local.replicas]
        yield made
        with made[0].snapshot() as newest:
            names = sorted(newest.tables(), key=lambda row: "derived_from" not in row)
        for row in names:
            made[0].drop_table(row["name"])


@dataclass(frozen=True)
class Model:
    """A table: ids, names and types of its columns in their order, and its rows."""

    columns: tuple[tuple[int, str, str], ...]
    rows: tuple[dict[int, Any], ...] = ()

    def shown(self) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the names of the columns, and the rows in order."""
        rows = [tuple(row.get(column) for column, *_ in self.columns) for row in self.rows]
        return [name for _, name, _ in self.columns], sorted(rows, key=repr)

    def arrow(self, rows: Rows) -> pa.Table:
        """Return rows for an insert."""
        return pa.table(
            {
                name: pa.array([row.get(column) for row in rows], _TYPES[kind])
                for column, name, kind in self.columns
            }
        )


def of_table(found: pa.Table) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of the columns, and the rows in order."""
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True) if found.num_columns else []
    return found.column_names, sorted(rows, key=repr)


def of_files(address: str, csn: int, table: str, folder: str = "") -> list[tuple[str, pa.Table]]:
    """Read every file of a table's folder with pyarrow alone, without a schema: its partition, its rows."""
    path = f"/snapshots/{csn}/default/{table}/{folder}".rstrip("/")
    answer = send(address, "GET", f"/webhdfs/v1{quote(path)}?op=LISTSTATUS")
    assert answer.status == 200, answer
    found: list[tuple[str, pa.Table]] = []
    for status in answer.json()["FileStatuses"]["FileStatus"]:
        inner = f"{folder}/{status['pathSuffix']}".lstrip("/")
        if status["type"] == "DIRECTORY":
            found += of_files(address, csn, table, inner)
        elif not status["pathSuffix"].startswith("_"):
            file = send(address, "GET", quote(f"/snapshots/{csn}/default/{table}/{inner}"))
            assert (file.status, len(file.body)) == (200, status["length"]), file.body[:300]
            found.append((folder, pq.read_table(pa.BufferReader(file.body))))
    return found


def require_shown(local: LocalCluster, replica: str, csn: int, table: str, model: Model) -> None:
    """Compare what a client, SQL and plain readers of all files see with the model."""
    names, rows = model.shown()
    with local.connect(replica) as db, db.snapshot(csn=csn) as snap:
        assert of_table(snap.read(table)) == (names, rows)
        assert of_table(snap.sql(f"select * from {table}")) == (names, rows)
        columns = snap.table(table)["columns"]
        assert [(one["id"], one["name"], one["type"]) for one in columns] == [*model.columns]
        assert snap.table(table)["rows"] == len(rows)
        # The parts by themselves, which the listing shows as combined files.
        single = [
            (part["path"], part["file_length"], send(data_address(local, replica), "GET", quote(path)))
            for part in snap.parts(table)
            for path in [f"/snapshots/{csn}/{part['file']}"]
        ]
    assert all((one.status, len(one.body)) == (200, length) for _, length, one in single)
    for files in (
        of_files(data_address(local, replica), csn, table),
        [(path, pq.read_table(pa.BufferReader(one.body))) for path, _, one in single],
    ):
        read: list[tuple[Any, ...]] = []
        for folder, found in files:
            texts = texts_of(folder)
            assert sorted([*found.column_names, *texts]) == sorted(names)
            values = {name: found[name].to_pylist() for name in found.column_names}
            values |= {name: [int(text or "0")] * found.num_rows for name, text in texts.items()}
            read += zip(*(values[name] for name in names), strict=True)
        assert sorted(read, key=repr) == rows


# -- drawn changes -------------------------------------------------------------------------------------------


class Drawn:
    """A table under drawn changes, and its model at each CSN."""

    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)
        self.now = Model(((1, "k", "bigint"), (2, "p", "bigint"), (3, "c3", "string")))
        self.at: dict[int, Model] = {}
        self.made = 3

    def create(self, db: Database) -> None:
        """Create the table."""
        columns = {name: kind for _, name, kind in self.now.columns}
        made = db.create_table("t", columns, partition_by=["p"], sort_by=["k"])
        self.at[made["csn"]] = self.now

    def step(self, db: Database) -> None:
        """Make one change at a replica."""
        db.snapshot(min_csn=max(self.at)).close()
        kinds = (self.insert, self.insert, self.alter, self.alter, self.update, self.delete, self.merge)
        self.drawn.choice(kinds)(db)

    def insert(self, db: Database) -> None:
        """Insert some rows."""
        rows = [self._row(column) for column in range(self.drawn.randint(1, 12))]
        done = db.insert("t", self.now.arrow(rows), wait="all")
        self._note(done.csn or 0, replace(self.now, rows=(*self.now.rows, *rows)))

    def alter(self, db: Database) -> None:
        """Drop, rename, add and order columns in one commit."""
        free = [column for column in self.now.columns if column[1] not in {"k", "p"}]
        drop = [one for one in free if self.drawn.random() < 0.2]
        names = {name: f"c{self.drawn.randrange(8)}" for _, name, _ in free if self.drawn.random() < 0.4}
        rename: dict[str, str] = {}
        taken = {name for _, name, _ in self.now.columns if name not in {n for _, n, _ in drop}}
        for name, new in names.items():
            if new not in taken and name not in {n for _, n, _ in drop}:
                rename[name] = new
                taken = taken - {name} | {new}
        kept = [
            (column, rename.get(name, name), kind)
            for column, name, kind in self.now.columns
            if (column, name, kind) not in drop
        ]
        added = []
        for name in {f"c{self.drawn.randrange(8)}" for _ in range(self.drawn.randint(0, 2))} - taken:
            self.made += 1
            added.append((self.made, name, self.drawn.choice([*_TYPES])))
        columns = [*kept, *added]
        order = self.drawn.sample([name for _, name, _ in columns], self.drawn.randint(0, 2))
        columns.sort(key=lambda one: order.index(one[1]) if one[1] in order else len(order))
        if tuple(columns) == self.now.columns:
            return
        done = db.alter_table(
            "t",
            drop=[name for _, name, _ in drop],
            rename=rename,
            add={name: kind for _, name, kind in added} if added else None,
            order=order,
        )
        self._note(done["csn"], replace(self.now, columns=tuple(columns)))

    def update(self, db: Database) -> None:
        """Give a column, which was perhaps added later, another value in some rows."""
        free = [one for one in self.now.columns if one[0] not in {1, 2}]
        if not free:
            return
        column, name, kind = self.drawn.choice(free)
        value, below = self._value(kind), self.drawn.randint(0, 100)
        text = f"cast(? as {'varchar' if kind == 'string' else kind})"
        done = db.update("t", {name: text}, f"k % 100 < {below}", [value])
        rows = ({**row, column: value} if row[1] % 100 < below else row for row in self.now.rows)
        self._note(done.csn or 0, replace(self.now, rows=tuple(rows)))

    def delete(self, db: Database) -> None:
        """Delete some rows."""
        below = self.drawn.randint(0, 20)
        done = db.delete("t", f"k % 100 < {below}")
        rows = tuple(row for row in self.now.rows if row[1] % 100 >= below)
        self._note(done.csn or 0, replace(self.now, rows=rows))

    def merge(self, db: Database) -> None:
        """Compact the table: parts of all versions become one of the newest."""
        db.optimize("t")
        with db.snapshot() as snap:
            self._note(snap.csn, self.now)

    def _note(self, csn: int, model: Model) -> None:
        self.now = model
        if csn:
            self.at[csn] = model

    def _row(self, _: int) -> dict[int, Any]:
        row = {column: self._value(kind) for column, _, kind in self.now.columns}
        return row | {1: self.drawn.randrange(1000), 2: self.drawn.randrange(2)}

    def _value(self, kind: str) -> Any:
        if kind == "string":
            return self.drawn.choice([None, "", "x", "größe"])
        if kind == "double":
            return self.drawn.choice([None, 0.0, 1.5, -2.25])
        return self.drawn.choice([None, 0, -1, 1 << 40])


@pytest.mark.scenario("S05")
def test_drawn_changes_with_kills_and_a_lost_disk(
    local: LocalCluster, dbs: list[Database], fresh_seed: int
) -> None:
    """At drawn CSNs every replica shows what the model has, after kills, and after a clone."""
    table = Drawn(fresh_seed)
    table.create(dbs[0])
    down: str | None = None
    for number in range(30):
        if number % 12 == 9:
            down = table.drawn.choice(local.replicas)
            local.kill(down, signal.SIGKILL)
            local.start(down)
        table.step(table.drawn.choice(dbs))
    lose_disk(local, "r3")
    local.start("r3")
    for replica in local.replicas:
        with local.connect(replica) as db:
            db.snapshot(min_csn=max(table.at)).close()
        for csn in [max(table.at), *table.drawn.sample(sorted(table.at), 5)]:
            require_shown(local, replica, csn, "t", table.at[csn])


# -- what a change does to others ----------------------------------------------------------------------------


def test_a_column_that_comes_again_is_another_one(local: LocalCluster, dbs: list[Database]) -> None:
    """The values of the dropped column do not come back, by no way of reading, nor by its statistics."""
    db = dbs[0]
    db.create_table("t", {"k": "bigint not null", "a": "bigint", "b": "string"})
    old = db.insert("t", pa.table({"k": [1, 2], "a": [10, 20], "b": ["x", "y"]})).csn or 0
    dropped = db.alter_table("t", drop=["a"])["csn"]
    again = db.alter_table("t", add={"a": "bigint"}, rename={"b": "c"})["csn"]
    new = db.insert("t", pa.table({"k": [3], "c": ["z"], "a": [20]}), wait="all").csn or 0
    for other in dbs:
        assert other.read("t", csn=old).to_pydict() == {"k": [1, 2], "a": [10, 20], "b": ["x", "y"]}
        assert other.read("t", csn=dropped).to_pydict() == {"k": [1, 2], "b": ["x", "y"]}
        assert other.read("t", csn=again).to_pydict() == {"k": [1, 2], "c": ["x", "y"], "a": [None, None]}
        with other.snapshot(csn=new) as snap:
            assert snap.sql("select k from t where a = 20").to_pydict() == {"k": [3]}
            assert snap.sql("select k from t where a is null order by k").to_pydict() == {"k": [1, 2]}
            assert snap.sql("select k from t where c = 'y'").to_pydict() == {"k": [2]}
            with pytest.raises(BadRequestError, match="b"):
                snap.sql("select b from t")
        ids = [column["id"] for column in other.table("t", csn=new)["columns"]]
        assert ids == [1, 3, 4]
    rows = ({1: 1, 3: "x"}, {1: 2, 3: "y"}, {1: 3, 3: "z", 4: 20})
    model = Model(((1, "k", "bigint"), (3, "c", "string"), (4, "a", "bigint")), rows)
    require_shown(local, "r2", new, "t", model)
    db.optimize("t")
    with dbs[0].snapshot() as snap:
        assert len(snap.parts("t")) == 1
    require_shown(local, "r1", dbs[0].seen_csn or 0, "t", model)


def test_an_open_insert_meets_a_change_of_columns(dbs: list[Database]) -> None:
    """It is refused, in memory or written out, and its rows are nowhere; a new transaction is not."""
    db = dbs[0]
    db.create_table("t", {"k": "bigint", "a": "bigint"})
    db.snapshot(min_csn=db.seen_csn).close()
    using = [other.begin(fresh=True) for other in dbs]
    for tx in using:
        tx.insert("t", pa.table({"k": [1], "a": [1]}))
    using[1].sql("select count(*) from t")
    changed = db.alter_table("t", rename={"a": "b"}, add={"c": "string"})
    assert [column["name"] for column in changed["columns"]] == ["k", "b", "c"]
    for tx in using:
        with pytest.raises(TableChangedError):
            tx.commit()
        tx.rollback()
    for other in dbs:
        with other.begin(fresh=True) as tx:
            tx.insert("t", pa.table({"k": [2], "b": [2], "c": ["x"]}))
    with db.snapshot(min_csn=max(other.seen_csn or 0 for other in dbs)) as snap:
        assert snap.read("t").to_pydict() == {"k": [2] * 3, "b": [2] * 3, "c": ["x"] * 3}


def test_a_feed_across_changes_has_the_columns_of_its_end(dbs: list[Database]) -> None:
    """The changes themselves are no rows; an update of older rows is told under the new names."""
    db = dbs[0]
    columns = {"k": "bigint not null", "a": "string"}
    db.create_table("t", columns, properties={"unique_key": "k"})
    begin = db.insert("t", pa.table({"k": [1, 2], "a": ["x", "y"]})).csn or 0
    changed = db.alter_table("t", rename={"a": "b", "k": "key"}, add={"n": "bigint"})
    assert changed["properties"]["unique_key"] == "key"
    end = db.update("t", {"n": "7"}, "key = 1", wait="all").csn or 0
    with pytest.raises(RefusedError):
        db.insert("t", pa.table({"key": [2], "b": ["z"], "n": [1]}))
    for other in dbs:
        found = other.changes("t", from_csn=begin, to_csn=end).to_table()
        assert found.select(["key", "b", "n", "_change_type"]).to_pylist() == [
            {"key": 1, "b": "x", "n": None, "_change_type": "update_preimage"},
            {"key": 1, "b": "x", "n": 7, "_change_type": "update_postimage"},
        ]
        before = other.changes("t", from_csn=begin - 1, to_csn=begin).to_table()
        assert before.select(["k", "a"]).to_pydict() == {"k": [1, 2], "a": ["x", "y"]}


def test_a_change_that_would_break_a_table_is_refused(dbs: list[Database]) -> None:
    """Partitions, order, key, names, derived tables and landing tables; the message says why."""
    db = dbs[0]
    columns = {"k": "bigint not null", "p": "bigint not null", "s": "string", "v": "bigint"}
    key = {"unique_key": "k,p"}
    db.create_table("t", columns, partition_by=["p"], sort_by=["s"], properties=key)
    db.create_table("d", {"w": "bigint"}, derived_from="t", derived_sql="select v * 2 as w from inserted")
    db.create_table("land", {"k": "bigint"}, properties={"landing": "on"})
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("t", {"drop": ["p"]}, "partition_by names it"),
        ("t", {"drop": ["s"]}, "sort_by names it"),
        ("t", {"drop": ["k"]}, "unique_key names it"),
        ("t", {"rename": {"p": "q"}}, "folders"),
        ("t", {"drop": ["nothing"]}, "no column nothing"),
        ("t", {"add": {"v": "bigint"}}, "twice"),
        ("t", {"add": {"_change_type": "string"}}, "reserved"),
        ("t", {"add": {"x": "bigint not null"}}, "required"),
        ("t", {"rename": {"v": "s"}}, "twice"),
        ("t", {"order": ["x"]}, "is no column"),
        ("t", {"drop": ["v"]}, r"default\.d"),
        ("t", {"rename": {"v": "x"}}, r"default\.d"),
        ("d", {"add": {"x": "bigint"}}, "derived_sql"),
        ("land", {"add": {"x": "bigint"}}, "landing"),
        ("t", {}, "changes nothing"),
    ]
    for table, change, words in refused:
        with pytest.raises(BadRequestError, match=words):
            db.alter_table(table, **change)
    assert db.table("t")["version"] == 1
    db.alter_table("t", add={"x": "string"}, rename={"s": "t"}, order=["x"])
    assert db.table("t")["sort_by"] == ["t"]
    db.insert("t", pa.table({"k": [1], "p": [1], "t": ["a"], "v": [4], "x": ["b"]}))
    assert db.read("d").to_pydict() == {"w": [8]}


def test_rows_that_come_without_a_column_have_its_default(local: LocalCluster, dbs: list[Database]) -> None:
    """Inserts, SQL, upserts and merges, small and large; a null that is sent stays one."""
    db, other = dbs[0], dbs[1]
    db.create_table(
        "t",
        "k bigint not null, s string not null default 'new' comment 'its state', d double default 1.5, "
        "b bigint",
    )
    assert [(one.default, one.comment) for one in db.table("t").columns] == [
        (None, None), ("new", "its state"), ("1.5", None), (None, None),
    ]  # fmt: skip
    db.insert("t", pa.table({"k": [1], "b": [1]}))
    db.insert("t", pa.table({"k": [2], "b": [1], "d": pa.array([None], pa.float64())}))
    with pytest.raises(SchemaMismatchError, match=r"column b .* is missing"):
        db.insert("t", pa.table({"k": [3]}))
    with other.begin(fresh=True) as tx:
        tx.insert("t", pa.table({"k": range(10, 100_010), "b": [2] * 100_000}))
        tx.sql("insert into t (k) values (3)")
        tx.sql("insert into t (b, k) select b, k + 1000000 from t where k = 1")
        tx.upsert("t", pa.table({"k": [1, 4], "b": [7, 7]}), on=["k"])
        tx.merge("t", pa.table({"k": [5]}), on=["k"], when_not_matched_insert={"k": "source.k", "d": "0.5"})
    few = other.sql("select * from t where k < 10 or k > 1000000 order by k", csn=tx.csn).to_pylist()
    assert [tuple(row.values()) for row in few] == [
        (1, "new", 1.5, 7), (2, "new", None, 1), (3, "new", 1.5, None), (4, "new", 1.5, 7),
        (5, "new", 0.5, None), (1_000_001, "new", 1.5, 1),
    ]  # fmt: skip
    sql = "select s, d, count(*) as n from t where b = 2 group by all"
    many = other.sql(sql, csn=tx.csn).to_pylist()
    assert many == [{"s": "new", "d": 1.5, "n": 100_000}]
    changed = db.alter_table(
        "t", default={"s": "'open'", "d": None, "b": 9}, comment={"s": None, "d": "size"}
    )
    assert [(one.default, one.comment) for one in changed.columns] == [
        (None, None), ("open", None), (None, "size"), ("9", None),
    ]  # fmt: skip
    with pytest.raises(SchemaMismatchError, match=r"column d .* is missing"):
        db.insert("t", pa.table({"k": [6]}))
    csn = db.insert("t", pa.table({"k": [6], "d": [2.0]})).csn
    assert [*other.sql("select * from t where k = 6", csn=csn).to_pylist()[0].values()] == [6, "open", 2.0, 9]
    described = db.sql(
        "select column_name, default_value, comment from system.columns where table_name = 't'"
    )
    assert {"column_name": "s", "default_value": "open", "comment": None} in described.to_pylist()
    for wrong, words in (
        ({"s": "7"}, "of type string"),
        ({"x": "7"}, "no column x"),
        ({"k": "now()"}, "no constant"),
    ):
        with pytest.raises(BadRequestError, match=words):
            db.alter_table("t", default=wrong)


def test_an_added_column_shows_its_default_in_rows_of_before(
    local: LocalCluster, dbs: list[Database]
) -> None:
    """For every reader, and for statements that change them; a later default changes nothing of them."""
    db = dbs[0]
    db.create_table("t", {"k": "bigint not null"})
    inserts = [db.insert("t", pa.table({"k": range(begin, begin + 5)})).csn for begin in range(0, 30, 5)]
    old = inserts[-1] or 0
    db.alter_table("t", add="s string not null default 'was here', d double default -0.5")
    added = db.alter_table("t", default={"s": "'later'"}, rename={"d": "size"}).csn
    rows = tuple({1: k, 2: "was here", 3: -0.5} for k in range(30))
    model = Model(((1, "k", "bigint"), (2, "s", "string"), (3, "size", "double")), rows)
    for replica in local.replicas:
        with local.connect(replica).snapshot(min_csn=added):
            require_shown(local, replica, added, "t", model)
            require_shown(
                local, replica, old, "t", Model(((1, "k", "bigint"),), tuple({1: k} for k in range(30)))
            )
    db.insert("t", pa.table({"k": [30], "size": [1.0]}))
    assert db.update("t", {"size": "size * 2"}, "s = 'was here' and k < 3").rows_updated == 3
    assert db.delete("t", "s = 'was here' and size = -0.5 and k < 10").rows_deleted == 7
    db.optimize("t")
    with db.begin() as tx:
        assert tx.sql("select s, size, count(*) as n from t group by all order by all").to_pylist() == [
            {"s": "later", "size": 1.0, "n": 1},
            {"s": "was here", "size": -1.0, "n": 3},
            {"s": "was here", "size": -0.5, "n": 20},
        ]


def test_rows_bring_their_columns_along(dbs: list[Database]) -> None:
    """In the same transaction; rows of before have nulls, and so have rows that lack columns of the table."""
    db, other = dbs[0], dbs[1]
    db.create_table("t", "k bigint not null, v bigint, s string default 'new'", sort_by=["k"])
    db.insert("t", pa.table({"k": [1], "v": [1]}))
    with db.begin() as tx:
        tx.insert("t", pa.table({"k": [2], "tags": [["a"]], "at": [dt.date(2026, 1, 1)]}), merge_schema=True)
        tx.insert("t", [{"k": 3, "v": 3}], merge_schema=True)  # no column is new, so the rows before stay
        with pytest.raises(UnsupportedInTransactionError, match="change the columns first"):
            tx.insert("t", [{"k": 4, "more": 1}], merge_schema=True)
    rows = other.sql("select * from t order by k", csn=tx.csn).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (1, 1, "new", None, None), (2, None, "new", ["a"], dt.date(2026, 1, 1)), (3, 3, "new", None, None),
    ]  # fmt: skip
    assert [one.type for one in other.table("t", csn=tx.csn).columns[3:]] == ["array<string>", "date"]
    for rows_, words in (
        (pa.table({"k": [9], "V": [1]}), "column V is not in the table"),
        (pa.table({"v": [9]}), r"column k \(bigint\) is missing"),
        (pa.table({"k": [9], "v": ["text"]}), "column v is string"),
    ):
        with pytest.raises(SchemaMismatchError, match=words):
            db.insert("t", rows_, merge_schema=True)


def test_many_writers_bring_columns_at_once(dbs: list[Database]) -> None:
    """Each begins again after the change of another one; no row and no column is lost or doubled."""
    dbs[0].create_table("t", {"k": "bigint"})

    def write(number: int) -> None:
        rows = pa.table({"k": [number], f"c{number % 4}": [number]})
        dbs[number % 3].insert("t", rows, merge_schema=True, label=f"many-{number}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(24)))
    with dbs[0].begin(fresh=True) as tx:
        found = tx.read("t")
        tx.rollback()
    assert sorted(found.column_names) == ["c0", "c1", "c2", "c3", "k"]
    assert sorted(found["k"].to_pylist()) == [*range(24)]
    for row in found.to_pylist():
        assert {name: value for name, value in row.items() if value is not None} == {
            "k": row["k"], f"c{row['k'] % 4}": row["k"],
        }  # fmt: skip


# -- Spark ---------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_reads_parts_of_every_version(local: LocalCluster, dbs: list[Database], tmp_path: Any) -> None:
    """Attached, by a raw path and by the data source, filters pushed down; and it writes the new columns."""
    db = dbs[0]
    db.create_table("t", {"k": "bigint not null", "a": "bigint", "b": "string"}, partition_by=["b"])
    rows = [(number, number % 7 or None, "xy"[number % 2]) for number in range(40)]
    old = 0
    for begin in range(0, 40, 8):
        few = list(zip(*rows[begin : begin + 8], strict=True))
        old = db.insert("t", pa.table({"k": few[0], "a": few[1], "b": few[2]})).csn or 0
    db.alter_table("t", drop=["a"], add={"n": "string"})
    defaults = "f boolean not null default true, z double default 0, m decimal(38,2) default 1.5"
    db.alter_table("t", add=f"{defaults}, u timestamp default '2026-01-01T00:00:00Z', w string default 'ü'")
    db.alter_table("t", rename={"k": "key"}, add={"a": "bigint"}, order=["a"])
    with SparkProcess("classic", tmp_path, python_workers=True) as spark:
        spark.call("join", url=local.url("r2"))
        query = (
            "select cast(null as bigint) a, id + 100 as key, 'x' as b, string(id) as n, false as f, "
            "cast(1 as double) z, cast(7 as decimal(38,2)) m, timestamp'2030-01-01 00:00:00 UTC' u, 'y' as w "
            "from range(3)"
        )
        new = spark.call("write", url=local.url("r2"), query=query, tables=["t"])
        csn = spark.call("attach", csn=new)["csn"]
        assert spark.call("schema", table="t") == [
            ["a", "bigint"], ["key", "bigint"], ["b", "string"], ["n", "string"], ["f", "boolean"],
            ["z", "double"], ["m", "decimal(38,2)"], ["u", "timestamp"], ["w", "string"],
        ]  # fmt: skip
        url = f"webhdfs://{data_address(local, 'r2')}/snapshots/{csn}/default/t"
        spark.call("raw_list", path=url, view="raw")
        spark.call("load", view="source", options={"table": "t", "url": local.url("r2"), "csnAsOf": str(csn)})
        expected = [[None, key, b, None] for key, _, b in rows]
        expected += [[None, 100 + number, "x", str(number)] for number in range(3)]
        for view in ("t", "raw", "source"):
            assert spark.sql(f"select a, key, b, n from {view} order by key") == expected, view
            for condition, count in (
                ("key = 33", 1), ("key >= 35 and b = 'x'", 5), ("a = 3", 0), ("a is null", 43),
                ("n = '1'", 1), ("n is not null", 3), ("coalesce(n, 'none') = 'none'", 40),
                ("f", 40), ("not f", 3), ("z = 0", 40), ("z = -0.0D", 40), ("z > 0", 3), ("m = 1.5", 40),
                ("u < timestamp'2026-01-01 00:00:01 UTC'", 40),
                ("u = timestamp'2026-01-01 00:00:00 UTC'", 40),
                ("w = 'ü' and b = 'x'", 20), ("w <> 'ü'", 3), ("w is null or f is null or m is null", 0),
            ):  # fmt: skip
                found = spark.sql(f"select count(*) from {view} where {condition}")
                assert found == [[count]], (view, condition)
        spark.call("attach", csn=old)
        assert spark.sql("select k, a, b from t order by k") == [list(row) for row in rows]


def test_columns_and_rows_of_one_transaction(local: LocalCluster, dbs: list[Database]) -> None:
    """It reads older rows with its own columns; rows come after the change, and are visible with it."""
    db = dbs[0]
    db.create_table("t", {"k": "bigint", "a": "bigint"})
    old = db.insert("t", pa.table({"k": [1], "a": [7]})).csn or 0
    with db.begin() as tx:
        tx.alter_table("t", rename={"a": "b"}, add={"c": "string"})
        tx.alter_table("t", drop=["b"], add={"a": "string"})
        assert tx.sql("select * from t").to_pydict() == {"k": [1], "c": [None], "a": [None]}
        tx.insert("t", pa.table({"k": [2], "c": ["x"], "a": ["y"]}))
        with pytest.raises(RefusedError, match="change the columns first"):
            tx.alter_table("t", add={"d": "string"})
        tx.update("t", {"c": "'z'"}, "k = 1")
        assert sorted(tx.sql("select k, c from t").to_pylist(), key=str) == [
            {"k": 1, "c": "z"},
            {"k": 2, "c": "x"},
        ]
    rows = ({1: 1, 3: "z"}, {1: 2, 3: "x", 4: "y"})
    model = Model(((1, "k", "bigint"), (3, "c", "string"), (4, "a", "string")), rows)
    with dbs[1].snapshot(min_csn=tx.csn):
        require_shown(local, "r2", tx.csn or 0, "t", model)
    assert dbs[1].read("t", csn=old).to_pydict() == {"k": [1], "a": [7]}
