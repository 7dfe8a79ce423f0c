"""The peak memory of agents while Spark writes one large file: it does not depend on the size of the file.

One task writes the file, in a cluster of three replicas; two of them fetch it. The recorded peak is reset
before each file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import tidelock.spark as tl
from bench.tools import machine
from bench.tools.spark import session
from tidelock.cluster import LocalCluster

_COLUMNS: Final = 16
_SCHEMA: Final = pa.schema([(f"c{number}", pa.float64()) for number in range(_COLUMNS)])
_ROW_BYTES: Final = 8 * _COLUMNS


@dataclass(frozen=True, slots=True)
class Peak:
    """One file, and the memory of the agents' protocol processes in MB, by replica.

    Attributes:
        file_mb: Size of the file.
        rest_mb: Before it.
        peak_mb: Most until it was on all replicas.
    """

    file_mb: float
    rest_mb: dict[str, float]
    peak_mb: dict[str, float]


def run(folder: Path, sizes_mb: Sequence[int]) -> dict[str, Any]:
    """Write a file of each size, the smallest first."""
    with LocalCluster.create(folder / "memory") as cluster, session(folder) as spark:
        _write(cluster, spark, "warm", sizes_mb[0])
        files = [_write(cluster, spark, f"of_{size}", size) for size in sizes_mb]
    smallest, largest = files[0], files[-1]
    return {
        "files": [asdict(file) for file in files],
        "size_ratio": round(largest.file_mb / smallest.file_mb, 1),
        "peak_ratio": round(max(largest.peak_mb[of] / smallest.peak_mb[of] for of in largest.peak_mb), 3),
    }


def _write(cluster: LocalCluster, spark: SparkSession, table: str, size_mb: int) -> Peak:
    """Write one file of random numbers, which no encoding makes smaller."""
    columns = [sf.rand(number).alias(name) for number, name in enumerate(_SCHEMA.names)]
    rows = spark.range(0, size_mb * 1_000_000 // _ROW_BYTES, 1, 1).select(*columns)
    rest = machine.forget_peaks(cluster)
    with cluster.connect("r1") as db:
        db.create_table(table, _SCHEMA, properties={"compaction": "off"})
        with db.begin() as tx:
            tl.write(rows, tx, table)
            tx.commit(wait="all")
        stored = db.table(table)
    if stored["parts"] != 1:
        raise RuntimeError(f"{stored['parts']} files were written in the place of one")
    peaks = {replica: item["peak"] for replica, item in machine.memory_mb(cluster).items()}
    return Peak(round(stored["bytes"] / 1e6, 1), rest, peaks)
