"""Streams: small micro-batches through a sink, and commits until a streaming reader has their rows.

The sinks get ten rows in each micro-batch, one task, as fast as Spark can: the data source `tidelock` with
three replicas, a transaction of each batch; beside it Spark's own Parquet sink, which forces nothing to disk
and keeps one copy, and is what a micro-batch costs in Spark. A commit counts as visible when the function of
`foreachBatch` has its row in its hands, in a query that reads at another replica than that of the commit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.tools.spark import session
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.spark.source.source import TidelockSource
from workloads.stats import Latencies

ROWS: Final = 10
_SINK: Final = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])
_READ: Final = pa.schema([("key", pa.int64())])
#: Micro-batches, and commits, before those that count.
_WARM: Final = 5
#: Between two commits that a reader is to see.
_PAUSE_S: Final = 0.7
_LOOK_S: Final = 0.02
_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class BatchRate:
    """Micro-batches through one sink; ms are medians of what Spark tells of each.

    Attributes:
        whole_ms: One micro-batch.
        write_ms: Of that what Spark calls `addBatch`: the job and its commit.
    """

    sink: str
    batches: int
    per_s: float
    whole_ms: float
    write_ms: float


def run(folder: Path, *, batches: int, commits: int) -> dict[str, Any]:
    """Measure both; makes its own cluster and session."""
    with (
        LocalCluster.create(folder / "streams") as cluster,
        session(folder) as spark,
        cluster.connect("r1") as db,
    ):
        spark.sparkContext.setLogLevel("OFF")  # a query that is stopped in mid-batch fills pages
        spark.dataSource.register(TidelockSource)
        db.create_table("sink", _SINK, properties={"compaction": "off"})
        db.create_table("read", _READ, properties={"compaction": "off"})
        urls = ",".join(cluster.urls)
        sinks = {
            "parquet": {"format": "parquet", "path": str(folder / "sink")},
            "tidelock": {"format": "tidelock", "url": urls, "table": "sink"},
        }
        rates = [_rate(spark, folder, name, options, batches) for name, options in sinks.items()]
        rows = db.table("sink")["rows"]
        if rows % ROWS or rows < ROWS * batches:
            raise RuntimeError(f"{rows} rows are in the sink, of batches of {ROWS}")
        source = {"url": urls, "table": "read", "replica": "r2"}
        seen = _Seen(spark, source, folder / "read-checkpoint")
        lags = seen.follow(db, commits)
    return {"rates": [asdict(rate) for rate in rates], "visible": asdict(Latencies.of(lags))}


def _rate(spark: SparkSession, folder: Path, name: str, sink: Mapping[str, str], batches: int) -> BatchRate:
    made = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS, numPartitions=1).load()
    options = {**sink, "checkpointLocation": str(folder / f"{name}-checkpoint")}
    query = made.writeStream.format(options.pop("format")).options(**options).start()
    try:
        first, begun = _reach(query, _WARM)
        last, ended = _reach(query, first + batches)
        durations = [item["durationMs"] for item in query.recentProgress if first < item["batchId"] <= last]
    finally:
        query.stop()
    return BatchRate(
        sink=name,
        batches=last - first,
        per_s=round((last - first) / (ended - begun), 2),
        whole_ms=median(item["triggerExecution"] for item in durations),
        write_ms=median(item["addBatch"] for item in durations),
    )


def _reach(query: StreamingQuery, batch: int) -> tuple[int, float]:
    """Wait until a micro-batch, or a later one, has ended; returns its number and when that was seen."""
    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until:
        if (failure := query.exception()) is not None:
            raise RuntimeError("a streaming query has failed") from failure
        progress = query.lastProgress
        if progress is not None and progress["batchId"] >= batch:
            return progress["batchId"], time.monotonic()
        time.sleep(_LOOK_S)
    raise RuntimeError(f"the query has not reached micro-batch {batch} in {_TIMEOUT_S:g} s")


class _Seen:
    """A streaming reader, and when it has seen which key."""

    def __init__(self, spark: SparkSession, source: Mapping[str, str], checkpoint: Path) -> None:
        self._at: dict[int, float] = {}
        rows = spark.readStream.format("tidelock").options(**source).load()
        writer = rows.writeStream.foreachBatch(self._take)
        self._query = writer.option("checkpointLocation", str(checkpoint)).start()

    def follow(self, db: Database, commits: int) -> list[float]:
        """Commit rows one at a time; returns for each the seconds from its acknowledgement to the reader."""
        lags = []
        try:
            for key in range(_WARM + commits):
                db.insert("read", pa.table({"key": [key]}, schema=_READ))
                acknowledged = time.monotonic()
                seen = self._wait(key)
                if key >= _WARM:
                    lags.append(max(0.0, seen - acknowledged))
                # Not in step with the reader: the next one comes at any moment of its round.
                time.sleep(_PAUSE_S * (0.5 + (key * 0.618) % 1))
        finally:
            self._query.stop()
        return lags

    def _take(self, batch: DataFrame, _: int) -> None:
        keys = [row["key"] for row in batch.collect()]
        now = time.monotonic()
        self._at.update(dict.fromkeys(keys, now))

    def _wait(self, key: int) -> float:
        until = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < until:
            if (failure := self._query.exception()) is not None:
                raise RuntimeError("the reading query has failed") from failure
            if key in self._at:
                return self._at[key]
            time.sleep(_LOOK_S)
        raise RuntimeError(f"the reader has not seen row {key} in {_TIMEOUT_S:g} s")
