"""Several definitions of tables and rows in one transaction: all of it is there at its CSN, or nothing.

The transaction sees its own tables and rows; others see the tables of their CSN, whichever way they read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.support.clusters.agreeing import agreeing
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.waiting import eventually
from tidelock.cli import app as cli
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    DuplicateKeyError,
    NotCommittedError,
    SerializationConflictError,
    SnapshotTooOldError,
    TableChangedError,
    TableExistsError,
    TidelockError,
    TransactionClosedError,
    UnknownTableError,
)
from tidelock.wire.tables import CommittedTable, DefinedTable, TableInfo

REPLICAS = 3
COLUMNS = {"k": "bigint not null"}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which agree at the end, with nothing left over."""
    yield from agreeing(module_cluster(replicas=REPLICAS, settings={**QUICK, "horizon_interval_s": 0.2}))


def rows(*numbers: int) -> pa.Table:
    """Return rows."""
    return pa.table({"k": pa.array(numbers, pa.int64())})


def keys(reader: Database | Transaction, table: str) -> list[int]:
    """Return the rows of a table as SQL shows them."""
    return sorted(reader.sql(f"select k from {table}")["k"].to_pylist())


def at(db: Database, csn: int) -> dict[str, list[int]]:
    """Return the rows of every table at a CSN."""
    with db.snapshot(csn=csn) as snapshot:
        names = [row["name"] for row in snapshot.tables()]
        return {name: sorted(snapshot.read(name)["k"].to_pylist()) for name in names}


def test_definitions_and_rows_become_visible_together(dbs: list[Database]) -> None:
    """Created, filled, renamed, altered, dropped and replaced in one transaction, which sees each step."""
    db = dbs[0]
    db.create_table("old", COLUMNS)
    db.create_table("swapped", COLUMNS)
    db.insert("old", rows(1, 2))
    before = db.insert("swapped", rows(3)).csn or 0
    with db.begin() as tx:
        made = tx.create_table("a", {"k": "bigint not null", "p": "string"}, partition_by=["p"])
        assert (made["name"], made["version"]) == ("default.a", 0)
        tx.insert("a", pa.table({"k": [10, 11], "p": ["x", "y"]}))
        assert keys(tx, "a") == [10, 11]
        assert tx.read("a", where="p = 'x'")["k"].to_pylist() == [10]
        tx.rename_table("a", "sales.b")
        tx.insert("sales.b", pa.table({"k": [12], "p": ["x"]}))
        tx.alter_table("sales.b", {"comment": "made of many statements"})
        tx.delete("sales.b", "k = 10")
        tx.sql("insert into sales.b select k, 'z' from old where k = 1")
        assert keys(tx, "sales.b") == [1, 11, 12]
        assert tx.definition("sales.b")["properties"] == {"comment": "made of many statements"}
        assert not tx.drop_table("a", if_exists=True)
        assert tx.drop_table("old")
        tx.create_table("swapped", COLUMNS, or_replace=True)
        assert keys(tx, "swapped") == []
        tx.insert("swapped", rows(4, 5))
        tx.create_table("gone", COLUMNS)
        tx.insert("gone", rows(6))
        tx.drop_table("gone")
        for other in dbs:
            assert at(other, before) == {"default.old": [1, 2], "default.swapped": [3]}
    csn = tx.csn or 0
    expected = {"default.swapped": [4, 5], "sales.b": [1, 11, 12]}
    for other in dbs:
        assert at(other, csn) == expected
        assert at(other, csn - 1) == {"default.old": [1, 2], "default.swapped": [3]}
        assert other.table("sales.b", csn=csn)["properties"] == {"comment": "made of many statements"}
    db.create_table("gone", COLUMNS)
    db.create_table("old", COLUMNS)
    with db.begin() as more:
        more.insert("sales.b", pa.table({"k": [13], "p": ["x"]}))
        more.rename_table("sales.b", "b")
        more.rename_table("b", "c")
        more.rename_table("c", "b")
    assert keys(db, "b") == [1, 11, 12, 13]


def test_a_rollback_leaves_no_table_and_no_row(dbs: list[Database]) -> None:
    """By the caller, by an error in the block, and by a refused commit; the names are free at once."""
    db = dbs[0]
    db.create_table("kept", COLUMNS)
    for error in (None, RuntimeError("an error of the program")):
        with contextlib.suppress(RuntimeError), db.begin() as tx:
            tx.create_table("a", COLUMNS)
            tx.insert("a", rows(1))
            tx.rename_table("kept", "other")
            tx.drop_table("other")
            if error is not None:
                raise error
            tx.rollback()
        assert [row["name"] for row in db.tables()] == ["default.kept"]
    db.create_table("a", COLUMNS)
    assert keys(db, "a") == []


def test_a_refused_definition_leaves_the_transaction_as_it_was(dbs: list[Database]) -> None:
    """The statements before it stay, and the ones after it are run."""
    db = dbs[0]
    db.create_table("taken", COLUMNS)
    with db.begin() as tx:
        tx.create_table("a", COLUMNS)
        with pytest.raises(TableExistsError):
            tx.create_table("a", COLUMNS)
        with pytest.raises(TableExistsError):
            tx.rename_table("a", "taken")
        with pytest.raises(UnknownTableError):
            tx.drop_table("no_such")
        with pytest.raises(BadRequestError):
            tx.alter_table("a", {"unique_key": "k"})
        assert not tx.drop_table("no_such", if_exists=True)
        assert tx.create_table("taken", {"x": "string"}, if_not_exists=True)["columns"][0]["name"] == "k"
        tx.insert("a", rows(1))
    assert keys(db, "a") == [1]


@pytest.mark.parametrize("change", ["drop", "replace"])
@pytest.mark.parametrize("read", [True, False])
def test_of_rows_for_two_tables_none_stays_if_one_is_dropped(
    dbs: list[Database], change: str, read: bool
) -> None:
    """Whichever replica is its home, and whether its rows were written out already or are in memory."""
    db = dbs[0]
    for name in ("a", "b"):
        db.create_table(name, COLUMNS)
    first = db.insert("a", rows(1), wait="all").csn or 0
    using = [other.begin(fresh=True) for other in dbs]
    for number, tx in enumerate(using):
        tx.insert("a", rows(10 + number))
        tx.insert("b", rows(10 + number))
        if read:
            assert keys(tx, "a") == [1, 10 + number]
    if change == "drop":
        csn = db.drop_table("b") or 0
    else:
        csn = db.create_table("b", COLUMNS, or_replace=True)["csn"]
    for tx in using:
        with pytest.raises(TableChangedError, match=r"default\.b"):
            tx.commit()
        tx.rollback()
    for other in dbs:  # none waits for its lease, which would hold the horizon
        assert {one.state for one in other.transactions()} <= {"committed", "rolled_back"}
    there: dict[str, list[int]] = {"default.a": [1]} | ({} if change == "drop" else {"default.b": []})
    last = db.insert("a", rows(2), wait="all").csn or 0
    for other in dbs:
        assert at(other, first) == {"default.a": [1], "default.b": []}
        assert at(other, csn) == there
        assert at(other, last) == there | {"default.a": [1, 2]}
        assert other.changes("a", first, last).to_table()["k"].to_pylist() == [2]


def test_keys_and_derived_tables_hold_inside_the_transaction(dbs: list[Database]) -> None:
    """The transaction that creates such tables checks keys, and fills derived tables."""
    db = dbs[0]
    with db.begin() as tx:
        tx.create_table("s", COLUMNS, properties={"unique_key": "k", "on_duplicate": "refuse"})
        tx.create_table("d", COLUMNS, derived_from="s", derived_sql="select k * 10 as k from inserted")
        tx.insert("s", rows(1, 2))
        assert (keys(tx, "s"), keys(tx, "d")) == ([1, 2], [10, 20])
        with pytest.raises(BadRequestError, match=r"default\.d; drop these first"):
            tx.drop_table("s")
        tx.rename_table("s", "t")
        tx.insert("t", rows(3))
        assert tx.definition("d")["derived_from"] == "default.t"
    for other in dbs:
        assert at(other, tx.csn or 0) == {"default.d": [10, 20, 30], "default.t": [1, 2, 3]}
    with db.begin() as tx:
        tx.drop_table("d")
        tx.insert("t", rows(4))
        tx.create_table("d", COLUMNS, derived_from="t", derived_sql="select -k as k from inserted")
        tx.insert("t", rows(5))
    assert (keys(db, "t"), keys(db, "d")) == ([1, 2, 3, 4, 5], [-5])
    tx = db.begin()
    tx.create_table("u", COLUMNS)
    with pytest.raises(DuplicateKeyError):
        tx.insert("t", rows(1))
    tx.rollback()
    assert "default.u" not in [row["name"] for row in db.tables()]


def test_an_unrelated_table_does_not_disturb_an_open_transaction(dbs: list[Database]) -> None:
    """Others create, change and drop tables meanwhile, at all replicas; the commit finds its place."""
    db = dbs[0]
    db.create_table("mine", COLUMNS)
    with db.begin() as tx:
        tx.create_table("a", COLUMNS)
        tx.rename_table("mine", "renamed")
        tx.insert("renamed", rows(1))
        for number, other in enumerate(dbs):
            other.create_table(f"other_{number}", COLUMNS)
            other.alter_table(f"other_{number}", {"comment": "x"})
        dbs[1].drop_table("other_1")
        tx.insert("a", rows(2))
    assert at(db, tx.csn or 0) == {
        "default.a": [2], "default.renamed": [1], "default.other_0": [], "default.other_2": []
    }  # fmt: skip


def test_of_two_definitions_of_one_table_one_wins(dbs: list[Database]) -> None:
    """The other one is told what has happened to its table, or who has its name; nothing of it stays."""
    db, other = dbs[0], dbs[1]
    mine: tuple[Callable[[Transaction], object], ...] = (
        lambda tx: tx.alter_table("t", {"comment": "a"}),
        lambda tx: tx.insert("t", rows(1)),
        lambda tx: tx.drop_table("t"),
        lambda tx: tx.create_table("t", COLUMNS, or_replace=True),
    )
    for change in mine:
        db.create_table("t", COLUMNS)
        tx = db.begin(fresh=True)
        tx.create_table("a", COLUMNS)
        change(tx)
        other.alter_table("t", {"comment": "b"})
        with pytest.raises(TableChangedError, match=r"default\.t was changed"):
            tx.commit()
        assert at(db, db.drop_table("t") or 0) == {}
    giving: tuple[Callable[[Transaction], object], ...] = (
        lambda tx: tx.create_table("n", COLUMNS),
        lambda tx: (tx.create_table("m", COLUMNS), tx.rename_table("m", "n")),
    )
    for give in giving:
        tx = db.begin(fresh=True)
        give(tx)
        other.create_table("n", COLUMNS)
        with pytest.raises(TableExistsError, match=r"default\.n"):
            tx.commit()
        db.drop_table("n")
    tx = db.begin(fresh=True)
    tx.create_table("fresh", COLUMNS)
    tx.insert("fresh", rows(1))
    other.create_table("fresh", COLUMNS)
    other.drop_table("fresh")
    with pytest.raises(TableExistsError):
        tx.commit()
    assert [row["name"] for row in db.tables()] == []


def test_a_drop_ends_the_transactions_that_use_or_define_the_table(dbs: list[Database]) -> None:
    """They are told at their next statement, or at their commit, with the reason."""
    db, other = dbs[0], dbs[1]
    db.create_table("t", COLUMNS)
    db.create_table("u", COLUMNS)
    opened = [other.begin(fresh=True), other.begin(fresh=True)]
    opened[0].insert("t", rows(1))
    opened[1].rename_table("t", "v")
    with db.begin() as tx:
        tx.drop_table("t")
        tx.insert("u", rows(7))
    for one in opened:
        with pytest.raises(TidelockError, match="dropped"):
            one.commit()
    assert at(other, tx.csn or 0) == {"default.u": [7]}


def test_a_serializable_transaction_has_read_the_names_that_it_asked_for(dbs: list[Database]) -> None:
    """A table that was not there, and is there now, is a conflict; one that nobody asked for is none."""
    db, other = dbs[0], dbs[1]
    db.create_table("log", COLUMNS)
    tx = db.begin(isolation="serializable", fresh=True)
    if not tx.drop_table("flag", if_exists=True):
        tx.insert("log", rows(1))
    other.create_table("flag", COLUMNS)
    with pytest.raises(SerializationConflictError, match=r"a table default\.flag"):
        tx.commit()
    with db.begin(isolation="serializable", fresh=True) as tx:
        tx.drop_table("no_such", if_exists=True)
        tx.create_table("b", COLUMNS)
        tx.insert("b", rows(2))
        assert keys(tx, "b") == [2]
        other.create_table("c", COLUMNS)
    assert keys(db, "b") == [2]


def test_many_entries_go_to_a_manifest_and_definitions_stay(dbs: list[Database]) -> None:
    """Thousands of parts of tables that the transaction creates: what a record holds is the definitions."""
    db = dbs[0]
    many = pa.table({"k": pa.array(range(900), pa.int64()), "p": [str(n) for n in range(900)]})
    with db.begin() as tx:
        tx.create_table("wide", {"k": "bigint not null", "p": "string"}, partition_by=["p"])
        tx.insert("wide", many)
        tx.rename_table("wide", "wider")
        tx.create_table("small", COLUMNS)
        tx.insert("small", rows(1))
    for other in dbs:
        with other.snapshot(csn=tx.csn) as snapshot:
            assert snapshot.read("wider").num_rows == many.num_rows
            assert len(snapshot.parts("wider")) == many.num_rows
            assert snapshot.read("small")["k"].to_pylist() == [1]


def test_a_closed_transaction_takes_no_definition(dbs: list[Database]) -> None:
    """After the commit, and after a rollback, nothing is created."""
    db = dbs[0]
    with db.begin() as tx:
        tx.create_table("a", COLUMNS)
    with pytest.raises(TransactionClosedError):
        tx.create_table("b", COLUMNS)
    with pytest.raises((TransactionClosedError, NotCommittedError)):
        tx.drop_table("a")
    assert [row["name"] for row in db.tables()] == ["default.a"]


def test_a_table_gets_the_columns_and_rows_of_a_query(dbs: list[Database]) -> None:
    """Alone and in a transaction, with partitions and parameters; a query over itself replaces it."""
    db = dbs[0]
    db.create_table("orders", {"k": "bigint not null", "city": "string", "price": "decimal(9,2)"})
    db.insert("orders", pa.table({"k": [1, 2, 3], "city": ["a", "b", "a"], "price": [1, 2, 3]}))
    made = db.create_table(
        "totals",
        sql="select city, count(*) as n, sum(price) as total, max(k) as k from orders where k > ? group by 1",
        params=[0],
        partition_by=["city"],
        properties={"comment": "by city"},
    )
    assert isinstance(made, CommittedTable)
    assert (made.rows, made.partition_by, made.properties) == (2, ["city"], {"comment": "by city"})
    assert [(column.name, column.type) for column in made.columns] == [
        ("city", "string"), ("n", "bigint"), ("total", "decimal(38,2)"), ("k", "bigint")
    ]  # fmt: skip
    for other in dbs:
        found = other.read("totals", csn=made.csn).sort_by("city").to_pylist()
        assert [(row["city"], row["n"], row["total"]) for row in found] == [("a", 2, 4), ("b", 1, 2)]
        with pytest.raises(UnknownTableError):
            other.read("totals", csn=made.csn - 1)
    again = db.create_table("totals", sql="select k, n from totals where n > 1", or_replace=True)
    assert isinstance(again, CommittedTable)
    assert (again.rows, keys(db, "totals")) == (1, [3])
    same = db.create_table("totals", sql="select 1 as k", if_not_exists=True)
    assert isinstance(same, TableInfo)
    with db.begin() as tx:
        tx.create_table("own", COLUMNS)
        tx.insert("own", rows(7, 8))
        copied = tx.create_table("copy", sql="select k from own where k = 8")
        assert isinstance(copied, DefinedTable)
        assert (copied.rows, keys(tx, "copy")) == (1, [8])
        tx.create_table("own", sql="select k * 10 as k from own", or_replace=True)
        assert keys(tx, "own") == [70, 80]
        tx.insert("copy", rows(9))
        tx.create_table("copy", sql="select k from copy where k < 9", or_replace=True)
        assert keys(tx, "copy") == [8]
        with pytest.raises(TableExistsError):
            tx.create_table("copy", sql="select 1 as k")
        with pytest.raises(BadRequestError):
            tx.create_table("bad", sql="delete from own")
        with pytest.raises(UnknownTableError):
            tx.create_table("bad", sql="select * from no_such")
    result = tx.commit()
    assert result.rows_inserted == 7
    assert at(db, tx.csn or 0)["default.copy"] == [8]
    assert at(db, tx.csn or 0)["default.own"] == [70, 80]
    assert "default.bad" not in at(db, tx.csn or 0)
    with pytest.raises(BadRequestError, match="needs columns"):
        db.create_table("none")


def test_a_dropped_table_comes_back_with_its_rows(dbs: list[Database]) -> None:
    """The same table: its earlier history, no table in between, its changes, and no byte written again."""
    db = dbs[0]
    db.create_table("t", COLUMNS, properties={"unique_key": "k", "comment": "kept"})
    db.insert("t", rows(1, 2))
    before = db.insert("t", rows(3)).csn or 0
    first = db.drop_table("t") or 0
    db.create_table("t", {"x": "string"})
    second = db.drop_table("t") or 0
    db.create_table("t", {"y": "string"})
    with pytest.raises(TableExistsError, match="give another one"):
        db.undrop_table("t", csn=first)
    back = db.undrop_table("t", to="sales.t", csn=first)
    assert (back.name, back.rows, back.properties["comment"]) == ("sales.t", 3, "kept")
    for other in dbs:
        with other.snapshot(csn=back.csn) as snapshot:
            assert sorted(snapshot.read("sales.t")["k"].to_pylist()) == [1, 2, 3]
        assert sorted(other.read("t", csn=before)["k"].to_pylist()) == [1, 2, 3]
        for csn in (first, second, back.csn - 1):
            with pytest.raises(UnknownTableError):
                other.table("sales.t", csn=csn)
        assert other.table("t", csn=second - 1).columns[0].name == "x"
    with pytest.raises(DuplicateKeyError):
        db.insert("sales.t", rows(3))
    db.insert("sales.t", rows(4))
    gone_again = db.drop_table("sales.t") or 0
    with db.begin() as tx:
        tx.undrop_table("sales.t")
        tx.insert("sales.t", rows(5))
        tx.rename_table("sales.t", "u")
        assert keys(tx, "u") == [1, 2, 3, 4, 5]
    assert keys(db, "u") == [1, 2, 3, 4, 5]
    with pytest.raises(UnknownTableError, match="was dropped"):
        db.undrop_table("never_dropped")
    with pytest.raises(UnknownTableError):
        db.undrop_table("sales.t", csn=gone_again + 1)


def test_a_dropped_table_without_its_history_stays_gone(dbs: list[Database]) -> None:
    """Its parts may have been deleted on any replica: the error says so; so does one about its source."""
    db = dbs[0]
    db.create_table("s", COLUMNS)
    db.create_table("d", COLUMNS, derived_from="s", derived_sql="select k + 1 as k from inserted")
    db.insert("s", rows(1))
    db.drop_table("d")
    db.drop_table("s")
    with pytest.raises(BadRequestError, match=r"derived from default\.s"):
        db.undrop_table("d")
    with db.begin(fresh=True) as tx:
        tx.undrop_table("s")
        tx.undrop_table("d")
        tx.insert("s", rows(2))
    assert at(db, tx.csn or 0) == {"default.d": [2, 3], "default.s": [1, 2]}
    db.drop_table("d")
    last = db.drop_table("s") or 0
    db.create_table("other", COLUMNS)
    eventually(lambda: db.raise_horizon(last + 1, drop_pins=True).horizon > last)
    eventually(lambda: (db.status().horizon or 0) > last)
    with pytest.raises(SnapshotTooOldError, match="horizon"):
        db.undrop_table("s")


def test_the_command_line_brings_tables_back_and_makes_namespaces(
    local: LocalCluster, dbs: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a query, dropped, back under another name; a namespace is dropped with its tables."""
    monkeypatch.setenv("TIDELOCK_URL", local.url("r1"))
    monkeypatch.setenv("NO_COLOR", "1")

    def say(*words: str) -> str:
        done = CliRunner().invoke(cli.app, [*words, "--replica", "r1"])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "with 2 rows" in say("create-table", "t", "--sql", "select unnest([1, 2]) as k")
    say("drop-table", "t")
    assert say("create-namespace", "sales", "--comment", "shops").startswith("namespace sales created")
    assert say("create-namespace", "sales", "--if-not-exists") == "namespace sales exists already\n"
    back = json.loads(say("undrop-table", "t", "--to", "sales.t", "--json"))
    assert (back["name"], back["rows"]) == ("sales.t", 2)
    assert sorted(dbs[0].read("sales.t", csn=back["csn"])["k"].to_pylist()) == [1, 2]
    found = json.loads(say("namespaces", "--json"))
    assert {one["name"]: one["tables"] for one in found} == {"default": 0, "sales": 1}
    assert "shops" in say("namespaces")
    assert say("drop-namespace", "sales", "--cascade").startswith("namespace sales dropped")
    assert say("drop-namespace", "sales", "--if-exists") == "namespace sales does not exist\n"


def spaces(db: Database, csn: int | None = None) -> dict[str, tuple[str, int]]:
    """Return the comments of namespaces, and the numbers of their tables."""
    return {one.name: (one.properties.get("comment", ""), one.tables) for one in db.namespaces(csn=csn)}


def test_namespaces_exist_with_and_without_tables(dbs: list[Database]) -> None:
    """Created, listed at each CSN, filled by renames, and dropped, alone or with their tables."""
    db = dbs[0]
    assert spaces(db) == {"default": ("", 0)}
    created = db.create_namespace("sales", properties={"comment": "all of them"}) or 0
    assert db.create_namespace("sales", if_not_exists=True) is None
    with pytest.raises(BadRequestError, match="sales exists already"):
        db.create_namespace("sales")
    for wrong in ("default", "No Name", "system"):
        with pytest.raises(BadRequestError):
            db.drop_namespace(wrong)
    with pytest.raises(BadRequestError, match="known is comment"):
        db.create_namespace("x", properties={"colour": "red"})
    db.create_table("a", COLUMNS)
    moved = db.rename_table("a", "sales.a").csn
    db.create_table("shop.b", COLUMNS)
    derived = db.create_table(
        "sales.d", COLUMNS, derived_from="sales.a", derived_sql="select k from inserted"
    )
    for other in dbs:
        assert spaces(other, created) == {"default": ("", 0), "sales": ("all of them", 0)}
        assert spaces(other, created - 1) == {"default": ("", 0)}
        assert spaces(other, moved) == {"default": ("", 0), "sales": ("all of them", 1)}
        assert spaces(other, derived["csn"]) == {
            "default": ("", 0), "sales": ("all of them", 2), "shop": ("", 1)
        }  # fmt: skip
        assert "sales." not in [row.name for row in other.tables(csn=derived["csn"])]
    with pytest.raises(BadRequestError, match=r"has tables: sales\.a, sales\.d"):
        db.drop_namespace("sales")
    gone = db.drop_namespace("sales", cascade=True) or 0
    db.drop_namespace("shop", cascade=True)
    assert db.drop_namespace("shop", if_exists=True) is None
    for other in dbs:
        assert spaces(other, gone) == {"default": ("", 0), "shop": ("", 1)}
        assert at(other, gone - 1).keys() == {"sales.a", "sales.d", "shop.b"}
    with db.begin() as tx:
        tx.create_namespace("sales", properties={"comment": "again"})
        tx.create_table("sales.c", COLUMNS)
        tx.insert("sales.c", rows(1))
        assert keys(tx, "sales.c") == [1]
    assert spaces(db) == {"default": ("", 0), "sales": ("again", 1)}
    with db.begin(fresh=True) as tx:
        tx.drop_table("sales.c")
        tx.drop_namespace("sales")
    late = dbs[1].begin(fresh=True)
    late.create_namespace("busy")
    late.commit()
    dropping = db.begin(fresh=True)
    dropping.drop_namespace("busy")
    dbs[2].create_table("busy.t", COLUMNS)
    with pytest.raises(TableExistsError, match=r"busy\.t came into it"):
        dropping.commit()
    db.drop_namespace("busy", cascade=True)
    assert spaces(db) == {"default": ("", 0)}
