"""Reader and writer of the data source on real agents, driven as PySpark does it, without a session.

PySpark runs each method in another process, so its object has been pickled before.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar
from unittest import mock

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructField, StructType

from pyspark_tidelock import DefaultSource
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates
from tests.support.histories.evidence import nothing_left
from tests.support.waiting import TIMEOUT_S, eventually
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    RefusedError,
    SchemaMismatchError,
    SerializationConflictError,
    SnapshotTooOldError,
    TidelockError,
    TransactionClosedError,
    UnavailableError,
    UnknownTableError,
    UnsealedWriteError,
)
from tidelock.spark.schema import struct_of, type_of
from tidelock.spark.source import writing
from tidelock.spark.source.writing import TidelockWriter, Written

T = TypeVar("T")

SECRET = "a shared secret"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("text", pa.string())])
NUMBERS = itertools.count(1)
APPLY = "replication.apply.before"


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """A gate that delays the apply of r2."""
    return Gates(tmp_path_factory.mktemp("gates"), {"r2": {APPLY: "pause"}})


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, gates: Gates) -> LocalCluster:
    """Two replicas, both needed for a commit."""
    settings = {**QUICK, "secret": SECRET, "row_group_rows": 1000}
    return module_cluster(replicas=2, settings=settings, environment_of={"r2": gates.environment("r2")})


@pytest.fixture
def table(db: Database) -> str:
    """An empty table, partitioned by city."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA, partition_by=["city"])
    return name


@pytest.fixture
def options(local: LocalCluster, table: str) -> dict[str, str]:
    """Options that name the table; reads and writes begin at r1."""
    return {"table": table, "url": local.url("r1"), "token": SECRET, "replica": "r1"}


def pickled(value: object) -> bytes:
    """Return a value as PySpark sends it to another process."""
    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data


def elsewhere(value: T) -> T:
    """Return a value as it arrives in another process."""
    copy: T = cloudpickle.loads(pickled(value))
    return copy


def rows(*ids: int, city: str | None = "a") -> pa.RecordBatch:
    """Rows of one partition."""
    return pa.RecordBatch.from_pylist([{"id": number, "city": city, "text": "x"} for number in ids], SCHEMA)


def schema(db: Database, table: str) -> StructType:
    """The table's schema."""
    return struct_of(db.table(table))


def writer(db: Database, options: Mapping[str, str], *, overwrite: bool = False) -> TidelockWriter:
    """Return the writer that Spark has when a write begins."""
    found = DefaultSource(options).writer(schema(db, options["table"]), overwrite)
    assert isinstance(found, TidelockWriter)
    return elsewhere(found)


class Task:
    """The task context of PySpark: the numbers of a task and of its attempt."""

    attempts = itertools.count(1)

    def __init__(self, number: int) -> None:
        self._number, self._attempt = number, next(self.attempts)

    def get(self) -> Task:
        """Return the context, as `TaskContext.get` does."""
        return self

    def partitionId(self) -> int:  # noqa: N802 - PySpark's name
        """Return the number of the task."""
        return self._number

    def taskAttemptId(self) -> int:  # noqa: N802 - PySpark's name
        """Return the number of the attempt."""
        return self._attempt


def write(job: TidelockWriter, *batches: pa.RecordBatch, task: int = 0) -> Written:
    """Run an attempt of a task."""
    with mock.patch.object(writing, "TaskContext", Task(task)):
        found = elsewhere(job).write(iter(batches))
    assert isinstance(found, Written)
    return elsewhere(found)


class SeenFresh:
    """Inside a `with` block: whether a client has begun a transaction at the end of the log."""

    def __init__(self) -> None:
        self.seen = False
        plain = Database.begin

        def begin(db: Database, *args: Any, **named: Any) -> Transaction:
            self.seen |= bool(named.get("fresh"))
            return plain(db, *args, **named)

        self._patch = mock.patch.object(Database, "begin", begin)

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


def struct(*columns: str) -> StructType:
    """Return a schema of columns `name type`; a column with a third word may not be null."""
    found = [column.split(maxsplit=2) for column in columns]
    return StructType([StructField(name, type_of(kind, name), not rest) for name, kind, *rest in found])


def ids(db: Database, table: str) -> list[int]:
    """Return the ids in a table."""
    return sorted(db.read(table, ["id"])["id"].to_pylist())


def clean(local: LocalCluster) -> None:
    """Require that no replica holds anything that no commit needs."""
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))


def tid_of(job: TidelockWriter) -> str:
    """Return the transaction of a write."""
    assert job._job is not None
    return job._job.tid


# -- writes --------------------------------------------------------------------------------------------------


def test_only_what_is_named_enters(
    local: LocalCluster, db: Database, table: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts that failed, ran twice, or outlive the commit add no rows; large files are copied early."""
    monkeypatch.setattr(writing, "EAGER_BYTES", 1)
    job = writer(db, options)
    first = write(job, rows(1, 2), rows(3, city="Zürich"), rows(4, city=None))
    write(job, rows(1, 2), rows(3, city="Zürich"))  # the same task, once more

    def failing() -> Iterator[pa.RecordBatch]:
        yield rows(9)
        raise RuntimeError("the task fails")

    with pytest.raises(RuntimeError):
        elsewhere(job).write(failing())
    second = write(job, rows(5), task=1)
    zombie = elsewhere(job)
    began, goes_on = [], []

    def late() -> Iterator[pa.RecordBatch]:
        began.append(1)
        yield rows(7)
        elsewhere(job).commit([first, second, Written((), 0, frozenset())])
        goes_on.append(1)
        yield rows(8)

    with pytest.raises(RefusedError, match="accepts nothing more"):
        zombie.write(late())
    assert (began, goes_on) == ([1], [1])
    assert ids(db, table) == [1, 2, 3, 4, 5]
    elsewhere(job).abort([first, None])  # Spark may take a commit that has succeeded for failed
    elsewhere(job).commit([first, second])
    assert db.outcome(tid_of(job)).decision == "committed"
    assert ids(db, table) == [1, 2, 3, 4, 5]
    clean(local)


def test_a_task_that_tells_nothing(db: Database, table: str, options: dict[str, str]) -> None:
    """Without the message of a task the commit fails; after the abort a late attempt is refused."""
    job = writer(db, options)
    done = write(job, rows(1))
    with pytest.raises(UnsealedWriteError, match="1 tasks have not reported"):
        elsewhere(job).commit([done, None])
    elsewhere(job).abort([done, None])
    elsewhere(job).abort([done, None])
    with pytest.raises(TransactionClosedError, match="was rolled back before its commit"):
        elsewhere(job).commit([done])
    with pytest.raises(RefusedError, match="accepts nothing more"):
        write(job, rows(2))
    assert ids(db, table) == []


@pytest.mark.parametrize("mode", ["append", "table", "partitions"])
def test_each_mode_replaces_what_it_says(
    local: LocalCluster, db: Database, table: str, options: dict[str, str], mode: str
) -> None:
    """Each mode replaces its rows, also in a job without rows."""
    db.insert(table, pa.Table.from_batches([rows(1, 2), rows(3, city="b"), rows(4, city=None)]), wait="all")
    given = {**options, "overwritePartitions": "true"} if mode == "partitions" else options
    job = writer(db, given, overwrite=mode != "append")
    elsewhere(job).commit([write(job, rows(10), rows(11, city=None)), write(job, task=1)])
    expected = {"append": [1, 2, 3, 4, 10, 11], "table": [10, 11], "partitions": [3, 10, 11]}
    assert ids(db, table) == expected[mode]
    job = writer(db, given, overwrite=mode != "append")
    elsewhere(job).commit([write(job)])
    assert ids(db, table) == ([] if mode == "table" else expected[mode])
    clean(local)


def test_who_replaces_the_same_is_told_at_once(db: Database, table: str, options: dict[str, str]) -> None:
    """The second of two overwrites fails before a task begins, and leaves no open transaction."""
    db.insert(table, pa.Table.from_batches([rows(1)]), wait="all")
    job = writer(db, options, overwrite=True)
    with pytest.raises(SerializationConflictError):
        writer(db, options, overwrite=True)
    elsewhere(job).abort([])
    assert [row for row in db.transactions() if row["state"] == "open"] == []
    assert ids(db, table) == [1]


def test_of_two_runs_with_a_label_one_counts(db: Database, table: str, options: dict[str, str]) -> None:
    """Of two runs at once one wins; a later one does nothing. All succeed, and the rows are there once."""
    given = {**options, "label": f"load {table}"}
    one, two = writer(db, given), writer(db, given)
    messages = [write(one, rows(1)), write(two, rows(1))]
    elsewhere(one).commit([messages[0]])
    elsewhere(two).commit([messages[1]])
    three = writer(db, given)
    elsewhere(three).commit([write(three, rows(1))])
    elsewhere(three).abort([])
    assert ids(db, table) == [1]
    assert [row for row in db.transactions() if row["state"] == "open"] == []


@pytest.mark.slow
def test_a_task_that_writes_keeps_its_transaction(db: Database, table: str, options: dict[str, str]) -> None:
    """A task that writes for longer than the lease keeps the transaction alive; without a task it ends."""
    lease_s = 6.0
    job = writer(db, {**options, "leaseSeconds": str(lease_s)})

    def slow() -> Iterator[pa.RecordBatch]:
        yield rows(1)
        time.sleep(1.5 * lease_s)
        yield rows(2)

    done = elsewhere(job).write(slow())
    eventually(lambda: db.outcome(tid_of(job)).decision == "aborted")  # no commit follows
    with pytest.raises(TransactionClosedError, match="leaseSeconds"):
        elsewhere(job).commit([done])
    assert ids(db, table) == []


@pytest.mark.slow
def test_signs_of_life_of_short_tasks(db: Database, table: str, options: dict[str, str]) -> None:
    """Each task is shorter than a third of the lease; together they take longer than the lease."""
    lease_s, count = 8.0, 5
    job = writer(db, {**options, "leaseSeconds": str(lease_s)})

    def short(number: int) -> Iterator[pa.RecordBatch]:
        yield rows(number)
        time.sleep(lease_s / 4)

    begun_s = time.monotonic()
    done: list[WriterCommitMessage | None] = []
    for number in range(count):
        with mock.patch.object(writing, "TaskContext", Task(number)):
            done.append(elsewhere(job).write(short(number)))
    assert time.monotonic() - begun_s > lease_s
    elsewhere(job).commit(done)
    assert ids(db, table) == list(range(count))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("id bigint", "city string"), "column text is missing"),
        (("id bigint", "city string", "text string", "more int"), "column more is not in the table"),
        (("id int", "city string", "text string"), "column id is int, expected bigint: cast it"),
    ],
)
def test_wrong_columns_are_told_before_a_task_begins(
    db: Database, table: str, options: dict[str, str], columns: tuple[str, ...], message: str
) -> None:
    """Wrong columns are refused before a task begins, and no transaction stays open."""
    with pytest.raises(SchemaMismatchError, match=message):
        DefaultSource(options).writer(struct(*columns), False)
    assert [row for row in db.transactions() if row["state"] == "open"] == []


def test_a_table_that_the_home_does_not_know_yet(local: LocalCluster, gates: Gates, db: Database) -> None:
    """Another replica has made the table; the write waits until its home knows it, too."""
    with ThreadPoolExecutor() as pool, SeenFresh() as fresh:
        with gates.open("r2", APPLY):
            name = f"t{next(NUMBERS)}"
            db.create_table(name, SCHEMA)
            options = {"table": name, "url": local.url("r2"), "token": SECRET, "replica": "r2"}
            made = pool.submit(writer, db, options)
            eventually(lambda: fresh.seen or made.done(), what="a begin at the end of the log")
        job = made.result()
        assert fresh.seen
    elsewhere(job).commit([write(job, rows(1))])
    assert ids(db, name) == [1]


def test_wrong_writes_are_refused_with_their_fault(
    local: LocalCluster, db: Database, table: str, options: dict[str, str]
) -> None:
    """Wrong rows, tables and options are refused by name."""
    job = writer(db, options)
    null = pa.RecordBatch.from_pylist(
        [{"id": None}], pa.schema([item.with_nullable(True) for item in SCHEMA])
    )
    with pytest.raises(SchemaMismatchError, match=r"column id .* is required"):
        write(job, null)
    with pytest.raises(SchemaMismatchError, match="which Spark reads as null"):
        write(job, rows(1, city=""))
    elsewhere(job).abort([None])
    with pytest.raises(UnknownTableError):
        DefaultSource({**options, "table": "nowhere"}).writer(schema(db, table), False)
    db.create_table(f"{table}_flat", SCHEMA)
    for given, overwrite, text in (
        ({"overwritePartitions": "true"}, False, "is for mode"),
        ({"overwritePartitions": "true", "table": f"{table}_flat"}, True, "has no partitions"),
        ({"leaseSeconds": "999999"}, False, "lease_max_s"),
        ({"replica": "r9"}, False, "no replica 'r9'"),
    ):
        with pytest.raises(BadRequestError, match=text):
            writer(db, {**options, **given}, overwrite=overwrite)
    assert [row for row in db.transactions() if row["state"] == "open"] == []
    clean(local)


# -- reads ---------------------------------------------------------------------------------------------------


def batches(reader: DataSourceReader) -> Iterator[pa.RecordBatch]:
    """Run all tasks, one after the other, each as if in another process."""
    for task in elsewhere(list(reader.partitions())):
        for batch in elsewhere(reader).read(task):
            assert isinstance(batch, pa.RecordBatch)
            yield batch


def read(options: Mapping[str, str], *columns: str) -> tuple[list[int], int]:
    """Read as Spark does; return the ids and the number of tasks."""
    source = DefaultSource(options)
    wanted = struct(*columns) if columns else source.schema()
    reader = elsewhere(source).reader(wanted)
    found = []
    for batch in batches(reader):
        assert batch.schema.names == wanted.names
        found += batch.column("id").to_pylist()
    assert list(elsewhere(reader).read(InputPartition(None))) == []
    return sorted(found), len(reader.partitions())


def shown_to_all(local: LocalCluster, table: str) -> None:
    """Wait until both replicas have a table."""
    with local.connect("r1") as fresh:

        def shown() -> bool:
            with fresh.snapshot() as snap:
                return f"default.{table}" in {row["name"] for row in snap.tables()}

        eventually(shown)


def test_tasks_give_each_row_once_however_parts_are_cut(
    local: LocalCluster, db: Database, table: str, options: dict[str, str]
) -> None:
    """For each division of the parts into tasks each row comes once, with its partition value."""
    shown_to_all(local, table)
    assert read(options) == ([], 0)
    db.insert(
        table, pa.Table.from_batches([rows(*range(5000)), rows(*range(5000, 5100), city="é/=%")]), wait="all"
    )
    everything = list(range(5100))
    assert read(options) == (everything, 1)
    found, tasks = read({**options, "partitionBytes": "1k"})
    assert (found, tasks > 5) == (everything, True)
    assert read({**options, "partitionBytes": "20k"}, "id bigint")[0] == everything
    assert read(options, "text string", "id bigint")[0] == everything
    source = DefaultSource(options)
    reader = elsewhere(source).reader(struct("city string", "id bigint"))
    cities = {row["city"] for batch in batches(reader) for row in batch.to_pylist()}
    assert cities == {"a", "é/=%"}
    where = {**options, "where": "id >= 4990 and city <> 'none'"}
    assert read(where)[0] == everything[4990:]
    assert read({**where, "partitionBytes": "1"}, "id bigint", "city string")[1] > 1


def test_all_queries_on_a_source_read_one_snapshot(db: Database, table: str, options: dict[str, str]) -> None:
    """The CSN is fixed when the source is made, also with a schema of the user, for all queries on it."""
    csn = db.insert(table, pa.Table.from_batches([rows(1)]), wait="all").csn
    assert csn is not None
    sources = [DefaultSource(options), DefaultSource(options)]
    own = sources[0].schema()
    arrived = [elsewhere(source) for source in sources]
    db.insert(table, pa.Table.from_batches([rows(2)]), wait="all")
    for source in arrived:
        for _ in range(2):
            reader = elsewhere(source).reader(own)
            assert [batch.column("id").to_pylist() for batch in batches(reader)] == [[1]]
    assert read({**options, "csnAsOf": str(csn - 1)})[0] == []
    at = int(time.time() * 1000)
    assert read({**options, "timestampAsOf": str(at)})[0] == [1, 2]
    with pytest.raises(TidelockError, match="has not come yet"):
        read({**options, "timestampAsOf": str(at + 10**6)})


def test_wrong_reads_are_told_before_any_task(
    local: LocalCluster, table: str, options: dict[str, str]
) -> None:
    """A wrong read fails when the source is made or the query is planned, never in a task."""
    shown_to_all(local, table)
    for given, error, text in (
        ({"table": "nowhere"}, UnknownTableError, "nowhere"),
        ({"csnAsOf": "999999"}, TidelockError, "CSN"),
        ({"where": "nonsense = 1"}, BadRequestError, "nonsense"),
        ({"where": "1 = 1); drop table x; ("}, TidelockError, "."),
        ({"replica": "r9"}, BadRequestError, "no replica 'r9'"),
        ({"token": "wrong"}, TidelockError, "secret"),
        ({"url": "http://127.0.0.1:1"}, UnavailableError, "127.0.0.1:1"),
    ):
        with pytest.raises(error, match=text):
            read({**options, **given})
    for columns, text in (
        (("id bigint", "nothing int"), "there is no column nothing"),
        (("id int",), "column id is bigint, and not int"),
        (("city string NOT NULL",), "column city may be null"),
        (("id bigint", "id bigint"), "more than once"),
    ):
        with pytest.raises(SchemaMismatchError, match=text):
            read(options, *columns)


def test_the_secret_stays_where_it_is_needed(
    db: Database, table: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that read get no secret, tasks that write only one that was given as an option."""
    db.insert(table, pa.Table.from_batches([rows(1)]), wait="all")
    source = elsewhere(DefaultSource(options))
    reader = source.reader(struct("id bigint"))
    for sent in (reader, source, list(reader.partitions())):
        assert SECRET.encode() not in pickled(sent)
    monkeypatch.setenv("TIDELOCK_SECRET", SECRET)
    del options["token"]
    job = writer(db, options)
    assert SECRET.encode() not in pickled(job)
    done = write(job, rows(2))
    elsewhere(job).commit([done])
    assert ids(db, table) == [1, 2]
    assert "tl1.ey" not in repr(job._job)


@pytest.mark.slow
def test_a_snapshot_that_is_gone(db: Database, table: str, options: dict[str, str]) -> None:
    """Tasks of an older plan fail, with and without a condition; so do new plans. None gives fewer rows."""
    before = db.insert(table, pa.Table.from_batches([rows(*range(10))]), wait="all").csn
    sources = [DefaultSource(given) for given in (options, {**options, "where": "id >= 0"})]
    readers = [elsewhere(source).reader(source.schema()) for source in sources]
    csn = db.truncate(table, wait="all").csn
    eventually(lambda: db.raise_horizon(csn, drop_pins=True)["horizon"] >= (csn or 0))

    def gone() -> bool:
        for reader in readers:
            try:
                assert sum(batch.num_rows for batch in batches(reader)) == 10
            except SnapshotTooOldError:
                continue
            return False
        return True

    eventually(gone)
    with pytest.raises(SnapshotTooOldError):
        read({**options, "csnAsOf": str(before)})


@pytest.mark.slow
def test_a_task_goes_on_when_a_replica_dies(
    local: LocalCluster, db: Database, table: str, options: dict[str, str]
) -> None:
    """A task goes on at the other replica, at the same CSN; without failover it fails, without fewer rows."""
    db.insert(table, pa.Table.from_batches([rows(*range(3000))]), wait="all")
    near = {**options, "replica": "r2", "partitionBytes": "1k"}
    readers = [
        elsewhere(DefaultSource(given)).reader(schema(db, table))
        for given in (near, {**near, "failover": "false"}, {**near, "where": "id >= 0"})
    ]
    local.kill("r2")
    try:
        found: dict[int, list[int]] = {}
        for number, reader in enumerate(readers):
            with contextlib.suppress(UnavailableError):
                found[number] = sorted(
                    value for batch in batches(reader) for value in batch.column("id").to_pylist()
                )
        assert found == {0: list(range(3000)), 2: list(range(3000))}
    finally:
        local.start("r2")
        eventually(lambda: local.connect("r2").status()["state"] == "serving", timeout_s=TIMEOUT_S)
