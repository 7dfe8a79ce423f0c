"""Streaming queries with foreachBatch that a session of tests/support/spark/jobs.py runs for a test."""

from __future__ import annotations

from typing import Any

import tenacity
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import tidelock.spark as tl
from tidelock.client import Transaction, connect


class BatchJobs:
    """Queries that read Parquet files, one to a batch, and write them to tables by `tl.foreach_batch`."""

    _spark: SparkSession

    def foreach_batch(
        self,
        url: str,
        inbox: str,
        checkpoint: str,
        tables: list[str],
        *,
        query: str | None = None,
        dies_in: int | None = None,
        dies_behind: int | None = None,
    ) -> dict[str, Any]:
        """Run a query until it has read all files, or ends with an error.

        Args:
            url: Of an agent.
            inbox: Folder of the files, whose only column is `k`.
            checkpoint: Of the query.
            tables: Each batch is written to all of them.
            query: Name of the query.
            dies_in: The function raises in this batch, with one table written.
            dies_behind: It raises behind this batch, when that is committed and Spark does not know of it.

        Returns:
            Its `id`, the `error` that has ended it, and the batches that were `run` (in this process).
        """
        run: list[int] = []

        def write(tx: Transaction, df: DataFrame, number: int) -> None:
            run.append(number)
            for table in tables:
                tl.write(df, tx, table)
                if number == dies_in:
                    raise RuntimeError("the driver dies in the batch")

        with connect(url) as db:
            counted = tl.foreach_batch(db, write, query)

            def batch(df: DataFrame, number: int) -> None:
                counted(df, number)
                if number == dies_behind:
                    raise RuntimeError("the driver dies behind the batch")

            rows = self._spark.readStream.schema("k bigint").option("maxFilesPerTrigger", 1).parquet(inbox)
            writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", checkpoint)
            stream = _started(writer.trigger(availableNow=True))
            error = None
            try:
                stream.awaitTermination()
            except StreamingQueryException as caught:
                error = str(caught)
            return {"id": str(stream.id), "error": error, "run": run}


def _is_slow(error: BaseException) -> bool:
    """Whether Spark has given a Python worker up that had not come up within ten seconds, which are fixed."""
    return isinstance(error, PySparkException) and "Python worker to connect back" in str(error)


@tenacity.retry(
    retry=tenacity.retry_if_exception(_is_slow), stop=tenacity.stop_after_attempt(5), reraise=True
)
def _started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query; on Spark Connect its function has a worker, which may be slow to come up."""
    return writer.start()
