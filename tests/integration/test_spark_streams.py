"""Streams through the data source, with real Spark: each commit's rows once, in order, in bounded batches."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import horizons, nothing_left, require_clean_audit
from tests.support.spark.process import SparkJobError, SparkProcess
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.spark.source.stream_write import label_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string()), ("p", pa.string())])
SECRET: Final = "a shared secret"
SETTINGS: Final = {**QUICK, "audit_settle_s": 1, "compaction": False, "secret": SECRET}
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Two replicas, both needed for a commit; at the end nothing is left over, and the audit is clean."""
    made = module_cluster(replicas=2, settings=SETTINGS)
    yield made
    for replica in made.replicas:
        nothing_left(made.data_dir(replica))
    require_clean_audit(made)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """One session for the module."""
    with SparkProcess("retrying", tmp_path_factory.mktemp("spark"), python_workers=True) as session:
        yield session


@pytest.fixture
def table(db: Database) -> str:
    """An empty table, partitioned by p."""
    return create(db)


def create(db: Database, **properties: str) -> str:
    """Make an empty table."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA, partition_by=["p"], properties={"compaction": "off"} | properties)
    return name


def rows(*keys: int, v: str = "x") -> pa.Table:
    """Rows with these keys, in two partitions."""
    return pa.table({"k": keys, "v": [v] * len(keys), "p": [str(key % 2) for key in keys]}, SCHEMA)


def keys(db: Database, table: str) -> list[int]:
    """Return the keys in a table, from the newest commit of any replica."""
    with db.begin(fresh=True) as tx:
        return sorted(tx.read(table)["k"].to_pylist())


def of(local: LocalCluster, table: str, **more: str) -> dict[str, str]:
    """Return the options that name a table to Spark."""
    return {"url": local.url("r1"), "token": SECRET, "table": table} | more


def collect(spark: SparkProcess, source: dict[str, str], **more: Any) -> list[list[Any]]:
    """Run a query until it has read all present rows; return its rows, in order."""
    name = f"q{next(NUMBERS)}"
    spark.call("stream", name=name, source=source, trigger={"availableNow": True}, **more)
    spark.call("ended", name=name)
    found: list[list[Any]] = spark.call("collected", name=name)
    return found


def test_from_a_table_to_another(
    local: LocalCluster, db: Database, spark: SparkProcess, table: str, tmp_path: Path
) -> None:
    """Present rows, then rows of later commits, each once, also after a restart; the label follows."""
    target = create(db)
    db.insert(table, rows(1, 2))
    db.insert(table, rows(3))
    source = of(local, table, replica="r2")
    sink = of(local, target, checkpointLocation=str(tmp_path / "c"), leaseSeconds="20")
    query = spark.call("stream", name=table, source=source, sink=sink)
    spark.call("caught_up", name=table)
    assert keys(db, target) == [1, 2, 3]
    for key in range(4, 8):
        db.insert(table, rows(key))
    spark.call("caught_up", name=table)
    assert keys(db, target) == list(range(1, 8))
    before = batch_of(db, query, target)
    spark.call("stop_stream", name=table)
    db.insert(table, rows(8))
    assert spark.call("stream", name=table, source=source, sink=sink) == query
    spark.call("caught_up", name=table)
    spark.call("stop_stream", name=table)
    assert keys(db, target) == list(range(1, 9))
    assert batch_of(db, query, target) > before


def test_a_first_batch_that_failed(
    local: LocalCluster, db: Database, spark: SparkProcess, tmp_path: Path
) -> None:
    """It is run again with the rows that it was to read; those that have come meanwhile follow, once.

    Nobody can pin its CSN any more by then, but its table keeps the history for longer than the others.
    """
    table, target = create(db, retention_s="86400"), create(db)
    first = db.insert(table, rows(1, 2)).csn or 0
    source, sink = of(local, table), of(local, target, checkpointLocation=str(tmp_path / "c"))
    failing = ["k", "v", "raise_error('not today') as p"]
    spark.call("stream", name=table, source=source, sink=sink, select=failing)
    with pytest.raises(SparkJobError, match="not today"):
        spark.call("ended", name=table)
    for key in range(3, 7):
        db.insert(table, rows(key))
    eventually(lambda: db.raise_horizon(drop_pins=True)["horizon"] > first)
    eventually(lambda: min(horizons(local)) > first)
    spark.call("stream", name=table, source=source, sink=sink, trigger={"availableNow": True})
    assert spark.call("ended", name=table) == [2, 4]
    assert keys(db, target) == [1, 2, 3, 4, 5, 6]


def batch_of(db: Database, query: str, table: str) -> int:
    """Return the number of the last batch that a query has committed to a table."""
    status = db.label(label_of(query, table))
    assert status is not None
    assert status.batch is not None
    return status.batch


def test_the_change_feed_gives_the_table(
    local: LocalCluster, db: Database, spark: SparkProcess, table: str
) -> None:
    """Inserts and deletes, applied to an empty table, give the table's rows; compaction is no change."""
    created = db.seen_csn
    db.insert(table, rows(1, 2))
    start = db.insert(table, rows(3)).csn
    db.insert(table, rows(4, 5))
    with db.begin() as tx:
        tx.delete(table, "k = 1")
        tx.insert(table, rows(6))
    db.update(table, {"v": "'y'"}, "k in (3, 4)")
    db.optimize(table)
    db.truncate(table)
    db.insert(table, rows(7))
    db.delete(table, "k = 0")
    feed = collect(spark, of(local, table, readChangeFeed="true"), select=["*"])
    assert [row[0] for row in feed] == [7]  # begun with the present rows
    feed = collect(spark, of(local, table, readChangeFeed="true", startingCsn=str(created)))
    assert applied(feed) == table_rows(db, table)
    assert {row[3] for row in feed} == {"insert", "delete"}
    csns = sorted({row[4] for row in feed})
    assert len(csns) == 7
    later = collect(spark, of(local, table, readChangeFeed="true", startingCsn=str(start)))
    assert later == [row for row in feed if row[4] > start]
    assert all(row[5] for row in feed)


def applied(feed: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return the rows that remain when changes are applied."""
    left: Counter[tuple[Any, ...]] = Counter()
    for *values, change, _csn, _time in feed:
        left[tuple(values)] += 1 if change == "insert" else -1
    assert min(left.values(), default=0) >= 0
    return sorted(left.elements())


def table_rows(db: Database, table: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table, in order."""
    with db.begin(fresh=True) as tx:
        return sorted(tuple(row.values()) for row in tx.read(table).to_pylist())


def test_batches_are_bounded_by_files_and_by_bytes(
    local: LocalCluster, db: Database, spark: SparkProcess, table: str
) -> None:
    """Batches are bounded by files, for present and later rows, and by bytes."""
    created = db.seen_csn
    for key in range(10):
        db.insert(table, rows(key))
    for options, most in (({"maxFilesPerTrigger": "3"}, 3), ({"maxBytesPerTrigger": "1"}, 1)):
        for start in ({}, {"startingCsn": str(created)}):
            name = f"q{next(NUMBERS)}"
            source = of(local, table, **options, **start)
            spark.call("stream", name=name, source=source, trigger={"availableNow": True})
            batches = spark.call("ended", name=name)
            assert max(batches) == most
            assert sum(batches) == 10
            assert [row[0] for row in spark.call("collected", name=name)] == list(range(10))


def test_a_removal_ends_the_query(
    local: LocalCluster, db: Database, spark: SparkProcess, table: str, tmp_path: Path
) -> None:
    """A removal ends the query after all earlier rows; with the option to skip it the query goes on."""
    target = create(db)
    source = of(local, table, startingOffsets="latest")
    sink = of(local, target, checkpointLocation=str(tmp_path / "c"))
    db.insert(table, rows(1))
    spark.call("stream", name=table, source=source, sink=sink)
    spark.call("caught_up", name=table)
    db.insert(table, rows(2))
    spark.call("stop_stream", name=table)
    db.insert(table, rows(3))
    db.delete(table, "k = 2")
    db.insert(table, rows(4))
    spark.call("stream", name=table, source=source, sink=sink)
    with pytest.raises(SparkJobError, match="skipChangeCommits"):
        spark.call("ended", name=table)
    assert keys(db, target) == [2, 3]
    more = source | {"skipChangeCommits": "true"}
    spark.call("stream", name=table, source=more, sink=sink, trigger={"availableNow": True})
    spark.call("ended", name=table)
    assert keys(db, target) == [2, 3, 4]


def test_where_a_query_begins(local: LocalCluster, db: Database, spark: SparkProcess, table: str) -> None:
    """A query begins after a CSN, after a time, or at the end; if the history is gone, it says so."""
    results = [db.insert(table, rows(key)) for key in (1, 2, 3)]
    second = results[1]
    assert second.time is not None
    millis = str(int(second.time.timestamp() * 1000))
    for start, expected in (
        ({"startingCsn": str(second.csn)}, [3]),
        ({"startingTimestamp": millis}, [3]),
        ({"startingTimestamp": second.time.isoformat()}, [3]),
        ({"startingOffsets": "latest"}, []),
    ):
        found = collect(spark, of(local, table, **start), schema="p string, k bigint")
        assert found == [[str(key % 2), key] for key in expected]
    db.delete(table, "k = 1")
    gone = results[0].csn or 0
    eventually(lambda: db.raise_horizon(drop_pins=True)["horizon"] > gone)
    eventually(lambda: min(horizons(local)) > gone)
    with pytest.raises(SparkJobError, match="SnapshotTooOld"):
        collect(spark, of(local, table, startingCsn=str(results[0].csn)))
    with pytest.raises(SparkJobError, match="NoSuchCsn"):
        collect(spark, of(local, table, startingCsn=str((results[2].csn or 0) + 10_000)))


def test_a_query_with_wrong_options_does_not_start(
    local: LocalCluster, db: Database, spark: SparkProcess, table: str, tmp_path: Path
) -> None:
    """A query with an unknown option, or with two that contradict each other, does not start."""
    sink = of(local, table, checkpointLocation=str(tmp_path / "c"))
    source = of(local, table)
    for wrong, said in (
        ({"readChangefeet": "true"}, "readChangeFeed"),
        ({"csnAsOf": str(db.seen_csn)}, "readStream"),
    ):
        with pytest.raises(SparkJobError, match=said):
            collect(spark, source | wrong)
    spark.call("stream", name=table, source=source, sink=sink | {"label": "x"})
    with pytest.raises(SparkJobError, match="is for write"):
        spark.call("ended", name=table)
    with pytest.raises(SparkJobError, match="UnknownTable"):
        collect(spark, of(local, "nowhere", startingCsn="1"))


def test_each_batch_replaces_the_table(
    local: LocalCluster, db: Database, spark: SparkProcess, table: str, tmp_path: Path
) -> None:
    """Output mode "complete": the table is the result of the last batch."""
    target = create(db)
    counts = ["k", "CAST(count AS string) AS v", "'a' AS p"]
    sink = of(local, target, checkpointLocation=str(tmp_path / "c"))
    for added in ((1, 2, 2), (2, 3)):
        db.insert(table, rows(*added))
        spark.call(
            "stream", name=table, source=of(local, table), sink=sink, mode="complete", select=counts,
            trigger={"availableNow": True},
        )  # fmt: skip
        spark.call("ended", name=table)
    assert table_rows(db, target) == [(1, "1", "a"), (2, "3", "a"), (3, "1", "a")]
