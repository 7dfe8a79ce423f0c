"""The Spark session of the benchmarks: one JVM for a run, with both compilers and 4 GB for its driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from workloads import spark_session


@contextmanager
def session(folder: Path) -> Iterator[SparkSession]:
    """Run Spark in this process, with its files below a folder; errors as in `spark_session.session`."""
    settings = {"spark.driver.memory": "4g"}
    with spark_session.session(folder, app="tidelock bench", settings=settings) as spark:
        yield spark
