"""The Spark session of the benchmarks: one JVM for a run, with both compilers and 4 GB for its driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from workloads import spark_session


@contextmanager
def session(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Run Spark in this process, with its files below a folder; errors as in `spark_session.session`.

    Args:
        folder: Made when it is not there.
        settings: More settings of Spark.
    """
    settings = {"spark.driver.memory": "4g", **(settings or {})}
    with spark_session.session(folder, app="tidelock bench", settings=settings) as spark:
        yield spark
