"""Measures all formats in one session: reads, writes, deletes and updates, and small commits."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.sql import DataFrame, SparkSession

import tidelock
from bench.parts.load import program
from bench.spark_peers import small_commits
from bench.spark_peers.formats import ChangingFormat, Delta, Iceberg, Plain, SparkFormat, Tidelock
from bench.spark_peers.run import TABLES
from bench.spark_peers.session import PACKAGES, session
from bench.tools import queries, tpch
from bench.tools.statements import MERGES, BenchMerge, BenchStatement, statements
from bench.tools.workload import ClientPace
from workloads.stats import geometric_mean
from workloads.tpch.queries import Q1, Q3, Q6, Q18
from workloads.tpch.tables import LINEITEM, TpchTable

_QUERIES: Final = (Q1, Q3, Q6, Q18)
_WRITES_MAX: Final = 3


def measure(folder: Path, urls: Sequence[str], *, repeats: int, pace: ClientPace) -> dict[str, Any]:
    """Return the figures of all formats.

    Args:
        folder: Has the tables as Parquet files (`tpch.parquet`); everything else is made below it.
        urls: The home of a cluster of one replica, and of a cluster of three.
        repeats: Measured turns of each query; writes have at most three.
        pace: How long small commits are made.
    """
    with ExitStack() as opened:
        spark = opened.enter_context(session(folder))
        one, three = (opened.enter_context(tidelock.connect(url, replica="r1")) for url in urls)
        delta, iceberg = Delta(spark, folder / "delta"), Iceberg(spark, folder / "iceberg" / "bench")
        plain, tidelock_three = Plain(spark, folder / "plain"), Tidelock(spark, three)
        formats: list[SparkFormat] = [plain, delta, iceberg, Tidelock(spark, one), tidelock_three]
        rows = {table.name: spark.read.parquet(str(folder / f"{table.name}.parquet")) for table in TABLES}
        written = _writes(formats, rows[LINEITEM.name], min(repeats, _WRITES_MAX))
        readers: list[SparkFormat] = [plain, delta, iceberg, tidelock_three]
        for reader, table in itertools.product(readers, TABLES):
            reader.create(table, rows[table.name])
            reader.append(table, rows[table.name])
        return {
            "spark": pyspark.__version__,
            "packages": PACKAGES,
            "scale_factor": tpch.scale_factor(folder),
            "notes": {item.name: item.note for item in formats},
            "reads": _reads(spark, readers, repeats),
            "writes": written,
            "mutations": _mutations([delta, iceberg, tidelock_three], rows[LINEITEM.name]),
            "merges": _merges([delta, iceberg, tidelock_three], rows[LINEITEM.name]),
            "small": small_commits.run(spark, formats, pace),
        }


def _reads(spark: SparkSession, formats: Sequence[SparkFormat], repeats: int) -> list[dict[str, Any]]:
    """Time the queries; the first format is the one that the others are compared to."""
    with ExitStack() as opened:
        kinds = {item.name: opened.enter_context(item.reading(TABLES)) for item in formats}
        medians = {query.name: queries.medians(spark, query, kinds, repeats) for query in _QUERIES}
    found = []
    for name in kinds:
        ratios = [seconds[name] / seconds[formats[0].name] for seconds in medians.values()]
        found.append(
            {
                "format": name,
                "s": {query: round(seconds[name], 3) for query, seconds in medians.items()},
                "to_plain": dict(zip(medians, (round(ratio, 3) for ratio in ratios), strict=True)),
                "geometric_mean_ratio": round(geometric_mean(ratios), 3),
            }
        )
    return found


def _writes(formats: Sequence[SparkFormat], rows: DataFrame, repeats: int) -> list[dict[str, Any]]:
    """Time the writes of a new table in turn; the first turn warms up, the first format is compared to."""
    turns: dict[str, list[tuple[float, float | None, float | None]]] = {item.name: [] for item in formats}
    for number in range(repeats + 1):
        table = dataclasses.replace(LINEITEM, name=f"written_{number}")
        # A later format pays for what earlier ones have left, so the order alternates.
        for item in formats if number % 2 else reversed(formats):
            turn = _write(item, table, rows)
            if number:
                turns[item.name].append(turn)
    found = []
    plain_s = statistics.median(committed_s for committed_s, _, _ in turns[formats[0].name])
    for name, taken in turns.items():
        committed_s, everywhere_s, fsync_s = (_median(values) for values in zip(*taken, strict=True))
        assert committed_s is not None, "every write has this time"
        found.append(
            {
                "format": name,
                "s": round(committed_s, 2),
                "everywhere_s": everywhere_s and round(everywhere_s, 2),
                "fsync_s": fsync_s and round(fsync_s, 2),
                "to_plain": round(committed_s / plain_s, 3),
            }
        )
    return found


def _write(item: SparkFormat, table: TpchTable, rows: DataFrame) -> tuple[float, float | None, float | None]:
    """Return the seconds until the commit, until all copies have it, and of a later fsync of the files."""
    item.create(table, rows)
    subprocess.run([program("sync")], check=True)  # what others have left would slow this one
    begun = time.monotonic()
    item.append(table, rows)
    committed = time.monotonic()
    everywhere_s = time.monotonic() - begun if item.everywhere() else None
    fsync_s = None
    if files := item.files(table):
        forcing = time.monotonic()
        subprocess.run([program("sync"), *map(str, files)], check=True)
        fsync_s = time.monotonic() - forcing
    return committed - begun, everywhere_s, fsync_s


def _median(values: Sequence[float | None]) -> float | None:
    """Return the median of times that a format has in each turn or in none."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def _mutations(formats: Sequence[ChangingFormat], rows: DataFrame) -> list[dict[str, Any]]:
    """Time each statement once, one format after the other.

    RuntimeError when the formats do not hold the same rows after a statement.
    """
    largest = rows.agg({"l_orderkey": "max"}).collect()[0][0]
    warm = [
        BenchStatement("warm", "l_orderkey = 1", update) for update in ({"l_tax": "l_tax"}, None)
    ]  # the first statement of a session would pay for the classes that it loads
    for item, statement in itertools.product(formats, warm):
        item.change(LINEITEM, statement)
    found = []
    before = _totals(formats)
    for statement in statements(largest):
        for item in formats:
            begun = time.monotonic()
            item.change(LINEITEM, statement)
            committed_s = time.monotonic() - begun
            everywhere_s = round(time.monotonic() - begun, 2) if item.everywhere() else None
            found.append(
                {
                    "statement": statement.name,
                    "format": item.name,
                    "s": round(committed_s, 2),
                    "everywhere_s": everywhere_s,
                }
            )
        after = _totals(formats)
        if after == before:
            raise RuntimeError(f"{statement.name} has changed nothing")
        before = after
    return found


def _merges(formats: Sequence[ChangingFormat], rows: DataFrame) -> list[dict[str, Any]]:
    """Time each merge once, one format after the other.

    RuntimeError when the formats do not hold the same rows after a merge.
    """
    largest = rows.agg({"l_orderkey": "max"}).collect()[0][0]
    found = []
    for number, merge in enumerate((BenchMerge(1), *MERGES)):
        # The first one, with other keys, warms up.
        values = merge.rows(largest * (number + 1))
        where = values.pop("where")
        columns = [f"{values.get(name, name)} as {name}" for name in LINEITEM.schema.names]
        merged = rows.where(where).selectExpr(*columns)
        for item in formats:
            begun = time.monotonic()
            item.merge(LINEITEM, merged, merge)
            committed_s = time.monotonic() - begun
            everywhere_s = round(time.monotonic() - begun, 2) if item.everywhere() else None
            if number:
                found.append(
                    {
                        "percent": merge.percent,
                        "format": item.name,
                        "s": round(committed_s, 2),
                        "everywhere_s": everywhere_s,
                    }
                )
        _totals(formats)
    return found


def _totals(formats: Sequence[ChangingFormat]) -> tuple[Any, ...]:
    """Return how many rows lineitem has and what they cost; RuntimeError when the formats differ in it."""
    totals = {}
    for item in formats:
        with item.reading([LINEITEM]) as frames:
            [row] = frames[LINEITEM.name].selectExpr("count(*)", "sum(l_extendedprice)").collect()
        totals[item.name] = tuple(row)
    if len(set(totals.values())) > 1:
        raise RuntimeError(f"rows and their sum differ after the same statements: {totals}")
    return next(iter(totals.values()))
