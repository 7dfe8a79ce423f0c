"""The data source `tidelock`, read and written in batches by real sessions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.spark.process import SparkJobError, SparkProcess
from tests.support.waiting import TIMEOUT_S
from tidelock.client import Database
from tidelock.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECRET = "a shared secret"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("moment", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("small", pa.int8()),
        ("data", pa.binary()),
        ("yes", pa.bool_()),
    ]
)
ROWS = 1000
#: Two tasks, each with rows of all partitions.
QUERY = (
    "SELECT {id} AS id, CASE id % 4 WHEN 0 THEN 'Zürich' WHEN 1 THEN 'a/b=c' WHEN 2 THEN '007' END AS city, "
    "CAST(id / 4 AS decimal(9, 2)) AS price, timestamp_micros(id) AS moment, "
    "CAST('2026-01-01 02:30:00' AS timestamp_ntz) AS local, "
    "date_add(DATE'1500-01-01', CAST(id AS int)) AS day, "
    "CAST(id % 100 AS tinyint) AS small, CAST(CAST(id AS string) AS binary) AS data, id % 2 = 0 AS yes "
    f"FROM range(0, {ROWS}, 1, 2)"
)
#: The last row of a task fails the first attempt, after other rows of it were sent.
FAIL_ONCE = (
    "CASE WHEN id IN (499, 999) "
    "AND reflect('java.lang.System', 'setProperty', concat('{run}', id), 'x') = 'null' "
    "THEN CAST(raise_error('this attempt fails') AS bigint) ELSE id END"
)
#: Rows of tests/support/spark/pushing_source.py, which Spark 3.5 could not import.
ROWS_PUSHED = 10
TOTALS = "SELECT count(*), sum(id), CAST(sum(price) AS string) FROM {}"
EXPECTED = [[ROWS, sum(range(ROWS)), "124875.00"]]
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas, both needed for a commit."""
    return module_cluster(replicas=2, settings={**QUICK, "secret": SECRET})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the session, with its log, and with its event log in `events`."""
    made = tmp_path_factory.mktemp("spark")
    (made / "events").mkdir()
    return made


@pytest.fixture(scope="module")
def spark(folder: Path) -> Iterator[SparkProcess]:
    """A session that runs failed tasks again."""
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.eventLog.compress": "false",
    }
    with SparkProcess("retrying", folder, conf=conf, python_workers=True) as session:
        yield session


@pytest.fixture
def table(db: Database) -> str:
    """An empty table, partitioned by city."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA, partition_by=["city"], sort_by=["day"])
    return name


@pytest.fixture
def options(local: LocalCluster, table: str) -> dict[str, str]:
    """Options that name the table."""
    return {"table": table, "url": local.url("r1"), "token": SECRET}


def ids(db: Database, table: str, csn: int | None = None) -> list[int]:
    """Return the ids in a table."""
    with db.snapshot(csn) as snap:
        return sorted(snap.read(table, ["id"])["id"].to_pylist())


def fails(spark: SparkProcess, job: str, **args: Any) -> str:
    """Return the error of a job, which must not show the secret or a token."""
    with pytest.raises(SparkJobError) as found:
        spark.call(job, **args)
    text = str(found.value)
    assert SECRET not in text
    assert "tl1.ey" not in text
    return text


def test_written_rows_come_back_once_despite_failed_attempts(
    local: LocalCluster, db: Database, spark: SparkProcess, table: str, options: dict[str, str]
) -> None:
    """All rows come back, once; attempts that fail leave nothing."""
    spark.call("save", query=QUERY.format(id=FAIL_ONCE.format(run=table)), options=options)
    spark.call("load", view="v", options=options)
    assert spark.sql(TOTALS.format("v")) == EXPECTED
    assert ids(db, table) == list(range(ROWS))
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))


def test_types_modes_and_labels(
    local: LocalCluster, db: Database, spark: SparkProcess, table: str, options: dict[str, str]
) -> None:
    """All types come back as they were; a label counts once; an overwrite replaces."""
    labelled = {**options, "label": f"load {table}", "leaseSeconds": "60"}
    for _ in range(2):
        spark.call("save", query=QUERY.format(id="id"), options=labelled)
    spark.call("load", view="v", options=options)
    found = f"SELECT count(*) FROM (({QUERY.format(id='id')}) EXCEPT ALL SELECT * FROM v)"
    assert spark.sql(TOTALS.format("v")) == EXPECTED
    assert spark.sql(found) == [[0]]
    label = db.label(f"load {table}")
    assert label is not None
    spark.call("save", query=f"{QUERY.format(id='id')} WHERE id < 3", options=options, mode="overwrite")
    assert ids(db, table) == [0, 1, 2]
    assert len(ids(db, table, label.csn)) == ROWS
    with local.connect() as everywhere:
        assert everywhere.audit(timeout_s=TIMEOUT_S).findings == []


def test_a_dataframe_stays_where_it_is(
    db: Database, spark: SparkProcess, table: str, options: dict[str, str]
) -> None:
    """A DataFrame keeps the snapshot of its creation; with a user's schema, that of its first query."""
    db.insert(table, rows(1, 2, 3), wait="all")
    spark.call("load", view="old", options={**options, "partitionBytes": "1k"})
    spark.call("load", view="some", options=options, schema="day date, id bigint")
    where = {**options, "where": f"id > 1 AND id < (SELECT max(id) FROM {table})"}
    spark.call("load", view="chosen", options=where)
    assert spark.sql("SELECT max(id) FROM some") == [[3]]
    csn = db.insert(table, rows(4, 5), wait="all").csn
    assert csn is not None
    spark.call("load", view="before", options={**options, "csnAsOf": str(csn - 1)})
    spark.call("load", view="now", options={**options, "replica": "r2", "failover": "false"})
    views = ("old", "some", "chosen", "before", "now")
    found = spark.sql(
        " UNION ALL ".join(f"SELECT '{view}', sort_array(collect_list(id)) FROM {view}" for view in views)
    )
    assert {view: list(values) for view, values in found} == {
        "old": [1, 2, 3],
        "some": [1, 2, 3],
        "chosen": [2],
        "before": [1, 2, 3],
        "now": [1, 2, 3, 4, 5],
    }


def rows(*numbers: int) -> pa.Table:
    """Rows with these ids, of two partitions."""
    return pa.Table.from_pylist([{"id": number, "city": f"c{number % 2}"} for number in numbers], SCHEMA)


def test_sql_reads_and_writes_a_temporary_view(
    db: Database, spark: SparkProcess, table: str, options: dict[str, str]
) -> None:
    """A temporary view is read and written; each INSERT is one transaction."""
    given = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW w USING tidelock OPTIONS ({given})")
    spark.sql(f"INSERT INTO w {QUERY.format(id='id')} WHERE id < 8")
    assert ids(db, table) == list(range(8))
    assert spark.sql("SELECT count(*) FROM w") == [[0]]  # the snapshot of its creation
    spark.sql(f"INSERT OVERWRITE w {QUERY.format(id='id')} WHERE id < 2")
    assert ids(db, table) == [0, 1]
    plans = [
        spark.call("explain", query=query)
        for query in ("SELECT * FROM w", f"INSERT INTO w {QUERY.format(id='id')} WHERE id < 8")
    ]
    assert not any(SECRET in plan for plan in plans)


def test_what_is_refused_says_why_and_leaves_nothing(
    db: Database, spark: SparkProcess, table: str, options: dict[str, str]
) -> None:
    """Each refusal says what to do, and leaves no transaction open."""
    text = fails(spark, "load", view="x", options={**options, "csnAsOff": "1"})
    assert "tidelock has no option 'csnasoff'; did you mean csnAsOf?" in text
    assert "label is for write" in fails(spark, "load", view="x", options={**options, "label": "x"})
    given = ", ".join(f"{name} '{value}'" for name, value in options.items())
    text = fails(spark, "sql", query=f"CREATE TABLE kept USING tidelock OPTIONS ({given})")
    assert "use CREATE TEMPORARY VIEW" in text
    text = fails(spark, "save", query="SELECT 1 AS id", options=options)
    assert "column city is missing" in text
    nulls = QUERY.format(id="CASE WHEN id < 10 THEN id END")
    assert "column id of table" in fails(spark, "save", query=nulls, options=options)
    assert [row for row in db.transactions() if row["state"] == "open"] == []
    assert ids(db, table) == []


def test_filters_that_pyspark_pushes(spark: SparkProcess) -> None:
    """PySpark 4.3 reuses a filter that a data source has taken, so later queries on the DataFrame lose rows.

    If this fails because the last number is that of all rows, PySpark is repaired: then `TidelockReader` may
    take filters (`pushFilters`) from that version of PySpark on; see docs/spark-source.md, "Conditions".
    """
    everything, chosen = ROWS_PUSHED, ROWS_PUSHED - 6
    assert spark.call("push_filters") == [everything, chosen, chosen]


def test_nothing_shows_a_secret(local: LocalCluster, spark: SparkProcess, folder: Path) -> None:
    """The agents' logs and Spark's records of all these jobs show neither a token nor the secret."""
    spark.close()
    events = [path for path in (folder / "events").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in events) > 10_000
    for path in [*events, folder / "spark.log", *(local.log(replica) for replica in local.replicas)]:
        text = path.read_text(encoding="utf-8", errors="replace")
        assert "tl1.ey" not in text, path
        assert SECRET not in text, path


@pytest.mark.parametrize("kind", ["cluster", "connect"])
def test_other_sessions_find_the_source_by_themselves(
    db: Database, table: str, options: dict[str, str], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Executors that are processes of their own, and the server of Connect, find the source by themselves."""
    with SparkProcess(kind, tmp_path_factory.mktemp(kind), python_workers=True) as session:
        session.call("save", query=QUERY.format(id="id"), options=options)
        session.call("load", view="v", options={**options, "partitionBytes": "1k"})
        assert session.sql(TOTALS.format("v")) == EXPECTED
    assert ids(db, table) == list(range(ROWS))
