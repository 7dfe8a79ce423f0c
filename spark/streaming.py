"""Micro-batches of a streaming query as transactions over any number of tables, each committed once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame

from tidelock.client import Database, Transaction
from tidelock.errors import BadRequestError, LabelExistsError

#: Local property in which Spark keeps the id of the query whose batch it runs.
QUERY_ID: Final = "sql.streaming.queryId"

#: A function that writes one micro-batch; its arguments are the transaction, the rows, the batch number.
BatchFunction = Callable[[Transaction, DataFrame, int], object]

_log = logging.getLogger(__name__)


def foreach_batch(
    db: Database, fn: BatchFunction, query: str | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch(...)` that runs each micro-batch as a transaction.

    `fn(tx, df, batch_id)` writes into `tx`, by `tidelock.spark.write` or any statement of `tx`. The
    transaction commits when `fn` returns, and is rolled back when `fn` raises. Its label is the query, with
    the number of the batch. So all writes of a batch count once, whatever is killed and run again: a batch
    that was committed before is not run again.

    Args:
        db: The cluster. On Spark Connect the client is pickled to the server, with its secret.
        fn: Runs in the driver; on Spark Connect in a process beside it.
        query: Name of the query; default: its id, which is in its checkpoint. Spark Connect does not give
            the id, so a name is required there. A query that starts again with an empty checkpoint needs a
            new name, since its batch numbers start again too. So does a query whose checkpoint is a copy of
            another query's checkpoint; otherwise it skips the batches that the other query has committed.

    The returned function raises, and so ends the query:
        LabelExistsError: The query has committed a later batch already: its checkpoint is older than its
            tables, or the query runs elsewhere too.
        BadRequestError: The query has no id and no name; or the name is a label without batches.
        TidelockError: The error of the transaction. The query can be started again.
    """
    return _ForeachBatch(db, fn, query)


@dataclass(frozen=True, slots=True)
class _ForeachBatch:
    """The function that :func:`foreach_batch` returns; a class, since Spark Connect pickles it."""

    db: Database
    fn: BatchFunction
    query: str | None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run one micro-batch, unless it was committed before."""
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
                    "too; a query that starts again with an empty checkpoint needs a new name (query=)",
                    **error.details,
                ) from error
            _log.info(
                "batch %d of %s was committed before, at CSN %s, and is not run again",
                batch_id,
                query,
                error.details["csn"],
            )


def _query_id(df: DataFrame) -> str:
    """Return the id of the query whose batch Spark runs.

    Raises:
        BadRequestError: The session does not give the id, as on Spark Connect.
    """
    try:
        query = df.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except PySparkAttributeError:  # Spark Connect has no context
        query = None
    if not query:
        raise BadRequestError(
            "the session does not give the id of the streaming query (Spark Connect never does); give the "
            "query a name: foreach_batch(db, fn, query=...)"
        )
    return str(query)
