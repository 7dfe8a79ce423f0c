"""Several tables in one transaction, in the SQL of stock Spark: rows, definitions, and what fails."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.rows import ALL_TYPES, EXTREMES
from tests.support.spark import spark35
from tests.support.spark.metastores import serving
from tests.support.spark.process import SparkJobError, SparkProcess
from tests.support.waiting import TIMEOUT_S
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.metastore.calls import Calls
from tidelock.metastore.changes import Changes
from tidelock.metastore.snapshots import Snapshots
from tidelock.metastore.transactions import Transactions

pytestmark = pytest.mark.spark

NUMBERS: Final = itertools.count(1)
#: Settings of a careless session; none of them may hide that a table of a transaction is not read.
CARELESS: Final = {
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.timeType.enabled": "true",
}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas, either of which may be the home of a transaction."""
    return module_cluster(replicas=2, settings=QUICK)


@contextlib.contextmanager
def metastore_of(local: LocalCluster) -> Iterator[dict[str, str]]:
    """Serve tables by name; yield the settings of a session."""
    with (
        local.connect() as db,
        contextlib.closing(Snapshots(db)) as snapshots,
        contextlib.closing(Transactions(db)) as transactions,
        serving(Calls(snapshots, Changes(db, transactions))) as server,
    ):
        yield {
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.hive.metastore.uris": f"thrift://127.0.0.1:{server.port}",
        }


@pytest.fixture(scope="module")
def spark(local: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A session in one JVM, whose tasks cannot start Python."""
    folder = tmp_path_factory.mktemp("spark")
    with metastore_of(local) as conf:
        conf |= {"spark.sql.warehouse.dir": str(folder / "warehouse"), **CARELESS}
        with SparkProcess("classic", folder, conf=conf) as made:
            yield made


@pytest.fixture
def names(local: LocalCluster, db: Database) -> Iterator[tuple[str, str, str]]:
    """A partitioned table, one without partitions, and a label; nothing may be left of what was refused."""
    number = next(NUMBERS)
    orders, lines = f"orders{number}", f"lines{number}"
    db.create_table(
        orders, "o_id bigint not null, o_year int, o_day string", partition_by=["o_year", "o_day"]
    )
    db.create_table(lines, "l_order bigint not null, l_price decimal(9,2)")
    yield orders, lines, f"load{number}"
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
    assert db.audit(timeout_s=TIMEOUT_S).findings == []


def run(spark: SparkProcess, *statements: str) -> None:
    """Run statements, one after the other."""
    for statement in statements:
        spark.sql(statement)


def counts(db: Database, *tables: str) -> list[int]:
    """Return the numbers of rows of tables, at one CSN."""
    with db.snapshot() as at:
        return [at.read(table).num_rows for table in tables]


def insert(orders: str, lines: str, label: str, first: int = 0, end: int = 100) -> list[str]:
    """Return the statements that insert as many orders as lines."""
    rows = f"from range({first}, {end}, 1, 2)"
    order = "select id, cast(1990 + id % 3 as int), concat('d', id % 2)"
    return [
        f"insert into tx_{label}.{orders} {order} {rows}",
        f"insert into tx_{label}.{lines} select id, cast(id as decimal(9,2)) {rows}",
    ]


def test_several_tables_change_with_one_commit_in_pure_sql(
    db: Database, spark: SparkProcess, names: tuple[str, str, str]
) -> None:
    """Nothing is visible before; afterwards all of it, at one CSN, and the label counts once."""
    orders, lines, label = names
    run(spark, f"create database tx_{label}", *insert(*names))
    assert counts(db, orders, lines) == [0, 0]
    run(spark, f"alter database tx_{label} set dbproperties (commit = 'yes')")
    assert counts(db, orders, lines) == [100, 100]
    described = dict(row[:2] for row in spark.sql(f"describe database extended tx_{label}"))
    known = db.label(label)
    assert known is not None
    assert f"(csn,{known.csn})" in described["Properties"]
    assert spark.sql(f"select count(*), sum(l_price) from default_at_{known.csn}.{lines}")[0][0] == 100
    with pytest.raises(SparkJobError, match=f"was committed before, at CSN {known.csn}"):
        run(spark, f"create database tx_{label}")
    assert db.read(orders, where="o_year = 1991 and o_day = 'd1'").num_rows == 17


def test_inserts_replace_rows_of_tables_and_of_partitions(
    db: Database, spark: SparkProcess, names: tuple[str, str, str]
) -> None:
    """A whole table, a partition that is named, and those that have new rows."""
    orders, lines, label = names
    run(spark, f"create database tx_{label}", *insert(*names))
    run(spark, f"alter database tx_{label} set dbproperties (commit = 'yes')", f"create database tx_{label}b")
    run(
        spark,
        f"insert overwrite tx_{label}b.{lines} select 7L, 7.00",
        f"insert overwrite tx_{label}b.{orders} partition (o_year = 1990, o_day = 'd0') select 1L",
        "set spark.sql.sources.partitionOverwriteMode = dynamic",
        f"insert overwrite tx_{label}b.{orders} select 2L, 1991, 'd1'",
        "set spark.sql.sources.partitionOverwriteMode = static",
    )
    assert counts(db, orders, lines) == [100, 100]
    run(spark, f"alter database tx_{label}b set dbproperties (commit = 'yes')")
    found = db.sql(f"select o_year, o_day, count(*) as n from {orders} group by all order by all").to_pylist()
    by_partition = {(row["o_year"], row["o_day"]): row["n"] for row in found}
    assert (by_partition[1990, "d0"], by_partition[1991, "d1"], sum(by_partition.values())) == (1, 1, 68)
    assert db.read(lines).to_pylist()[0]["l_order"] == 7


def test_a_transaction_is_rolled_back(db: Database, spark: SparkProcess, names: tuple[str, str, str]) -> None:
    """With or without a word about its tables; then there is none."""
    orders, lines, label = names
    for cascade in ("", " cascade"):
        run(spark, f"create database tx_{label}", *insert(*names), f"drop database tx_{label}{cascade}")
        assert counts(db, orders, lines) == [0, 0]
        run(spark, f"drop database if exists tx_{label}")
        spark.sql(f"refresh table default.{orders}")
    with pytest.raises(SparkJobError, match=r"SCHEMA_NOT_FOUND|TABLE_OR_VIEW_NOT_FOUND"):
        run(spark, *insert(*names))


def test_tables_of_a_transaction_are_not_read(
    db: Database, spark: SparkProcess, names: tuple[str, str, str]
) -> None:
    """Whatever the session says about missing and damaged files, with or without rows in them."""
    orders, lines, label = names
    db.insert(lines, pa.table({"l_order": [1], "l_price": [1]}))
    run(spark, f"create database tx_{label}")
    for _ in range(2):
        for query in ("select count(*) from {}", "select * from {}", "select * from {} where true limit 3"):
            for table in (orders, lines):
                with pytest.raises(SparkJobError, match=r"accepts writes only|FAILED_READ_FILE"):
                    spark.sql(query.format(f"tx_{label}.{table}"))
        run(spark, *insert(*names))
    run(spark, f"drop database tx_{label}")


def test_an_insert_that_fails_adds_nothing(
    db: Database, spark: SparkProcess, names: tuple[str, str, str]
) -> None:
    """And the others of its transaction are committed without it."""
    orders, lines, label = names
    run(spark, f"create database tx_{label}", insert(*names)[0])
    with pytest.raises(SparkJobError, match="on purpose"):
        run(
            spark,
            f"insert into tx_{label}.{lines} select if(id = 99, raise_error('on purpose'), id), 1.00 "
            "from range(0, 100, 1, 2)",
        )
    run(spark, f"alter database tx_{label} set dbproperties (commit = 'yes')")
    assert counts(db, orders, lines) == [100, 0]


def test_tables_are_defined_and_filled_in_one_transaction(
    db: Database, spark: SparkProcess, names: tuple[str, str, str]
) -> None:
    """A new one, a column more, another name; a table is created with its rows, or not at all."""
    orders, _, label = names
    made = f"made_{label}"
    run(
        spark,
        f"create database tx_{label}",
        f"create table tx_{label}.{made} (k bigint comment 'its key', n int, p string) using parquet "
        "partitioned by (p) tblproperties ('unique_key' = 'k,p')",
        f"insert into tx_{label}.{made} select id, cast(id % 2 as int), 'a' from range(10)",
        f"alter table tx_{label}.{orders} add columns (note string)",
    )
    with pytest.raises(SparkJobError, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        run(spark, f"create table tx_{label}.{made} (k bigint) using parquet")
    with pytest.raises(SparkJobError):
        run(spark, f"create table tx_{label}.copied using parquet as select * from range(3)")
    run(spark, f"alter database tx_{label} set dbproperties (commit = 'yes')")
    assert counts(db, made) == [10]
    assert [one.name for one in db.table(orders).columns] == ["o_id", "o_year", "o_day", "note"]
    key = db.table(made).columns[0]
    assert (key.comment, key.nullable) == ("its key", False)
    run(
        spark,
        "create database if not exists space_of_sql",
        "create table space_of_sql.made (v int) using parquet",
    )
    assert [one.type for one in db.table("space_of_sql.made").columns] == ["int"]
    assert spark.sql("select count(*) from space_of_sql.made") == [[0]]
    with pytest.raises(SparkJobError):
        run(spark, "create table space_of_sql.copied using parquet as select * from range(3)")
    assert "space_of_sql.copied" not in {one.name for one in db.tables()}


def test_rows_of_every_type_are_inserted(
    db: Database, spark: SparkProcess, names: tuple[str, str, str]
) -> None:
    """With the one setting that timestamps need; without it the INSERT fails and names it."""
    *_, label = names
    length = max(len(EXTREMES[name]) for name in ALL_TYPES)
    columns = {name: (list(EXTREMES[name]) * length)[:length] for name in ALL_TYPES}
    rows = pa.table({name: pa.array(values, ALL_TYPES[name]) for name, values in columns.items()})
    db.create_table("sent", rows.schema)
    db.create_table("received", rows.schema)
    csn = db.insert("sent", rows).csn
    copy = f"insert into tx_{label}.received select * from default_at_{csn}.sent"
    run(spark, f"create database tx_{label}")
    with pytest.raises(SparkJobError, match="outputTimestampType=TIMESTAMP_MICROS"):
        run(spark, copy)
    run(spark, f"drop database tx_{label} cascade", f"create database tx_{label}x")
    run(spark, "set spark.sql.parquet.outputTimestampType = TIMESTAMP_MICROS")
    run(spark, copy.replace(f"tx_{label}.", f"tx_{label}x."))
    run(spark, f"alter database tx_{label}x set dbproperties (commit = 'yes')")
    sent, received = (
        spark.sql(f"select xxhash64(*) as h from default.{table} order by h")
        for table in ("sent", "received")
    )
    assert received == sent


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["3.5", "cluster"])
def test_other_sessions_write_in_pure_sql(
    local: LocalCluster, db: Database, names: tuple[str, str, str], tmp_path: Path, kind: str
) -> None:
    """An older Spark, and executors in processes of their own."""
    orders, lines, label = names
    options: dict[str, Any] = {"pyspark": spark35.folder()} if kind == "3.5" else {}
    with metastore_of(local) as conf:
        conf |= {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
        session = "classic" if kind == "3.5" else kind
        with SparkProcess(session, tmp_path, conf=conf, **options) as other:
            run(other, f"create database tx_{label}", *insert(*names))
            with pytest.raises(SparkJobError):
                other.sql(f"select count(*) from tx_{label}.{lines}")
            run(other, f"alter database tx_{label} set dbproperties (commit = 'yes')")
    assert counts(db, orders, lines) == [100, 100]
