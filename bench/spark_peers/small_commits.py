"""Small batches that one writer appends through Spark, one after the other."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from bench.spark_peers.formats import SparkFormat, Tidelock
from bench.tools import workload
from bench.tools.workload import ClientPace
from workloads.stats import Latencies
from workloads.tpch.tables import TpchTable

#: Rows of a batch.
_BATCHES: Final = (10, 100)


def run(spark: SparkSession, formats: Sequence[SparkFormat], pace: ClientPace) -> list[dict[str, Any]]:
    """Measure each size of a batch with each format, and `db.write` beside it, each on a table of its own."""
    found = []
    for count in _BATCHES:
        batch = functools.partial(_batch, spark, count)
        for item in formats:
            table = TpchTable(f"small_{count}", workload.SCHEMA, sort_by=("key",))
            append = functools.partial(_append, item, table, batch)
            found.append({"rows": count, "way": item.name, **_measure(item, table, batch(0), append, pace)})
        for item in formats:
            if isinstance(item, Tidelock):
                table = TpchTable(f"requests_{count}", workload.SCHEMA, sort_by=("key",))
                request = functools.partial(_request, item, table, count)
                name = f"{item.name}, `db.write` without Spark"
                found.append({"rows": count, "way": name, **_measure(item, table, batch(0), request, pace)})
    return found


def _append(item: SparkFormat, table: TpchTable, batch: Callable[[int], DataFrame], number: int) -> None:
    item.append(table, batch(number))


def _request(item: Tidelock, table: TpchTable, count: int, number: int) -> None:
    item.request(table, workload.batch(0, number).slice(0, count))


def _measure(
    item: SparkFormat, table: TpchTable, like: DataFrame, commit: Callable[[int], None], pace: ClientPace
) -> dict[str, Any]:
    """Commit until the window ends, and count the rows.

    RuntimeError when rows are missing or too many.
    """
    item.create(table, like)
    warm = _repeat(commit, 0, pace.warm_s)
    taken = _repeat(commit, len(warm), pace.run_s)
    done = len(warm) + len(taken)
    with item.reading([table]) as frames:
        rows = frames[table.name].count()
    if rows != done * like.count():
        raise RuntimeError(f"{item.name} has {rows} rows in {table.name} after {done} commits")
    return {"per_s": round(len(taken) / sum(taken), 2), "latency": asdict(Latencies.of(taken))}


def _repeat(commit: Callable[[int], None], first: int, lasting_s: float) -> list[float]:
    """Commit batches from the first number on, at least one, for so long; return the seconds of each."""
    taken: list[float] = []
    until = time.monotonic() + lasting_s
    while not taken or time.monotonic() < until:
        begun = time.monotonic()
        commit(first + len(taken))
        taken.append(time.monotonic() - begun)
    return taken


def _batch(spark: SparkSession, count: int, number: int) -> DataFrame:
    """Return rows like those of `workload.batch`, made by one task without Python."""
    return spark.range(number * count, (number + 1) * count, 1, 1).selectExpr(
        "id as key",
        "1995 as year",
        "if(id % 2 = 0, 'O', 'F') as status",
        f"cast(1 + id % {count} / 100 as decimal(15, 2)) as price",
        f"date_add(date '1994-08-23', cast(id % {count} as int)) as day",
        f"concat('row ', id % {count}, ' of the benchmark, not to be compressed away') as comment",
    )
