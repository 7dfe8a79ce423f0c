"""A Spark job in a separate process that reads tables at one CSN.

Standard input is one JSON object: {urls, token, replica, csn, tables}. The answer, on standard output, is
{table: [[value, ...], ...]}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import tidelock.spark as tl
from tests.support import names
from tidelock.client import connect


def main() -> None:
    """Read the requested tables and print their rows, sorted."""
    asked = json.load(sys.stdin)
    builder: Any = SparkSession.builder
    spark = builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        with names.unknown():
            rows = _read(spark, asked)
    finally:
        spark.stop()
    json.dump(rows, sys.stdout)


def _read(spark: SparkSession, asked: dict[str, Any]) -> dict[str, list[list[Any]]]:
    with (
        connect(asked["urls"], token=asked["token"]) as db,
        tl.attach(spark, db, asked["tables"], replica=asked["replica"], csn=asked["csn"]) as snap,
    ):
        assert snap.csn == asked["csn"]
        return {
            table: sorted(list(row) for row in tl.read(spark, snap, table).collect())
            for table in asked["tables"]
        }


if __name__ == "__main__":
    main()
