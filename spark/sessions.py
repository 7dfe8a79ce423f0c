"""What a Spark session of any kind tells about its configuration."""

from __future__ import annotations

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

_NAME_SERVICES = "dfs.nameservices"


def name_services(spark: SparkSession) -> list[str]:
    """Return the HDFS name services that a session knows, in order.

    From its own settings and, where there is a JVM to ask, from Hadoop's configuration (hdfs-site.xml). A
    Connect client cannot see the latter of its server.
    """
    found = [spark.conf.get(name, None) for name in (_NAME_SERVICES, f"spark.hadoop.{_NAME_SERVICES}")]
    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        pass  # Spark Connect
    else:
        found.append(context._jsc.hadoopConfiguration().get(_NAME_SERVICES))  # noqa: SLF001 - there is no public way
    names = [name.strip() for value in found if value for name in value.split(",")]
    return list(dict.fromkeys(name for name in names if name))
