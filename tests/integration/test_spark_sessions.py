"""Writes from every kind of session, with executors as processes, and with Spark 3.5."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import data_address
from tests.support.spark import spark35
from tests.support.spark.cluster import SparkCluster
from tests.support.spark.process import SparkProcess
from tests.support.spark.proof import create, require_rows, require_settled
from tests.support.spark.rows import PARTITION_BY, QUERY, town
from tidelock.client import Database
from tidelock.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS: Final = 1000
TASKS: Final = 4
NUMBERS = itertools.count(1)
#: Settings that a session needs to write to paths by itself; all others are Spark's defaults.
PATHS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas, both needed for a commit."""
    return module_cluster(replicas=2, settings=QUICK)


@pytest.fixture(scope="module", params=["classic", "cluster", "standalone", "connect", "3.5", "3.5 cluster"])
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A session of each kind."""
    kind, folder = request.param, tmp_path_factory.mktemp("spark")
    with ExitStack() as opened:
        options: dict[str, Any] = {"conf": PATHS}
        if kind.startswith("3.5"):
            options["pyspark"] = spark35.folder()
            kind = kind.removeprefix("3.5").strip() or "classic"
        elif kind == "standalone":
            kind = opened.enter_context(SparkCluster(folder)).master
        yield opened.enter_context(SparkProcess(kind, folder, **options))


def query(first: int, end: int) -> str:
    """Return a query that gives rows with these ids."""
    return QUERY.format(first=first, end=end, tasks=TASKS)


def test_each_session_writes_and_reads_by_the_helper(
    local: LocalCluster, db: Database, spark: SparkProcess
) -> None:
    """`tl.write` in its three modes, two tables at once, and reads by `tl.attach` in the same session."""
    table, flat = f"t{next(NUMBERS)}", f"flat{next(NUMBERS)}"
    create(db, table)
    create(db, flat, partitioned=False)

    def write(text: str, tables: list[str], mode: str) -> int | None:
        csn: int | None = spark.call("write", url=local.url("r1"), query=text, tables=tables, mode=mode)
        return csn

    csn = write(query(0, ROWS), [table, flat], "append")
    for name in (table, flat):
        require_rows(local, name, csn, range(ROWS))
    spark.call("join", url=local.url("r1"))
    for name in (table, flat):
        spark.call("attach", tables=[name], csn=csn)
        total = sum(range(ROWS))
        assert spark.sql(f"SELECT count(*), sum(id), count(DISTINCT text) FROM {name}") == [
            [ROWS, total, ROWS]
        ]
        assert spark.sql(f"SELECT count(*) FROM {name} WHERE town = '007'") == [[ROWS // 4]]
    spark.call("detach")

    some = f"SELECT * FROM ({query(ROWS, 2 * ROWS)}) WHERE town IN ('007', 'a/b=c')"
    csn = write(some, [table], "overwrite_partitions")
    kept = [number for number in range(ROWS) if town(number) not in {"007", "a/b=c"}]
    new = [number for number in range(ROWS, 2 * ROWS) if town(number) in {"007", "a/b=c"}]
    require_rows(local, table, csn, kept + new)

    csn = write(query(5, 50), [table, flat], "overwrite")
    for name in (table, flat):
        require_rows(local, name, csn, range(5, 50))
    require_settled(local)


def test_each_session_writes_and_reads_by_path(
    local: LocalCluster, db: Database, spark: SparkProcess
) -> None:
    """The same writes by Spark alone, in three jobs of one transaction, and a read of the path of its CSN."""
    table = f"t{next(NUMBERS)}"
    create(db, table)
    with db.begin() as tx:
        for text, mode, partitions in (
            (query(0, ROWS), "append", "static"),
            (f"SELECT * FROM ({query(ROWS, 2 * ROWS)}) WHERE town = '007'", "overwrite", "dynamic"),
            (query(2 * ROWS, 3 * ROWS), "append", "static"),
        ):
            spark.call(
                "write_path",
                path=tx.path(table),
                query=text,
                partition_by=PARTITION_BY,
                mode=mode,
                options={"partitionOverwriteMode": partitions},
            )
    kept = [number for number in range(ROWS) if town(number) != "007"]
    new = [number for number in range(ROWS, 2 * ROWS) if town(number) == "007"]
    ids = [*kept, *new, *range(2 * ROWS, 3 * ROWS)]
    require_rows(local, table, tx.csn, ids)
    path = f"webhdfs://{data_address(local, 'r2')}/snapshots/{tx.csn}/default/{table}"
    assert spark.call("raw", path=path) == len(ids)

    with db.begin() as tx:
        path = tx.path(table)
        spark.call(
            "write_path",
            path=path,
            query=query(0, 10),
            partition_by=PARTITION_BY,
            mode="overwrite",
            options={},
        )
    require_rows(local, table, tx.csn, range(10))
    require_settled(local)
