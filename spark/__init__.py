"""Spark on Tidelock: consistent snapshots as DataFrames, read at the speed of Spark's own Parquet reader.

This package only configures sessions and builds DataFrames; the rows come over the snapshot file system of
the agents. All tables of one attached snapshot are read at one CSN. Rows are never wrong or silently missing,
even if a replica dies in the middle of a job (rule readers). The package makes no decision of the
protocol. It cannot protect a read of raw paths with other options; see docs/spark-settings.md.
"""

from __future__ import annotations

from tidelock.spark.attach import SparkSnapshot, attach, read
from tidelock.spark.changing import delete, merge, update
from tidelock.spark.streaming import foreach_batch
from tidelock.spark.writing import write

__all__ = ["SparkSnapshot", "attach", "delete", "foreach_batch", "merge", "read", "update", "write"]
