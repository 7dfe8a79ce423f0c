"""Configuration of a Spark session of any kind."""

from __future__ import annotations

from typing import Final

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from tidelock.token_text import PATTERN

_NAME_SERVICES = "dfs.nameservices"
#: Runtime setting of a session: a regular expression whose matches are replaced in what Spark shows and
#: records: plans in its user interface, event logs, explain().
_REDACTION: Final = "spark.sql.redaction.string.regex"
#: Runtime setting of a session: without it Spark 4 refuses each column with a time of day.
_TIMES: Final = "spark.sql.timeType.enabled"


def name_services(spark: SparkSession) -> list[str]:
    """Return the HDFS name services that a session knows, in order.

    They come from the session's settings and, if the session has a JVM, from Hadoop's configuration
    (hdfs-site.xml). A Spark Connect client cannot read the Hadoop configuration of its server.
    """
    values = [spark.conf.get(name, None) for name in (_NAME_SERVICES, f"spark.hadoop.{_NAME_SERVICES}")]
    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        pass  # Spark Connect
    else:
        values.append(context._jsc.hadoopConfiguration().get(_NAME_SERVICES))  # noqa: SLF001 - no public access exists
    names = [name.strip() for value in values if value for name in value.split(",")]
    return list(dict.fromkeys(name for name in names if name))


def redact_tokens(spark: SparkSession) -> None:
    """Make a session hide tokens, besides what it hides already."""
    now = spark.conf.get(_REDACTION, None) or spark.conf.get("spark.redaction.string.regex", None)
    if not now:
        spark.conf.set(_REDACTION, PATTERN)
    elif PATTERN not in now:
        spark.conf.set(_REDACTION, f"{now}|{PATTERN}")


def allow_times(spark: SparkSession) -> None:
    """Make a session read and write times of day; Spark 4.1 and later have them."""
    if spark.conf.get(_TIMES, None) != "true":
        spark.conf.set(_TIMES, "true")
