"""The stall of a Spark job whose replica is frozen or killed, at drawn moments of the job.

The job reads a snapshot at one replica, by name, and its tasks go on at the others. The stall is the longest
time in which no task gets a byte, from the hit on: on a busy machine the time of a whole job says less. In an
undisturbed job tasks get no byte while they work on those that they have. So the query is one that works
little on each byte: Q6, where Q1 works for most of a second. A hit has met the job if tasks got bytes after
it.
"""

from __future__ import annotations

import itertools
import random
import signal
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

import tidelock.spark as tl
from bench.parts.client_stalls import EVENTS, await_serving
from bench.tools import tpch
from bench.tools.spark import session
from tidelock.cluster import LocalCluster
from workloads.tpch.queries import Q6
from workloads.tpch.tables import LINEITEM

#: The replica that is read, and the one that the session of the client talks to.
_READ, _ASKED = "r2", "r1"
#: Jobs before the first one that counts.
_WARM_UPS: Final = 3
#: The replica is hit between the begin of the job and this share of the usual time.
_UNTIL: Final = 0.8
#: How often the bytes that tasks have got are looked at: the resolution of a stall, in seconds.
_LOOK_S: Final = 0.02
_SEED: Final = 1


@dataclass(frozen=True)
class _Job:
    """One run of the query.

    Attributes:
        rows: Its rows.
        took_s: Its time.
        moments: When it began, when tasks got bytes, and when it ended (`time.monotonic`).
    """

    rows: object
    took_s: float
    moments: list[float]

    def stall_s(self, since: float = 0.0) -> float:
        """Return the longest time without a byte that ends after a moment."""
        pairs = itertools.pairwise(self.moments)
        return max((end - max(begin, since) for begin, end in pairs if end > since), default=0.0)

    def reads_after(self, moment: float) -> bool:
        """Return whether tasks got bytes after a moment."""
        return any(at > moment for at in self.moments[1:-1])


def run(cluster: LocalCluster, folder: Path, *, repeats: int, hits: int) -> list[dict[str, Any]]:
    """Time the job undisturbed, then hit its replica so many times in each way; lineitem must be loaded.

    Raises:
        RuntimeError: A job gave other rows than the first one, or the replica does not serve again.
    """
    drawn = random.Random(_SEED)
    with session(folder) as spark:
        expected = _job(cluster, spark).rows
        for _ in range(_WARM_UPS):
            _checked(cluster, spark, expected)
        usual = [_checked(cluster, spark, expected) for _ in range(repeats)]
        found = []
        for event, signum in EVENTS:
            before: list[_Job] = []
            stalls, longer, met = [], [], 0
            for _ in range(hits):
                before.append(_checked(cluster, spark, expected))
                usual_s = statistics.median(job.took_s for job in [*usual, *before][-repeats:])
                job, hit = _disturbed(cluster, spark, expected, signum, drawn.uniform(0.0, _UNTIL) * usual_s)
                stalls.append(job.stall_s(hit))
                met += job.reads_after(hit)
                longer.append(job.took_s - usual_s)
            found.append(
                {
                    "event": event,
                    "scale_factor": tpch.scale_factor(folder),
                    "times": hits,
                    "met": met,
                    "usual_s": round(statistics.median(job.took_s for job in before), 2),
                    "longer_s": round(statistics.median(longer), 2),
                    "usual_stall_s": round(statistics.median(job.stall_s() for job in before), 2),
                    "stall_s": round(statistics.median(stalls), 2),
                    "stall_max_s": round(max(stalls), 2),
                }
            )
    return found


def _disturbed(
    cluster: LocalCluster, spark: SparkSession, expected: object, signum: signal.Signals, when_s: float
) -> tuple[_Job, float]:
    """Run a job while the replica gets a signal; return it and the moment. The replica serves again."""
    moments: list[float] = []

    def hit() -> None:
        moments.append(time.monotonic())
        cluster.kill(_READ, signum)

    timer = threading.Timer(when_s, hit)
    timer.start()
    try:
        job = _checked(cluster, spark, expected)
    finally:
        timer.join()
        if signum is signal.SIGSTOP:
            cluster.kill(_READ, signal.SIGCONT)
        else:
            cluster.start(_READ)
        await_serving(cluster, _READ)
        _job(cluster, spark)  # the next one meets what it is used to
    return job, moments[0]


def _checked(cluster: LocalCluster, spark: SparkSession, expected: object) -> _Job:
    job = _job(cluster, spark)
    if job.rows != expected:
        raise RuntimeError(f"{Q6.name} gives other rows than before")
    return job


def _job(cluster: LocalCluster, spark: SparkSession) -> _Job:
    """Run the query over a new snapshot."""
    with (
        cluster.connect(_ASKED) as db,
        tl.attach(spark, db, tables=[LINEITEM.name], replica=_READ) as snap,
    ):
        tl.read(spark, snap, LINEITEM.name).createOrReplaceTempView(LINEITEM.name)
        over = threading.Event()
        moments: list[float] = []
        watching = threading.Thread(target=_watch, args=(spark, over, moments))
        begun = time.monotonic()
        watching.start()
        try:
            rows = spark.sql(Q6.for_spark).collect()
        finally:
            ended = time.monotonic()
            over.set()
            watching.join()
        return _Job(rows, ended - begun, [begun, *(at for at in moments if begun < at < ended), ended])


def _watch(spark: SparkSession, over: threading.Event, moments: list[float]) -> None:
    """Note when the tasks of this process have got bytes from replicas."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - there is no public way to its counters
    statistics_of = jvm.org.apache.hadoop.fs.FileSystem.getGlobalStorageStatistics
    found = statistics_of().get("webhdfs")
    last = None
    while not over.wait(_LOOK_S):
        if found is None:
            found = statistics_of().get("webhdfs")
            continue
        read = found.getLong("bytesRead")
        if last is not None and read != last:
            moments.append(time.monotonic())
        last = read
