"""Merges, updates and deletes by Spark, compared with those of the agents on a clone of the same table."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.spark import spark35
from tests.support.spark.process import SparkJobError, SparkProcess
from tests.support.waiting import TIMEOUT_S
from tidelock.client import Database
from tidelock.cluster import LocalCluster

pytestmark = pytest.mark.spark

NUMBERS = itertools.count(1)
COUNTS = ("rows_deleted", "rows_updated", "rows_inserted")
#: 2,000 rows in 4 partitions, by several inserts: k from 0, a word that is null for some rows, an amount.
ROWS = pa.table(
    {
        "k": pa.array(range(2000), pa.int64()),
        "day": pa.array([number % 4 for number in range(2000)], pa.int32()),
        "word": pa.array([None if number % 7 == 0 else f"w{number % 50}" for number in range(2000)]),
        "v": pa.array([float("nan") if number % 11 == 0 else number / 4 for number in range(2000)]),
    }
)
#: Rows with new and known keys, as SQL that Spark and DuckDB share, by the numbers of the rows.
SOURCE = (
    "SELECT CAST({k} AS bigint) AS k, CAST(({k}) % 4 AS int) AS day, CONCAT('n', ({k}) % 9) AS word, "
    "CAST(({k}) % 3 AS double) AS v, ({k}) % 5 = 0 AS goes FROM range({first}, {end}) AS r(id)"
)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Three replicas; several small parts are listed as one file."""
    return module_cluster(settings={**QUICK, "lock_wait_s": 0.0})


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A session whose failed tasks are not tried again."""
    with SparkProcess("classic", tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture
def twins(local: LocalCluster, db: Database) -> Iterator[Callable[..., tuple[str, str]]]:
    """A function that makes a table and its clone; nothing may be left of what was refused."""

    def make(partition_by: Sequence[str] = ("day",), rows: pa.Table = ROWS, **more: Any) -> tuple[str, str]:
        table = f"t{next(NUMBERS)}"
        db.create_table(table, rows.schema, partition_by=[*partition_by], **more)
        for begin in range(0, rows.num_rows, 400):
            db.insert(table, rows.slice(begin, 400))
        db.clone_table(table, f"{table}_twin")
        return table, f"{table}_twin"

    yield make
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
    assert db.audit(timeout_s=TIMEOUT_S).findings == []


def counted(db: Database, table: str) -> Counter[tuple[Any, ...]]:
    """Return the rows of a table with their numbers; NaN as text, since it does not equal itself."""
    rows = db.read(table).to_pylist()
    return Counter(tuple("NaN" if v != v else str(v) for v in row.values()) for row in rows)  # noqa: PLR0124


def source(first: int, end: int, *, k: str = "id") -> str:
    """Return a query for rows of a merge."""
    return SOURCE.format(first=first, end=end, k=k)


def merge_of_both(
    local: LocalCluster, db: Database, spark: SparkProcess, twins: tuple[str, str], query: str, **how: Any
) -> None:
    """Merge by Spark, and by an agent into the twin; both have the same counts, and leave the same rows."""
    table, twin = twins
    ours = spark.call(
        "change", url=local.url("r1"), changes=[{"what": "merge", "table": table, "query": query, **how}]
    )[0]
    columns = "k, day, word, v" if how.get("when_not_matched_insert") is True else "*"
    rows = db.sql(f"SELECT {columns} FROM ({query})")
    if how.get("when_matched_update") is True and "goes" in rows.column_names:
        rows = rows.drop_columns(["goes"]) if how.get("when_matched_delete") is None else rows
    theirs = db.merge(twin, rows, **how)
    assert {name: ours[name] for name in COUNTS} == {name: getattr(theirs, name) for name in COUNTS}
    assert counted(db, table) == counted(db, twin)
    assert sum(ours[name] for name in COUNTS) > 0


@pytest.mark.parametrize("partition_by", [("day",), ()], ids=["partitioned", "in one folder"])
@pytest.mark.parametrize(
    "how",
    [
        {"when_matched_update": True},
        {"when_matched_update": {"v": "target.v + source.v", "word": "source.word"}},
        {"when_matched_update": {"v": "source.v"}, "when_matched_delete": "source.goes"},
        {"when_matched_delete": "source.goes AND target.word IS NOT NULL", "when_not_matched_insert": None},
        {"when_not_matched_insert": {"k": "source.k", "v": "source.v * 2", "day": "7"}},
    ],
    ids=["upsert", "values", "update or delete", "delete", "insert"],
)
def test_a_merge_leaves_the_rows_of_the_agents_merge(
    local: LocalCluster,
    db: Database,
    spark: SparkProcess,
    twins: Callable[..., tuple[str, str]],
    partition_by: Sequence[str],
    how: dict[str, Any],
) -> None:
    """Keys that are known, and keys that are new; NaN and null among the values."""
    merge_of_both(local, db, spark, twins(partition_by), source(1900, 2100), on=["k"], **how)


def test_nulls_in_keys_meet_nothing(
    local: LocalCluster, db: Database, spark: SparkProcess, twins: Callable[..., tuple[str, str]]
) -> None:
    """They are inserted, each time; a key of text and number together."""
    query = (
        "SELECT CAST(id AS bigint) AS k, CAST(id % 4 AS int) AS day, "
        "CASE WHEN id % 2 = 0 THEN CONCAT('w', id % 50) END AS word, 1.5D AS v FROM range(0, 20) AS r(id)"
    )
    merge_of_both(
        local, db, spark, twins(), query.replace("1.5D", "CAST(1.5 AS double)"), on=["word", "k"],
        when_matched_update={"v": "source.v"},
    )  # fmt: skip


@pytest.mark.parametrize("partition_by", [("day",), ()], ids=["partitioned", "in one folder"])
def test_updates_and_deletes_leave_the_rows_of_the_agents(
    local: LocalCluster,
    db: Database,
    spark: SparkProcess,
    twins: Callable[..., tuple[str, str]],
    partition_by: Sequence[str],
) -> None:
    """Some rows, none, all rows of a partition, and all; also a new value of the column of the partitions."""
    table, twin = twins(partition_by)
    changes: list[dict[str, Any]] = [
        {"what": "update", "values": {"v": "v + 1", "word": "'x'"}, "where": "k % 10 = 3"},
        {"what": "update", "values": {"day": "day + 10"}, "where": "word IS NULL"},
        {"what": "delete", "where": "word = 'x' OR k < 5"},
        {"what": "delete", "where": "k < 0"},
        {"what": "delete", "where": "day = 2"},
        {"what": "update", "values": {"v": "CAST(k AS double)"}},
        {"what": "delete", "where": "TRUE"},
    ]
    for change in changes:
        ours = spark.call("change", url=local.url("r2"), changes=[{"table": table, **change}])[0]
        how = {name: value for name, value in change.items() if name != "what"}
        theirs = getattr(db, change["what"])(twin, **how)
        assert {name: ours[name] for name in COUNTS} == {name: getattr(theirs, name) for name in COUNTS}
        assert counted(db, table) == counted(db, twin)
    assert db.read(table).num_rows == 0


def test_expressions_and_values_of_python(
    local: LocalCluster, db: Database, spark: SparkProcess, twins: Callable[..., tuple[str, str]]
) -> None:
    """A condition and a new value may be expressions of Spark; None is null."""
    rows = pa.table({"k": pa.array([1, 2, 3], pa.int64()), "v": pa.array([10, 20, 30], pa.int32())})
    table, _ = twins((), rows)
    done = spark.call("change_by_columns", url=local.url("r1"), table=table)
    assert [one["rows_updated"] for one in done] == [2, 1]
    assert sorted(db.read(table).to_pylist(), key=lambda row: row["k"]) == [
        {"k": 1, "v": 20},
        {"k": 2, "v": 40},
        {"k": 3, "v": None},
    ]


def test_rows_that_compaction_has_moved_are_changed_where_they_are(
    local: LocalCluster, db: Database, spark: SparkProcess, twins: Callable[..., tuple[str, str]]
) -> None:
    """The parts that Spark has found are gone; their rows are in newer ones, with others."""
    table, twin = twins(())
    change = {"what": "update", "table": table, "values": {"word": "'moved'"}, "where": "k < 10"}
    done = spark.call("change", url=local.url("r1"), changes=[change], optimize=table)[0]
    assert (done["rows_updated"], done["parts_removed"]) == (10, 1)
    db.update(twin, {"word": "'moved'"}, "k < 10")
    assert counted(db, table) == counted(db, twin)


def test_a_change_that_finds_nothing_is_a_change_all_the_same(
    local: LocalCluster, db: Database, spark: SparkProcess, twins: Callable[..., tuple[str, str]]
) -> None:
    """It sees no rows of its own transaction, so it is refused behind one that has them."""
    table, _ = twins()
    delete = {"what": "delete", "table": table, "where": "k = 5000"}
    with pytest.raises(SparkJobError, match="has changed table"):
        spark.call(
            "change",
            url=local.url("r1"),
            changes=[
                {
                    "what": "write",
                    "table": table,
                    "query": "SELECT 5000L AS k, 1 AS day, 'w' AS word, 1D AS v",
                },
                delete,
            ],
        )
    done = spark.call("change", url=local.url("r1"), changes=[delete])[0]
    assert sum(done.values()) == 0


def test_columns_are_found_whatever_their_case(
    local: LocalCluster, db: Database, spark: SparkProcess, twins: Callable[..., tuple[str, str]]
) -> None:
    """As in SQL; and a text that would be a null in the name of a folder is refused."""
    rows = pa.table(
        {"k": pa.array([1, 2], pa.int64()), "Word": ["a", "b"], "v": pa.array([1, 2], pa.int32())}
    )
    table, _ = twins(("Word",), rows)
    merge = {"what": "merge", "table": table, "on": "K", "when_matched_update": True}
    query = "SELECT 2L AS K, 'c' AS word, 20L AS V"
    done = spark.call("change", url=local.url("r1"), changes=[{**merge, "query": query}])[0]
    assert done["rows_updated"] == 1
    found = sorted(db.read(table).to_pylist(), key=lambda row: row["k"])
    assert found == [{"k": 1, "Word": "a", "v": 1}, {"k": 2, "Word": "c", "v": 20}]
    for text in ("", "__HIVE_DEFAULT_PARTITION__"):
        query = f"SELECT 3L AS k, '{text}' AS Word, 3 AS v"
        with pytest.raises(SparkJobError, match="partition column Word"):
            spark.call("change", url=local.url("r1"), changes=[{**merge, "query": query}])


def test_several_tables_change_in_one_transaction(
    local: LocalCluster, db: Database, spark: SparkProcess, twins: Callable[..., tuple[str, str]]
) -> None:
    """Or none of them: the second change of one table is refused."""
    one, _ = twins()
    two, _ = twins()
    changes: list[dict[str, Any]] = [
        {"what": "delete", "table": one, "where": "k < 100"},
        {"what": "merge", "table": two, "query": source(0, 100), "on": "k", "when_matched_update": True},
    ]
    with pytest.raises(SparkJobError, match=r"has changed table default.t[0-9]+ already"):
        spark.call("change", url=local.url("r1"), changes=[*changes, changes[0]])
    assert db.read(one).num_rows == db.read(two, where="word LIKE 'w%' OR word IS NULL").num_rows == 2000
    spark.call("change", url=local.url("r1"), changes=changes)
    assert db.read(one).num_rows == 1900
    assert db.read(two, where="word LIKE 'n%'").num_rows == 100


def test_a_part_that_another_transaction_changes_is_a_conflict(
    local: LocalCluster, db: Database, spark: SparkProcess, twins: Callable[..., tuple[str, str]]
) -> None:
    """It is told before the rows are written; what the other one does stays."""
    table, _ = twins()
    with db.begin() as tx:
        tx.delete(table, "k = 1")
        with pytest.raises(SparkJobError, match="SerializationConflictError"):
            spark.call(
                "change", url=local.url("r2"), changes=[{"what": "delete", "table": table, "where": "k < 3"}]
            )
    assert db.read(table).num_rows == 1999


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"what": "delete", "where": "rand() < 0.5"}, "CorruptError.*gives other rows each time"),
        ({"what": "update", "values": {"v": "0D"}, "where": "rand() < 0.5"}, "CorruptError.*other rows"),
        ({"what": "update", "values": {"day": "date'2020-01-01'"}}, "is int, but its new value is date"),
        (
            {"what": "merge", "query": "SELECT 1L AS k", "on": "k", "when_not_matched_insert": {}},
            "names no column",
        ),
        ({"what": "update", "values": {"day": "k * 3000000"}}, "is int, but a new value of it is"),
        ({"what": "update", "values": {"v": "raise_error('on purpose')"}}, "on purpose"),
        ({"what": "update", "values": {"nope": "1"}}, "nope is no column of table"),
        ({"what": "delete", "where": "nope = 1"}, "nope"),
        ({"what": "merge", "query": "SELECT 1L AS k", "on": "k"}, "lack columns of table.*day, word, v"),
        ({"what": "merge", "query": "SELECT 1L AS k", "on": "j"}, "on='j' is not a column of both"),
        (
            {"what": "merge", "query": "SELECT 1L AS k", "on": "k", "when_not_matched_insert": None},
            "a merge needs what to do",
        ),
        (
            {
                "what": "merge",
                "query": "SELECT 7L AS k, id AS v FROM range(2)",
                "on": "k",
                "when_matched_update": {"v": "source.v"},
                "when_not_matched_insert": None,
            },
            "several of the rows have the key k=7",
        ),
    ],
    ids=[
        "other rows each time", "other rows to update", "another kind of value", "no values",
        "a value that does not fit", "a job that fails", "an unknown column",
        "an unknown column of a condition", "missing columns", "no key", "nothing to do", "a key twice",
    ],
)  # fmt: skip
def test_a_change_that_cannot_be_made_changes_nothing(
    local: LocalCluster,
    db: Database,
    spark: SparkProcess,
    twins: Callable[..., tuple[str, str]],
    change: dict[str, Any],
    message: str,
) -> None:
    """The error has the reason."""
    table, twin = twins()
    with pytest.raises(SparkJobError, match=f"(?s){message}"):
        spark.call("change", url=local.url("r1"), changes=[{"table": table, **change}])
    assert counted(db, table) == counted(db, twin)


# -- rows that follow rules ----------------------------------------------------------------------------------


def test_tables_with_a_key_are_written_and_changed(
    local: LocalCluster, db: Database, spark: SparkProcess, twins: Callable[..., tuple[str, str]]
) -> None:
    """Keys stay unique, whichever statement would double one; a derived table follows writes alone."""
    required = pa.schema([one.with_nullable(one.name not in {"k", "day"}) for one in ROWS.schema])
    table, twin = twins(rows=ROWS.cast(required), properties={"unique_key": "k,day"})
    derived = f"{table}_d"
    sums = pa.schema([("rows", pa.int64())])
    db.create_table(derived, sums, derived_from=table, derived_sql="SELECT count(*) AS rows FROM inserted")
    url = local.url("r1")
    columns = "k, day, word, v"
    write = {"what": "write", "table": table, "query": f"SELECT {columns} FROM ({source(3000, 3010)})"}
    spark.call("change", url=url, changes=[write])
    with pytest.raises(SparkJobError, match="DuplicateKeyError"):
        spark.call("change", url=url, changes=[write])
    with pytest.raises(SparkJobError, match="DuplicateKeyError"):
        spark.call("change", url=url, changes=[{"what": "update", "table": table, "values": {"k": "5L"}}])
    merge = {"what": "merge", "table": table, "query": source(3005, 3020), "on": ["k", "day"]}
    done = spark.call("change", url=url, changes=[{**merge, "when_matched_update": {"v": "source.v"}}])[0]
    assert [done[name] for name in COUNTS] == [0, 5, 10]
    assert db.read(derived).to_pylist() == [{"rows": 10}]
    db.insert(twin, db.sql(f"SELECT {columns} FROM ({source(3000, 3020)})"))
    assert counted(db, table) == counted(db, twin)


def test_columns_with_a_default_may_be_missing(
    local: LocalCluster, db: Database, spark: SparkProcess, twins: Callable[..., tuple[str, str]]
) -> None:
    """In rows that are written, by both ways, and in those that a merge inserts; generated ones may not."""
    table, _ = twins((), pa.table({"k": pa.array([1], pa.int64())}))
    defaults = {"n": "7", "t": "timestamp '2020-02-29T12:00:00Z'", "b": "x'01ff'", "s": "'a''b'"}
    added = pa.schema(
        [("n", pa.int32()), ("t", pa.timestamp("us", "UTC")), ("b", pa.binary()), ("s", "string")]
    )
    db.alter_table(table, add=added, default=defaults)
    url = local.url("r1")
    spark.call("change", url=url, changes=[{"what": "write", "table": table, "query": "SELECT 2L AS k"}])
    spark.call("save", query="SELECT 3L AS k, 8 AS n", options={"url": url, "table": table})
    merge = {"what": "merge", "table": table, "query": "SELECT 4L AS k", "on": "k"}
    spark.call("change", url=url, changes=[merge])
    found = sorted(db.read(table).to_pylist(), key=lambda row: row["k"])
    db.insert(table, pa.table({"k": pa.array([5], pa.int64())}))
    [expected] = db.read(table, where="k = 5").drop_columns(["k"]).to_pylist()
    assert [row.pop("k") for row in found] == [1, 2, 3, 4]
    assert found[1:] == [expected, {**expected, "n": 8}, expected]
    db.alter_table(table, add={"g": "bigint generated always as (k + 1)"})
    with pytest.raises(SparkJobError, match=r"g of table default.t[0-9]+ is generated by SQL"):
        spark.call("change", url=url, changes=[{"what": "update", "table": table, "values": {"k": "9L"}}])


# -- other sessions ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["connect", "cluster", "3.5"])
def test_changes_by_other_kinds_of_sessions(
    local: LocalCluster,
    db: Database,
    twins: Callable[..., tuple[str, str]],
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
) -> None:
    """Executors in processes of their own, the server of Connect, and an older Spark."""
    options: dict[str, Any] = {"pyspark": spark35.folder()} if kind == "3.5" else {}
    with SparkProcess(
        "classic" if kind == "3.5" else kind, tmp_path_factory.mktemp("spark"), **options
    ) as other:
        how = {"when_matched_update": {"v": "source.v"}, "when_matched_delete": "source.goes"}
        merge_of_both(local, db, other, twins(), source(1900, 2100), on=["k"], **how)
        table, twin = twins()
        other.call(
            "change", url=local.url("r1"), changes=[{"what": "delete", "table": table, "where": "k % 3 = 1"}]
        )
        db.delete(twin, "k % 3 = 1")
        assert counted(db, table) == counted(db, twin)
