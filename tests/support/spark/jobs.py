"""A process with one Spark session that runs jobs for a test.

    python -m tests.support.spark.jobs KIND CONF

KIND is `classic`, `retrying` (as classic, but a failed task is tried again), `cluster` (local-cluster with
two executors), `connect`, or the address of a master; CONF is a JSON object of more settings. A request is a
line of JSON on standard input, ``{"job", "args"}`` with the name of a method of :class:`Jobs`; the answer is
a line on standard output, ``{"result"}`` or ``{"error"}``.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

import tidelock.spark as tl
from tests.support.replicas.datadir import definitions_at
from tests.support.spark import rows, troubled_tasks
from tests.support.spark.batch_jobs import BatchJobs
from tests.support.spark.change_jobs import ChangeJobs
from tests.support.spark.stream_jobs import StreamJobs
from tidelock.client import Database, Transaction, connect
from tidelock.errors import LabelExistsError
from workloads import child

_CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "America/New_York",
    # Settings of a careless cluster. None of them may affect reads of a snapshot.
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.parquet.mergeSchema": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    # One task for each part, so that a test can interfere in the middle of a job.
    "spark.sql.files.maxPartitionBytes": str(4 << 20),
    # A failed task is not tried again, as in local mode.
    "spark.task.maxFailures": "1",
    "spark.hadoop.dfs.nameservices": "prodhdfs",
}


class StubSnapshot:
    """A snapshot with the methods of the client library's snapshot that Spark uses."""

    def __init__(self, data_dir: Path, csn: int) -> None:
        self._data_dir = data_dir
        self.csn = csn
        self.closed = False

    def tables(self) -> list[dict[str, Any]]:
        """Return the definitions at the CSN."""
        return definitions_at(self._data_dir, self.csn)

    def close(self) -> None:
        """Record the call."""
        self.closed = True


class StubDatabase:
    """A client without agents, with the methods of the client library that Spark uses."""

    def __init__(
        self, data_dir: Path, replicas: list[dict[str, Any]], read_wait_s: float, newest: int
    ) -> None:
        self._data_dir = data_dir
        self._status = {"replicas": replicas, "read_wait_s": read_wait_s}
        self.seen_csn = 0
        self.newest = newest
        self.opened: list[StubSnapshot] = []

    def snapshot(self, csn: int | None = None) -> StubSnapshot:
        """Pin a CSN."""
        snapshot = StubSnapshot(self._data_dir, self.newest if csn is None else csn)
        self.seen_csn = max(self.seen_csn, snapshot.csn)
        self.opened.append(snapshot)
        return snapshot

    def status(self) -> dict[str, Any]:
        """Return the replicas that the test has given."""
        return self._status


class Jobs(StreamJobs, BatchJobs, ChangeJobs):
    """The jobs that a test can run in the session."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self._db: StubDatabase | Database | None = None
        self._snap: tl.SparkSnapshot | None = None
        self._tx: Transaction | None = None

    def connect(self, **options: Any) -> None:
        """Use another stub of a cluster; the arguments are those of StubDatabase."""
        self._db = StubDatabase(Path(options.pop("data_dir")), **options)

    def join(self, url: str | list[str]) -> None:
        """Use a running cluster."""
        self._db = connect(url)

    def balances(self, tables: list[str]) -> dict[str, Any]:
        """Read two tables at one CSN: by key the sum and rows of `n` in the first, then in the second."""
        db = cast("Database", self._db)
        with tl.attach(self._spark, db, tables=tables) as snap:
            first, second = (f"select k, n from `{snap.views[table]}`" for table in tables)
            rows = self._spark.sql(
                "select k, coalesce(sum(a), 0L), count(a), coalesce(sum(b), 0L), count(b) from "
                f"(select k, n as a, null as b from ({first}) union all select k, null, n from ({second})) "
                "group by k order by k"
            )
            return {"csn": snap.csn, "rows": [list(row) for row in rows.collect()]}

    def attach(self, **options: Any) -> dict[str, Any]:
        """Attach a snapshot instead of the previous one."""
        self.detach()
        self._snap = tl.attach(self._spark, cast("Database", self._db), **options)
        return {"csn": self._snap.csn, "views": self._snap.views, "options": self._snap.options}

    def refresh(self, newest: int) -> int:
        """Move the cluster to a newer CSN, then refresh."""
        assert isinstance(self._db, StubDatabase)
        assert self._snap is not None
        self._db.newest = newest
        return self._snap.refresh()

    def detach(self) -> None:
        """Close the snapshot."""
        if self._snap is not None:
            self._snap.close()

    def open_pins(self) -> list[int]:
        """Return the CSNs of the snapshots that are not closed."""
        assert isinstance(self._db, StubDatabase)
        return [snapshot.csn for snapshot in self._db.opened if not snapshot.closed]

    def sql(self, query: str) -> list[list[Any]]:
        """Return the rows of a query over the views."""
        return _rows(self._spark.sql(query))

    def read(self, table: str, order_by: str) -> list[list[Any]]:
        """Return the rows of an attached table, read by `tl.read`."""
        assert self._snap is not None
        return _rows(tl.read(self._spark, self._snap, table).orderBy(order_by))

    def read_troubled(self, table: str, trouble: dict[str, Any] | None) -> list[list[Any]]:
        """Return ids and digests of the rows of an attached table, in tasks with the given trouble."""
        assert self._snap is not None
        frame = tl.read(self._spark, self._snap, table)
        passed = frame.mapInArrow(troubled_tasks.passer(trouble), frame.schema)
        return _rows(passed.selectExpr("id", "xxhash64(*)").orderBy("id"))

    def schema(self, table: str) -> list[list[str]]:
        """Return names and types of the columns of an attached table's DataFrame."""
        assert self._snap is not None
        return [list(pair) for pair in tl.read(self._spark, self._snap, table).dtypes]

    def explain(self, query: str) -> str:
        """Return the physical plan of a query, as text."""
        return str(_rows(self._spark.sql(f"EXPLAIN FORMATTED {query}"))[0][0])

    def seek(self, path: str, options: dict[str, str], places: list[int]) -> None:
        """Read 100 bytes at each place of a file with Hadoop's client, all from one open file."""
        jvm: Any = self._spark.sparkContext._jvm
        settings = jvm.org.apache.hadoop.conf.Configuration()
        for name, value in options.items():
            settings.set(name, value)
        where = jvm.org.apache.hadoop.fs.Path(path)
        opened = where.getFileSystem(settings).open(where)
        try:
            for place in places:
                opened.seek(place)
                for _ in range(100):
                    opened.read()
        finally:
            opened.close()

    def raw(self, path: str) -> int:
        """Return the number of rows below a path that is read without the options of `attach`."""
        return self._spark.read.parquet(path).count()

    def raw_list(self, path: str, view: str) -> None:
        """Make a view of a path without the options of `attach`; Spark lists its files now."""
        self._spark.read.parquet(path).createOrReplaceTempView(view)

    def write(
        self,
        url: str,
        query: str,
        tables: list[str],
        mode: str = "append",
        columns: str | None = None,
        **settings: str,
    ) -> int | None:
        """Write the rows of a query to tables in one transaction, by `tl.write`; return its CSN.

        With ``columns`` the transaction creates the tables before, in place of those that exist.
        """
        for name, value in settings.items():
            self._spark.conf.set(name, value)
        with connect(url) as db, db.begin() as tx:
            for table in tables:
                if columns is not None:
                    tx.create_table(table, columns, or_replace=True)
                tl.write(self._spark.sql(query), tx, table, cast("Any", mode))
        for name, value in settings.items():
            assert self._spark.conf.get(name) == value, "tl.write has changed the session"
        return tx.csn

    def load_once(self, url: str, tables: list[str], label: str, **how: Any) -> int | None:
        """Write rows to tables in one transaction with a label, unless that was done; return its CSN."""
        try:
            with connect(url) as db, db.begin(label) as tx:
                self._tx = tx
                for table in tables:
                    self.fill(table, **how)
        except LabelExistsError as error:
            csn: int | None = error.details["csn"]
            return csn
        return tx.csn

    def save_once(
        self, urls: list[str], tables: list[str], label: str, lease: float | None = None, **how: Any
    ) -> int | None:
        """Write to one table as `load_once`, but by the data source `tidelock`; return the CSN.

        Replicas are asked in the order of their URLs.
        """
        (table,) = tables
        options = {"url": ",".join(urls), "table": table, "label": label}
        if lease is not None:
            options["leaseSeconds"] = str(lease)
        mode = how.pop("mode", "append")
        if mode == "overwrite_partitions":
            mode, options["overwritePartitions"] = "overwrite", "true"
        frame = self._troubled(**how)
        frame.write.format("tidelock").options(**options).mode(mode).save()
        with connect(urls) as db:
            found = db.label(label)
        return found.csn if found else None

    def begin(self, url: str, label: str | None = None, lease: float | None = None) -> str:
        """Begin a transaction instead of the previous one; return its tid."""
        self._db = connect(url)
        self._tx = self._db.begin(label, lease=lease)
        return self._tx.tid

    def fill(
        self,
        table: str,
        ids: tuple[int, int, int],
        tasks: int,
        mode: str = "append",
        trouble: dict[str, Any] | None = None,
    ) -> None:
        """Write the rows of a range of ids (first, end, step) to a table in the open transaction."""
        assert self._tx is not None
        frame = self._troubled(ids, tasks, trouble)
        tl.write(frame, self._tx, table, cast("Any", mode))

    def _troubled(
        self, ids: tuple[int, int, int], tasks: int, trouble: dict[str, Any] | None = None
    ) -> DataFrame:
        """Return the rows of a range of ids, made by tasks in which the given trouble occurs."""
        return self._spark.range(*ids, tasks).mapInArrow(troubled_tasks.maker(trouble), rows.DDL)

    def commit(self) -> int | None:
        """Commit the open transaction; return its CSN."""
        assert self._tx is not None
        return self._tx.commit().csn

    def rollback(self) -> None:
        """Roll the open transaction back."""
        assert self._tx is not None
        self._tx.rollback()

    def write_path(
        self, path: str, query: str, partition_by: list[str], mode: str, options: dict[str, str]
    ) -> None:
        """Write the rows of a query to a path, as users do with Spark alone."""
        frame = self._spark.sql(query)
        frame.write.mode(mode).options(**options).partitionBy(*partition_by).parquet(path)

    def load(self, view: str, options: dict[str, str], schema: str | None = None) -> None:
        """Make a view of a read by the data source `tidelock`."""
        reader = self._spark.read.format("tidelock").options(**options)
        (reader if schema is None else reader.schema(schema)).load().createOrReplaceTempView(view)

    def save(self, query: str, options: dict[str, str], mode: str = "append") -> None:
        """Write the rows of a query by the data source `tidelock`."""
        self._spark.sql(query).write.format("tidelock").options(**options).mode(mode).save()

    def push_filters(self) -> list[int]:
        """Count the rows of a DataFrame by three queries: all, those of a pushed filter, and all again."""
        from tests.support.spark.pushing_source import PushingSource  # noqa: PLC0415 - Spark 3.5 has no such API

        self._spark.dataSource.register(PushingSource)
        self._spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            frame = self._spark.read.format("pushing").load()
            return [frame.count(), frame.filter("n > 5").count(), frame.count()]
        finally:
            self._spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    def views(self) -> list[str]:
        """Return the names of the temporary views."""
        return sorted(table.name for table in self._spark.catalog.listTables() if table.isTemporary)


def _rows(frame: DataFrame) -> list[list[Any]]:
    return [list(row) for row in frame.collect()]


def _session(kind: str, conf: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for name, value in (_CONF | conf).items():
        builder = builder.config(name, value)
    match kind:
        case "retrying":
            return builder.master("local[2,3]").getOrCreate()
        case "connect":
            return builder.remote("local[2]").getOrCreate()
        case "cluster":
            return builder.master("local-cluster[2,1,1024]").getOrCreate()
        case "classic":
            return builder.master("local[2]").getOrCreate()
        case master:
            return builder.master(master).getOrCreate()


@contextlib.contextmanager
def _begun() -> Iterator[Jobs]:
    spark = _session(sys.argv[1], json.loads(sys.argv[2]))
    yield Jobs(spark)
    spark.stop()


if __name__ == "__main__":
    child.serve(_begun())
