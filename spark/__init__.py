"""Spark on Tidelock: consistent snapshots as DataFrames, read at the speed of Spark's own Parquet reader.

It only configures sessions and builds DataFrames; the rows come over the snapshot file system of the agents.
It promises that all tables of one attached snapshot are read at one CSN, and that rows are never wrong or
silently missing, also when a replica dies in the middle of a job (rule readers). It makes no protocol
decision of its own, and it cannot protect a reader that takes raw paths and its own options: see the
documentation of those.
"""

from __future__ import annotations

from tidelock.spark.attach import SparkSnapshot, attach, read
from tidelock.spark.streaming import foreach_batch
from tidelock.spark.writing import write

__all__ = ["SparkSnapshot", "attach", "foreach_batch", "read", "write"]
