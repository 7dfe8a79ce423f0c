"""Streams without Spark: offsets, limits, removals, and the options of reader and writer."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, NoReturn, Self

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from pyspark_tidelock import DefaultSource
from tidelock.client.agents.webhdfs import StagingFolder
from tidelock.client.reads.feed import ChangedPart, ChangeSet
from tidelock.errors import (
    BadRequestError,
    LabelExistsError,
    SchemaMismatchError,
    UnavailableError,
    UnsealedWriteError,
)
from tidelock.spark.source import stream_read, stream_write, writing
from tidelock.spark.source.encoding import FileLayout
from tidelock.spark.source.feed_columns import Inserted, marked, with_feed, without_feed
from tidelock.spark.source.options import Begin, streams
from tidelock.spark.source.stream_offsets import (
    BatchLimits,
    Position,
    RemovalPolicy,
    added_parts,
    admit,
    in_order,
    readable,
    removal_error,
)
from tidelock.spark.source.stream_options import read_stream_options, write_stream_options
from tidelock.spark.source.stream_read import Changed, TidelockStreamReader, split_path
from tidelock.spark.source.stream_write import (
    AlreadyCommitted,
    Empty,
    MicroBatch,
    Staged,
    TidelockStreamWriter,
    current_batch,
    label_of,
)
from tidelock.spark.source.writing import Job, TidelockWriter, Written

TABLE = {"table": "t", "url": "http://host:1"}
SCHEMA = spark.StructType([spark.StructField("k", spark.LongType())])


def part(name: str, tid: str = "7-r1-1-1", rows: int = 1) -> ChangedPart:
    """Return a part that a transaction has added or removed."""
    return ChangedPart(name, tid, f"/snapshots/8/default/t/{name}.parquet", {}, rows, 100, 100)


def commit(csn: int, added: str = "", removed: str = "", **of: str) -> ChangeSet:
    """Return a change set of parts with one letter; `of` names the transactions of some of them."""

    def parts(names: str) -> tuple[ChangedPart, ...]:
        return tuple(part(name, of.get(name, "7-r1-1-1")) for name in names)

    return ChangeSet(csn, None, (), parts(added), parts(removed))


@pytest.mark.parametrize("position", [Position(0), Position(77), Position(77, 0), Position(77, 3)])
def test_offsets_are_read_as_they_were_written(position: Position) -> None:
    """A position is equal to the position that is parsed from its offset."""
    assert Position.parse(position.offset()) == position


@pytest.mark.parametrize(
    "offset", [{}, {"csn": "7"}, {"csn": 7, "index": 1}, {"parts": 1}, {"csn": 7, "parts": "x"}]
)
def test_offsets_of_another_source(offset: dict[str, Any]) -> None:
    """A checkpoint of another source is refused."""
    with pytest.raises(BadRequestError, match="another source"):
        Position.parse(offset)


@given(st.lists(st.integers(1, 50)), st.none() | st.integers(1, 5), st.none() | st.integers(1, 100))
def test_batches_keep_their_limits_and_miss_nothing(
    lengths: list[int], files_max: int | None, bytes_max: int | None
) -> None:
    """Each batch has at least one part, stays below the limits if it has more, and no part is missing."""
    left, taken = list(lengths), []
    while left:
        count = admit(left, BatchLimits(files_max, bytes_max))
        batch, left = left[:count], left[count:]
        assert batch
        assert files_max is None or len(batch) <= files_max
        assert bytes_max is None or len(batch) == 1 or sum(batch) <= bytes_max
        taken += batch
    assert taken == lengths


def test_parts_are_counted_in_one_order() -> None:
    """The order of parts does not depend on the order in which agents list them."""
    parts = [
        {"path": "p=b", "part": "r1-1-1"},
        {"path": "p=a", "part": "r1-1-9"},
        {"path": "p=a", "part": "r1-1-2"},
    ]
    assert in_order(parts) == in_order(reversed(parts)) == [parts[2], parts[1], parts[0]]


def test_what_is_added_beside_a_removal() -> None:
    """Of two transactions with one CSN, the one that only adds is read, and the other one is skipped."""
    both = commit(9, "abc", "x", b="7-r1-1-2")
    assert [added.part for added in added_parts(both)] == ["b"]
    assert [added.part for added in added_parts(commit(9, "ab"))] == ["a", "b"]


@pytest.mark.parametrize(
    ("removals", "taken", "blocking"),
    [
        (RemovalPolicy.READ, [1, 2, 3, 4, 5], None),
        (RemovalPolicy.SKIP, [1, 4, 5], None),
        (RemovalPolicy.REFUSE, [1], 2),
    ],
)
def test_commits_that_remove_are_treated_as_asked(
    removals: RemovalPolicy, taken: list[int], blocking: int | None
) -> None:
    """Commits that remove rows are read, skipped, or end the query, as the policy says."""
    sets = [
        commit(1, "a"),
        commit(2, "b", "a"),
        commit(3, removed="b"),
        commit(4, "cd", "x", d="8-r2-1-1"),
        commit(5, "e"),
    ]
    found, end = readable(sets, removals)
    assert [changes.csn for changes in found] == taken
    assert (end.csn if end else None) == blocking
    message = removal_error(sets[1], "t").message
    assert "CSN 2" in message
    assert "skipChangeCommits" in message
    assert "readChangeFeed" in message


def test_places_of_files_are_csn_file_and_partition() -> None:
    """The path of a file is split into CSN, file and partition."""
    assert split_path("/snapshots/9/default/t/x.parquet") == (9, "default/t/x.parquet", "")
    assert split_path("/snapshots/9/a/t/p=1/q=b%2Fc/x.parquet") == (
        9,
        "a/t/p=1/q=b%2Fc/x.parquet",
        "p=1/q=b%2Fc",
    )


def test_columns_of_a_change_feed() -> None:
    """The feed's columns follow those of the table, can be read in any order, and describe the change."""
    schema = with_feed(SCHEMA)
    assert schema.names == ["k", "_change_type", "_commit_csn", "_commit_time"]
    assert without_feed(schema) == SCHEMA
    rows = pa.record_batch({"k": [1, 2]})
    wanted = pa.schema(
        [("_commit_csn", pa.int64()), ("k", pa.int64()), ("_commit_time", pa.timestamp("us", "UTC"))]
    )
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    found = marked(rows, wanted, Inserted(9, noon))
    assert found.schema == wanted
    assert found.to_pylist() == [{"_commit_csn": 9, "k": key, "_commit_time": noon} for key in (1, 2)]
    assert marked(rows, wanted, Inserted(9, None)).column("_commit_time").null_count == 2
    assert marked(rows, rows.schema, None) is rows


def test_options_of_a_streaming_read() -> None:
    """Options that are not given have the documented defaults."""
    plain = read_stream_options(TABLE, {})
    assert (plain.begin, plain.csn, plain.at_ms, plain.files_max) == (Begin.EARLIEST, None, None, None)
    assert (plain.change_feed, plain.skip_changes) == (False, False)
    given = read_stream_options(
        TABLE
        | {
            "startingcsn": "0",
            "MaxFilesPerTrigger": "2",
            "maxBytesPerTrigger": "1k",
            "readChangeFeed": "TRUE",
        },
        {},
    )
    assert (given.csn, given.files_max, given.bytes_max, given.change_feed) == (0, 2, 1024, True)
    assert streams(TABLE | {"startingcsn": "0"})
    assert not streams(TABLE | {"failover": "true"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingCsn": "1", "startingOffsets": "latest"}, "two beginnings"),
        ({"startingCsn": "-1"}, "whole number"),
        ({"startingTimestamp": "2026-01-01"}, "zone"),
        ({"startingOffsets": "newest"}, "earliest or latest"),
        ({"maxFilesPerTrigger": "0"}, "above 0"),
        ({"maxBytesPerTrigger": "much"}, "size"),
        ({"readChangeFeed": "true", "skipChangeCommits": "true"}, "contradict"),
        ({"maxFilesPerTriger": "1"}, "maxFilesPerTrigger"),
        ({"csnAsOf": "1"}, "for read, and this is readStream"),
        ({"checkpointLocation": "/c"}, "for writeStream"),
    ],
)
def test_wrong_options_of_a_streaming_read(options: dict[str, str], message: str) -> None:
    """Each wrong option is refused with what was expected."""
    with pytest.raises(BadRequestError, match=message):
        TidelockStreamReader(TABLE | options, SCHEMA)


def test_options_of_a_streaming_write() -> None:
    """Spark's own options are ignored; a label is for batch writes, since a stream has its own label."""
    given = write_stream_options(TABLE | {"checkpointLocation": "/c", "queryName": "q", "replica": "r2"}, {})
    assert given.target.replica == "r2"
    with pytest.raises(BadRequestError, match="for write, and this is writeStream"):
        TidelockStreamWriter(TABLE | {"label": "x"}, SCHEMA, overwrite=False)


def test_change_feed_columns_want_the_change_feed() -> None:
    """A schema with these columns is refused at the start without the option, or with other types."""
    with pytest.raises(SchemaMismatchError, match="readChangeFeed"):
        TidelockStreamReader(TABLE, with_feed(SCHEMA))
    wrong = spark.StructType([*SCHEMA.fields, spark.StructField("_commit_csn", spark.StringType())])
    with pytest.raises(SchemaMismatchError, match="_commit_csn is bigint"):
        TidelockStreamReader(TABLE | {"readChangeFeed": "true"}, wrong)


def test_batches_that_were_committed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest committed batch is skipped; if a later batch was committed, the checkpoint is wrong."""
    writer = TidelockStreamWriter(TABLE, SCHEMA, overwrite=False)

    def taken(newest: int) -> Callable[[MicroBatch], NoReturn]:
        def join(_: MicroBatch) -> NoReturn:
            raise LabelExistsError("committed before", csn=77, tid="7-r1-1-1", batch=newest)

        return join

    monkeypatch.setattr(stream_write, "current_batch", lambda nonce: MicroBatch("q", 5, nonce))
    rows = pa.record_batch({"k": [1]})
    monkeypatch.setattr(writer, "_join", taken(5))
    assert writer.write(iter([rows])) == AlreadyCommitted(77)
    monkeypatch.setattr(writer, "_join", taken(6))
    with pytest.raises(LabelExistsError, match="older checkpoint"):
        writer.write(iter([rows]))
    assert writer.write(iter([rows.slice(0, 0)])) == Empty()


#: A transaction that a batch has begun.
JOB = Job(
    "j",
    "7-r1-1-1",
    StagingFolder("webhdfs://host:2/transactions/tl1.e30.x/default/t"),
    "http://host:1",
    60.0,
    FileLayout("default.t", pa.schema([("k", pa.int64())]), (), ()),
)


@pytest.mark.parametrize(
    ("overwrite", "task", "joins"), [(False, 0, False), (True, 0, True), (True, 1, False)]
)
def test_a_batch_without_rows(
    monkeypatch: pytest.MonkeyPatch, overwrite: bool, task: int, joins: bool
) -> None:
    """If each batch replaces all rows, the first task begins a transaction; other tasks send no request."""
    context = SimpleNamespace(partitionId=lambda: task)
    monkeypatch.setattr(stream_write, "TaskContext", SimpleNamespace(get=lambda: context))
    writer = TidelockStreamWriter(TABLE, SCHEMA, overwrite=overwrite)
    monkeypatch.setattr(stream_write, "current_batch", lambda nonce: MicroBatch("q", 5, nonce))
    monkeypatch.setattr(writer, "_join", lambda _: JOB)
    committed: list[tuple[Any, bool]] = []
    monkeypatch.setattr(stream_write, "shared_client", lambda _: None)
    monkeypatch.setattr(
        stream_write,
        "commit_job",
        lambda *args, **named: committed.append((args[3], named["replaces_table"])),
    )
    nothing = Written((), 0, frozenset())
    monkeypatch.setattr(stream_write, "write_task", lambda *_, **__: nothing)
    found = writer.write(iter([]))
    assert found == (Staged(JOB, nothing) if joins else Empty())
    writer.commit([found], 5)
    assert committed == ([([nothing], True)] if joins else [])


@pytest.mark.parametrize(("newest", "passed"), [(5, True), (None, True), (6, False)])
def test_another_run_that_commits_first(
    monkeypatch: pytest.MonkeyPatch, newest: int | None, passed: bool
) -> None:
    """The commit skips a batch that was committed before; if a later one was, the checkpoint is wrong."""
    writer = TidelockStreamWriter(TABLE, SCHEMA, overwrite=False)
    monkeypatch.setattr(stream_write, "shared_client", lambda _: None)

    def commit_job(*_: Any, **__: Any) -> NoReturn:
        raise LabelExistsError("committed before", csn=77, batch=newest)

    monkeypatch.setattr(stream_write, "commit_job", commit_job)
    staged = Staged(JOB, Written(("x",), 1, frozenset()))
    if passed:
        writer.commit([staged], 5)
    else:
        with pytest.raises(LabelExistsError, match="older checkpoint"):
            writer.commit([staged], 5)


def test_labels_of_a_query() -> None:
    """A query has one label per table, for each way to name the table, and no label is too long."""
    assert label_of("q", "orders") == label_of("q", "default.orders") == "q/default.orders"
    assert label_of("q", "sales.orders") == "q/sales.orders"
    longest = f"{'n' * 128}.{'t' * 128}"
    labels = {label_of("q" * 36, name) for name in (longest, f"{longest[:-1]}u", "n.t")}
    assert len(labels) == 3
    assert all(len(label.encode()) <= 256 and label.startswith("q" * 36) for label in labels)


class RecordingDatabase:
    """A database that records the arguments of `begin`, and refuses to begin a transaction."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def begin(self, label: str | None, **asked: Any) -> NoReturn:
        """Record the arguments and refuse."""
        self.asked = {"label": label, **asked}
        raise LabelExistsError("committed before", csn=77)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing; nothing is open."""


@pytest.mark.parametrize("overwrite", [False, True])
def test_who_replaces_rows_replaces_all_that_were_acknowledged(
    monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """An overwrite waits until its home has applied all acknowledged rows; an append does not wait."""
    db = RecordingDatabase()
    monkeypatch.setattr(writing, "connected", lambda *_, **__: db)
    TidelockWriter(TABLE, SCHEMA, overwrite=overwrite)
    assert db.asked["fresh"] is overwrite
    monkeypatch.setattr(stream_write, "shared_client", lambda _: db)
    monkeypatch.setattr(stream_write, "current_batch", lambda nonce: MicroBatch("q", 5, nonce))
    rows = pa.record_batch({"k": [1]})
    assert TidelockStreamWriter(TABLE, SCHEMA, overwrite=overwrite).write(iter([rows])) == AlreadyCommitted(
        77
    )
    assert (db.asked["fresh"], db.asked["label"], db.asked["batch"]) == (overwrite, "q/default.t", 5)


def test_what_there_is_to_commit() -> None:
    """A batch without staged files commits nothing; a task without a message is an error."""
    writer = TidelockStreamWriter(TABLE, SCHEMA, overwrite=False)
    writer.commit([], 5)
    writer.commit([Empty(), AlreadyCommitted(77)], 5)
    writer.abort([None, Empty()], 5)
    with pytest.raises(UnsealedWriteError, match="batch 5"):
        writer.commit([Empty(), None], 5)


@pytest.mark.parametrize(("feed", "shown"), [("false", False), ("true", True)])
def test_the_secret_goes_to_tasks_that_need_it(feed: str, shown: bool) -> None:
    """A task needs the secret to ask for changes, but not to read the files of a snapshot."""
    reader = TidelockStreamReader(TABLE | {"Token": "s3cret", "readChangeFeed": feed}, SCHEMA)
    assert (b"s3cret" in pickle.dumps(reader)) == shown


def test_the_source_of_a_stream_keeps_no_secret() -> None:
    """PySpark sends the source to tasks with the reader, and only the reader may contain the secret."""
    source = DefaultSource(TABLE | {"Token": "s3cret"})
    source.streamReader(SCHEMA)
    assert b"s3cret" not in pickle.dumps(source)


class Busy:
    """An agent that has no free SQL process for the first three requests of its change feed."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def changes(self, *args: Any, pinned: bool) -> Busy:
        """Record the request."""
        self.asked.append((*args, pinned))
        return self

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Raise, or yield the changes."""
        if len(self.asked) < 4:
            raise UnavailableError("all SQL processes are at work")
        yield pa.record_batch({"k": [1, 2]})
        yield pa.record_batch({"k": [3]})


def test_a_task_of_the_change_feed_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task asks again until a replica has a free SQL process, and relies on the pin of the query."""
    busy = Busy()
    monkeypatch.setattr(stream_read, "shared_client", lambda _: busy)
    reader = TidelockStreamReader(TABLE | {"readChangeFeed": "true"}, SCHEMA)
    found = [batch.to_pydict() for batch in reader.read(Changed(9))]
    assert found == [{"k": [1, 2]}, {"k": [3]}]
    assert busy.asked == [("t", 8, 9, True)] * 4


def test_two_drivers_never_share_a_transaction() -> None:
    """Each writer has a separate nonce and so a separate key; outside of a query no batch exists."""
    one, other = (
        MicroBatch("q", 7, TidelockStreamWriter(TABLE, SCHEMA, overwrite=False).nonce) for _ in range(2)
    )
    assert one.key != other.key
    assert one.key.startswith("q/7/")
    with pytest.raises(BadRequestError, match="streaming query"):
        current_batch("nonce")
