"""Batch writes: one transaction, begun by the writer and committed with exactly the files that tasks name.

What runs where. The writer is made beside the driver, and begins the transaction. It is pickled to the
tasks and to `commit()` or `abort()`, each in a process of its own. Tasks upload files, which count for
nothing until the commit names them: an attempt that has failed, runs twice, or lives on after the end adds no
row.
"""

from __future__ import annotations

import contextlib
import functools
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelock.client import Database, Decision, Transaction
from tidelock.client.transaction import Wait
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    LabelExistsError,
    SchemaMismatchError,
    TidelockError,
    TransactionClosedError,
    UnsealedWriteError,
)
from tidelock.partition_paths import texts_of
from tidelock.spark.schema import arrow_of, struct_of
from tidelock.spark.source.clusters import connected
from tidelock.spark.source.encoding import Encoder, Layout
from tidelock.spark.source.folder import Folder, Upload
from tidelock.spark.source.heartbeat import kept_alive
from tidelock.spark.source.options import WriteOptions, write_options

#: Where attempts write; the numbers are those of Hadoop's committer, which has one run to a job here.
_ATTEMPTS: Final = "_temporary/0/_temporary"
_TASKS: Final = "_temporary/0"
#: What a task has written is moved there, and so copied to other replicas while the job runs, if it is so
#: much; less is copied soon enough at the commit.
EARLY_BYTES: Final = 4 << 20
#: Rights of the token that tasks have.
_RIGHTS: Final = ("append", "heartbeat")


@dataclass(frozen=True, slots=True)
class Job:
    """What the tasks of a job know of it.

    Attributes:
        id: In the names of its files.
        tid: The transaction.
        folder: Of the table, in the transaction.
        home: URL of the transaction's home, as it publishes it.
        lease_s: Length of the transaction's lease.
        layout: Of the table.
    """

    id: str
    tid: str
    folder: Folder
    home: str
    lease_s: float
    layout: Layout

    def begin_file(self, attempt: str, task: int, partition: str, number: int) -> Upload:
        """Begin the n-th file of an attempt of a task, in the folder of a partition."""
        name = f"part-{task:05d}-{self.id}-c{number:03d}.parquet"
        return self.folder.upload("/".join(filter(None, (_ATTEMPTS, attempt, partition, name))))


@dataclass
class Written(WriterCommitMessage):
    """What a task has written.

    Attributes:
        files: Places of its files in the table's folder.
        rows: In all of them.
        partitions: Paths of the partitions that they are in.
    """

    files: tuple[str, ...]
    rows: int
    partitions: frozenset[str]


def begin_job(tx: Transaction, table: str, schema: StructType, *, job: str | None = None) -> Job:
    """Return what tasks need to write to a table inside a transaction.

    Args:
        tx: The transaction.
        table: Name of the table.
        schema: Of the rows.
        job: A UUID that the tasks have agreed on, where each of them asks for itself; default: a new one.

    Raises:
        SchemaMismatchError: The rows do not have the columns of the table.
        UnknownTableError, TransactionClosedError, UnavailableError: As `Transaction.definition`.
    """
    definition = tx.definition(table)
    check_columns(definition, schema)
    arrow = arrow_of(definition)
    layout = Layout(
        definition["name"], arrow, tuple(definition["partition_by"]), tuple(definition["sort_by"])
    )
    folder = Folder(tx.path(layout.table, _RIGHTS))
    return Job(job or str(uuid.uuid4()), tx.tid, folder, tx.published_url, tx.lease_s, layout)


def check_columns(definition: Mapping[str, Any], schema: StructType) -> None:
    """Raise SchemaMismatchError unless rows have the table's columns, by name, with its types."""
    table = {item.name: item.dataType for item in struct_of(definition).fields}
    problems = [f"column {name} is missing" for name in table if name not in schema.names]
    for item in schema.fields:
        if item.name not in table:
            problems.append(f"column {item.name} is not in the table")
        elif table[item.name] != item.dataType:
            problems.append(
                f"column {item.name} is {item.dataType.simpleString()}, expected "
                f"{table[item.name].simpleString()}: cast it"
            )
    if len(set(schema.names)) != len(schema.names):
        problems.append("a column comes more than once")
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
        names: Of the columns of the rows.
        batches: The rows.
        begun_before: The task has not itself begun or joined the transaction just now, so that the lease is
            to be renewed at its beginning, too.

    Raises:
        SchemaMismatchError, TooLargeError: A row does not fit the table.
        RefusedError: The transaction takes nothing more; the message says why.
        UnavailableError: Its home does not answer.
    """
    context = TaskContext.get()
    number, attempt = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
    # Of its own, also where Spark gives a number twice.
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
        if encoder.bytes >= EARLY_BYTES:
            source, target = f"{_ATTEMPTS}/attempt_{name}", f"{_TASKS}/task_{name}"
            job.folder.rename(source, target)
            files = [target + file.removeprefix(source) for file in files]
    return Written(tuple(files), encoder.rows, frozenset(encoder.partitions))


class TidelockWriter(DataSourceArrowWriter):
    """Writes a DataFrame as one transaction.

    Args:
        given: The options as they were given: the secret of the environment does not travel.
        schema: Of the rows.
        overwrite: Replace all rows of the table, or with `overwritePartitions` those of the partitions that
            have new ones.

    Raises:
        BadRequestError: An option is wrong, or the table has no partitions to be replaced.
        SchemaMismatchError: The rows do not have the columns of the table.
        SerializationConflictError: Another transaction removes rows that are to be replaced.
        UnknownTableError, UnavailableError: As `Database.begin` and `Transaction.definition`.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._given = dict(given)
        self._names = schema.names
        options = self._options()
        self._table = options.target.table
        self._replaces_partitions = overwrite and options.overwrite_partitions
        if options.overwrite_partitions and not overwrite:
            raise BadRequestError("option overwritePartitions is for mode('overwrite')")
        #: None: there is nothing to do, an earlier run with this label has done it.
        self._job: Job | None = None
        with connected(options.target, home=True) as db:
            try:
                # What is replaced is all that was acknowledged before, whichever replica has it already.
                tx = db.begin(options.label, lease=options.lease_s, fresh=overwrite)
            except LabelExistsError:
                return
            try:
                self._job = begin_job(tx, self._table, schema)
                if self._replaces_partitions:
                    self._job.layout.require_partitions()
                elif overwrite:
                    tx.truncate(self._table)
            except BaseException:
                roll_back(db, tx.tid)
                raise

    def _options(self) -> WriteOptions:
        return write_options(self._given, os.environ)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one attempt of a task."""
        if self._job is None:
            return Written((), 0, frozenset())
        return write_task(self._job, self._names, iterator, begun_before=True)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit with the files that the tasks name.

        Raises:
            UnsealedWriteError: A task has not told what it has written.
            TransactionClosedError: The transaction was rolled back: its lease ran out, or somebody ended it.
            TidelockError: It was refused, or its outcome is not known.
        """
        if self._job is None:
            return
        # With the label another run may have been faster.
        with connected(self._options().target) as db, contextlib.suppress(LabelExistsError):
            settle(db, self._job, self._table, messages, replaces_partitions=self._replaces_partitions)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - PySpark's
        """Roll back; of a commit that has succeeded after all nothing is taken back."""
        if self._job is not None:
            with connected(self._options().target) as db:
                roll_back(db, self._job.tid)


def settle(
    db: Database,
    job: Job,
    table: str,
    messages: Sequence[WriterCommitMessage | None],
    *,
    replaces_table: bool = False,
    replaces_partitions: bool = False,
    # So that what is read next, by whatever process, at this home by default, shows the rows.
    wait: Wait = "copies",
) -> None:
    """Commit a job with the files that its tasks name, unless that has happened.

    Args:
        db: A client.
        job: The job.
        table: Name of its table.
        messages: Of all its tasks.
        replaces_table: The rows that are in the table go; where they were not taken out at the beginning.
        replaces_partitions: Those of the partitions go that have new rows.
        wait: Where the rows are to be readable when this returns; see `Transaction.commit`.

    Raises as `TidelockWriter.commit`, and:
        LabelExistsError: Another run under the label of the transaction was faster.
    """
    found = db.outcome(job.tid)
    if found.decision is Decision.COMMITTED:
        return
    if found.decision is not Decision.RUNNING:
        raise TransactionClosedError(
            f"transaction {job.tid} was rolled back before its commit: its lease ran out (option "
            "leaseSeconds), its home was restarted, or somebody has ended it; nothing was written",
            tid=job.tid,
            state="rolled_back",
        )
    written = [message for message in messages if isinstance(message, Written)]
    if len(written) != len(messages):
        raise UnsealedWriteError(
            f"{len(messages) - len(written)} tasks have not told what they have written", table=table
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
        if "csn" not in error.details:  # else it is committed, and a replica is late
            raise


def roll_back(db: Database, tid: str) -> None:
    """Roll a transaction back if its commit was not asked for; where nobody answers its lease ends it."""
    with contextlib.suppress(TidelockError):
        db.kill(tid)
