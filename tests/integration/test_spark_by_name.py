"""Stock Spark SQL finds tables by name through the metastore: the same rows as by `tl.attach`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.rows import ALL_TYPES, EXTREMES
from tests.support.spark.metastores import serving
from tests.support.spark.process import SparkJobError, SparkProcess
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.metastore import spark_defaults
from tidelock.metastore.calls import Calls
from tidelock.metastore.snapshots import Snapshots, route_to

pytestmark = pytest.mark.spark

#: Above this Spark lists folders by a job on the executors, which do not get a table's options.
LISTED_BY_DRIVER: Final = 32
#: Types with values that Python cannot hold, or compare; Spark tells them as text.
AS_TEXT: Final = {"c_time", "c_date", "c_timestamp", "c_timestamp_ntz", "c_float", "c_double"}
#: Spark has times of day since 4.1, and reads them where it is told to.
TIMES: Final = {"spark.sql.timeType.enabled": "true"}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas."""
    return module_cluster(replicas=2, settings=QUICK)


@contextlib.contextmanager
def metastore_of(local: LocalCluster, *, by_catalog: bool = False) -> Iterator[str]:
    """Serve tables by name; yield the address."""
    authority = spark_defaults.AUTHORITY if by_catalog else None
    with (
        local.connect("r1") as db,
        contextlib.closing(Snapshots(db, authority=authority)) as snapshots,
        serving(Calls(snapshots, by_catalog=by_catalog)) as server,
    ):
        yield f"thrift://127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def metastore(local: LocalCluster) -> Iterator[str]:
    """The address of a metastore."""
    with metastore_of(local) as address:
        yield address


def settings(metastore: str, folder: Path) -> dict[str, str]:
    """Return the two settings of a session, and a folder for what it makes itself."""
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": metastore,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


@pytest.fixture(scope="module")
def spark(metastore: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A session in one JVM, whose tasks cannot start Python."""
    folder = tmp_path_factory.mktemp("spark")
    with SparkProcess("classic", folder, conf=settings(metastore, folder) | TIMES) as made:
        yield made


def test_rows_by_name_are_those_of_an_attached_snapshot(
    local: LocalCluster, db: Database, spark: SparkProcess
) -> None:
    """Of every type with its extremes; columns of plain names in the order of the definition."""
    length = max(len(EXTREMES[name]) for name in ALL_TYPES)
    columns = {name: (list(EXTREMES[name]) * length)[:length] for name in ALL_TYPES}
    rows = pa.table({name: pa.array(values, ALL_TYPES[name]) for name, values in columns.items()})
    plain = [name for name in ALL_TYPES if name not in AS_TEXT | {"c_binary"}]
    told = [*plain, *(f"cast({name} as string)" for name in sorted(AS_TEXT)), "hex(c_binary)"]
    query = f"select {', '.join(told)} from {{name}} order by all"
    db.create_table("extremes", rows.schema)
    csn = db.insert("extremes", rows).csn
    spark.call("join", url=local.url("r1"))
    spark.call("attach", csn=csn, tables=["extremes"], prefix="attached_")
    expected = spark.sql(query.format(name="attached_extremes"))
    assert len(expected) == length
    assert spark.sql(query.format(name=f"default_at_{csn}.extremes")) == expected
    assert spark.sql(query.format(name="default.extremes")) == expected
    described = spark.sql("describe attached_extremes")
    assert spark.sql(f"describe default_at_{csn}.extremes") == described


def test_a_query_prunes_partitions_and_pushes_filters(db: Database, spark: SparkProcess) -> None:
    """By Spark's own scan; statistics come with the table."""
    db.create_table("orders", "o_id bigint not null, p string, y int", partition_by=["p", "y"])
    texts = ["007", "7", "a/b=c %ü", None]
    rows = {
        "o_id": range(40),
        "p": [texts[n % 4] for n in range(40)],
        "y": [1990 + n // 10 for n in range(40)],
    }
    csn = db.insert("orders", pa.table({**rows, "y": pa.array(rows["y"], pa.int32())})).csn
    name = f"default_at_{csn}.orders"
    for condition, found in (
        ("p = '007'", 10), ("p in ('7', '007') and y > 1991", 10), ("p is null", 10),
        ("y = 1990 or y >= 1993", 20),
        ("p like 'a%'", 10), ("o_id > 35", 4), ("p <> '7'", 20), ("y between 1991 and 1992", 20),
        ("false", 0),
    ):  # fmt: skip
        assert spark.sql(f"select count(*) from {name} where {condition}") == [[found]], condition
    plan = spark.call("explain", query=f"select * from {name} where p = '007' and o_id > 5")
    assert "Batched: true" in plan
    assert "GreaterThan(o_id,5)" in plan
    assert "PartitionFilters: [isnotnull(p" in plan


def test_names_lead_to_the_csn_that_they_say(db: Database, spark: SparkProcess) -> None:
    """A session reads one CSN by `USE`; the view of the newest one gives its name."""
    db.create_table("sales.moving", "v bigint")
    first = db.insert("sales.moving", pa.table({"v": [1]})).csn
    db.tag("q_moving")
    newest = db.insert("sales.moving", pa.table({"v": [2]})).csn
    assert spark.sql("select * from tidelock.now") == [[newest, f"_at_{newest}"]]
    counted = {
        name: spark.sql(f"select count(*) from {name}.moving")[0][0]
        for name in ("sales", f"sales_at_{first}", f"sales_at_{newest}", "sales_at_q_moving")
    }
    assert counted == {"sales": 2, f"sales_at_{first}": 1, f"sales_at_{newest}": 2, "sales_at_q_moving": 1}
    last = db.insert("sales.moving", pa.table({"v": [3]})).csn
    assert spark.sql("select count(*) from sales.moving") == [[3]]
    spark.sql(f"use sales_at_{newest}")
    assert spark.sql("select count(*) from moving") == [[2]]
    spark.sql("use default")
    with pytest.raises(SparkJobError, match=f"NoSuchCsnError.*the log ends at {last}"):
        spark.sql("select * from sales_at_99999999.moving")
    with pytest.raises(SparkJobError, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("select * from sales.none")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("insert into {exact} values (1)", "snapshots are read only"),
        ("insert into {plain} values (1)", "EXPECT_TABLE_NOT_VIEW"),
        ("create table made (v bigint) using parquet", r"write with tidelock\.spark\.write"),
        ("drop view {plain}", r"by --writes off \(drop_table"),
        ("alter table {exact} add columns (w bigint)", r"by --writes off \(alter_table"),
        ("create database made", r"by --writes off \(create_database"),
        ("select * from {exact} version as of 1", "UNSUPPORTED_FEATURE.TIME_TRAVEL|TIME_TRAVEL"),
    ],
)
def test_each_statement_that_changes_something_is_refused(
    db: Database, spark: SparkProcess, statement: str, words: str
) -> None:
    """With a reason that the user sees; the table stays as it was."""
    db.create_table("kept", "v bigint", if_not_exists=True)
    csn = db.insert("kept", pa.table({"v": [1]})).csn
    before = db.read("kept").num_rows
    with pytest.raises(SparkJobError, match=words):
        spark.sql(statement.format(exact=f"default_at_{csn}.kept", plain="default.kept"))
    assert db.read("kept").num_rows == before


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("by_catalog", [False, True], ids=["listed", "by the catalog"])
def test_executors_in_other_processes_list_many_folders(
    local: LocalCluster, db: Database, tmp_path: Path, by_catalog: bool
) -> None:
    """With the options of the table, or with those of the session, which say how to reach the replicas."""
    count = 2 * LISTED_BY_DRIVER
    table = "wide" if by_catalog else "broad"
    db.create_table(table, "v bigint not null, p int", partition_by=["p"])
    csn = db.insert(table, pa.table({"v": range(count), "p": pa.array(range(count), pa.int32())})).csn
    with metastore_of(local, by_catalog=by_catalog) as address:
        conf = settings(address, tmp_path)
        if by_catalog:
            conf |= spark_defaults.settings(route_to(db, None, spark_defaults.AUTHORITY), address)
        with SparkProcess("cluster", tmp_path, conf=conf) as spark:
            for name in (f"default_at_{csn}", "default"):
                assert spark.sql(f"select count(*), sum(v) from {name}.{table}") == [
                    [count, sum(range(count))]
                ]
                assert spark.sql(f"select v from {name}.{table} where p = 50") == [[50]]
            if by_catalog:
                assert len(spark.sql(f"show partitions default_at_{csn}.{table}")) == count
