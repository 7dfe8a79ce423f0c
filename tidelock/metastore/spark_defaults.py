"""The lines of spark-defaults.conf with which all processes of Spark know the metastore and the replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelock.read_route import READER_OPTIONS, ReadRoute

#: The name service of the replicas in the settings of Spark.
AUTHORITY: Final = "tidelock"


def settings(route: ReadRoute, metastore: str) -> Mapping[str, str]:
    """Return the settings.

    Args:
        route: The way to the replicas, under :data:`AUTHORITY`.
        metastore: Addresses of metastores, ``thrift://host:port`` with commas between them.
    """
    hadoop = {name: value for name, value in route.options.items() if name not in READER_OPTIONS}
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": metastore,
        **{f"spark.hadoop.{name}": value for name, value in hadoop.items()},
    }
