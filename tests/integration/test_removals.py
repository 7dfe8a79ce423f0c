"""Statements that remove whole partitions, on three replicas: remaining rows, conflicts, older snapshots.

Two clients stand for two sessions, with their homes at different replicas: nothing but ZooKeeper keeps their
removals apart.
"""

from __future__ import annotations

import datetime as dt
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.waiting import eventually
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    SchemaMismatchError,
    SerializationConflictError,
    TransactionClosedError,
    UnknownTableError,
)

SCHEMA = pa.schema([pa.field("y", pa.int32()), pa.field("n", pa.int64(), nullable=False)])
NUMBERS = itertools.count(1)
REPLICAS = ("r1", "r2", "r3")

Statement = Callable[[Transaction, str], Any]


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(settings={**QUICK, "lock_wait_s": 0.0})


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


def rows(year: int | None, *numbers: int) -> pa.Table:
    """Return rows of one partition."""
    return pa.table({"y": [year] * len(numbers), "n": numbers}, SCHEMA)


@pytest.fixture
def table(one: Database) -> str:
    """A table with the partitions 1, 2 and null."""
    name = f"t{next(NUMBERS)}"
    one.create_table(name, SCHEMA, partition_by=["y"])
    one.insert(name, rows(1, 10, 11))
    one.insert(name, rows(1, 12))
    one.insert(name, rows(2, 20))
    one.insert(name, rows(None, 90), wait="all")
    return name


def numbers(db: Database | Transaction, table: str) -> list[int]:
    """Return what is in the table."""
    return sorted(db.read(table, ["n"])["n"].to_pylist())


def shared(local: LocalCluster, replica: str, table: str) -> int:
    """Return how many parts of a table have their place in a file together with the part of their bytes."""
    sql = """
        SELECT count(*) FROM parts p JOIN parts o ON o.part = p.source
        WHERE (o.file, o.offset) = (p.file, p.offset) AND p.table_name = ?
    """
    with closing(sqlite3.connect(f"file:{local.data_dir(replica) / 'catalog.db'}?mode=ro", uri=True)) as db:
        return int(db.execute(sql, (f"default.{table}",)).fetchone()[0])


def test_each_statement_alone_leaves_older_snapshots_their_rows(
    one: Database, two: Database, table: str
) -> None:
    """An older snapshot keeps the removed rows; a newer one sees the rest, on every replica."""
    with one.snapshot() as before:
        one.drop_partition(table, {"y": 1}, wait="all")
        assert numbers(two, table) == [20, 90]
        one.drop_partition(table, {"y": None}, wait="all")
        assert numbers(two, table) == [20]
        one.replace_partition(table, {"y": 2}, rows(2, 21, 22), wait="all")
        assert numbers(two, table) == [21, 22]
        one.truncate(table, wait="all")
        assert numbers(two, table) == []
        assert sorted(before.read(table)["n"].to_pylist()) == [10, 11, 12, 20, 90]
    assert one.insert(table, rows(1, 13)).csn is not None
    assert numbers(one, table) == [13]


def test_in_one_transaction_over_two_tables(one: Database, two: Database, table: str) -> None:
    """Own removals and own rows are seen inside only; after the commit they are visible at once."""
    other = f"{table}_b"
    one.create_table(other, SCHEMA, partition_by=["y"])
    with one.begin() as tx:
        removed = tx.drop_partition(table, {"y": 1})
        assert (removed.rows, removed.parts) == (3, 2)
        tx.insert(table, rows(1, 14))
        tx.insert(other, rows(7, 70))
        assert numbers(tx, table) == [14, 20, 90]
        assert numbers(two, table) == [10, 11, 12, 20, 90]
        assert tx.truncate(table).rows == 3  # own rows are dropped with the others
        tx.insert(table, rows(3, 30))
        assert numbers(tx, table) == [30]
        tx.commit(wait="all")
    assert (numbers(two, table), numbers(two, other)) == ([30], [70])
    record = next(r for r in one.log(tx.csn) if r["csn"] == tx.csn)
    entries = [entry["action"] for entry in record["tids"][0]["entries"]]
    found = (entries.count("RemovePart"), entries.count("AddPart"))
    assert found == (4, 2), "what was added and removed is not announced"


def test_move_partition_changes_tables_and_rewrites_nothing(
    local: LocalCluster, one: Database, two: Database, table: str
) -> None:
    """The rows change tables in one commit, own uncommitted ones too; no replica writes or fetches them."""
    other = f"{table}_b"
    one.create_table(other, SCHEMA, partition_by=["y"])
    with one.begin() as tx:
        tx.insert(table, rows(1, 15))
        assert tx.move_partition(table, {"y": 1}, into=other).rows == 4
        assert (numbers(tx, table), numbers(tx, other)) == ([20, 90], [10, 11, 12, 15])
        tx.commit(wait="all")
    for replica in (one, two):
        assert (numbers(replica, table), numbers(replica, other)) == ([20, 90], [10, 11, 12, 15])
    for place in REPLICAS:
        assert shared(local, place, other) >= 2, f"{place} has fetched bytes that it has"
    two.truncate(table, wait="all")  # the files are shared; the rows of the other table stay
    assert numbers(one, other) == [10, 11, 12, 15]


def test_move_needs_equal_tables(one: Database, table: str) -> None:
    """A move between different tables is refused, and its transaction is over."""
    other = f"{table}_b"
    one.create_table(other, SCHEMA.remove(1).append(pa.field("n", pa.int64())), partition_by=["y"])
    for into in (other, table):
        with pytest.raises(BadRequestError):
            one.move_partition(table, {"y": 1}, into=into)
    with pytest.raises(UnknownTableError):
        one.move_partition(table, {"y": 1}, into="nowhere")
    assert numbers(one, table) == [10, 11, 12, 20, 90]


@pytest.mark.parametrize(
    "partition", [{}, {"n": 1}, {"y": 1, "n": 2}, {"y": "x"}, {"y": ""}, {"y": "01"}, {"y": [1]}, {"y": 1.5}]
)
def test_a_removal_that_names_no_partition_is_refused(
    one: Database, table: str, partition: dict[str, Any]
) -> None:
    """Values that name no partition are refused with the reason."""
    with pytest.raises((BadRequestError, SchemaMismatchError), match=r"partition|column"):
        one.drop_partition(table, partition)


def test_a_partition_without_rows(one: Database, table: str) -> None:
    """A partition without rows is dropped by an empty transaction."""
    assert one.drop_partition(table, {"y": 5}).csn is None


def test_rows_of_another_partition(one: Database, table: str) -> None:
    """A replacement with rows of another partition is refused; the old rows stay."""
    with pytest.raises(SchemaMismatchError, match="y=2"):
        one.replace_partition(table, {"y": 1}, rows(2, 1))
    assert numbers(one, table) == [10, 11, 12, 20, 90]


def test_partitions_by_date_and_text(one: Database) -> None:
    """Partitions are named by Python values: dates and texts."""
    name = f"t{next(NUMBERS)}"
    schema = pa.schema([("d", pa.date32()), ("s", pa.string()), ("n", pa.int64())])
    one.create_table(name, schema, partition_by=["d", "s"])
    day = dt.date(2026, 2, 28)
    one.insert(name, pa.table({"d": [day, day], "s": ["a/b=c", "ä"], "n": [1, 2]}, schema))
    one.drop_partition(name, {"d": day, "s": "a/b=c"})
    assert numbers(one, name) == [2]


STATEMENTS: dict[str, Statement] = {
    "drop": lambda tx, table: tx.drop_partition(table, {"y": 1}),
    "truncate": lambda tx, table: tx.truncate(table),
    "replace": lambda tx, table: tx.replace_partition(table, {"y": 1}, rows(1, 99)),
}


@pytest.mark.scenario("S15")
@pytest.mark.parametrize("first", STATEMENTS)
@pytest.mark.parametrize("second", STATEMENTS)
def test_the_first_locker_wins(one: Database, two: Database, table: str, first: str, second: str) -> None:
    """For any two statements on one partition the second is refused at once, and can only be rolled back."""
    winner, loser = one.begin(), two.begin()
    STATEMENTS[first](winner, table)
    with pytest.raises(SerializationConflictError) as refused:
        STATEMENTS[second](loser, table)
    assert refused.value.details["holder"] == winner.tid
    assert refused.value.details["table"] == f"default.{table}"
    with pytest.raises(TransactionClosedError):
        loser.insert(table, rows(1, 1))
    loser.rollback()
    winner.commit(wait="all")
    late = two.begin()  # the commit is in its snapshot
    late.truncate(table)
    late.commit()


def test_removed_since_the_snapshot(one: Database, two: Database, table: str) -> None:
    """A removal that was committed after the snapshot is a conflict, also when its lock is gone."""
    late = two.begin()
    one.drop_partition(table, {"y": 1}, wait="all")
    with pytest.raises(SerializationConflictError):
        late.truncate(table)
    late.rollback()


@pytest.mark.scenario("S16")
def test_disjoint_partitions_both_win(one: Database, two: Database, table: str) -> None:
    """Removals of different partitions through different replicas both win."""
    a, b = one.begin(), two.begin()
    a.drop_partition(table, {"y": 1})
    b.drop_partition(table, {"y": 2})
    b.insert(table, rows(1, 13))  # inserts never conflict
    b.commit(wait="all")
    a.commit(wait="all")
    assert numbers(one, table) == [13, 90]


def test_a_rollback_leaves_nothing(local: LocalCluster, one: Database, two: Database, table: str) -> None:
    """A rollback deletes locks and marks: another transaction can remove the same rows at once."""
    twin = f"{table}_twin"
    one.create_table(twin, SCHEMA, partition_by=["y"])
    tx = one.begin()
    tx.move_partition(table, {"y": 1}, into=twin)
    tx.rollback()
    two.drop_partition(table, {"y": 1}, wait="all")
    assert numbers(one, table) == [20, 90]
    for replica in REPLICAS:
        nothing_left(local.data_dir(replica))


@pytest.mark.parametrize("how", ["kill", "lease"])
def test_a_transaction_ended_by_others_holds_nothing(
    one: Database, two: Database, table: str, how: str
) -> None:
    """A killed transaction, and one whose lease has ended, hold no locks any more."""
    tx = one.begin(lease=2 if how == "lease" else None)
    tx.truncate(table)
    if how == "kill":
        two.kill(tx.tid)
    else:
        tx._connection.leases.remove(tx)

    def free() -> bool:
        try:
            two.drop_partition(table, {"y": 1})
        except SerializationConflictError:
            return False
        return True

    eventually(free)
    with pytest.raises(TransactionClosedError):
        tx.commit()
    assert numbers(two, table) == [20, 90]
