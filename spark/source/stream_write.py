"""Streaming writes: each micro-batch is one transaction, which commits at most once.

The steps run in separate processes, which share only pickled objects. A writer is made beside the driver for
each batch, and pickled to the batch's tasks; another writer is made to commit. Making a writer sends no
request. All tasks begin the transaction with a key that contains the nonce of the first writer, and the same
key gives the same transaction. So the tasks of one driver share a transaction, and two drivers never do. The
transaction's label is the query and the table, with the number of the batch. So if two drivers run a batch,
or one runs it again, only one transaction commits; the others get LabelExistsError and have nothing to do.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelock.errors import BadRequestError, LabelExistsError, NotCommittedError, UnsealedWriteError
from tidelock.spark.source.connections import environment, shared_client
from tidelock.spark.source.options import TableTarget
from tidelock.spark.source.stream_options import WriteStreamOptions, write_stream_options
from tidelock.spark.source.writing import (
    Job,
    Written,
    at_newer_snapshot,
    begin_job,
    commit_job,
    roll_back,
    write_task,
)
from tidelock.spark.streaming import QUERY_ID
from tidelock.spark.tables import full_name

#: Local property in which Spark keeps the number of the batch; tasks can read it.
BATCH_ID: Final = "streaming.sql.batchId"
#: Equal to the default of the agents' `label_bytes_max`.
LABEL_BYTES_MAX: Final = 256

_log = logging.getLogger(__name__)


@dataclass
class Staged(WriterCommitMessage):
    """The message of a task that has uploaded files for a transaction."""

    job: Job
    written: Written


@dataclass
class AlreadyCommitted(WriterCommitMessage):
    """The message of a task whose batch was committed before, at `csn` if that is known."""

    csn: int | None


@dataclass
class Empty(WriterCommitMessage):
    """The message of a task without rows."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a streaming query, as one driver runs it.

    Attributes:
        query: Id of the query; it is in the checkpoint, so a restarted query has the same id.
        number: Number of the batch.
        nonce: A UUID of this run.
    """

    query: str
    number: int
    nonce: str

    @property
    def key(self) -> str:
        """The key with which the batch's tasks begin its transaction."""
        return f"{self.query}/{self.number}/{self.nonce}"


def current_batch(nonce: str) -> MicroBatch:
    """Return the micro-batch that this task belongs to.

    Raises:
        BadRequestError: The task belongs to no streaming query.
    """
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context else None
    number = context.getLocalProperty(BATCH_ID) if context else None
    if not query or not number:
        raise BadRequestError(
            f"the task has no local properties {QUERY_ID} and {BATCH_ID}: it belongs to no streaming query"
        )
    return MicroBatch(query, int(number), nonce)


def _is_first() -> bool:
    """Return whether this is the first task of its batch; each batch has one."""
    context = TaskContext.get()
    return context is None or context.partitionId() == 0


def label_of(query: str, table: str) -> str:
    """Return the label of a query's writes to a table.

    The label contains the table, since a copied checkpoint has the same query id: two sinks with one label
    would skip each other's batches, and each would lack rows.
    """
    name = full_name(table)
    label = f"{query}/{name}"
    if len(label.encode()) > LABEL_BYTES_MAX:
        label = f"{query}/{hashlib.sha256(name.encode()).hexdigest()}"
    return label


def _already_committed(number: int, error: LabelExistsError) -> AlreadyCommitted:
    """Return the message of a batch that was committed before; raise if a later batch was committed."""
    newest = error.details.get("batch")
    if newest is not None and newest > number:
        raise LabelExistsError(
            f"{error.message}. The query has gone back to an older checkpoint, or runs elsewhere too; start "
            "it with an empty checkpoint, or restore the newest checkpoint",
            **error.details,
        ) from error
    return AlreadyCommitted(error.details.get("csn"))


class TidelockStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a micro-batch of a streaming query.

    Args:
        user_options: The options of the user, unparsed, so that a secret of the environment is not pickled.
        schema: Schema of the rows.
        overwrite: Each batch replaces all rows of the table (output mode "complete").

    Raises:
        BadRequestError: An option is wrong.

    Attributes:
        nonce: A UUID of this writer, which its tasks share.
    """

    def __init__(self, user_options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._user_options = dict(user_options)
        self._schema = schema
        self._overwrite = overwrite
        self.nonce = str(uuid.uuid4())
        self._options()

    def _options(self) -> WriteStreamOptions:
        return write_stream_options(self._user_options, environment())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the rows of one attempt of a task.

        Raises:
            SchemaMismatchError, TooLargeError: The rows do not fit the table.
            UnknownTableError: The table does not exist.
            LabelExistsError: The query has committed a later batch already.
            RefusedError: The transaction accepts no more rows; the message says why.
            UnavailableError: No replica answers.
        """
        batches = (batch for batch in iterator if batch.num_rows)
        head = list(islice(batches, 1))
        # A batch without a row replaces the rows of the table, too: its first task begins a transaction.
        if not (head or (self._overwrite and _is_first())):
            return Empty()
        batch = current_batch(self.nonce)
        try:
            job = self._join(batch)
        except LabelExistsError as error:
            return _already_committed(batch.number, error)
        written = write_task(job, self._schema.names, chain(head, batches), begun_before=False)
        return Staged(job, written)

    def _join(self, batch: MicroBatch) -> Job:
        """Begin the transaction of a batch, or join it if another task of the batch has begun it."""
        # An overwrite replaces all rows acknowledged before, also rows that the home has not applied yet.
        return at_newer_snapshot(functools.partial(self._join_at, batch), fresh=self._overwrite)

    def _join_at(self, batch: MicroBatch, *, fresh: bool) -> Job:
        options = self._options()
        table = options.target.table
        tx = shared_client(options.target).begin(
            label_of(batch.query, table),
            batch=batch.number,
            # The first transaction of a batch stays open for its lease, so the second one has its own key.
            key=f"{batch.key}/fresh" if fresh else batch.key,
            lease=options.lease_s,
            fresh=fresh,
        )
        return begin_job(tx, table, self._schema, job=batch.nonce)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's name
        """Commit a batch with the files that its tasks name.

        Raises:
            NotCommittedError: Its tasks have begun several transactions, since a replica failed meanwhile.
            LabelExistsError: The query has committed a later batch already.
            UnsealedWriteError: A task has not reported its files.
            TransactionClosedError: The transaction was rolled back: its lease expired, or it was ended.
            TidelockError: The commit was refused, or its outcome is unknown. In both cases Spark repeats the
                batch when the query is started again, and the batch commits once.
        """
        if None in messages:
            raise UnsealedWriteError(
                f"a task of batch {batchId} has not reported the files that it has written; start the query "
                "again"
            )
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        target = _any_replica(self._options().target)
        earlier = [message for message in messages if isinstance(message, AlreadyCommitted)]
        tids = {message.job.tid for message in staged}
        if earlier or len(tids) > 1:
            self.abort(messages, batchId)
            if earlier:
                _log_skipped(batchId, earlier[0])
                return
            raise NotCommittedError(
                f"the tasks of batch {batchId} have begun {len(tids)} transactions, since a replica did not "
                f"answer some of them ({', '.join(sorted(tids))}); no row was written. Start the query again"
            )
        written = [message.written for message in staged]
        try:
            commit_job(
                shared_client(target),
                staged[0].job,
                target.table,
                written,
                replaces_table=self._overwrite,
                # A late replica must not delay the next batch: readers of a stream do not wait for copies.
                wait="home",
            )
        except LabelExistsError as error:
            _log_skipped(batchId, _already_committed(batchId, error))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Roll a batch back; a commit that has succeeded remains."""
        for tid in sorted({message.job.tid for message in messages if isinstance(message, Staged)}):
            roll_back(shared_client(_any_replica(self._options().target)), tid)


def _log_skipped(number: int, earlier: AlreadyCommitted) -> None:
    _log.warning("batch %d was committed before, at CSN %s; it is skipped", number, earlier.csn)


def _any_replica(target: TableTarget) -> TableTarget:
    """Return the target without its preferred replica: every replica can resolve an outcome."""
    return replace(target, replica=None)
