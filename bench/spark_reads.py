"""Spark over a snapshot beside Spark over the same bytes as local files: the same parts and session, in turn.

Three times: on loopback, through a proxy that adds a round trip of 1 ms, and over a lineitem of 500 parts of
as many commits. Both sides have listed their files before the clock runs, as `attach` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession

import tidelock.spark as tl
from bench import delay, tpch
from bench.queries import QUERIES, TABLES
from bench.stats import geometric_mean
from tidelock import java
from tidelock.cluster import LocalCluster

#: Added to every request and its answer together.
ROUND_TRIP_S = 0.001
_REPEATS_OF_SLOW_WAYS = 3


def run(cluster: LocalCluster, folder: Path, *, repeats: int, small_parts: int) -> dict[str, Any]:
    """Time the queries in all three ways; the tables must be loaded."""
    fewer = min(repeats, _REPEATS_OF_SLOW_WAYS)
    with session(folder) as spark:
        found = {"loopback": _compare(cluster, spark, folder / "local", {}, repeats)}
        tpch.load_small(cluster, small_parts)
        small = {"lineitem": tpch.SMALL.name}
        found["small_parts"] = _compare(cluster, spark, folder / "small", small, fewer)
        with delay.proxies(cluster, ROUND_TRIP_S):
            found["round_trip"] = _compare(cluster, spark, folder / "local", {}, fewer)
    return {"scale_factor": tpch.scale_factor(folder), "small_parts_count": small_parts, **found}


@contextlib.contextmanager
def session(folder: Path) -> Iterator[SparkSession]:
    """Run Spark in this process, with its files below a folder."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(java.home_for_spark(java.find(), folder / "java"))
    builder = SparkSession.builder.master("local[2]").appName("tidelock bench")
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",  # for two cores; the default of 200 suits a cluster
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _compare(
    cluster: LocalCluster, spark: SparkSession, target: Path, renamed: dict[str, str], repeats: int
) -> dict[str, Any]:
    """Time all queries over a snapshot and over copies of its parts; `renamed`: tables to take instead."""
    tables = {table: renamed.get(table, table) for table in TABLES}
    with cluster.connect("r1") as db:
        begun = time.monotonic()
        with tl.attach(spark, db, tables=tables.values(), replica="r1") as snap:
            attach_s = time.monotonic() - begun
            parts = download(cluster, snap.csn, tables.values(), target)
            snapshot = {table: tl.read(spark, snap, name) for table, name in tables.items()}
            local = {
                table: spark.read.schema(snapshot[table].schema).parquet(str(target / "default" / name))
                for table, name in tables.items()
            }
            kinds = {"tidelock": snapshot, "local": local}
            queries = [_time(spark, name, text, kinds, repeats) for name, text in QUERIES.items()]
    return {
        "attach_s": round(attach_s, 2),
        "parts": parts,
        "queries": queries,
        "geometric_mean_ratio": round(geometric_mean([item["ratio"] for item in queries]), 3),
        "worst_ratio": max(item["ratio"] for item in queries),
    }


def download(cluster: LocalCluster, csn: int, tables: Any, target: Path) -> int:
    """Copy the parts of a snapshot into local folders of the same shape, unless they are there."""
    address = next(item["data"] for item in cluster.status()["replicas"] if item["id"] == "r1")
    count = 0
    for table in tables:
        for part in json.loads(_get(f"{cluster.url('r1')}/api/v1/parts?csn={csn}&table={table}")):
            count += 1
            path = target / part["file"]
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_get(f"http://{address}/snapshots/{csn}/{quote(part['file'])}"))
    return count


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - an agent of this bench
        return bytes(answer.read())


def _time(
    spark: SparkSession, name: str, text: str, kinds: dict[str, dict[str, DataFrame]], repeats: int
) -> dict[str, Any]:
    """Time one query, both ways in turn; the first turn warms up and compares the rows."""
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    answers: dict[str, Any] = {}
    for turn in range(repeats + 1):
        # Whoever comes first pays for what the other has left behind: they take turns in that, too.
        for kind in sorted(kinds, reverse=turn % 2 == 0):
            for table, frame in kinds[kind].items():
                frame.createOrReplaceTempView(table)
            begun = time.monotonic()
            answers[kind] = spark.sql(text).collect()
            if turn:
                taken[kind].append(time.monotonic() - begun)
        if answers["tidelock"] != answers["local"]:
            raise RuntimeError(f"{name}: the snapshot and the local copies of its parts give different rows")
    medians = {kind: statistics.median(values) for kind, values in taken.items()}
    return {
        "query": name,
        "tidelock_s": round(medians["tidelock"], 3),
        "local_s": round(medians["local"], 3),
        "ratio": round(medians["tidelock"] / medians["local"], 3),
    }
