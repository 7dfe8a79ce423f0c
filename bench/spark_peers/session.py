"""The Spark session that all systems share, with the jars of Delta and Iceberg."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bench.tools import spark

#: The jars, at exact versions; what they need besides is named by their own descriptions.
PACKAGES: Final = (
    "io.delta:delta-spark_2.12:3.3.2",
    "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.1",
)
#: The Iceberg catalog of the session.
ICEBERG: Final = "iceberg"
#: Fetched jars stay in the environment, so that only the first run needs Maven.
_JARS: Final = Path(sys.prefix) / "spark-peers-jars"


@contextmanager
def session(folder: Path) -> Iterator[SparkSession]:
    """Run Spark with its files, and those of Iceberg's tables, below a folder.

    RuntimeError, with what Spark said, when it does not start, as when the jars cannot be fetched.
    """
    catalog = f"spark.sql.catalog.{ICEBERG}"
    settings = {
        "spark.jars.packages": ",".join(PACKAGES),
        "spark.jars.ivy": str(_JARS),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # As many as other shuffles of the session: the default, 50, suits tables with more in their logs.
        "spark.databricks.delta.snapshotPartitions": "4",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(folder / "iceberg"),
    }
    with ExitStack() as opened:
        try:
            running = opened.enter_context(spark.session(folder / "spark", settings))
        except PySparkException as error:
            raise RuntimeError(
                f"Spark did not start with {' and '.join(PACKAGES)}: {_said(folder / 'spark') or error}. "
                "Where Maven Central is not reached, name another repository as spark.jars.repositories in "
                "spark-defaults.conf of the folder $SPARK_CONF_DIR, then run the part again"
            ) from error
        yield running


def _said(folder: Path) -> str:
    """Return the line in which Spark's start script names its error; empty without one."""
    lines = (folder / "spark.out").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in lines if line.startswith("Exception in thread")), "")
