"""Spark over a snapshot beside Spark over the same bytes as local files: the same parts and session, in turn.

On loopback, and through a proxy that adds a round trip of 1 ms; over large parts, and over a lineitem of 500
parts of as many commits, as the snapshot lists them and, on loopback, with each part by its own name. Both
sides have listed their files before the clock runs, as `attach` does.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

import tidelock.spark as tl
from bench.tools import delay, tpch
from bench.tools.queries import medians
from bench.tools.spark import session
from tidelock.cluster import LocalCluster
from workloads.agents import Agents
from workloads.stats import geometric_mean
from workloads.tpch.queries import Q1, Q3, Q6, Q18, TABLES, TpchQuery

#: The queries that are timed.
QUERIES: Final = (Q1, Q3, Q6, Q18)
#: Added to every request and its answer together.
ROUND_TRIP_S = 0.001
_REPEATS_OF_SLOW_WAYS = 3


def run(cluster: LocalCluster, folder: Path, *, repeats: int, small_parts: int) -> dict[str, Any]:
    """Time the queries in all ways; the tables must be loaded."""
    fewer = min(repeats, _REPEATS_OF_SLOW_WAYS)
    with session(folder) as spark:
        found = {"loopback": _compare(cluster, spark, folder / "local", {}, repeats)}
        tpch.load_small(cluster, small_parts)
        small = {"lineitem": tpch.SMALL.name}
        found["small_parts"] = _compare(cluster, spark, folder / "small", small, fewer)
        found["each_part"] = _compare(cluster, spark, folder / "small", small, fewer, by_part=True)
        with delay.proxies(cluster, ROUND_TRIP_S):
            found["round_trip"] = _compare(cluster, spark, folder / "local", {}, fewer)
            found["small_round_trip"] = _compare(cluster, spark, folder / "small", small, fewer)
    return {"scale_factor": tpch.scale_factor(folder), "small_parts_count": small_parts, **found}


def _compare(
    cluster: LocalCluster,
    spark: SparkSession,
    target: Path,
    renamed: dict[str, str],
    repeats: int,
    *,
    by_part: bool = False,
) -> dict[str, Any]:
    """Time all queries over a snapshot and over copies of its parts; `renamed`: tables to take instead.

    With `by_part` each part of these tables is a file, as it is without combined files (ADR 0044).
    """
    tables = {table: renamed.get(table, table) for table in TABLES}
    with cluster.connect("r1") as db:
        begun = time.monotonic()
        with tl.attach(spark, db, tables=tables.values(), replica="r1") as snap:
            attach_s = time.monotonic() - begun
            agents = Agents(cluster)
            parts = sum(len(agents.copy_parts("r1", snap.csn, name, target)) for name in tables.values())
            snapshot = {
                table: _by_part(spark, snap, agents, name)
                if by_part and table in renamed
                else tl.read(spark, snap, name)
                for table, name in tables.items()
            }
            local = {
                table: spark.read.schema(snapshot[table].schema).parquet(str(target / "default" / name))
                for table, name in tables.items()
            }
            kinds = {"tidelock": snapshot, "local": local}
            queries = [_time(spark, query, kinds, repeats) for query in QUERIES]
    return {
        "attach_s": round(attach_s, 2),
        "parts": parts,
        "queries": queries,
        "geometric_mean_ratio": round(geometric_mean([item["ratio"] for item in queries]), 3),
        "worst_ratio": max(item["ratio"] for item in queries),
    }


def _by_part(spark: SparkSession, snap: tl.SparkSnapshot, agents: Agents, table: str) -> DataFrame:
    """Return a table of a snapshot whose parts are read each by its own name."""
    whole = tl.read(spark, snap, table)
    root = snap.path(table).rsplit("/", 2)[0]  # without namespace and name, which `file` has
    files = [f"{root}/{part.file}" for part in agents.parts("r1", snap.csn, table)]
    reader = spark.read.options(**snap.options, basePath=snap.path(table)).schema(whole.schema)
    return reader.parquet(*files).select(*whole.columns)


def _time(
    spark: SparkSession, query: TpchQuery, kinds: dict[str, dict[str, DataFrame]], repeats: int
) -> dict[str, Any]:
    """Time one query, both ways in turn."""
    found = medians(spark, query, kinds, repeats)
    return {
        "query": query.name,
        "tidelock_s": round(found["tidelock"], 3),
        "local_s": round(found["local"], 3),
        "ratio": round(found["tidelock"] / found["local"], 3),
    }
