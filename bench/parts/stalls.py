"""The stall of a Spark job whose replica is frozen or killed in its middle.

The job reads a snapshot at one replica, by name, and its tasks go on at the others. The stall is its time
above that of an undisturbed job.
"""

from __future__ import annotations

import signal
import statistics
import threading
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

import tidelock.spark as tl
from bench.tools import tpch
from bench.tools.spark import session
from tidelock.cluster import LocalCluster
from workloads.tpch.queries import Q1
from workloads.tpch.tables import LINEITEM

#: The replica that is read, and the one that the session of the client talks to.
_READ, _ASKED = "r2", "r1"
#: Jobs before the first one that counts.
_WARM_UPS: Final = 3
#: Share of the usual time after which the replica is hit.
_WHEN: Final = 0.4
_READY_S: Final = 60.0
_LOOK_S: Final = 0.1


def run(cluster: LocalCluster, folder: Path, *, repeats: int) -> list[dict[str, Any]]:
    """Time the job undisturbed, then with each event; lineitem must be loaded.

    Raises:
        RuntimeError: A job gave other rows than the first one, or the replica does not serve again.
    """
    with session(folder) as spark:
        _, expected = _job(cluster, spark)
        for _ in range(_WARM_UPS):
            _checked(cluster, spark, expected)
        usual_s = statistics.median(_checked(cluster, spark, expected) for _ in range(repeats))
        found = []
        for event, signum in (("frozen", signal.SIGSTOP), ("killed", signal.SIGKILL)):
            taken = [_disturbed(cluster, spark, expected, signum, _WHEN * usual_s) for _ in range(repeats)]
            found.append(
                {
                    "event": event,
                    "scale_factor": tpch.scale_factor(folder),
                    "usual_s": round(usual_s, 2),
                    "stall_s": round(statistics.median(taken) - usual_s, 2),
                    "stall_max_s": round(max(taken) - usual_s, 2),
                }
            )
    return found


def _disturbed(
    cluster: LocalCluster, spark: SparkSession, expected: object, signum: signal.Signals, when_s: float
) -> float:
    """Return the seconds of a job in whose middle the replica gets a signal; the replica serves again."""
    hit = threading.Timer(when_s, cluster.kill, (_READ, signum))
    hit.start()
    try:
        return _checked(cluster, spark, expected)
    finally:
        hit.join()
        if signum is signal.SIGSTOP:
            cluster.kill(_READ, signal.SIGCONT)
        else:
            cluster.start(_READ)
        _await_serving(cluster)
        _job(cluster, spark)  # the next one meets what it is used to


def _checked(cluster: LocalCluster, spark: SparkSession, expected: object) -> float:
    took_s, rows = _job(cluster, spark)
    if rows != expected:
        raise RuntimeError(f"{Q1.name} gives other rows than before")
    return took_s


def _job(cluster: LocalCluster, spark: SparkSession) -> tuple[float, object]:
    """Return the seconds of a query over a new snapshot, and its rows."""
    with (
        cluster.connect(_ASKED) as db,
        tl.attach(spark, db, tables=[LINEITEM.name], replica=_READ) as snap,
    ):
        tl.read(spark, snap, LINEITEM.name).createOrReplaceTempView(LINEITEM.name)
        begun = time.monotonic()
        rows = spark.sql(Q1.for_spark).collect()
        return time.monotonic() - begun, rows


def _await_serving(cluster: LocalCluster) -> None:
    until = time.monotonic() + _READY_S
    while time.monotonic() < until:
        states = {row["id"]: row.get("state") for row in cluster.status()["replicas"]}
        if states.get(_READ) == "serving":
            return
        time.sleep(_LOOK_S)
    raise RuntimeError(f"{_READ} does not serve {_READY_S:g} s after it was hit")
