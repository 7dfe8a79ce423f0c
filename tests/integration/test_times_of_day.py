"""Times of day: by each way in, through SQL, files, DuckDB and Spark, with the ends of the day."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest

from tests.support.clusters.agreeing import agreeing, all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.spark.process import SparkProcess
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import BadRequestError, DuplicateKeyError, SchemaMismatchError

NUMBERS: Final = itertools.count(1)
NOON: Final = dt.time(12)
TIMES: Final = (dt.time.min, dt.time(6, 30), NOON, dt.time(23, 59, 59, 999999), None)
SCHEMA: Final = pa.schema([("n", pa.int64()), ("t", pa.time64("us")), ("l", pa.list_(pa.time64("us")))])
ROWS: Final[list[dict[str, Any]]] = [{"n": n, "t": time, "l": [time, NOON]} for n, time in enumerate(TIMES)]


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which cut nearly every part, and agree at the end, with nothing left over."""
    settings = QUICK | {"cut_part_bytes_min": 1, "row_group_rows": 2}
    yield from agreeing(module_cluster(replicas=3, settings=settings))


def filled(db: Database) -> str:
    """Return a table with the rows, in parts of two."""
    table = f"t{next(NUMBERS)}"
    made = db.create_table(table, "n bigint, t time, l array<time>")
    assert [column.type for column in made.columns] == ["bigint", "time", "array<time>"]
    rows = pa.Table.from_pylist(ROWS, SCHEMA)
    db.insert(table, rows.slice(0, 2))
    db.insert(table, rows.slice(2), wait="all")
    return table


def sorted_rows(found: pa.Table) -> list[dict[str, Any]]:
    """Return rows in the order of their numbers."""
    return sorted(found.to_pylist(), key=lambda row: row["n"])


def test_times_are_the_same_for_each_reader(dbs: list[Database], db: Database, tmp_path: Path) -> None:
    """Before and after the parts are merged, at each replica, by SQL and in the files themselves."""
    table = filled(db)
    for number in range(2):
        with db.begin(fresh=True) as tx:
            csn = tx.snapshot_csn
        for one in dbs:
            with one.snapshot(min_csn=csn) as snapshot:
                assert sorted_rows(snapshot.read(table)) == ROWS
                assert sorted_rows(snapshot.sql(f"select * from {table}")) == ROWS
                found = snapshot.sql(f"select n from {table} where t >= time '12:00' order by n")
                assert found["n"].to_pylist() == [2, 3]
        folder = tmp_path / f"out{number}"
        db.export(table, folder)
        with duckdb.connect() as duck:
            read = duck.sql(f"select * from read_parquet('{folder}/**/*.parquet')").to_arrow_table()
        assert sorted_rows(read) == ROWS
        copy = f"{table}_copy{number}"
        db.create_table(copy, "n bigint, t time, l array<time>")
        db.import_files(copy, folder)
        assert sorted_rows(db.read(copy)) == ROWS
        db.optimize(table)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_come_in_each_unit(db: Database, unit: str) -> None:
    """A table made of such rows has microseconds; those without an equal are refused with their row."""
    table = f"t{next(NUMBERS)}"
    kind = pa.time32(unit) if unit in {"s", "ms"} else pa.time64(unit)
    rows = pa.table({"t": pa.array([NOON, None, dt.time(23, 59, 59)], kind)})
    db.create_table(table, rows.schema)
    db.insert(table, rows)
    assert db.read(table)["t"].to_pylist() == [NOON, None, dt.time(23, 59, 59)]
    if unit == "ns":
        with pytest.raises(SchemaMismatchError, match=r"column t .* row 1 \(from 0\)"):
            db.insert(table, pa.table({"t": pa.array([0, 1], kind)}))


def test_changes_defaults_and_keys_have_times(db: Database) -> None:
    """Values of SQL and of Python, old parts that show a default, and a key that is there once."""
    table = filled(db)
    db.update(table, {"t": "t + interval 1 hour"}, where="n = 1")
    db.update(table, {"t": dt.time(1, 2, 3, 4)}, where="n = 4")
    db.alter_table(table, add="at time default time '08:15'")
    found = sorted_rows(db.read(table))
    assert [row["t"] for row in found] == [TIMES[0], dt.time(7, 30), NOON, TIMES[3], dt.time(1, 2, 3, 4)]
    assert {row["at"] for row in found} == {dt.time(8, 15)}
    db.delete(table, "t < time '02:00'")
    assert [row["n"] for row in sorted_rows(db.read(table))] == [1, 2, 3]
    keyed = f"{table}_keyed"
    db.create_table(keyed, "t time not null, n int", properties={"unique_key": "t"})
    times = [time for time in TIMES if time is not None]
    db.insert(keyed, pa.table({"t": times, "n": pa.array(range(4), pa.int32())}))
    with pytest.raises(DuplicateKeyError):
        db.insert(keyed, pa.table({"t": [NOON], "n": pa.array([9], pa.int32())}))
    db.upsert(keyed, pa.table({"t": [NOON], "n": pa.array([9], pa.int32())}), on=["t"])
    assert db.sql(f"select n from {keyed} where t = time '12:00'")["n"].to_pylist() == [9]


def test_the_end_of_the_day_is_no_time(db: Database) -> None:
    """DuckDB has 24:00:00, which other readers take for midnight or refuse."""
    table = filled(db)
    with pytest.raises(SchemaMismatchError, match=r"column t .* is 24:00:00"):
        db.update(table, {"t": "time '24:00:00'"}, where="n = 1")
    with pytest.raises(SchemaMismatchError, match=r"column l .* is 24:00:00"):
        db.update(table, {"l": "[time '24:00:00']"}, where="n = 1")
    with pytest.raises(BadRequestError, match="acceptable range"):
        db.insert(table, pa.table([[1], pa.array([86_400_000_000], pa.time64("us")), [[]]], SCHEMA))
    with pytest.raises(BadRequestError, match="constant of type time"):
        db.alter_table(table, default={"t": "time '24:00:00'"})
    with pytest.raises(BadRequestError, match="partition by the hour"):
        db.create_table(f"{table}_p", "n bigint, t time", partition_by=["t"])
    assert sorted_rows(db.read(table)) == ROWS


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_and_writes_times_of_day(local: LocalCluster, db: Database, tmp_path: Path) -> None:
    """`tl.attach` and `tl.write` make the setting that the session needs; the data source has it then."""
    table = filled(db)
    all_follow(local)
    told = [[row["n"], None if row["t"] is None else str(row["t"])] for row in ROWS]
    text = "cast(t as string)"
    with SparkProcess("classic", tmp_path, python_workers=True) as spark:
        spark.call("join", url=local.url("r2"))
        spark.call("attach", tables=[table])
        assert spark.sql(f"select n, {text} from {table} order by n") == told
        assert spark.sql(f"select n from {table} where t >= time'12:00:00' order by n") == [[2], [3]]
        listed = spark.sql(f"select n from {table} where l[1] = time'12:00:00' order by n")
        assert listed == [[n] for n in range(5)]
        spark.call("load", view="source", options={"table": table, "url": local.url("r3")})
        assert spark.sql(f"select n, {text} from source order by n") == told
        more = f"select n + 10 as n, t, l from {table}"
        spark.call("write", url=local.url("r1"), query=more, tables=[table])
    found = sorted_rows(db.read(table))
    assert found == [*ROWS, *({**row, "n": row["n"] + 10} for row in ROWS)]
