"""Streaming queries that a session of tests/support/spark/jobs.py runs for a test."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tidelock.spark as tl
from tidelock.client import Transaction, connect


class StreamJobs:
    """Queries by their names; each reads a table, and writes to a table or collects rows in memory."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._queries: dict[str, StreamingQuery] = {}

    def stream(
        self,
        name: str,
        source: dict[str, str],
        sink: dict[str, str] | None = None,
        *,
        trigger: dict[str, Any] | None = None,
        select: list[str] | None = None,
        schema: str | None = None,
        mode: str = "append",
    ) -> str:
        """Start a query and return its id. Without a sink `collected` returns its rows."""
        reader = self._spark.readStream.format("tidelock").options(**source)
        rows = (reader if schema is None else reader.schema(schema)).load()
        if mode == "complete":
            rows = rows.groupBy("k").count()
        if select:
            rows = rows.selectExpr(*select)
        if sink is None:
            writer = rows.writeStream.format("memory").queryName(name)
        else:
            writer = rows.writeStream.format("tidelock").options(**sink)
        if trigger:
            writer = writer.trigger(**trigger)
        query = self._queries[name] = writer.outputMode(cast("Any", mode)).start()
        return str(query.id)

    def fan_out(
        self, name: str, source: dict[str, str], url: str, token: str, table: str, checkpoint: str
    ) -> str:
        """Start a query that writes to a table by `tl.foreach_batch`; return its id."""
        db = connect(url, token=token)

        def write(tx: Transaction, rows: DataFrame, _batch: int) -> None:
            tl.write(rows, tx, table)

        rows = self._spark.readStream.format("tidelock").options(**source).load()
        writer = rows.writeStream.option("checkpointLocation", checkpoint)
        query = self._queries[name] = writer.foreachBatch(tl.foreach_batch(db, write)).start()
        return str(query.id)

    def failure(self, name: str) -> str | None:
        """Return the error that has ended a query, with those that have caused it; None while it runs."""
        query = self._queries[name]
        if query.isActive:
            return None
        told: list[str] = []
        error = query.exception()
        while error is not None:  # the message of each names no other one
            told.append(str(error))
            error = getattr(error, "_cause", None)
        return "\n".join(told)

    def caught_up(self, name: str) -> None:
        """Wait until a query has read all earlier commits."""
        self._queries[name].processAllAvailable()

    def ended(self, name: str) -> list[int]:
        """Wait until a query ends by itself; return the numbers of rows of its batches."""
        self._queries[name].awaitTermination()
        return self.batches(name)

    def batches(self, name: str) -> list[int]:
        """Return the numbers of rows of a query's recent batches, without empty batches."""
        progress = self._queries[name].recentProgress
        return [rows for batch in progress if (rows := batch["numInputRows"])]

    def stop_stream(self, name: str) -> None:
        """End a query."""
        self._queries[name].stop()

    def collected(self, name: str) -> list[list[Any]]:
        """Return the rows that a query without a sink has read, sorted."""
        return sorted(list(row) for row in self._spark.table(name).collect())
