"""Batch writes: one transaction, begun by the writer and committed with exactly the files that tasks name.

The writer is made beside the driver, and begins the transaction. It is pickled to the tasks and to `commit()`
or `abort()`, each in a separate process. Tasks upload files, which count only if the commit names them. So an
attempt that has failed, runs twice, or continues after the end of the job adds no row.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelock.client import Database, Decision, Transaction
from tidelock.client.agents.webhdfs import StagingFolder, Upload
from tidelock.client.writes.transaction import Wait
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    LabelExistsError,
    SchemaMismatchError,
    TidelockError,
    TransactionClosedError,
    UnknownTableError,
    UnsealedWriteError,
)
from tidelock.partition_paths import texts_of
from tidelock.spark.schema import arrow_of, struct_of
from tidelock.spark.source.connections import connected, environment
from tidelock.spark.source.encoding import Encoder, FileLayout
from tidelock.spark.source.heartbeat import kept_alive
from tidelock.spark.source.options import WriteOptions, write_options
from tidelock.wire.rows import Fields

#: Folders of task attempts and of finished tasks; the numbers are those of a job's first run under Hadoop's
#: committer, since a job has one run here.
_ATTEMPTS: Final = "_temporary/0/_temporary"
_TASKS: Final = "_temporary/0"
#: The files of a task with at least so many bytes are moved to the folder of finished tasks, so that agents
#: copy them to other replicas while the job runs. Less is copied fast enough at the commit.
EAGER_BYTES: Final = 4 << 20
#: Rights of the tasks' token.
_RIGHTS: Final = ("append", "heartbeat")


@dataclass(frozen=True, slots=True)
class Job:
    """A job, as its tasks see it.

    Attributes:
        id: Id of the job, which the names of its files contain.
        tid: Id of the transaction.
        folder: Staging folder of the table in the transaction.
        home: Published URL of the transaction's home.
        lease_s: Length of the transaction's lease, in seconds.
        layout: Layout of the table's files.
    """

    id: str
    tid: str
    folder: StagingFolder
    home: str
    lease_s: float
    layout: FileLayout

    def begin_file(self, attempt: str, task: int, partition: str, number: int) -> Upload:
        """Begin the n-th file of an attempt of a task, in the folder of a partition."""
        name = f"part-{task:05d}-{self.id}-c{number:03d}.parquet"
        return self.folder.upload("/".join(filter(None, (_ATTEMPTS, attempt, partition, name))))


@dataclass
class Written(WriterCommitMessage):
    """The message of a task that has written files.

    Attributes:
        files: Paths of the files, relative to the staging folder.
        rows: Number of rows in all of the files.
        partitions: Paths of the partitions that the files belong to.
    """

    files: tuple[str, ...]
    rows: int
    partitions: frozenset[str]


def at_newer_snapshot(begin: Callable[..., Job], *, fresh: bool) -> Job:
    """Call `begin(fresh=fresh)`; if the table is unknown there, call it again with `fresh=True`.

    The table may be new: another replica has made it, and the transaction's home has not applied that yet.

    Raises as `begin`.
    """
    if not fresh:
        with contextlib.suppress(UnknownTableError):
            return begin(fresh=False)
    return begin(fresh=True)


def begin_job(tx: Transaction, table: str, schema: StructType, *, job: str | None = None) -> Job:
    """Return a job that writes to a table inside a transaction.

    Args:
        tx: The transaction.
        table: Name of the table.
        schema: Schema of the rows.
        job: A UUID that the tasks share, if each of them calls this function; default: a new UUID.

    Raises:
        SchemaMismatchError: The rows do not have the columns of the table.
        UnknownTableError, TransactionClosedError, UnavailableError: As `Transaction.definition`.
    """
    definition = tx.definition(table)
    check_columns(definition, schema)
    arrow = arrow_of(definition)
    layout = FileLayout(
        definition["name"],
        arrow,
        tuple(definition["partition_by"]),
        tuple(definition["sort_by"]),
        {name: (column["type"], column["default"]) for name, column in _with_default(definition).items()},
    )
    folder = StagingFolder(tx.path(layout.table, _RIGHTS))
    return Job(job or str(uuid.uuid4()), tx.tid, folder, tx.published_url, tx.lease_s, layout)


def _with_default(definition: Fields) -> dict[str, Fields]:
    """Return the columns that rows may come without, by name."""
    return {one["name"]: one for one in definition["columns"] if one.get("default") is not None}


def check_columns(definition: Fields, schema: StructType) -> None:
    """Raise SchemaMismatchError unless rows have the table's columns, by name, with its types.

    Columns with a default may be missing.
    """
    table = {item.name: item.dataType for item in struct_of(definition).fields}
    given = {*schema.names, *_with_default(definition)}
    problems = [f"column {name} is missing" for name in table if name not in given]
    for item in schema.fields:
        if item.name not in table:
            problems.append(f"column {item.name} is not in the table")
        elif table[item.name] != item.dataType:
            problems.append(
                f"column {item.name} is {item.dataType.simpleString()}, expected "
                f"{table[item.name].simpleString()}: cast it"
            )
    if len(set(schema.names)) != len(schema.names):
        problems.append("a column occurs more than once")
    if problems:
        raise SchemaMismatchError(
            f"the rows do not fit table {definition['name']}: {'; '.join(problems)}",
            table=definition["name"],
        )


def write_task(
    job: Job, names: Sequence[str], batches: Iterator[pa.RecordBatch], *, begun_before: bool
) -> Written:
    """Write the rows of one attempt of a task.

    Args:
        job: The job.
        names: Names of the columns of the rows.
        batches: The rows.
        begun_before: The task has not begun or joined the transaction just now, so it renews the lease at the
            beginning, too.

    Raises:
        SchemaMismatchError, TooLargeError: A row does not fit the table.
        RefusedError: The transaction accepts no more files; the message says why.
        UnavailableError: Its home does not answer.
    """
    context = TaskContext.get()
    number, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
    # Unique even if Spark gives the same numbers to two attempts.
    name = f"{number}_{attempt}_{uuid.uuid4().hex[:8]}"
    encoder = Encoder(job.layout, functools.partial(job.begin_file, f"attempt_{name}", number))
    with kept_alive(job.home, job.folder.token, job.lease_s, at_once=begun_before):
        try:
            for batch in batches:
                encoder.add(job.layout.conform(batch.columns, names))
            encoder.finish()
        except BaseException:
            encoder.abandon()
            raise
        files = encoder.files
        if encoder.bytes >= EAGER_BYTES:
            source, target = f"{_ATTEMPTS}/attempt_{name}", f"{_TASKS}/task_{name}"
            job.folder.rename(source, target)
            files = [target + file.removeprefix(source) for file in files]
    return Written(tuple(files), encoder.rows, frozenset(encoder.partitions))


class TidelockWriter(DataSourceArrowWriter):
    """The writer of a DataFrame as one transaction.

    Args:
        user_options: The options of the user, unparsed, so that a secret of the environment is not pickled.
        schema: Schema of the rows.
        overwrite: Replace all rows of the table; with `overwritePartitions` only the rows of the partitions
            that have new rows.

    Raises:
        BadRequestError: An option is wrong, or the table has no partitions to replace.
        SchemaMismatchError: The rows do not have the columns of the table.
        SerializationConflictError: Another transaction removes rows that this write replaces.
        UnknownTableError, UnavailableError: As `Database.begin` and `Transaction.definition`.
    """

    def __init__(self, user_options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._user_options = dict(user_options)
        self._names = schema.names
        options = self._options()
        self._table = options.target.table
        self._replaces_partitions = overwrite and options.overwrite_partitions
        if options.overwrite_partitions and not overwrite:
            raise BadRequestError("option overwritePartitions is for mode('overwrite'); omit it")
        #: None: an earlier run with this label has committed, so this run has nothing to do.
        self._job: Job | None = None
        with connected(options.target, home=True) as db, contextlib.suppress(LabelExistsError):
            # An overwrite replaces all rows acknowledged before, also rows that the home has not applied.
            self._job = at_newer_snapshot(
                functools.partial(self._begin, db, options, schema, overwrite=overwrite), fresh=overwrite
            )

    def _begin(
        self, db: Database, options: WriteOptions, schema: StructType, *, overwrite: bool, fresh: bool
    ) -> Job:
        tx = db.begin(options.label, lease=options.lease_s, fresh=fresh)
        try:
            job = begin_job(tx, self._table, schema)
            if self._replaces_partitions:
                job.layout.require_partitions()
            elif overwrite:
                tx.truncate(self._table)
        except BaseException:
            roll_back(db, tx.tid)
            raise
        return job

    def _options(self) -> WriteOptions:
        return write_options(self._user_options, environment())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one attempt of a task."""
        if self._job is None:
            return Written((), 0, frozenset())
        return write_task(self._job, self._names, iterator, begun_before=True)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit with the files that the tasks name.

        Raises:
            UnsealedWriteError: A task has not reported its files.
            TransactionClosedError: The transaction was rolled back: its lease expired, or it was ended.
            TidelockError: The commit was refused, or its outcome is unknown.
        """
        if self._job is None:
            return
        # Another run with this label may have committed first.
        with connected(self._options().target) as db, contextlib.suppress(LabelExistsError):
            commit_job(db, self._job, self._table, messages, replaces_partitions=self._replaces_partitions)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - PySpark's
        """Roll back; a commit that has succeeded remains."""
        if self._job is not None:
            with connected(self._options().target) as db:
                roll_back(db, self._job.tid)


def commit_job(
    db: Database,
    job: Job,
    table: str,
    messages: Sequence[WriterCommitMessage | None],
    *,
    replaces_table: bool = False,
    replaces_partitions: bool = False,
    # So that the next default read, by any process, returns the rows.
    wait: Wait = "copies",
) -> None:
    """Commit a job with the files that its tasks name, unless it is committed already.

    Args:
        db: A client.
        job: The job.
        table: Name of the job's table.
        messages: Messages of all tasks of the job.
        replaces_table: Remove all rows that are in the table, if that was not done at the beginning.
        replaces_partitions: Remove the existing rows of the partitions that have new rows.
        wait: Where the rows are readable when this returns; see `Transaction.commit`.

    Raises as `TidelockWriter.commit`, and:
        LabelExistsError: Another run with the label of the transaction has committed first.
    """
    outcome = db.outcome(job.tid)
    if outcome.decision is Decision.COMMITTED:
        return
    if outcome.decision is not Decision.RUNNING:
        raise TransactionClosedError(
            f"transaction {job.tid} was rolled back before its commit: its lease expired (option "
            "leaseSeconds), its home was restarted, or it was ended; no row was written, write again",
            tid=job.tid,
            state="rolled_back",
        )
    written = [message for message in messages if isinstance(message, Written)]
    if len(written) != len(messages):
        raise UnsealedWriteError(
            f"{len(messages) - len(written)} tasks have not reported the files that they have written; write "
            "again",
            table=table,
        )
    tx = db.resume(job.tid)
    if replaces_table:
        tx.truncate(table)
    if replaces_partitions:
        for path in sorted(set().union(*(message.partitions for message in written))):
            tx.drop_partition(table, texts_of(path))
    tx.settle(table, job.id, [file for message in written for file in message.files])
    try:
        tx.commit(wait=wait)
    except CommitUnknownError as error:
        if "csn" not in error.details:  # with a CSN the job is committed, and only a replica is late
            raise


def roll_back(db: Database, tid: str) -> None:
    """Roll a transaction back unless its commit was requested; if no replica answers, the lease ends it."""
    with contextlib.suppress(TidelockError):
        db.kill(tid)
