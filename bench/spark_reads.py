"""Spark over a snapshot beside Spark over the same bytes as local files.

The same parts, the same session, in turn.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession

import tidelock.spark as tl
from bench.queries import QUERIES, TABLES
from tidelock import java
from tidelock.cluster import LocalCluster
from tidelock.demo import data


def run(cluster: LocalCluster, folder: Path, *, scale_factor: float, repeats: int) -> dict[str, Any]:
    """Load TPC-H, then time each query over the snapshot and over local copies of its parts.

    Returns the JSON section.
    """
    source_dir = folder / "tpch"
    data.generate(source_dir, scale_factor)
    with cluster.connect("r1") as db:
        data.create_tables(db)
        begun = time.monotonic()
        with data.Source(source_dir) as source:
            data.load(db, source)
        load_s = time.monotonic() - begun
        spark = _session(folder)
        with tl.attach(spark, db, tables=TABLES, replica="r1") as snap:
            local = _download(cluster, snap.csn, folder / "local")
            frames: dict[str, Callable[[str], DataFrame]] = {
                "tidelock": lambda table: tl.read(spark, snap, table),
                "local": lambda table: spark.read.schema(tl.read(spark, snap, table).schema).parquet(
                    str(local / table)
                ),
            }
            queries = [_time(spark, name, text, frames, repeats) for name, text in QUERIES.items()]
        spark.stop()
    ratios = [item["ratio"] for item in queries]
    return {
        "scale_factor": scale_factor,
        "load_s": round(load_s, 2),
        "queries": queries,
        "geometric_mean_ratio": round(math.exp(statistics.fmean(map(math.log, ratios))), 3),
    }


def _session(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(java.home_for_spark(java.find(), folder / "java"))
    builder = SparkSession.builder.master("local[2]").appName("tidelock bench")
    options = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4", "spark.driver.memory": "4g"}
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _download(cluster: LocalCluster, csn: int, target: Path) -> Path:
    """Copy the parts of a snapshot into local folders of the same shape."""
    address = next(item["data"] for item in cluster.status()["replicas"] if item["id"] == "r1")
    for table in TABLES:
        for part in json.loads(_get(f"{cluster.url('r1')}/api/v1/parts?csn={csn}&table={table}")):
            path = target / part["file"].split("/", 1)[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_get(f"http://{address}/snapshots/{csn}/{quote(part['file'])}"))
    return target


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - an agent of this bench
        return bytes(answer.read())


def _time(
    spark: SparkSession, name: str, text: str, frames: dict[str, Callable[[str], DataFrame]], repeats: int
) -> dict[str, Any]:
    taken: dict[str, list[float]] = {kind: [] for kind in frames}
    answers: dict[str, Any] = {}
    for number in range(repeats + 1):  # the first is the warm-up
        for kind, frame in frames.items():
            for table in TABLES:
                frame(table).createOrReplaceTempView(table)
            begun = time.monotonic()
            answers[kind] = spark.sql(text).collect()
            if number:
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
