"""Streaming writes: each micro-batch is one transaction, which counts once.

What runs where, in processes that share nothing but what is pickled: a writer is made beside the driver for
each batch, and pickled to its tasks; another one is made to commit. Neither does any work then. The nonce of
the first one makes the tasks of one driver share a transaction, and two drivers never: begun with the same
key, it is the same. Its label is the query and the table with the number of the batch, so of two drivers, or
of a batch and its repetition, one commits; the other one is told, and has nothing to do.
"""

from __future__ import annotations

import hashlib
import logging
import os
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
from tidelock.spark.source.links import link
from tidelock.spark.source.options import Target
from tidelock.spark.source.stream_options import WriteStreamOptions, write_stream_options
from tidelock.spark.source.writing import Job, Written, begin_job, roll_back, settle, write_task
from tidelock.spark.streaming import QUERY_ID
from tidelock.spark.tables import full_name

#: Local property in which Spark keeps the number of the batch; tasks see it.
BATCH_ID: Final = "streaming.sql.batchId"
#: The agents' `label_bytes_max`, by default.
LABEL_BYTES_MAX: Final = 256

_log = logging.getLogger(__name__)


@dataclass
class Staged(WriterCommitMessage):
    """What a task has uploaded, and for which transaction."""

    job: Job
    written: Written


@dataclass
class Counted(WriterCommitMessage):
    """What a task was told: the batch was committed before, at `csn` if that is known."""

    csn: int | None


@dataclass
class Empty(WriterCommitMessage):
    """The task had no rows."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of a streaming query, as one driver runs it.

    Attributes:
        query: Id of the query; it is in the checkpoint, so a restarted query has the same.
        number: Of the batch.
        nonce: A UUID of this run.
    """

    query: str
    number: int
    nonce: str

    @property
    def key(self) -> str:
        """What its tasks begin its transaction with."""
        return f"{self.query}/{self.number}/{self.nonce}"


def running(nonce: str) -> MicroBatch:
    """Return the micro-batch that this task works for.

    Raises:
        BadRequestError: It works for none.
    """
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context else None
    number = context.getLocalProperty(BATCH_ID) if context else None
    if not query or not number:
        raise BadRequestError(
            f"the task has no local properties {QUERY_ID} and {BATCH_ID}: it is none of a streaming query"
        )
    return MicroBatch(query, int(number), nonce)


def _is_first() -> bool:
    """Tell whether this is the first task of its batch; each batch has one."""
    context = TaskContext.get()
    return context is None or context.partitionId() == 0


def label_of(query: str, table: str) -> str:
    """Return the label of what a query writes to a table.

    The table is a part of it, since a copied checkpoint has the same query: two sinks that count each other's
    batches would each lack rows.
    """
    name = full_name(table)
    label = f"{query}/{name}"
    if len(label.encode()) > LABEL_BYTES_MAX:
        label = f"{query}/{hashlib.sha256(name.encode()).hexdigest()}"
    return label


def _counted(number: int, error: LabelExistsError) -> Counted:
    """Return what is told of a batch that was committed before; raises where it was a later one."""
    newest = error.details.get("batch")
    if newest is not None and newest > number:
        raise LabelExistsError(
            f"{error.message}. The query has gone back to an older checkpoint, or runs elsewhere too; begin "
            "anew with an empty checkpoint, or put the newest one back",
            **error.details,
        ) from error
    return Counted(error.details.get("csn"))


class TidelockStreamWriter(DataSourceStreamArrowWriter):
    """Writes a streaming query.

    Args:
        given: The options as they were given: the secret of the environment does not travel.
        schema: Of the rows.
        overwrite: Each batch replaces all rows of the table (output mode "complete").

    Raises:
        BadRequestError: An option is wrong.

    Attributes:
        nonce: A UUID of this writer, which its tasks share.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._given = dict(given)
        self._schema = schema
        self._overwrite = overwrite
        self.nonce = str(uuid.uuid4())
        self._options()

    def _options(self) -> WriteStreamOptions:
        return write_stream_options(self._given, os.environ)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the rows of one attempt of a task.

        Raises:
            SchemaMismatchError, TooLargeError: The rows do not fit the table.
            UnknownTableError: There is no such table.
            LabelExistsError: The query has committed a later batch already.
            RefusedError: The transaction takes nothing more; the message says why.
            UnavailableError: No replica answers.
        """
        batches = (batch for batch in iterator if batch.num_rows)
        head = list(islice(batches, 1))
        # A batch without any row replaces those of the table, too: one of its tasks begins a transaction.
        if not (head or (self._overwrite and _is_first())):
            return Empty()
        batch = running(self.nonce)
        try:
            job = self._join(batch)
        except LabelExistsError as error:
            return _counted(batch.number, error)
        written = write_task(job, self._schema.names, chain(head, batches), begun_before=False)
        return Staged(job, written)

    def _join(self, batch: MicroBatch) -> Job:
        """Begin the transaction of a batch, or join the one that another task of it has begun."""
        options = self._options()
        table = options.target.table
        tx = link(options.target).begin(
            label_of(batch.query, table),
            batch=batch.number,
            key=batch.key,
            lease=options.lease_s,
            # What is replaced is all that was acknowledged before, whichever replica has it already.
            fresh=self._overwrite,
        )
        return begin_job(tx, table, self._schema, job=batch.nonce)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's name
        """Commit a batch with the files that its tasks name.

        Raises:
            NotCommittedError: Its tasks have begun two transactions, as a replica was lost meanwhile.
            LabelExistsError: The query has committed a later batch already.
            UnsealedWriteError: A task has not told what it has written.
            TransactionClosedError: The transaction was rolled back: its lease ran out, or somebody ended it.
            TidelockError: It was refused, or its outcome is not known. Whichever it is: when the query is
                started again, Spark repeats the batch, and it counts once.
        """
        if None in messages:
            raise UnsealedWriteError(f"a task of batch {batchId} has not told what it has written")
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        target = _anywhere(self._options().target)
        told = [message for message in messages if isinstance(message, Counted)]
        homes = {message.job.tid for message in staged}
        if told or len(homes) > 1:
            self.abort(messages, batchId)
            if told:
                _skipped(batchId, told[0])
                return
            raise NotCommittedError(
                f"the tasks of batch {batchId} have begun {len(homes)} transactions, as a replica did not "
                f"answer some of them ({', '.join(sorted(homes))}); nothing was written. Start it again"
            )
        written = [message.written for message in staged]
        try:
            settle(
                link(target),
                staged[0].job,
                target.table,
                written,
                replaces_table=self._overwrite,
                # A replica that is late holds no batch up: readers of a stream wait for nothing.
                wait="home",
            )
        except LabelExistsError as error:
            _skipped(batchId, _counted(batchId, error))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Roll a batch back; of a commit that has succeeded after all nothing is taken back."""
        for tid in sorted({message.job.tid for message in messages if isinstance(message, Staged)}):
            roll_back(link(_anywhere(self._options().target)), tid)


def _skipped(number: int, told: Counted) -> None:
    _log.warning("batch %d was committed before, at CSN %s; it is skipped", number, told.csn)


def _anywhere(target: Target) -> Target:
    """The target for those who ask for an outcome: any replica knows it."""
    return replace(target, replica=None)
