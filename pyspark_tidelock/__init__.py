"""Registration of the data source `tidelock`: PySpark imports every module called `pyspark_*`."""

from __future__ import annotations

from tidelock.spark.source.source import TidelockSource as DefaultSource

__all__ = ["DefaultSource"]
