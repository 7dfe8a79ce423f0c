"""docs/spark-settings.md on real sessions of Spark 4 and 3.5: each wrong setting is named."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.spark import spark35
from tests.support.spark.process import SparkJobError, SparkProcess
from tests.support.spark.proof import create, require_rows, require_settled
from tests.support.spark.rows import PARTITION_BY, QUERY
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import TransactionClosedError, UnsealedWriteError

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS: Final = 40
NUMBERS = itertools.count(1)
VERSION: Final = "mapreduce.fileoutputcommitter.algorithm.version"
TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"
REBASE: Final = "spark.sql.parquet.datetimeRebaseModeInWrite"
#: The settings for writes to paths, whatever the cluster's defaults are.
GOOD: Final = {TIMESTAMPS: "TIMESTAMP_MICROS", REBASE: "CORRECTED"}


@dataclass(frozen=True)
class Wrong:
    """One wrong option or setting.

    Attributes:
        told: The error of the job; None when it succeeds, and the commit is refused.
        options: Options of the write.
        session: Settings of the session.
        mode: Mode of the write.
        partition_by: Partition columns of the write.
    """

    told: str | None
    options: Mapping[str, str] = field(default_factory=dict)
    session: Mapping[str, str] = field(default_factory=dict)
    mode: str = "append"
    partition_by: tuple[str, ...] = tuple(PARTITION_BY)


WRONG: Final = {
    "mode": Wrong("already exists", mode="errorifexists"),
    "partitions": Wrong("partitionBy", partition_by=()),
    "version": Wrong(f"set {VERSION}=1", options={VERSION: "2"}),
    "timestamps": Wrong("column moment .* is stored as int96", session={TIMESTAMPS: "INT96"}),
    "milliseconds": Wrong("column moment", session={TIMESTAMPS: "TIMESTAMP_MILLIS"}),
    "dates": Wrong("Julian", session={REBASE: "LEGACY"}),
    "cleanup": Wrong("still at work", options={"mapreduce.fileoutputcommitter.cleanup.skipped": "true"}),
    "mark": Wrong(None, options={"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}),
}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas, both needed for a commit."""
    return module_cluster(replicas=2, settings=QUICK)


@pytest.fixture(scope="module", params=["4", "3.5"])
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A session of each version, not prepared by the helpers."""
    folder = tmp_path_factory.mktemp("spark")
    options: dict[str, Any] = {"pyspark": spark35.folder()} if request.param == "3.5" else {}
    with ExitStack() as opened:
        yield opened.enter_context(SparkProcess("classic", folder, conf=GOOD, **options))


@pytest.fixture
def table(db: Database) -> str:
    """An empty table, with partitions."""
    name = f"t{next(NUMBERS)}"
    create(db, name)
    return name


def write(spark: SparkProcess, path: str, wrong: Wrong) -> None:
    """Write as users do with Spark alone."""
    for name, value in (GOOD | dict(wrong.session)).items():
        spark.sql(f"SET {name}={value}")
    query = QUERY.format(first=0, end=ROWS, tasks=2)
    spark.call(
        "write_path",
        path=path,
        query=query,
        partition_by=wrong.partition_by,
        mode=wrong.mode,
        options=dict(wrong.options),
    )


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(
    local: LocalCluster, db: Database, spark: SparkProcess, table: str, name: str
) -> None:
    """The error of the job or of the commit names it; no row becomes visible, and no file stays."""
    wrong = WRONG[name]
    if wrong.told is None:
        with pytest.raises(UnsealedWriteError), db.begin() as tx:
            write(spark, tx.path(table), wrong)
    else:
        with pytest.raises(SparkJobError, match=wrong.told), db.begin() as tx:
            write(spark, tx.path(table), wrong)
    require_rows(local, table, None, ())
    require_settled(local)


def test_a_session_as_it_must_be(local: LocalCluster, db: Database, spark: SparkProcess, table: str) -> None:
    """With right settings, and any harmless ones, all rows arrive; `seal` ends a job without its mark."""
    with db.begin() as tx:
        write(spark, tx.path(table), Wrong(None, options={"parquet.summary.metadata.level": "ALL"}))
    require_rows(local, table, tx.csn, range(ROWS))
    with db.begin() as tx:
        write(spark, tx.path(table), Wrong(None, options=WRONG["mark"].options, mode="overwrite"))
        tx.seal(table)
    require_rows(local, table, tx.csn, range(ROWS))
    with pytest.raises(TransactionClosedError):
        tx.path(table)
    require_settled(local)


def test_the_helper_needs_none_of_them(
    local: LocalCluster, db: Database, spark: SparkProcess, table: str
) -> None:
    """`tl.write` works in a session whose settings are all wrong. It is the last test of a session."""
    wrong: dict[str, str] = {}
    for one in WRONG.values():
        wrong |= {**one.options, **one.session}
    query = QUERY.format(first=0, end=ROWS, tasks=2)
    for mode in ("append", "overwrite_partitions"):
        csn = spark.call("write", url=local.url("r1"), query=query, tables=[table], mode=mode, **wrong)
        require_rows(local, table, csn, range(ROWS))
    require_settled(local)
