"""Spark's time for a query over several kinds of the same tables, in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from workloads.tpch.queries import TpchQuery


def medians(
    spark: SparkSession, query: TpchQuery, kinds: Mapping[str, Mapping[str, DataFrame]], repeats: int
) -> dict[str, float]:
    """Return the median seconds of a query by kind; the first turn warms up.

    Args:
        spark: The session; its views of the tables' names are replaced.
        query: The query.
        kinds: For each kind its tables by name.
        repeats: Measured turns.

    Raises:
        RuntimeError: Two kinds give different rows.
    """
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    answers: dict[str, Any] = {}
    for turn in range(repeats + 1):
        # The first kind of a round pays for leftovers of the last one, so the order alternates.
        for kind in sorted(kinds, reverse=turn % 2 == 0):
            for table, frame in kinds[kind].items():
                frame.createOrReplaceTempView(table)
            begun = time.monotonic()
            answers[kind] = spark.sql(query.for_spark).collect()
            if turn:
                taken[kind].append(time.monotonic() - begun)
        first, *others = kinds
        for kind in others:
            if answers[kind] != answers[first]:
                raise RuntimeError(f"{query.name}: the tables of {kind} and of {first} give different rows")
    return {kind: statistics.median(values) for kind, values in taken.items()}
