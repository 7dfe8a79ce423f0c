"""Spark writes into transactions, from real sessions: right rows everywhere, or nothing."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import api_address, nothing_left
from tests.support.replicas.readers import send
from tests.support.spark.process import SparkJobError, SparkProcess
from tests.support.waiting import TIMEOUT_S
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import TransactionClosedError, UnsealedWriteError

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("moment", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
    ]
)
ROWS = 1000
#: Two tasks, each with rows of all partitions.
QUERY = (
    "SELECT {id} AS id, CASE id % 4 WHEN 0 THEN 'Zürich' WHEN 1 THEN 'a/b=c' WHEN 2 THEN '007' END AS city, "
    "CAST(id / 4 AS decimal(9, 2)) AS price, timestamp_micros(id) AS moment, date_add(DATE'1500-01-01', "
    f"CAST(id AS int)) AS day FROM range(0, {ROWS}, 1, 2)"
)
#: The last row of a task fails the first attempt, in the middle of its file.
FAIL_ONCE = (
    "CASE WHEN id IN (499, 999) "
    "AND reflect('java.lang.System', 'setProperty', concat('{run}', id), 'x') = 'null' "
    "THEN CAST(raise_error('this attempt fails') AS bigint) ELSE id END"
)
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas, both needed for a commit."""
    return module_cluster(replicas=2, settings={**QUICK, "upload_spread": True})


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A session that runs failed tasks again."""
    with SparkProcess("retrying", tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture
def table(db: Database) -> str:
    """An empty table, partitioned by city."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA, partition_by=["city"])
    return name


def uploads(local: LocalCluster, replica: str, home: str) -> float:
    """Return how many files a replica has taken for its own transactions, or for those of the other."""
    body = send(api_address(local, replica), "GET", "/metrics").body.decode()
    found = re.search(rf'^tidelock_uploads_total{{home="{home}"}} (\S+)$', body, re.MULTILINE)
    return float(found[1]) if found else 0.0


def totals(db: Database, table: str, csn: int | None = None) -> tuple[int, int, str]:
    """Return the number of rows, the sum of their ids, and the sum of their prices."""
    with db.snapshot(csn) as snap:
        found = snap.sql(f"SELECT count(*) AS n, sum(id) AS ids, sum(price) AS prices FROM {table}")
    row = found.to_pylist()[0]
    return row["n"], int(row["ids"] or 0), str(row["prices"])


EXPECTED = (ROWS, sum(range(ROWS)), "124875.00")


def test_write_adds_and_replaces_despite_failed_attempts(
    local: LocalCluster, db: Database, spark: SparkProcess, table: str
) -> None:
    """Two tables in one transaction, with failed attempts; then all rows, or one partition, are replaced."""
    flat = f"{table}_flat"
    db.create_table(flat, SCHEMA)
    query = QUERY.format(id=FAIL_ONCE.format(run=table))
    csn = spark.call(
        "write",
        url=local.url("r1"),
        query=query,
        tables=[table, flat],
        **{"spark.sql.parquet.outputTimestampType": "INT96"},
    )
    for replica in local.replicas:
        with local.connect(replica) as reader:
            assert totals(reader, table, csn) == totals(reader, flat, csn) == EXPECTED
            with reader.snapshot(csn) as snap:
                found = snap.sql(
                    f"SELECT city, day, epoch_us(moment) AS us FROM {table} WHERE id = 3"
                ).to_pylist()
            assert [str(value) for value in found[0].values()] == ["None", "1500-01-04", "3"]
    for mode, expected in (("overwrite", 7), ("overwrite_partitions", 7 - 2 + 3)):
        limit, city = (7, "id < 7") if mode == "overwrite" else (3, "city = '007'")
        picked = f"SELECT * FROM ({QUERY.format(id='id')}) WHERE {city} ORDER BY id LIMIT {limit}"
        csn = spark.call("write", url=local.url("r1"), query=picked, tables=[table], mode=mode)
        assert totals(db, table, csn)[0] == expected
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
    with local.connect() as everywhere:
        assert everywhere.audit(timeout_s=TIMEOUT_S).findings == []
    assert uploads(local, "r1", "own") > 0
    assert uploads(local, "r2", "other") > 0  # both replicas took files, without a shared secret


def test_a_job_writes_into_tables_of_its_own_transaction(
    local: LocalCluster, spark: SparkProcess, table: str
) -> None:
    """One is new, one takes the place of another; both are there at one CSN with all rows of the job."""
    query = "SELECT id, concat('n', id) AS word FROM range(0, 100, 1, 2)"
    new = f"{table}_new"
    csn = spark.call(
        "write", url=local.url("r1"), query=query, tables=[table, new], columns="id bigint, word string"
    )
    for replica in local.replicas:
        with local.connect(replica) as reader:
            for name in (table, new):
                found = reader.read(name, csn=csn)
                assert sorted(found["id"].to_pylist()) == list(range(100))
                assert found.schema.names == ["id", "word"]
            assert "price" in reader.read(table, csn=(csn or 0) - 1).schema.names
        nothing_left(local.data_dir(replica))


@pytest.mark.slow
def test_partitions_of_two_columns(local: LocalCluster, db: Database, spark: SparkProcess) -> None:
    """The partitions of the rows are replaced, also if the folder above is new."""
    name = f"t{next(NUMBERS)}"
    schema = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
    db.create_table(name, schema, partition_by=["a", "b"])
    query = "SELECT id, id % 2 AS a, id % 4 AS b FROM range(8)"
    spark.call("write", url=local.url("r1"), query=query, tables=[name])
    query = "SELECT id + 10 AS id, id % 3 AS a, 3 AS b FROM range(3)"
    csn = spark.call("write", url=local.url("r1"), query=query, tables=[name], mode="overwrite_partitions")
    with db.snapshot(csn) as snap:
        assert sorted(snap.read(name, ["id"])["id"].to_pylist()) == [0, 1, 2, 4, 5, 6, 10, 11, 12]


class Inbox:
    """Files with numbers, one to a batch of a streaming query, and the two tables that it writes to."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db, self.folder, self.files = db, folder / "inbox", 0
        self.folder.mkdir()
        self.tables = [f"t{next(NUMBERS)}" for _ in range(2)]
        for name in self.tables:
            db.create_table(name, pa.schema([("k", pa.int64())]))

    def more(self, files: int = 1) -> None:
        """Write new files."""
        for _ in range(files):
            numbers = range(10 * self.files, 10 * self.files + 10)
            pq.write_table(pa.table({"k": list(numbers)}), self.folder / f"{self.files:03}.parquet")
            self.files += 1

    def require_once(self) -> None:
        """Require that both tables have every number of the files once."""
        with self.db.snapshot() as snap:
            for name in self.tables:
                assert sorted(snap.read(name)["k"].to_pylist()) == list(range(10 * self.files))


@pytest.mark.slow
def test_foreach_batch_counts_each_batch_of_a_dead_query_once(
    local: LocalCluster, db: Database, spark: SparkProcess, tmp_path: Path
) -> None:
    """A query dies in a batch, and after a batch that Spark has not noted, and goes on: each counts once."""
    inbox, checkpoint = Inbox(db, tmp_path), tmp_path / "checkpoint"

    def run(**dies: int) -> dict[str, Any]:
        place = {"inbox": str(inbox.folder), "checkpoint": str(checkpoint)}
        done: dict[str, Any] = spark.call(
            "foreach_batch", url=local.url("r2"), tables=inbox.tables, **place, **dies
        )
        return done

    inbox.more(2)
    first = run(dies_behind=1)
    assert first["run"] == [0, 1]
    assert "the driver dies behind the batch" in first["error"]
    inbox.require_once()
    label = db.label(first["id"])
    assert label is not None
    assert label.batch == 1
    shutil.copytree(checkpoint, tmp_path / "older")

    inbox.more(1)
    assert "the driver dies in the batch" in run(dies_in=2)["error"]
    assert db.label(first["id"]) == label  # batch 1 was not run again, batch 2 adds no row
    last = run()
    assert (last["id"], last["error"], last["run"]) == (first["id"], None, [2])
    inbox.require_once()
    newest = db.label(first["id"])
    assert newest is not None
    assert newest.batch == 2
    assert run()["run"] == []

    checkpoint = tmp_path / "older"  # Spark would begin with batch 1 again
    late = run()
    assert "has gone back to an older checkpoint" in late["error"]
    assert late["run"] == []
    inbox.require_once()
    assert db.label(first["id"]) == newest


@pytest.mark.slow
def test_foreach_batch_on_connect(
    local: LocalCluster, db: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On Connect the function runs at the server, with its own client; the query needs a name."""
    folder = tmp_path_factory.mktemp("connect")
    inbox = Inbox(db, folder)
    inbox.more(2)
    place = {"inbox": str(inbox.folder), "checkpoint": str(folder / "checkpoint")}
    asked = {"url": local.url("r1"), "tables": inbox.tables, **place}
    with SparkProcess("connect", folder, python_workers=True) as session:
        unnamed = session.call("foreach_batch", **asked)
        assert "give the query a name" in unnamed["error"]
        assert (
            "the driver dies behind"
            in session.call("foreach_batch", query="q", dies_behind=1, **asked)["error"]
        )
        inbox.require_once()
        label = db.label("q")
        inbox.more(1)
        assert session.call("foreach_batch", query="q", **asked)["error"] is None
    inbox.require_once()
    newest = db.label("q")
    assert (label and label.batch, newest and newest.batch) == (1, 2)


@pytest.mark.slow
def test_by_path_needs_settings_that_are_named(
    local: LocalCluster, db: Database, spark: SparkProcess, table: str
) -> None:
    """Users can write with Spark alone; each setting that is needed and missing is named."""
    query, good = QUERY.format(id="id"), {"mapreduce.fileoutputcommitter.algorithm.version": "1"}
    spark.sql("SET spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS")
    with db.begin() as tx:
        asked = {"path": tx.path(table), "query": query, "partition_by": ["city"], "mode": "append"}
        spark.call("write_path", options=good, **asked)
    assert totals(db, table) == EXPECTED

    tx = db.begin()
    asked["path"] = tx.path(table)
    version = "mapreduce.fileoutputcommitter.algorithm.version"
    with pytest.raises(SparkJobError, match=re.escape(f"set {version}=1")):
        spark.call("write_path", options={version: "2"}, **asked)
    tx.rollback()

    spark.sql("SET spark.sql.parquet.outputTimestampType=INT96")
    tx = db.begin()
    asked["path"] = tx.path(table)
    with pytest.raises(SparkJobError, match=r"column moment .* is stored as int96"):
        spark.call("write_path", options=good, **asked)
    with pytest.raises(TransactionClosedError, match="column moment"):
        tx.commit()

    tx = db.begin()
    asked["path"] = tx.path(table)
    failing = query.replace("SELECT id", "SELECT CASE WHEN id < 900 THEN id ELSE raise_error('no') END", 1)
    with pytest.raises(SparkJobError):
        spark.call("write_path", options=good, **(asked | {"query": failing, "mode": "overwrite"}))
    with pytest.raises(UnsealedWriteError, match="its rows were removed"):
        tx.commit()
    assert totals(db, table) == EXPECTED
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))


def test_no_plan_shows_a_token(local: LocalCluster, db: Database, spark: SparkProcess, table: str) -> None:
    """After `tl.write` the session hides tokens in the plans that it shows and records."""
    spark.call("write", url=local.url("r1"), query=QUERY.format(id="id"), tables=[table])
    with db.begin() as tx:
        path = tx.path(table)
        plan = spark.call("explain", query=f"INSERT OVERWRITE DIRECTORY '{path}' USING parquet SELECT 1 AS a")
        tx.rollback()
    assert "transactions" in plan
    assert path.split("/")[4].split(".")[2] not in plan


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cluster", "connect"])
def test_other_sessions_write_to_the_home(
    local: LocalCluster, db: Database, table: str, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Executors in processes of their own, and the server of Connect, write to the home."""
    with SparkProcess(kind, tmp_path_factory.mktemp(kind)) as session:
        csn = session.call("write", url=local.url("r1"), query=QUERY.format(id="id"), tables=[table])
    assert totals(db, table, csn) == EXPECTED
