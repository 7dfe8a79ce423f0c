"""Streaming reader and writer of the data source on real agents, as PySpark drives them, without a session.

A writer is made for each batch and pickled to its tasks; another one, in another process, commits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_tidelock import DefaultSource
from tests.integration.test_source_tasks import SeenFresh, Task, elsewhere
from tests.support.clusters.agreeing import all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates
from tests.support.histories.evidence import nothing_left
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.client.agents.channel import Channels
from tidelock.cluster import LocalCluster
from tidelock.errors import LabelExistsError, TidelockError, TransactionClosedError
from tidelock.spark.schema import struct_of
from tidelock.spark.source import stream_write, writing
from tidelock.spark.source.stream_read import TidelockStreamReader
from tidelock.spark.source.stream_write import (
    AlreadyCommitted,
    Empty,
    MicroBatch,
    Staged,
    TidelockStreamWriter,
)

SECRET = "a shared secret"
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("p", pa.string())])
NUMBERS = itertools.count(1)
APPLY = "replication.apply.before"


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """A gate that delays the apply of r1."""
    return Gates(tmp_path_factory.mktemp("gates"), {"r1": {APPLY: "pause"}})


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, gates: Gates) -> Iterator[LocalCluster]:
    """Two replicas, both needed for a commit; nothing is left over at the end."""
    made = module_cluster(
        replicas=2,
        settings={**QUICK, "secret": SECRET},
        environment_of={"r1": gates.environment("r1")},
    )
    yield made
    for replica in made.replicas:
        nothing_left(made.data_dir(replica))


@pytest.fixture
def db(local: LocalCluster) -> Iterator[Database]:
    """A new client at r2, where the queries begin; an old client leaves r2 when a test kills it."""
    with local.connect("r2") as found:
        yield found


@pytest.fixture
def table(local: LocalCluster, db: Database) -> str:
    """An empty table, partitioned by p."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA, partition_by=["p"], properties={"compaction": "off"})
    all_follow(local)  # a stream may begin at any replica, and reads what that one has
    return name


def rows(*keys: int) -> pa.RecordBatch:
    """Rows with these keys."""
    return pa.RecordBatch.from_pylist([{"k": key, "p": "a"} for key in keys], SCHEMA)


def keys(db: Database, table: str) -> list[int]:
    """Return the keys in a table, from the newest commit of any replica."""
    with db.begin(fresh=True) as tx:
        return sorted(tx.read(table)["k"].to_pylist())


class Query:
    """One streaming query; a test can run each batch several times, by drivers of its own."""

    def __init__(
        self,
        local: LocalCluster,
        db: Database,
        table: str,
        *,
        overwrite: bool = False,
        home: str = "r2",
        pinned: bool = False,
    ) -> None:
        self.id = "the query"
        self.label = f"{self.id}/default.{table}"
        self._options = {"table": table, "url": local.url(home), "token": SECRET, "leaseSeconds": "6"}
        if pinned:
            self._options["replica"] = home
        self._schema = struct_of(db.table(table))
        self._overwrite = overwrite

    def writer(self) -> TidelockStreamWriter:
        """Return the writer that the process of a driver makes for a batch."""
        found = DefaultSource(self._options).streamWriter(self._schema, overwrite=self._overwrite)
        assert isinstance(found, TidelockStreamWriter)
        return found

    def run(self, number: int, *tasks: Sequence[int], attempts: int = 1) -> list[WriterCommitMessage | None]:
        """Run the tasks of a batch, with these keys, for a new driver; return the last attempts' messages."""
        writer = self.writer()
        messages: list[WriterCommitMessage | None] = []
        for task, found in enumerate(tasks):
            with (
                mock.patch.object(stream_write, "current_batch", partial(MicroBatch, self.id, number)),
                mock.patch.object(writing, "TaskContext", Task(task)),
            ):
                told = [elsewhere(writer).write(iter([rows(*found)])) for _ in range(attempts)]
            messages.append(told[-1])
        return messages

    def commit(self, number: int, messages: list[WriterCommitMessage | None]) -> None:
        """Commit in another process, which has only the messages."""
        self.writer().commit(elsewhere(messages), number)


@pytest.fixture
def query(local: LocalCluster, db: Database, table: str) -> Query:
    """A query that writes to the table."""
    return Query(local, db, table)


def test_tasks_of_a_batch_share_a_transaction(db: Database, table: str, query: Query) -> None:
    """The tasks share one commit, with the number of the batch; a task without rows sends nothing."""
    messages = query.run(4, [1, 2], [], [3])
    one, empty, other = messages
    assert isinstance(one, Staged)
    assert isinstance(empty, Empty)
    assert isinstance(other, Staged)
    assert one.job.tid == other.job.tid
    assert keys(db, table) == []
    query.commit(4, messages)
    query.commit(4, messages)  # as if its answer was lost
    status = db.label(query.label)
    assert status is not None
    assert (status.tid, status.batch) == (one.job.tid, 4)
    assert keys(db, table) == [1, 2, 3]


def test_an_attempt_that_does_not_count(db: Database, table: str, query: Query) -> None:
    """The upload of an attempt adds no rows if the commit names another attempt of the task."""
    query.commit(0, query.run(0, [1], [2], attempts=2))
    assert keys(db, table) == [1, 2]


def test_two_drivers_run_one_batch(db: Database, table: str, query: Query) -> None:
    """Two drivers have a transaction each; the first commit counts, the other driver has nothing to do."""
    zombie, successor = query.run(7, [1, 2]), query.run(7, [1, 2])
    query.commit(7, successor)
    query.commit(7, zombie)
    assert keys(db, table) == [1, 2]
    status = db.label(query.label)
    assert status is not None
    messages = query.run(7, [1, 2], [3])
    assert messages == [AlreadyCommitted(status.csn)] * 2
    query.commit(7, messages)
    assert keys(db, table) == [1, 2]
    with pytest.raises(LabelExistsError, match="older checkpoint"):
        query.run(6, [1, 2])


def test_two_sinks_of_one_query(local: LocalCluster, db: Database, table: str, query: Query) -> None:
    """Two sinks, made by a copied checkpoint, each count the batches of their own table."""
    db.create_table(f"{table}_copy", SCHEMA, partition_by=["p"])
    copy = Query(local, db, f"{table}_copy")
    for one in (query, copy):
        one.commit(3, one.run(3, [1, 2]))
    assert keys(db, table) == keys(db, f"{table}_copy") == [1, 2]


def test_batches_that_replace_the_table(local: LocalCluster, db: Database, table: str) -> None:
    """A batch without rows leaves an empty table, whatever the home of the transaction has seen before."""
    query = Query(local, db, table, overwrite=True)
    for number, found in enumerate(([1, 2], [3], [], [4])):
        db.insert(table, pa.Table.from_batches([rows(100 + number)]))
        query.commit(number, query.run(number, found, []))
        assert keys(db, table) == found


def test_a_batch_that_is_given_up(db: Database, table: str, query: Query) -> None:
    """An aborted batch adds no rows and can run again; a committed batch stays."""
    given_up = query.run(1, [1])
    query.writer().abort([*given_up, None], 1)
    with pytest.raises(TransactionClosedError):
        query.commit(1, given_up)
    again = query.run(1, [1])
    query.commit(1, again)
    query.writer().abort(again, 1)
    assert keys(db, table) == [1]


def test_a_home_that_dies_before_the_commit(
    local: LocalCluster, db: Database, table: str, query: Query
) -> None:
    """The batch fails, and its rows are there once after the next run."""
    lost = query.run(0, [1])
    assert isinstance(lost[0], Staged)
    home = lost[0].job.tid.split("-")[1]
    local.kill(home)
    local.up()
    with pytest.raises(TidelockError):
        query.commit(0, lost)
    query.commit(0, query.run(0, [1]))
    with local.connect("r1") as other:
        assert keys(other, table) == [1]


def test_a_table_that_the_home_does_not_know_yet(local: LocalCluster, gates: Gates, db: Database) -> None:
    """Another replica has made the table; the tasks wait for it, and share a transaction."""
    with ThreadPoolExecutor() as pool, SeenFresh() as fresh:
        with gates.open("r1", APPLY):
            name = f"t{next(NUMBERS)}"
            db.create_table(name, SCHEMA, partition_by=["p"])
            query = Query(local, db, name, home="r1", pinned=True)
            running = pool.submit(query.run, 0, [1], [2])
            eventually(lambda: fresh.seen or running.done(), what="a begin at the end of the log")
        messages = running.result()
        assert fresh.seen
    query.commit(0, messages)
    assert keys(db, name) == [1, 2]


def test_a_small_batch_asks_for_little(query: Query) -> None:
    """A small batch needs eight requests and a message, its commit, in a process that is connected."""
    query.commit(0, query.run(0, [1]))
    plain, messages = HTTPConnection.putrequest, Channels.post
    with (
        mock.patch.object(HTTPConnection, "putrequest", autospec=True, side_effect=plain) as sent,
        mock.patch.object(Channels, "post", autospec=True, side_effect=messages) as posted,
    ):
        query.commit(1, query.run(1, [2]))
    assert (sent.call_count, posted.call_count) == (8, 1)


def test_parts_are_read_by_tasks(local: LocalCluster, db: Database, table: str) -> None:
    """Tasks read present and later parts from pickled partitions; a stopped query holds no pin."""
    db.insert(table, pa.Table.from_batches([rows(1, 2)]), wait="all")
    options = {"table": table, "url": local.url("r1"), "token": SECRET, "maxFilesPerTrigger": "1"}
    reader = DefaultSource(options).streamReader(struct_of(db.table(table)))
    assert isinstance(reader, TidelockStreamReader)
    task = elsewhere(reader)

    def batch(start: dict[str, int]) -> tuple[dict[str, int], list[int]]:
        end = reader.latestOffset(start, ReadAllAvailable())
        parts = elsewhere(reader.partitions(start, end))
        found = [record for part in parts for record in elsewhere(task).read(part)]
        return end, [key for record in found for key in record.column("k").to_pylist()]

    begin = reader.initialOffset()
    first, found = batch(begin)
    assert (begin, found) == ({"csn": first["csn"], "parts": 0}, [1, 2])
    assert batch(first) == (first, [])
    csn = db.insert(table, pa.Table.from_batches([rows(3)])).csn
    assert batch(first) == ({"csn": csn}, [3])
    reader.commit({"csn": csn})
    assert reader.reportLatestOffset() == {"csn": csn}
    reader.stop()
