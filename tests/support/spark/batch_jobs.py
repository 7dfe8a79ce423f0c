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
            url: URL of an agent.
            inbox: Folder of the files, whose only column is `k`.
            checkpoint: Folder of the query's checkpoint.
            tables: Each batch is written to all of these tables.
            query: Name of the query.
            dies_in: The function raises in this batch, after it has written one table.
            dies_behind: The function raises after the commit of this batch, before Spark records the batch.

        Returns:
            The query's `id`, the `error` that has ended it, and the batches that were `run` in this process.
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
    """Return whether Spark gave up a Python worker that did not start within its fixed ten seconds."""
    return isinstance(error, PySparkException) and "Python worker to connect back" in str(error)


@tenacity.retry(
    retry=tenacity.retry_if_exception(_is_slow), stop=tenacity.stop_after_attempt(5), reraise=True
)
def _started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query; on Spark Connect its function needs a worker, which may start slowly."""
    return writer.start()
