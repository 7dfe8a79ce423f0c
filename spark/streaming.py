"""Micro-batches of a streaming query as transactions that count once each, over any number of tables."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame

from tidelock.client import Database, Transaction
from tidelock.errors import BadRequestError, LabelExistsError

#: Local property in which Spark keeps the id of the query whose batch is being run.
QUERY_ID: Final = "sql.streaming.queryId"

#: What is done with one micro-batch: the transaction, its rows, its number.
BatchFunction = Callable[[Transaction, DataFrame, int], object]

_log = logging.getLogger(__name__)


def foreach_batch(
    db: Database, fn: BatchFunction, query: str | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch(...)` that runs each micro-batch as a transaction.

    `fn(tx, df, batch_id)` writes into `tx`, by `tidelock.spark.write` or any of its statements; that commits
    when `fn` returns, and is rolled back when it raises. All that it writes counts once, whatever is killed
    and run again: the transaction's label is the query, with the number of the batch. A batch that was
    committed before is not run again.

    Args:
        db: The cluster. On Spark Connect it is pickled to the server, with its secret.
        fn: Runs in the driver; on Spark Connect in a process beside it.
        query: Name of the query; default: its id, which is in its checkpoint. On Spark Connect, where that
            cannot be asked for, a name must be given. A query that begins anew, with an empty checkpoint,
            needs a new name, since its numbers begin anew; so does one whose checkpoint is the copy of
            another's, or it passes over the batches that the other one has committed.

    The function that is returned raises, and thereby ends the query:
        LabelExistsError: The query has committed a later batch already: it goes back, to a checkpoint that is
            older than its tables, or runs elsewhere too.
        BadRequestError: There is no id of the query, and no name; or the name is a label without batches.
        TidelockError: What the transaction raises. The query can be started again.
    """
    return _ForeachBatch(db, fn, query)


@dataclass(frozen=True, slots=True)
class _ForeachBatch:
    """See :func:`foreach_batch`; a class of the module, so that Spark Connect can pickle it."""

    db: Database
    fn: BatchFunction
    query: str | None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run one micro-batch, unless it counts already."""
        query = self.query or _query_id(df)
        try:
            with self.db.begin(query, batch=batch_id) as tx:
                self.fn(tx, df, batch_id)
        except LabelExistsError as error:
            newest = error.details.get("batch")
            if error.details.get("label") != query or newest is None:
                raise
            if newest > batch_id:
                raise LabelExistsError(
                    f"{error.message}. The query has gone back to an older checkpoint, or runs elsewhere "
                    "too; one that begins anew needs a name of its own (query=)",
                    **error.details,
                ) from error
            _log.info(
                "batch %d of %s was committed before, at CSN %s, and is not run again",
                batch_id,
                query,
                error.details["csn"],
            )


def _query_id(df: DataFrame) -> str:
    """The id of the query whose batch is being run.

    Raises:
        BadRequestError: It cannot be had, as on Spark Connect.
    """
    try:
        found = df.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except PySparkAttributeError:  # Spark Connect has no context
        found = None
    if not found:
        raise BadRequestError(
            "the id of the streaming query cannot be had here (on Spark Connect it never can); give the "
            "query a name: foreach_batch(db, fn, query=...)"
        )
    return str(found)
