"""Starts the clusters, and the measurements in a process tree of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from bench.tools import tpch
from bench.tools.workload import ClientPace
from tidelock.cluster import LocalCluster
from workloads.tpch.tables import CUSTOMER, LINEITEM, ORDERS

#: The tables that are read.
TABLES: Final = (CUSTOMER, ORDERS, LINEITEM)
#: The older Spark (tests/spark35.in), below the environment.
SPARK: Final = Path(sys.prefix) / "spark35"
_LONGEST_S: Final = 3600.0


def run(folder: Path, *, repeats: int, pace: ClientPace, spark: Path = SPARK) -> dict[str, Any]:
    """Measure all formats; the tables must be generated in the folder.

    RuntimeError when Spark 3.5 is not installed, or when the measurements fail; their error goes to stderr.
    """
    if not (spark / "stamp").exists():
        raise RuntimeError(f"Spark 3.5 is not in {spark}; `make bench` installs it")
    for table in TABLES:
        tpch.parquet(folder, table)
    with (
        LocalCluster.create(folder / "one", replicas=1) as one,
        LocalCluster.create(folder / "three", replicas=3) as three,
    ):
        command = [
            *(sys.executable, "-m", "bench.spark_peers", "--folder", str(folder)),
            *("--one", one.url("r1"), "--three", three.url("r1"), "--repeats", str(repeats)),
            *("--warm-s", str(pace.warm_s), "--run-s", str(pace.run_s)),
        ]
        search = os.pathsep.join([str(spark), *sys.path[:1]])
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,  # their errors are of many lines, and appear as they are
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": search},
            timeout=_LONGEST_S,
        )
    if done.returncode != 0:
        raise RuntimeError("the measurements through Spark 3.5 failed; their error is above")
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures
