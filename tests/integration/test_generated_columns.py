"""Generated columns: SQL over the other columns of a row makes their values, however the row comes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tests.support.clusters.agreeing import agreeing, all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tidelock.cli import app as cli
from tidelock.client import Database
from tidelock.client.writes.transaction import Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    CheckViolationError,
    SchemaMismatchError,
    SerializationConflictError,
)

COLUMNS = (
    "n int, s string, twice bigint generated always as (n * 2), word string generated always as (upper(s))"
)
SCHEMA = pa.schema([("n", pa.int32()), ("s", pa.string())])


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which agree at the end, and have nothing left over."""
    yield from agreeing(module_cluster(replicas=3, settings=QUICK))


@pytest.fixture
def db(dbs: list[Database]) -> Database:
    """A client, and the table `t`."""
    dbs[0].create_table("t", COLUMNS)
    return dbs[0]


def rows(*numbers: int | None) -> pa.Table:
    """Return rows without their generated columns."""
    return pa.Table.from_pylist([{"n": n, "s": None if n is None else f"é{n}"} for n in numbers], SCHEMA)


def shown(db: Database, table: str = "t", **more: Any) -> list[int | None]:
    """Return the numbers in a table, all of whose rows have the values that their SQL makes."""
    found = db.read(table, **more).to_pylist()
    for row in found:
        n, s = row["n"], row["s"]
        assert row["twice"] == (None if n is None else 2 * n)
        assert row["word"] == (None if s is None else s.upper())
    return sorted((row["n"] for row in found), key=lambda n: (n is None, n))


WAYS: dict[str, Callable[[Transaction], object]] = {
    "insert": lambda tx: tx.insert("t", rows(3, None)),
    "insert of many rows": lambda tx: tx.insert("t", rows(*range(20_000))),
    "insert select": lambda tx: tx.sql("insert into t (s, n) select 'x' || s, n + 10 from t"),
    "update": lambda tx: tx.update("t", {"n": "n + 100", "s": "s || 'ö'"}, where="n = 1"),
    "update of another column": lambda tx: tx.update("t", {"s": "'new'"}),
    "upsert": lambda tx: tx.upsert("t", rows(2, 9), on=["n"]),
    "merge": lambda tx: tx.merge(
        "t",
        rows(1, 7),
        on=["n"],
        when_matched_update={"s": "source.s || '!'"},
        when_not_matched_insert={"n": "source.n"},
    ),
    "merge of whole rows": lambda tx: tx.merge(
        "t", rows(1, 7), on=["n"], when_matched_update=True, when_not_matched_insert=True
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.few(3)
def test_every_way_makes_the_values(dbs: list[Database], db: Database, way: str) -> None:
    """All replicas show them, in the transaction and after it."""
    db.insert("t", rows(1, 2))
    with db.begin() as tx:
        WAYS[way](tx)
        own = tx.read("t").to_pylist()
        assert all(row["twice"] == (None if row["n"] is None else 2 * row["n"]) for row in own)
    assert [shown(one) for one in dbs] == [shown(db)] * 3


@pytest.mark.parametrize("given", ["upsert", "insert", "insert select", "update", "merge", "import"])
def test_a_value_that_is_brought_must_be_the_one_that_is_made(
    db: Database, tmp_path: Path, given: str
) -> None:
    """Rows that were read of the table go in again as they are; others are refused, with the value."""
    db.insert("t", rows(1, 2, None))
    whole = db.read("t")
    wrong = whole.set_column(2, "twice", pa.array([2, 5, None]))
    pq.write_table(whole, tmp_path / "right.parquet")
    pq.write_table(wrong, tmp_path / "wrong.parquet")

    def run(tx: Transaction, rows: pa.Table, file: str, factor: int) -> object:
        match given:
            case "insert":
                return tx.insert("t", rows)
            case "upsert":
                return tx.upsert("t", rows.slice(0, 2), on=["s"])
            case "insert select":
                return tx.sql(f"insert into t (n, s, twice) select n, s, n * {factor} from t where n = 2")
            case "update":
                return tx.update("t", {"n": "n + 1", "twice": f"(n + 1) * {factor}"}, where="n = 2")
            case "merge":
                return tx.merge("t", rows.slice(0, 2), on=["n"], when_matched_update=True)
        return tx.import_files("t", tmp_path / file)

    with pytest.raises(CheckViolationError, match="twice"), db.begin() as tx:
        run(tx, wrong, "wrong.parquet", 3)
    assert shown(db) == [1, 2, None]
    with db.begin() as tx:
        run(tx, whole, "right.parquet", 2)
    assert len(shown(db)) >= 3


def test_a_partition_and_an_order_by_generated_columns(dbs: list[Database]) -> None:
    """Rows lie in the folder of the day that is made of their time, and move with it."""
    db = dbs[0]
    columns = "sent timestamp not null, day date not null generated always as (cast(sent as date)), v int"
    db.create_table("parted", columns, partition_by=["day"], sort_by=["sent"])
    days = [datetime(2026, 1, day, 23, 59, tzinfo=UTC) for day in (1, 2)]
    db.insert("parted", pa.table({"sent": days, "v": pa.array([1, 2], pa.int32())}))
    assert sorted(part.path for part in db.parts("parted")) == ["day=2026-01-01", "day=2026-01-02"]
    db.update("parted", {"sent": "sent + interval 1 day"}, where="v = 1", wait="all")
    assert {part.path for part in dbs[1].parts("parted")} == {"day=2026-01-02"}
    found = dbs[1].sql("select count(*) as n from parted where day = date '2026-01-02'")
    assert found.to_pylist() == [{"n": 2}]
    with pytest.raises(CheckViolationError, match="day"):
        db.insert("parted", dbs[1].read("parted").set_column(1, "day", pa.array([0, 0], pa.date32())))


def test_a_table_with_a_key_a_check_and_a_derived_table(db: Database) -> None:
    """They see the values that are made."""
    columns = """k bigint not null, n int, twice bigint generated always as (n * 2),
        constraint small check (twice < 100)"""
    db.create_table("keyed", columns, properties={"unique_key": "k"})
    db.create_table(
        "sums",
        "k bigint, four bigint",
        derived_from="keyed",
        derived_sql="select k, twice * 2 as four from inserted",
    )
    given = pa.table({"k": [1, 2], "n": pa.array([1, 2], pa.int32())})
    db.insert("keyed", given)
    db.upsert("keyed", given.set_column(1, "n", pa.array([1, 40], pa.int32())), on=["k"])
    assert sorted(db.read("sums")["four"].to_pylist()) == [4, 8]
    assert sorted(db.read("keyed")["twice"].to_pylist()) == [2, 80]
    with pytest.raises(CheckViolationError, match="small"):
        db.insert("keyed", pa.table({"k": [3], "n": pa.array([50], pa.int32())}))
    with pytest.raises(BadRequestError, match="twice is generated"):
        db.create_table("bad", "k bigint not null, twice bigint not null generated always as (k * 2)",
                        properties={"unique_key": "twice"})  # fmt: skip


def test_a_column_is_added_with_its_values(dbs: list[Database], db: Database) -> None:
    """The rows that are there get them in the same commit; earlier CSNs show the table as it was."""
    before = db.insert("t", rows(1, 2, None)).csn or 0
    made = db.alter_table("t", add="next bigint not null generated always as (coalesce(n, 0) + 1)")
    assert [column.generated for column in made.columns] == [
        None,
        None,
        "n * 2",
        "upper(s)",
        "coalesce(n, 0) + 1",
    ]
    assert sorted(dbs[1].read("t")["next"].to_pylist()) == [1, 2, 3]
    assert "next" not in db.read("t", csn=before).schema.names
    dbs[2].insert("t", rows(9))
    assert sorted(db.read("t")["next"].to_pylist()) == [1, 2, 3, 10]
    db.alter_table("t", generated={"next": None})
    db.update("t", {"next": "0"}, where="n = 9")
    db.insert("t", rows(5).append_column("next", pa.array([-1])))
    assert sorted(db.read("t")["next"].to_pylist()) == [-1, 0, 1, 2, 3]
    db.restore_table("t", before)
    assert shown(db) == [1, 2, None]
    assert db.table("t").columns[2].generated == "n * 2"


def test_an_addition_conflicts_with_rows_of_others(dbs: list[Database], db: Database) -> None:
    """Rows that were committed since its snapshot would lack the column."""
    db.insert("t", rows(1))
    with db.begin() as tx:
        tx.alter_table("t", add="m int generated always as (n)")
        dbs[1].insert("t", rows(2))
        with pytest.raises(SerializationConflictError):
            tx.commit()
    assert shown(db) == [1, 2]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("n int, g bigint generated always as (m)", "m, which is no column"),
        ("n int, g bigint generated always as (n + random())", "another time or place"),
        ("n int, g timestamp generated always as (now())", "another time or place"),
        ("n int, g bigint generated always as ((select 1))", "no subquery"),
        ("n int, g bigint generated always as (sum(n))", "aggregate"),
        (
            "n int, g bigint generated always as (n), h bigint generated always as (g)",
            "which is generated too",
        ),
        ("n int, g bigint generated always as (g + 1)", "which is generated too"),
        ("n int, g bigint generated always as (n; drop table t)", "one SQL expression"),
        ("n int, g bigint generated always as ()", "0 bytes of SQL"),
        ("n int, g bigint generated always as (n) default 1", "leave out its default"),
        ("n int, s string, g string generated always as (s collate nocase)", "has a collation"),
    ],
)
def test_a_wrong_expression_is_refused(db: Database, columns: str, words: str) -> None:
    """The table is not created, and the message says why."""
    with pytest.raises(BadRequestError, match=words):
        db.create_table("wrong", columns)
    assert [one.name for one in db.tables()] == ["default.t"]


def test_a_value_that_does_not_fit_is_refused(db: Database) -> None:
    """As a null in a required column is: nothing of the rows is kept."""
    db.create_table(
        "narrow", "n bigint, small tinyint generated always as (n), must int not null generated always as (n)"
    )
    with pytest.raises(SchemaMismatchError, match=r"small .*is tinyint, but a new value of it is 300"):
        db.insert("narrow", pa.table({"n": [1, 300]}))
    with pytest.raises(SchemaMismatchError, match=r"must .*is required"):
        db.insert("narrow", pa.table({"n": pa.array([None], pa.int64())}))
    db.create_table("cast", "s string, n bigint generated always as (cast(s as bigint))")
    with pytest.raises(BadRequestError, match="generated column"):
        db.insert("cast", pa.table({"s": ["no number"]}))
    assert db.read("narrow").num_rows == 0


@pytest.mark.parametrize(
    "change",
    [
        {"drop": ["n"]},
        {"rename": {"s": "text"}},
        {"types": {"n": "bigint"}},
        {"default": {"twice": 1}},
        {"generated": {"n": None}},
        {"add": "two int generated always as (twice)"},
    ],
    ids=str,
)
def test_a_change_that_breaks_an_expression_is_refused(db: Database, change: dict[str, Any]) -> None:
    """The message names the column and its SQL; the table stays."""
    before = db.table("t").columns
    with pytest.raises(BadRequestError, match="generated"):
        db.alter_table("t", **change)
    assert db.table("t").columns == before
    db.alter_table("t", rename={"twice": "double"}, drop=["word"])
    db.insert("t", rows(4))
    assert db.read("t").to_pylist() == [{"n": 4, "s": "é4", "double": 8}]


def test_rows_that_others_bring_before_a_column_is_generated_again(dbs: list[Database], db: Database) -> None:
    """A restore brings the SQL back; rows that were committed without it since then are in its way."""
    then = db.insert("t", rows(1)).csn or 0
    db.alter_table("t", generated={"twice": None, "word": None})
    with db.begin() as tx:
        tx.restore_table("t", then)
        free = pa.table({"n": pa.array([2], pa.int32()), "s": ["x"], "twice": [-1], "word": ["y"]})
        dbs[1].insert("t", free)
        with pytest.raises(SerializationConflictError):
            tx.commit()
    db.restore_table("t", then)
    assert shown(db) == [1]


def test_a_generated_column_as_the_key_of_a_merge(db: Database) -> None:
    """Of a row that matches, the value is made of its new columns, and is another one then."""
    db.insert("t", rows(1))
    given = pa.table({"n": pa.array([5], pa.int32()), "s": ["x"], "twice": [2]})
    with pytest.raises(CheckViolationError, match=r"breaks generated column twice .* it brings twice=2"):
        db.upsert("t", given, on=["twice"])
    db.upsert("t", given.set_column(0, "n", pa.array([1], pa.int32())), on=["twice"])
    assert db.read("t").to_pylist() == [{"n": 1, "s": "x", "twice": 2, "word": "X"}]


def test_a_struct_and_the_fields_of_its_column(db: Database) -> None:
    """They are the same, whatever their order is; none is left out in silence."""
    columns = "n int, m int, g struct<a:int,b:int> generated always as ({})"
    with pytest.raises(SchemaMismatchError, match="c"):
        db.create_table("nested", columns.format("{'a': n, 'c': m}"))
    db.create_table("nested", columns.format("{'b': m, 'a': n}"))
    db.insert("nested", pa.table({"n": pa.array([1], pa.int32()), "m": pa.array([2], pa.int32())}))
    assert db.read("nested")["g"].to_pylist() == [{"a": 1, "b": 2}]


def test_a_column_is_added_with_a_check_of_it(dbs: list[Database], db: Database) -> None:
    """The rows are judged by the values that they get."""
    db.insert("t", rows(1, None))
    added = "next bigint generated always as (coalesce(n, 0) + 1), constraint {} check (next > {})"
    with pytest.raises(CheckViolationError, match="large"):
        db.alter_table("t", add=added.format("large", 1))
    db.alter_table("t", add=added.format("positive", 0))
    assert sorted(dbs[1].read("t")["next"].to_pylist()) == [1, 2]
    with db.begin() as tx:
        tx.alter_table("t", rename={"twice": "double"})
        dbs[1].insert("t", rows(7))
        tx.rollback()


def test_a_derived_table_with_a_generated_column(db: Database) -> None:
    """Its SQL leaves the column out; what the source generates is in `inserted`."""
    columns = "k bigint, h bigint generated always as (k * 10)"
    db.create_table("derived", columns, derived_from="t", derived_sql="select twice as k from inserted")
    db.insert("t", rows(1, 2))
    assert sorted(db.read("derived")["h"].to_pylist()) == [20, 40]
    with pytest.raises(BadRequestError, match="derived_sql"):
        db.alter_table("derived", generated={"h": None})
    db.drop_table("derived")


def test_on_the_command_line(local: LocalCluster, db: Database, tmp_path: Path) -> None:
    """Lines of JSON and CSV come without the column; it is made ordinary by an option."""

    def run(*args: object) -> str:
        done = CliRunner().invoke(cli.app, [*map(str, args), "--url", local.url("r1")])
        assert done.exit_code == 0, done.output
        return done.output

    (tmp_path / "rows.jsonl").write_text('{"n": 1, "s": "a"}\n{"n": 2}\n')
    (tmp_path / "rows.csv").write_text("s,n\nc,3\n")
    run("insert", "t", tmp_path / "rows.jsonl")
    run("insert", "t", tmp_path / "rows.csv")
    all_follow(local)
    assert shown(db) == [1, 2, 3]
    run("alter-table", "t", "--add", "half double generated always as (n / 2)", "--ordinary", "word")
    all_follow(local)
    assert [column.generated for column in db.table("t").columns] == [None, None, "n * 2", None, "n / 2"]
    assert sorted(db.read("t")["half"].to_pylist()) == [0.5, 1.0, 1.5]
    shown_sql = db.sql("select column_name from system.columns where generation_expression is not null")
    assert {"twice", "half"} <= set(shown_sql["column_name"].to_pylist())


def test_drawn_statements_keep_the_values(dbs: list[Database], db: Database) -> None:
    """A model has the numbers; the values follow from them, at every CSN and on every replica."""
    chance = random.Random(11)
    model: list[int] = []
    at: list[tuple[int, list[int]]] = []
    db.alter_table("t", properties={"compaction": "on"})
    for step in range(40):
        one = chance.choice(dbs)
        done: Any
        match chance.randrange(5):
            case 0 | 1:
                some = chance.choices(range(1000), k=3)
                done = one.insert("t", rows(*some))
                model += some
            case 2:
                done = one.update("t", {"n": "n + 1"}, where=f"n % 7 = {step % 7}")
                model = [n + (n % 7 == step % 7) for n in model]
            case 3:
                done = one.delete("t", f"n % 11 = {step % 11}")
                model = [n for n in model if n % 11 != step % 11]
            case _:
                done = one.optimize("t")
        at.append((done.csn or one.seen_csn, sorted(model)))
    for csn, numbers in at:
        assert shown(chance.choice(dbs), csn=csn) == numbers
