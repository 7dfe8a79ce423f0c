"""Deletes, updates, upserts and merges in transactions over two replicas, beside DuckDB on the same rows.

Two clients stand for two sessions, with their homes at different replicas.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import random
import socket
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.replicas.mutations import Row, as_rows
from tests.support.rows import EXTREMES
from tests.support.waiting import eventually
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    RefusedError,
    SchemaMismatchError,
    SerializationConflictError,
    TransactionClosedError,
    UnknownTableError,
    UnsupportedInTransactionError,
)
from tidelock.wire.tables import PartInfo

SCHEMA = pa.schema(
    [
        pa.field("p", pa.int32()),
        pa.field("k", pa.int64(), nullable=False),
        ("v", pa.int32()),
        ("s", pa.string()),
    ]
)
#: As above, with numbers of which some are larger than all others, and equal to themselves only in SQL.
MIXED = SCHEMA.append(pa.field("f", pa.float64()))
#: Conditions on these numbers.
OF_FLOATS = ("f > 1", "f < 0", "f <> 1", "f = 0", "f = 'nan'::DOUBLE", "f >= 'inf'::DOUBLE", "f IS NULL")
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module."""
    cutting = {
        "row_group_rows": 2,
        "cut_part_bytes_min": 1,
    }  # nearly every change leaves row groups as they are
    return module_cluster(replicas=2, settings={**QUICK, **cutting, "lock_wait_s": 0.0, "sql_workers": 1})


@pytest.fixture(scope="module")
def one(local: LocalCluster) -> Iterator[Database]:
    """A session at r1."""
    with local.connect("r1") as db:
        yield db


@pytest.fixture(scope="module")
def two(local: LocalCluster) -> Iterator[Database]:
    """A session at r2."""
    with local.connect("r2") as db:
        yield db


def rows(*keys: int, p: int | None = 1, v: int | None = 0, s: str = "new") -> pa.Table:
    """Rows with these keys."""
    count = len(keys)
    return pa.table({"p": [p] * count, "k": keys, "v": [v] * count, "s": [s] * count}, SCHEMA)


def mixed(chance: random.Random, *keys: int, p: int | None = 1, v: int | None = 0) -> pa.Table:
    """Rows with these keys, and numbers from the ends of their range."""
    floats = chance.choices((None, *EXTREMES["c_double"]), k=len(keys))
    return rows(*keys, p=p, v=v).append_column(MIXED.field("f"), pa.array(floats, pa.float64()))


@pytest.fixture
def table(one: Database) -> str:
    """A table by p, on both replicas: parts with keys 1 to 3 and 4 to 6 of partition 1, and 7 to 9 of 2."""
    name = f"t{next(NUMBERS)}"
    one.create_table(name, SCHEMA, partition_by=["p"], properties={"compaction": "off"})
    for p, keys in ((1, (1, 2, 3)), (1, (4, 5, 6)), (2, (7, 8, 9))):
        one.insert(name, rows(*keys, p=p, v=keys[0], s="old"), wait="all")
    return name


def parts(db: Database, table: str) -> set[str]:
    """The ids of a table's parts."""
    csn = db.status()["snapshot_csn"]
    query = {"csn": csn, "table": table}
    return {part.part for part in db._connection.ask("GET", "/parts", answer=list[PartInfo], query=query)}


def test_each_statement_alone_rewrites_only_parts_with_its_rows(
    one: Database, two: Database, table: str
) -> None:
    """Only parts with such rows are rewritten; new rows are on both replicas, old snapshots stay."""
    before = parts(one, table)
    with one.snapshot() as old:
        one.delete(table, "k = ?", [5], wait="all")
        assert len(before & parts(one, table)) == 2
        one.update(table, {"v": "v + ?", "s": "upper(s)"}, "k < 3", [100], wait="all")
        assert len(before & parts(one, table)) == 1
        one.upsert(table, rows(3, 33, v=3), on=["k"], wait="all")
        one.merge(
            table,
            rows(4, 6, 44, v=-1),
            on="k",
            when_matched_update={"v": "target.v + source.v", "s": Decimal("1.50")},
            when_matched_delete="target.k = ?",
            when_not_matched_insert=True,
            params=[6],
            wait="all",
        )
        expected = Counter(
            [
                *(
                    (1, 1, 101, "OLD"),
                    (1, 2, 101, "OLD"),
                    (1, 3, 3, "new"),
                    (1, 33, 3, "new"),
                    (1, 4, 3, "1.50"),
                ),
                *((1, 44, -1, "new"), (2, 7, 7, "old"), (2, 8, 7, "old"), (2, 9, 7, "old")),
            ]
        )
        assert as_rows(one.read(table)) == as_rows(two.read(table)) == expected
        assert len(before & parts(two, table)) == 1
        assert old.scan(table).count() == 9
    assert one.delete(table, "k > 1000").csn is None


def test_answers_count_the_rows_and_parts(one: Database, table: str) -> None:
    """The answer of a statement has the number of rows and of parts that it changed.

    A row group has two rows. Those that keep all their rows are a part of their own.
    """
    with one.begin() as tx:
        done = tx.delete(table, "k IN (1, 2, 3, 4)")
        assert (done.rows_deleted, done.rows_updated, done.parts_removed, done.parts_added) == (4, 0, 2, 2)
        done = tx.update(table, {"p": 3}, "k >= 5")
        assert (done.rows_updated, done.parts_removed, done.parts_added) == (5, 3, 1)
        done = tx.upsert(table, rows(5, 50, p=9), on=["k"])
        assert (done.rows_updated, done.rows_inserted, done.parts_added) == (1, 1, 3)
        tx.rollback()


def test_literals_of_all_types(one: Database) -> None:
    """Values are given as Python has them; a text is a parameter."""
    name = f"t{next(NUMBERS)}"
    values: dict[str, tuple[pa.DataType, Any]] = {
        "boolean": (pa.bool_(), True),
        "int": (pa.int32(), -5),
        "double": (pa.float64(), 0.1),
        "largest": (pa.float32(), float("inf")),
        "decimal": (pa.decimal128(18, 10), Decimal("1E-9")),
        "binary": (pa.binary(), b"\x00'\xff"),
        "date": (pa.date32(), dt.date(1600, 2, 29)),
        "instant": (pa.timestamp("us", tz="UTC"), dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)),
        "wall": (pa.timestamp("us"), dt.datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001 - no zone
        "nothing": (pa.string(), None),
    }
    schema = pa.schema([("id", pa.int64()), *((key, kind) for key, (kind, _) in values.items())])
    one.create_table(name, schema)
    one.insert(name, pa.Table.from_pylist([{"id": 1, "nothing": "x"}], schema))
    one.update(name, {column: value for column, (_, value) in values.items()})
    assert one.read(name).to_pylist() == [
        {"id": 1, **{column: value for column, (_, value) in values.items()}}
    ]
    one.update(name, {"nothing": "?"}, params=["o'neil; --"])
    assert one.read(name)["nothing"].to_pylist() == ["o'neil; --"]


class Mirror:
    """The same statements in a transaction and in DuckDB."""

    def __init__(self, tx: Transaction, tables: list[str], db: Database) -> None:
        self.tx, self.tables = tx, tables
        self.twin = duckdb.connect()
        for table in tables:
            self.twin.from_arrow(db.read(table)).create(table)

    def rows(self, table: str) -> Counter[Row]:
        """Return the rows that the table should hold."""
        return as_rows(self.twin.sql(f"FROM {table}").to_arrow_table())

    def step(self, random: random.Random) -> None:
        """One statement of any kind."""
        table, other = random.sample(self.tables, 2)
        low = random.randrange(20)
        keys = random.sample(range(40), 3)
        new = mixed(random, *keys, p=random.choice([1, 2, 5, None]), v=low)
        where = random.choice([f"k BETWEEN {low} AND {low + 4}", random.choice(OF_FLOATS)])
        listed = ", ".join(map(str, keys))
        twin = self.twin
        twin.register("source", new)
        match random.randrange(6):
            case 0:
                self.tx.insert(table, new)
                twin.execute(f"INSERT INTO {table} FROM source")
            case 1:
                self.tx.delete(table, f"{where} OR k IN (SELECT k FROM {other} WHERE v = ?)", [low])
                twin.execute(
                    f"DELETE FROM {table} WHERE {where} OR k IN (SELECT k FROM {other} WHERE v = {low})"
                )
            case 2:
                values = {"v": "v + k", "p": "k % 3", "s": "?"}
                self.tx.update(table, values, where, ["é"])
                twin.execute(f"UPDATE {table} SET v = v + k, p = k % 3, s = 'é' WHERE {where}")
            case 3:
                with contextlib.suppress(RefusedError):
                    self.tx.upsert(table, new, on=["k"])
                twin.execute(
                    f"CREATE OR REPLACE TEMP TABLE met AS SELECT k, count(*) n FROM {table} "
                    f"WHERE k IN ({listed}) GROUP BY k"
                )
                twin.execute(f"DELETE FROM {table} WHERE k IN ({listed})")
                twin.execute(
                    f"INSERT INTO {table} SELECT source.* FROM source LEFT JOIN met USING (k), "
                    "range(coalesce(n, 1))"
                )
            case 4:
                deletes, update = "source.k % 2 = 0", {"v": "source.v * 10"}
                self.tx.merge(
                    table,
                    new,
                    on=["k"],
                    when_matched_update=update,
                    when_matched_delete=deletes,
                    when_not_matched_insert=None,
                )
                twin.execute(f"DELETE FROM {table} WHERE k IN ({listed}) AND k % 2 = 0")
                twin.execute(f"UPDATE {table} SET v = {low} * 10 WHERE k IN ({listed})")
            case _:
                statement = (
                    f"INSERT INTO {table} (k, p, s, f) SELECT k + 100, p, 'c', f FROM {other} WHERE {where}"
                )
                added = self.tx.sql(statement)["rows_inserted"].to_pylist()
                assert [tuple(added)] == twin.execute(statement).fetchall()


@pytest.mark.parametrize("seed", [1])
def test_any_mixture_of_statements_gives_what_duckdb_gives(one: Database, two: Database, seed: int) -> None:
    """Statements over two tables, with reads between them, and the commit give the rows that DuckDB gives."""
    mixture(one, two, seed, steps=15)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 112))
def test_long_mixtures_of_statements_give_what_duckdb_gives(one: Database, two: Database, seed: int) -> None:
    """As above, longer and of many kinds."""
    mixture(one, two, seed, steps=60)


def mixture(one: Database, two: Database, seed: int, *, steps: int) -> None:
    """Run statements in transactions, some of them rolled back."""
    chance = random.Random(seed)
    tables = [f"t{next(NUMBERS)}" for _ in range(2)]
    for table in tables:
        one.create_table(table, MIXED, partition_by=["p"], properties={"compaction": "off"})
        one.insert(table, mixed(chance, *range(12), v=5))
    for session in (one, two) * (steps // 15):
        outside = {table: as_rows(session.read(table)) for table in tables}
        tx = session.begin()
        mirror = Mirror(tx, tables, session)
        for _ in range(15):
            mirror.step(chance)
            table = chance.choice(tables)
            assert as_rows(tx.read(table)) == mirror.rows(table)
        if chance.random() < 0.3:
            tx.rollback()
        else:
            tx.commit(wait="all")
            outside = {table: mirror.rows(table) for table in tables}
        for table in tables:
            assert as_rows(one.read(table)) == as_rows(two.read(table)) == outside[table]


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        (lambda tx, t: tx.delete(t, "k = 1) OR (true"), BadRequestError),
        (lambda tx, t: tx.delete(f"{t}_x", "true"), UnknownTableError),
        (lambda tx, t: tx.delete(t, "k = ?", []), BadRequestError),
        (lambda tx, t: tx.update(t, {"k": None}), SchemaMismatchError),
        (lambda tx, t: tx.update(t, {"v": "9999999999"}), SchemaMismatchError),
        (lambda tx, t: tx.update(t, {"v": object()}), BadRequestError),
        (lambda tx, t: tx.update(t, {"x": 1}), SchemaMismatchError),
        (lambda tx, t: tx.upsert(t, rows(1, 1), on=["k"]), BadRequestError),
        (lambda tx, t: tx.upsert(t, rows(1).drop("s"), on=["k"]), SchemaMismatchError),
        (lambda tx, t: tx.merge(t, rows(1), on=["k"], when_matched_delete="(", params=[]), BadRequestError),
        (lambda tx, t: tx.sql(f"insert into {t} select 1"), SchemaMismatchError),
        (lambda tx, t: tx.sql(f"insert into {t} (k) select 'x'"), SchemaMismatchError),
        (lambda tx, t: tx.sql(f"insert into {t} (p) select 1"), SchemaMismatchError),
    ],
)
def test_a_failed_statement_leaves_rollback_and_no_rows(
    local: LocalCluster, one: Database, table: str, statement: Any, error: type[Exception]
) -> None:
    """After a failed statement the transaction takes a rollback only, and leaves no rows."""
    tx = one.begin()
    tx.insert(table, rows(50))
    tx.delete(table, "k = 2")
    with pytest.raises(error):
        statement(tx, table)
    with pytest.raises(TransactionClosedError):
        tx.insert(table, rows(51))
    tx.rollback()
    assert sorted(one.read(table)["k"].to_pylist()) == list(range(1, 10))
    nothing_left(local.data_dir("r1"))


@pytest.mark.parametrize(
    ("sql", "instead"),
    [
        ("delete from t where k = 1", r"tx\.delete"),
        ("update t set v = 1", r"tx\.update"),
        ("merge into t using u on t.k = u.k when matched then delete", r"tx\.merge"),
        ("insert or replace into t values (1)", r"tx\.upsert"),
        ("insert into t values (1) returning k", r"tx\.insert"),
        ("create table x (a int)", r"create_table"),
        ("drop table t", r"truncate"),
        ("truncate t", r"tx\.delete|truncate"),
        ("commit", r"tx\.commit"),
        ("select 1; select 2", "one SELECT"),
    ],
)
def test_sql_that_is_not_offered(one: Database, table: str, sql: str, instead: str) -> None:
    """The error names the method to call instead."""
    with one.begin() as tx:
        with pytest.raises(UnsupportedInTransactionError, match=instead):
            tx.sql(sql.replace(" t ", f" {table} "))
        tx.rollback()


def test_conflicts_are_refused_only_over_the_same_part(one: Database, two: Database, table: str) -> None:
    """The second transaction that changes a part is refused at once; changes of other parts succeed."""
    first, second, third = one.begin(), two.begin(), two.begin()
    first.delete(table, "k = 1")
    third.update(table, {"v": 0}, "k = 8")
    with pytest.raises(SerializationConflictError) as refused:
        second.update(table, {"v": 1}, "k = 2")
    assert refused.value.details["holder"] == first.tid
    second.rollback()
    third.commit(wait="all")
    first.commit(wait="all")
    assert sorted(one.read(table, ["k"], "v = 0 OR k < 3")["k"].to_pylist()) == [2, 8]


def test_a_client_that_hangs_up(local: LocalCluster, one: Database, table: str) -> None:
    """When a client hangs up, its statement ends, and the next statement gets the only process."""
    tx = one.begin()
    body = json.dumps({"where": "(SELECT count(*) FROM range(10000000000) a, range(100) b) > k"}).encode()
    head = (
        f"POST /api/v1/transactions/{tx.tid}/delete/{table} HTTP/1.1\r\nHost: x\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    host, _, port = tx.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
    eventually(lambda: _state(one, tx) == "failed")
    assert one.delete(table, "k = 3").csn is not None
    tx.rollback()
    nothing_left(local.data_dir("r1"))


def _state(db: Database, tx: Transaction) -> str:
    return next(str(row["state"]) for row in db.transactions() if row["tid"] == tx.tid)
