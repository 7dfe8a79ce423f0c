"""Tables with a unique key, and tables that follow the inserts into others, on three replicas.

Two clients stand for two sessions, with their homes at different replicas: nothing but ZooKeeper keeps their
keys apart.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.lock_reading import locks
from tests.support.histories.evidence import nothing_left
from tests.support.waiting import eventually
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    DuplicateKeyError,
    RefusedError,
    SchemaMismatchError,
    SerializationConflictError,
    TableChangedError,
    TooLargeError,
    UnknownTableError,
    UnsupportedInTransactionError,
)

NUMBERS = itertools.count(1)
KEYED = pa.schema(
    [
        pa.field("p", pa.int32(), nullable=False),
        pa.field("k", pa.int64(), nullable=False),
        ("v", pa.int64()),
    ]
)
SUMS = pa.schema([("p", pa.int32()), ("total", pa.int64())])
SETTINGS = {
    **QUICK,
    "sql_workers": 1,  # an insert may need several processes in turn, but never two at once
    "lock_wait_s": 0.0,
    "derived_depth_max": 2,
    # Locks of committed transactions are deleted as early as possible.
    "log_keep_records": 1,
    "horizon_interval_s": 0.2,
    "lock_sweep_interval_s": 0.2,
    "clean_interval_s": 1,
}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(settings=SETTINGS)


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


def rows(*given: tuple[int, int, int | None]) -> pa.Table:
    """Return rows (p, k, v)."""
    return pa.Table.from_pylist([dict(zip(KEYED.names, row, strict=True)) for row in given], KEYED)


def found(db: Database | Transaction, table: str) -> list[tuple[Any, ...]]:
    """Return the rows in a table."""
    return sorted(tuple(row.values()) for row in db.read(table).to_pylist())


def all_clean(local: LocalCluster) -> None:
    """Require that no replica holds anything that no commit needs."""
    for replica in ("r1", "r2", "r3"):
        nothing_left(local.data_dir(replica))


@pytest.fixture
def keyed(one: Database) -> Callable[..., str]:
    """A function that makes a table, unique by k and p, partitioned by p, with some rows on all replicas."""

    def make(on_duplicate: str = "refuse", *given: tuple[int, int, int | None]) -> str:
        name = f"t{next(NUMBERS)}"
        properties = {"unique_key": "k,p", "on_duplicate": on_duplicate}
        one.create_table(name, KEYED, partition_by=["p"], sort_by=["v", "k"], properties=properties)
        one.insert(name, rows(*(given or ((1, 1, 10), (1, 2, 20), (2, 1, 30)))), wait="all")
        return name

    return make


# -- unique keys


def test_duplicates_are_refused_with_their_key_by_every_statement(
    local: LocalCluster, one: Database, two: Database, keyed: Callable[..., str]
) -> None:
    """Every statement that adds rows refuses a duplicate and names its key; nothing is left behind."""
    table = keyed()
    before = found(two, table)

    def twice(tx: Transaction) -> None:
        tx.insert(table, rows((1, 3, 0)))
        tx.insert(table, rows((1, 3, 0)))

    statements: list[tuple[Callable[[Transaction], object], tuple[str, str]]] = [
        (lambda tx: tx.insert(table, rows((1, 3, 0), (1, 2, 0))), ("2", "1")),
        (lambda tx: tx.insert(table, rows((1, 3, 0), (1, 3, 1))), ("3", "1")),
        (
            lambda tx: tx.replace_partition(table, {"p": 2}, rows((2, 1, 31), (2, 5, 0), (2, 5, 1))),
            ("5", "2"),
        ),
        (lambda tx: tx.sql(f"insert into {table} select p, k, 0 from {table} where k = 2"), ("2", "1")),
        (twice, ("3", "1")),
    ]
    for statement, key in statements:
        with pytest.raises(DuplicateKeyError) as caught, one.begin() as tx:
            statement(tx)
        details = caught.value.details
        assert details["key"] == dict(zip(("k", "p"), key, strict=True))
        assert (details["table"], details["keys"]) == (f"default.{table}", 1)
        assert found(two, table) == before
    all_clean(local)


def test_what_is_no_duplicate(one: Database, two: Database, keyed: Callable[..., str]) -> None:
    """Keys of another partition, removed keys, and keys of a dropped partition are no duplicates."""
    table = keyed()
    with two.begin() as tx:
        assert tx.insert(table, rows((2, 2, 40), (2, 3, 50))).rows == 2
        tx.delete(table, "k = 1 and p = 1")
        tx.insert(table, rows((1, 1, 11)))
        tx.replace_partition(table, {"p": 2}, rows((2, 1, 31)))
        tx.sql(f"insert into {table} select 3, k, v from {table} where p = 1")
        tx.insert(table, rows())
    expected = [(1, 1, 11), (1, 2, 20), (2, 1, 31), (3, 1, 11), (3, 2, 20)]
    assert (found(two, table), tx.commit(wait="all").tid) == (expected, tx.tid)
    assert found(one, table) == expected


def test_duplicates_are_replaced_by_the_last_row(
    local: LocalCluster, one: Database, two: Database, keyed: Callable[..., str]
) -> None:
    """New rows replace old ones, also those of the transaction; of several new ones the last counts."""
    table = keyed("replace")
    with one.begin() as tx:
        assert tx.insert(table, rows((1, 2, 99), (1, 3, 1), (1, 2, 21), (1, 3, 0))).rows == 2
        tx.insert(table, rows((1, 3, 5), (1, 4, None)))
        tx.upsert(table, rows((1, 4, 6)), on=["k", "p"])
        assert found(tx, table) == [(1, 1, 10), (1, 2, 21), (1, 3, 5), (1, 4, 6), (2, 1, 30)]
        tx.commit(wait="all")
    assert found(two, table) == [(1, 1, 10), (1, 2, 21), (1, 3, 5), (1, 4, 6), (2, 1, 30)]
    all_clean(local)


@pytest.mark.parametrize("kind", ["refuse", pytest.param("replace", marks=pytest.mark.slow)])
def test_overlapping_inserts_conflict_and_disjoint_ones_win(
    one: Database, two: Database, keyed: Callable[..., str], kind: str
) -> None:
    """The first insert into a range of keys wins, before and after its commit; disjoint ones all win."""
    table = keyed(kind)
    first, second, late, apart = one.begin(), two.begin(), two.begin(), two.begin()
    first.insert(table, rows((1, 10, 0), (1, 20, 0)))
    with pytest.raises(SerializationConflictError, match=f"is being changed by transaction {first.tid}"):
        second.insert(table, rows((1, 15, 0)))
    second.rollback()
    with pytest.raises(SerializationConflictError), two.begin() as other:
        other.upsert(table, rows((1, 15, 0)), on=["p", "k"])
    apart.insert(table, rows((1, 21, 0), (1, 30, 0)))
    first.commit(wait="all")
    apart.commit(wait="all")
    with pytest.raises(SerializationConflictError):
        late.insert(table, rows((1, 20, 1)))
    late.rollback()
    if kind == "refuse":
        with pytest.raises(DuplicateKeyError):
            two.insert(table, rows((1, 20, 1)))
    else:
        two.insert(table, rows((1, 20, 1)))
    assert [k for p, k, _ in found(two, table) if p == 1] == [1, 2, 10, 20, 21, 30]


@pytest.mark.slow
def test_rows_added_since_the_snapshot(
    local: LocalCluster, one: Database, two: Database, keyed: Callable[..., str]
) -> None:
    """Rows that were added since conflict, also without a lock, and after their removal."""
    table = keyed()
    late, apart = two.begin(), two.begin()
    one.insert(table, rows((1, 10, 0), (1, 20, 0)), wait="all")
    one.delete(table, "k = 15 or k = 20", wait="all")
    one.insert(table, rows((9, 99, 0)), wait="all")  # the tail keeps the last record
    eventually(lambda: len(locks(local.zk, table)) <= 1)
    with pytest.raises(SerializationConflictError, match="rows were added to table"):
        late.insert(table, rows((1, 20, 1)))
    late.rollback()
    apart.insert(table, rows((1, 21, 1)))
    apart.commit(wait="all")
    assert [k for _, k, _ in found(one, table)] == [1, 2, 10, 21, 1, 99]


@pytest.mark.slow
def test_removals_beside_inserts_do_not_conflict(
    one: Database, two: Database, keyed: Callable[..., str]
) -> None:
    """An insert and a removal do not conflict: both win. A key of the insert's snapshot is a duplicate."""
    table = keyed()
    removing, inserting, refused = one.begin(), two.begin(), two.begin()
    removing.drop_partition(table, {"p": 1})
    removing.delete(table, "k = 1")
    inserting.insert(table, rows((1, 7, 70)))
    with pytest.raises(DuplicateKeyError):
        refused.insert(table, rows((1, 2, 0)))
    refused.rollback()
    removing.commit()
    inserting.commit(wait="all")
    assert found(two, table) == [(1, 7, 70)]


@pytest.mark.slow
def test_keys_do_not_change(one: Database, keyed: Callable[..., str]) -> None:
    """An update of a key column is refused by name; other columns can be updated."""
    table, plain = keyed(), f"t{next(NUMBERS)}"
    one.create_table(plain, KEYED, partition_by=["p"], sort_by=["v", "k"])
    one.update(table, {"v": "v + 1"}, where="k = 1 and p = 1")
    new = rows((1, 1, 5), (1, 9, 6))
    changes: list[tuple[str, Callable[[Transaction], object]]] = [
        ("k is a column of the unique key", lambda tx: tx.update(table, {"k": "k + 1"})),
        ("unique by k, p; .* found k$", lambda tx: tx.upsert(table, new, on=["k"])),
        (
            "p is a column of the unique key .* merge",
            lambda tx: tx.merge(
                table, new, on=["k", "p"], when_not_matched_insert={"k": "source.k", "p": "1", "v": "0"}
            ),
        ),
        (
            "several of the rows have the key k=9, p=1",
            lambda tx: tx.merge(
                table, rows((1, 9, 0), (1, 9, 1)), on=["p", "k"], when_not_matched_insert=True
            ),
        ),
    ]
    for message, change in changes:
        with pytest.raises(BadRequestError, match=message), one.begin() as tx:
            change(tx)
    with pytest.raises(UnsupportedInTransactionError, match="unique key"):
        one.move_partition(plain, {"p": 1}, table)
    one.merge(table, new, on=["p", "k"], when_matched_update={"v": "source.v"}, when_not_matched_insert=True)
    assert found(one, table) == [(1, 1, 5), (1, 2, 20), (1, 9, 6), (2, 1, 30)]


@pytest.mark.slow
def test_keys_of_every_type(one: Database, two: Database) -> None:
    """For each type equal values conflict and others do not; long texts lock all texts above them."""
    day = dt.date(2024, 2, 29)
    values: dict[pa.DataType, tuple[Any, ...]] = {
        pa.bool_(): (False, True),
        pa.int8(): (-128, 127),
        pa.decimal128(38, 3): (Decimal("-99999999999999999999999999999999999.999"), Decimal("0.001")),
        pa.string(): ("", "ü" * 64),
        pa.date32(): (day, day + dt.timedelta(1)),
        pa.timestamp("us", tz="UTC"): tuple(dt.datetime(y, 1, 1, tzinfo=dt.UTC) for y in (1900, 2100)),
        pa.timestamp("us"): tuple(dt.datetime(y, 1, 1) for y in (1900, 2100)),  # noqa: DTZ001
    }
    for kind, (low, high) in values.items():
        schema, table = (
            pa.schema([pa.field("k", kind, nullable=False), ("v", pa.int8())]),
            f"t{next(NUMBERS)}",
        )
        one.create_table(table, schema, properties={"unique_key": "k"})
        first, second, third = one.begin(), two.begin(min_csn=one.seen_csn), two.begin(min_csn=one.seen_csn)
        first.insert(table, pa.table({"k": [low], "v": [1]}, schema))
        second.insert(table, pa.table({"k": [high], "v": [2]}, schema))
        with pytest.raises(SerializationConflictError):
            third.insert(table, pa.table({"k": [low], "v": [3]}, schema))
        third.rollback()
        first.commit(wait="all")
        second.commit(wait="all")
        with pytest.raises(DuplicateKeyError):
            two.insert(table, pa.table({"k": [high], "v": [4]}, schema))


# -- derived tables


@pytest.fixture
def source(one: Database) -> str:
    """A table without rows, on all replicas."""
    name = f"s{next(NUMBERS)}"
    one.create_table(name, KEYED, partition_by=["p"])
    return name


def derive(db: Database, source: str, sql: str, schema: pa.Schema = SUMS, **more: Any) -> str:
    """Create a table derived from another; return its name."""
    name = f"d{next(NUMBERS)}"
    db.create_table(name, schema, derived_from=source, derived_sql=sql, **more)
    return name


def test_derived_rows_come_with_their_inserts(
    local: LocalCluster, one: Database, two: Database, source: str
) -> None:
    """Every kind of insert derives rows, to the second depth, also unique ones; all are visible at once."""
    sums = derive(one, source, "select p, sum(v) as total from inserted group by p -- by insert")
    unique = derive(
        one,
        source,
        "with i as (select p, k from inserted) select *, null as v from i;",
        KEYED,
        properties={"unique_key": "p,k"},
    )
    deep = derive(one, unique, "select p, count(*) as total from inserted group by all")
    first_csn = one.insert(source, rows((1, 1, 5), (1, 2, 6), (2, 1, 7)), wait="all").csn
    with two.begin(min_csn=one.seen_csn) as tx:
        tx.insert(source, rows((1, 3, 1)))
        tx.insert(source, rows())
        tx.replace_partition(source, {"p": 2}, rows((2, 4, 100)))
        tx.sql(f"insert into {source} select 3, k, v from {source} where p = 1 and k < 3")
        assert sorted(found(tx, sums)) == [(1, 1), (1, 11), (2, 7), (2, 100), (3, 11)]
        tx.delete(source, "k = 3")  # no rows are derived from it
    second_csn = tx.commit(wait="all").csn
    assert first_csn is not None
    assert second_csn is not None
    assert found(one, source) == [(1, 1, 5), (1, 2, 6), (2, 4, 100), (3, 1, 5), (3, 2, 6)]
    assert found(one, deep) == [(1, 1), (1, 2), (2, 1), (2, 1), (3, 2)]
    assert [k for _, k, _ in found(one, unique)] == [1, 2, 3, 1, 4, 1, 2]
    first = [(2, 11), (3, 7)], [(1, 2), (2, 1)]
    for csn in range(first_csn - 1, second_csn + 1):
        for db in (one, two):
            with db.snapshot(csn=csn) as snapshot:
                counting = [f"select count(*) as n from {name}" for name in (source, sums, unique, deep)]
                counts = snapshot.sql(" union all ".join(counting))["n"].to_pylist()
            assert counts in ([0, 0, 0, 0], [3, len(first[0]), 3, len(first[1])], [5, 5, 7, 5]), (csn, counts)
    with pytest.raises(DuplicateKeyError, match=f"derived from default.{source}"):
        one.insert(source, rows((9, 9, 9), (9, 9, 8)))
    assert found(one, source)[-1] == (3, 2, 6)
    all_clean(local)


def test_a_derived_query_that_fails(local: LocalCluster, one: Database, source: str) -> None:
    """The whole transaction fails with any error of the query, and leaves nothing."""
    derive(one, source, "select p, 10 // k as total from inserted where if(k = 0, error('zero'), true)")
    narrow = derive(
        one,
        source,
        "select p, v + 1 as total from inserted",
        pa.schema([("p", pa.int8()), ("total", pa.int64())]),
    )
    for message, kind, row in (
        ("zero", BadRequestError, (1, 0, 1)),
        ("column p of table .* is tinyint", SchemaMismatchError, (1000, 1, 1)),
    ):
        with pytest.raises(RefusedError, match=f"derived from default.{source}.*{message}") as caught:
            one.insert(source, rows(row))
        assert type(caught.value) is kind
    one.insert(source, rows((1, 1, 1)))
    assert (found(one, source), found(one, narrow)) == ([(1, 1, 1)], [(1, 2)])
    all_clean(local)


def test_inserts_that_began_before(one: Database, two: Database, source: str) -> None:
    """An insert that began before the derived table is refused at its commit; repeated, it derives rows."""
    before = two.begin(min_csn=one.seen_csn)
    before.insert(source, rows((1, 1, 1)))
    sums = derive(one, source, "select p, v as total from inserted")
    with pytest.raises(TableChangedError):
        before.commit()
    two.insert(source, rows((1, 1, 1)))
    assert found(two, sums) == [(1, 1)]
    tables = {table["name"]: table for table in one.tables()}
    assert tables[f"default.{source}"]["dependents"] == [f"default.{sums}"]
    assert tables[f"default.{sums}"]["derived_from"] == f"default.{source}"
    assert tables[f"default.{sums}"]["derived_sql"] == "select p, v as total from inserted"


def test_what_cannot_be_derived(one: Database, source: str, keyed: Callable[..., str]) -> None:
    """A wrong definition is refused before anything is created."""
    good = derive(one, source, "select p, v as total from inserted")
    deep = derive(one, good, "from inserted")
    cases: list[tuple[type[RefusedError], str, str, str | None]] = [
        (UnknownTableError, "there is no table default.nowhere", "nowhere", "from inserted"),
        (
            BadRequestError,
            "q is not in the table; .* total is missing",
            source,
            "select p, v as q from inserted",
        ),
        (
            BadRequestError,
            "column total is string, expected bigint",
            source,
            "select 'x' as total from inserted",
        ),
        (BadRequestError, "column total is double", source, "select avg(v) as total from inserted"),
        (BadRequestError, "cannot be run", source, "delete from inserted"),
        (BadRequestError, "cannot be run", source, "select nothing from inserted"),
        (BadRequestError, "needs both", source, None),
        (BadRequestError, "replaces rows", keyed("replace"), "select p, v as total from inserted"),
        (TooLargeError, "derived_depth_max=2", deep, "from inserted"),
    ]
    before = one.tables()
    for kind, message, of, sql in cases:
        with pytest.raises(kind, match=message):
            one.create_table("wrong", SUMS, derived_from=of, derived_sql=sql)
    assert [t["name"] for t in one.tables()] == [t["name"] for t in before]
