"""Checks and generated columns against writers that are no statement of one client: jobs, streams, processes.

Each is refused with the same words as a statement (tests/integration/test_checks.py), and leaves nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_tidelock import DefaultSource
from tests.integration.test_source_tasks import Task, elsewhere
from tests.support.clusters.agreeing import agreeing, all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.spark.hdfs_client import Folder, parquet
from tests.support.spark.process import SparkJobError, SparkProcess
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import BadRequestError, CheckViolationError, RefusedError
from tidelock.spark.schema import struct_of
from tidelock.spark.source import stream_write, writing
from tidelock.spark.source.stream_write import MicroBatch, TidelockStreamWriter
from tidelock.spark.source.writing import TidelockWriter

NUMBERS: Final = itertools.count(1)
COLUMNS: Final = (
    "id bigint not null, pieces int, twice bigint generated always as (id * 2), "
    "constraint positive check (pieces > 0)"
)
SCHEMA: Final = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("pieces", pa.int32()), ("twice", pa.int64())]
)
#: Rows that break the check, or bring another value of the generated column; and what the refusal says of
#: them: the condition by its name, the table, its SQL, and the values of a row that breaks it.
WRONG: Final[dict[str, tuple[list[tuple[int, int, int]], str]]] = {
    "check": (
        [(3, 1, 6), (4, -1, 8)],
        r"1 row breaks check positive of table default\.{table}, which is pieces > 0: one has pieces=-1",
    ),
    "generated column": (
        [(3, 1, 6), (4, 1, 9)],
        r"row breaks generated column twice of table default\.{table}, which is id \* 2: .* .*twice=9",
    ),
}
GOOD: Final = [(3, 1, 6), (4, 1, 8)]


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Two replicas, which agree at the end, with nothing left over."""
    yield from agreeing(module_cluster(replicas=2, settings=QUICK))


@pytest.fixture
def table(local: LocalCluster, db: Database) -> str:
    """A table with a check, a generated column and two rows."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, COLUMNS, properties={"compaction": "off"})
    db.insert(name, rows((1, 7, 2), (2, 8, 4)))
    all_follow(local)
    return name


def rows(*given: tuple[int, int, int]) -> pa.Table:
    """Return rows."""
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given], SCHEMA)


def ids(db: Database, table: str) -> list[int]:
    """Return the ids of the rows, at the newest CSN of all replicas."""
    with db.begin(fresh=True) as tx:
        return sorted(tx.read(table)["id"].to_pylist())


def options(local: LocalCluster, table: str) -> dict[str, str]:
    """Return the options of the data source."""
    return {"table": table, "url": local.url("r1"), "replica": "r1"}


def by_source(local: LocalCluster, db: Database, table: str, given: pa.Table, *, over: bool = False) -> None:
    """Write as a job of Spark does, with a task for each row."""
    writer = DefaultSource(options(local, table)).writer(struct_of(db.table(table)), over)
    assert isinstance(writer, TidelockWriter)
    job = elsewhere(writer)
    told: list[WriterCommitMessage | None] = []
    for number in range(given.num_rows):
        with mock.patch.object(writing, "TaskContext", Task(number)):
            told.append(elsewhere(job).write(iter(given.slice(number, 1).to_batches())))
    try:
        elsewhere(job).commit(elsewhere(told))
    except RefusedError:
        elsewhere(job).abort(elsewhere(told))  # as Spark does
        raise


def by_stream(local: LocalCluster, db: Database, table: str, given: pa.Table) -> None:
    """Write as a micro-batch of a streaming query does."""
    source = DefaultSource(options(local, table))
    writer = source.streamWriter(struct_of(db.table(table)), overwrite=False)
    assert isinstance(writer, TidelockStreamWriter)
    number = next(NUMBERS)
    with (
        mock.patch.object(stream_write, "current_batch", partial(MicroBatch, f"query {table}", number)),
        mock.patch.object(writing, "TaskContext", Task(0)),
    ):
        told: list[WriterCommitMessage | None] = [elsewhere(writer).write(iter(given.to_batches()))]
    try:
        elsewhere(writer).commit(elsewhere(told), number)
    except RefusedError:
        elsewhere(writer).abort(elsewhere(told), number)
        raise


def by_path(local: LocalCluster, db: Database, table: str, given: pa.Table) -> None:
    """Write files to the table's folder as Hadoop's committer does, and seal them."""
    with db.begin() as tx:
        folder = Folder(tx.path(table))
        folder.setup()
        folder.commit_task(folder.write_task({"": parquet(given)}))
        folder.close_job()
        tx.seal(table)


def by_another_process(local: LocalCluster, db: Database, table: str, given: pa.Table) -> None:
    """Insert by the token of a transaction, which its owner commits."""
    with db.begin() as tx:
        with db.join(tx.token(rights=["append"])) as joined:
            joined.insert(table, given)
        tx.commit()


def beside_another_table(local: LocalCluster, db: Database, table: str, given: pa.Table) -> None:
    """Insert into two tables by one request; the rows of the other table are good."""
    other = f"{table}_other_{next(NUMBERS)}"
    db.create_table(other, "id bigint")
    try:
        db.write({other: pa.table({"id": [1]}), table: given}, label=f"label {other}")
    except RefusedError:
        assert ids(db, other) == []
        assert db.label(f"label {other}") is None
        raise
    assert ids(db, other) == [1]


def by_sql(local: LocalCluster, db: Database, table: str, given: pa.Table) -> None:
    """Insert by SQL, which names its columns."""
    values = ", ".join(str(tuple(row.values())) for row in given.to_pylist())
    with db.begin() as tx:
        tx.sql(f"insert into {table} (id, pieces, twice) select * from (values {values})")


Writer = Callable[[LocalCluster, Database, str, pa.Table], object]
WRITERS: Final[dict[str, Writer]] = {
    "job of the data source": by_source,
    "job that overwrites": partial(by_source, over=True),
    "micro-batch": by_stream,
    "files by a path": by_path,
    "another process": by_another_process,
    "two tables at once": beside_another_table,
    "sql": by_sql,
    "rows with more columns": lambda _, db, table, given: db.insert(
        table, given.append_column("more", pa.array(["x"] * given.num_rows)), merge_schema=True
    ),
    "exact rows": lambda _, db, table, given: db.insert(table, given, cast="exact"),
    "upsert of its own": lambda _, db, table, given: db.upsert(table, given, on=["id"]),
    "merge of its own": lambda _, db, table, given: db.merge(
        table, given, on=["id"], when_not_matched_insert=True
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.few(8)
def test_each_writer_is_refused_with_the_same_words(
    local: LocalCluster, db: Database, table: str, writer: str, wrong: str
) -> None:
    """The condition, the table and the values are named; no row, column, file or open transaction is left."""
    given, words = WRONG[wrong]
    with pytest.raises(CheckViolationError, match=words.format(table=re.escape(table))) as caught:
        WRITERS[writer](local, db, table, rows(*given))
    assert caught.value.details["table"] == f"default.{table}"
    check, column, value = ("positive", "pieces", "-1") if wrong == "check" else ("twice", "twice", "9")
    assert (caught.value.details["check"], caught.value.details["row"][column]) == (check, value)
    assert ids(db, table) == [1, 2]
    assert [column.name for column in db.table(table).columns] == SCHEMA.names
    eventually(lambda: not [row for row in db.transactions() if row["state"] == "open"])
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
    WRITERS[writer](local, db, table, rows(*GOOD))
    assert ids(db, table) == ([3, 4] if writer == "job that overwrites" else [1, 2, 3, 4])


def test_a_replaced_partition_keeps_the_conditions_of_its_table(db: Database) -> None:
    """The rows that would be replaced stay if one of the new rows breaks a condition."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, f"{COLUMNS}, city string", partition_by=["city"])
    city = ("city", pa.array(["a", "a"]))
    db.insert(name, rows((1, 7, 2), (2, 8, 4)).append_column(*city))
    for given, words in WRONG.values():
        with pytest.raises(CheckViolationError, match=words.format(table=name)):
            db.replace_partition(name, {"city": "a"}, rows(*given).append_column(*city))
    assert ids(db, name) == [1, 2]
    db.replace_partition(name, {"city": "a"}, rows(*GOOD).append_column(*city))
    assert ids(db, name) == [3, 4]


def test_rows_that_land_have_no_conditions_to_break(db: Database) -> None:
    """Their table gets neither a check nor a generated column, when it is made or later."""
    name = f"t{next(NUMBERS)}"
    landing = {"landing": "on"}
    for columns in ("id bigint, constraint c check (id > 0)", "id bigint, n bigint generated always as (id)"):
        with pytest.raises(BadRequestError, match="landing"):
            db.create_table(name, columns, properties=landing)
    db.create_table(name, "id bigint", properties=landing)
    changes: list[dict[str, Any]] = [
        {"checks": {"c": "id > 0"}},
        {"add": "n bigint generated always as (id)"},
    ]
    for change in changes:
        with pytest.raises(BadRequestError, match="landing"):
            db.alter_table(name, **change)
    assert [column.name for column in db.table(name).columns] == ["id"]


@pytest.mark.spark
@pytest.mark.slow
def test_jobs_of_spark_itself_are_refused_with_the_same_words(
    local: LocalCluster, db: Database, table: str, tmp_path: Path
) -> None:
    """`tl.write` and the data source, in a session; both take rows that keep the conditions."""
    with SparkProcess("classic", tmp_path, python_workers=True) as spark:
        for given, words in WRONG.values():
            query = "select * from values {} as (id, pieces, twice)".format(
                ", ".join(f"({key}L, {pieces}, {twice}L)" for key, pieces, twice in given)
            )
            with pytest.raises(SparkJobError, match=words.format(table=table)):
                spark.call("save", query=query, options=options(local, table))
            with pytest.raises(SparkJobError, match=words.format(table=table)):
                spark.call("write", url=local.url("r1"), query=query, tables=[table])
        assert ids(db, table) == [1, 2]
        good = "select * from values (3L, 1, 6L), (4L, 1, 8L) as (id, pieces, twice)"
        spark.call("save", query=good, options=options(local, table))
    assert ids(db, table) == [1, 2, 3, 4]
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
