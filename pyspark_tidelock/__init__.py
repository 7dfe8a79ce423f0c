"""Where PySpark finds the data source `tidelock` by itself: it looks into every module called `pyspark_*`."""

from __future__ import annotations

from tidelock.spark.source.source import TidelockSource as DefaultSource

__all__ = ["DefaultSource"]
