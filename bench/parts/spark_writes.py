"""Spark writes lineitem into tables, beside plain Parquet: the same DataFrame and session, in turn.

With one replica, and with three of them on one disk beside plain Parquet written three times. Tidelock's time
ends when the rows are committed, visible and forced to disk on every replica. Spark's Parquet writer forces
nothing to disk, so the time of an fsync of its files is given, too.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import tidelock.spark as tl
from bench.parts.load import program
from bench.tools import machine, tpch
from bench.tools.spark import session
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.spark.source.source import TidelockSource
from workloads.tpch.tables import LINEITEM

#: The measured numbers of replicas; plain Parquet is written as many times.
REPLICAS: Final = (1, 3)
_REPEATS_MAX: Final = 3
#: The columns of lineitem's key, the partition column among them.
_KEY: Final = ("l_orderkey", "l_linenumber", *LINEITEM.partition_by)
_LOOK_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Turn:
    """One way, once; seconds.

    Attributes:
        whole_s: Until the rows are there; with plain Parquet without an fsync.
        end_s: Of that, after the write: of a path the commit, of the data source what other replicas need;
            for plain Parquet the fsync, which is not in `whole_s`.
        spark_cpu_s: Of the JVM and Python workers.
        agents_cpu_s: Of all agents.
    """

    whole_s: float
    end_s: float
    spark_cpu_s: float
    agents_cpu_s: float


@dataclass(frozen=True, slots=True)
class Way:
    """One way to write; medians of its turns, and ratios of their whole time.

    Attributes:
        to_plain: To plain Parquet, which forces nothing to disk.
        to_forced: To plain Parquet with an fsync.
    """

    way: str
    whole_s: float
    end_s: float
    spark_cpu_s: float
    agents_cpu_s: float
    to_plain: float
    to_forced: float


def run(folder: Path, *, repeats: int) -> dict[str, Any]:
    """Measure all ways; lineitem must be generated."""
    rows = tpch.parquet(folder, LINEITEM)
    with session(folder) as spark:
        spark.dataSource.register(TidelockSource)
        frame = spark.read.parquet(str(rows))
        counted = frame.count()
        found = []
        for replicas in REPLICAS:
            with LocalCluster.create(folder / f"writes{replicas}", replicas=replicas) as cluster:
                ways = _Ways(spark, cluster, frame, folder / "plain")
                measured = ways.measure(min(repeats, _REPEATS_MAX))
                with cluster.connect("r1") as db:
                    _require_rows(db, counted)
                    stored = db.table(ways.last("path"))
                found.append(
                    {
                        "replicas": replicas,
                        "mb": round(stored["bytes"] / 1e6, 1),
                        "files": stored["parts"],
                        "ways": [asdict(way) for way in measured],
                    }
                )
    return {"scale_factor": tpch.scale_factor(folder), "runs": found}


class _Ways:
    """The ways to write one DataFrame, at one cluster."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, frame: DataFrame, plain: Path) -> None:
        self._spark, self._cluster, self._frame, self._plain = spark, cluster, frame, plain
        self._numbers = itertools.count(1)
        self._last: dict[str, str] = {}
        self._ways: dict[str, Callable[[], tuple[float, float]]] = {
            "plain": self._write_plain,
            "path": self._write_path,
            "keyed": self._write_keyed,
            "source": self._write_source,
        }

    def last(self, way: str) -> str:
        """The table that a way has written last."""
        return self._last[way]

    def measure(self, repeats: int) -> Sequence[Way]:
        """Time all ways in turn; the first turn warms up."""
        turns: dict[str, list[Turn]] = {way: [] for way in self._ways}
        for number in range(repeats + 1):
            # A later method pays for the dirty pages that earlier ones have left, so the order alternates.
            names = list(self._ways)
            for way in names if number % 2 else reversed(names):
                turn = self._turn(self._ways[way])
                if number:
                    turns[way].append(turn)
        medians = {way: _medians(found) for way, found in turns.items()}
        plain = medians["plain"]
        return [
            Way(
                way,
                **{name: round(value, 2) for name, value in asdict(turn).items()},
                to_plain=round(turn.whole_s / plain.whole_s, 3),
                to_forced=round(turn.whole_s / (plain.whole_s + plain.end_s), 3),
            )
            for way, turn in medians.items()
        ]

    def _turn(self, write: Callable[[], tuple[float, float]]) -> Turn:
        _settle()
        spark, agents = machine.spark_cpu_s(self._spark), machine.cpu_s(self._cluster)
        whole_s, end_s = write()
        return Turn(
            whole_s,
            end_s,
            machine.spark_cpu_s(self._spark) - spark,
            machine.cpu_s(self._cluster) - agents,
        )

    def _write_plain(self) -> tuple[float, float]:
        """As often as there are replicas, one after the other."""
        copies = [self._plain / str(next(self._numbers)) for _ in self._cluster.replicas]
        begun = time.monotonic()
        for copy in copies:
            self._frame.write.partitionBy(*LINEITEM.partition_by).parquet(str(copy))
        written = time.monotonic()
        files = [str(path) for copy in copies for path in copy.rglob("*.parquet")]
        subprocess.run([program("sync"), *files], check=True)
        forced = time.monotonic()
        for copy in copies:
            subprocess.run([program("rm"), "-r", str(copy)], check=True)
        return written - begun, forced - written

    def _write_path(self) -> tuple[float, float]:
        with self._new_table("path") as (db, table):
            return self._write(db, table)

    def _write_keyed(self) -> tuple[float, float]:
        """The same rows, whose keys are compared when the job ends."""
        required = {*_KEY}
        schema = pa.schema([one.with_nullable(one.name not in required) for one in LINEITEM.schema])
        with self._new_table("keyed", schema, unique_key=",".join(_KEY)) as (db, table):
            return self._write(db, table)

    def _write(self, db: Database, table: str) -> tuple[float, float]:
        """Write the rows, and commit them on all replicas."""
        begun = time.monotonic()
        with db.begin() as tx:
            tl.write(self._frame, tx, table)
            written = time.monotonic()
            tx.commit(wait="all")
        ended = time.monotonic()
        return ended - begun, ended - written

    def _write_source(self) -> tuple[float, float]:
        with self._new_table("source") as (db, table):
            begun = time.monotonic()
            writer = self._frame.write.format("tidelock").mode("append")
            writer.options(url=self._cluster.urls[0], replica="r1", table=table).save()
            written = time.monotonic()
            with db.begin(fresh=True) as tx:  # it contains every commit
                csn = tx.snapshot_csn
            while any(row["snapshot_csn"] < csn for row in db.status()["replicas"]):
                time.sleep(_LOOK_S)
            ended = time.monotonic()
        return ended - begun, ended - written

    @contextlib.contextmanager
    def _new_table(
        self, way: str, schema: pa.Schema = LINEITEM.schema, **properties: str
    ) -> Iterator[tuple[Database, str]]:
        """An empty table; what was written before is another one, which nobody merges meanwhile."""
        self._last[way] = table = f"{way}_{next(self._numbers)}"
        with self._cluster.connect("r1") as db:
            db.create_table(
                table,
                schema,
                partition_by=LINEITEM.partition_by,
                sort_by=LINEITEM.sort_by,
                properties={"compaction": "off", **properties},
            )
            yield db, table


def _medians(turns: Sequence[Turn]) -> Turn:
    return Turn(*(statistics.median(values) for values in zip(*map(astuple, turns), strict=True)))


def _require_rows(db: Database, counted: int) -> None:
    """RuntimeError unless every table has all rows."""
    for table in db.tables():
        if table["rows"] != counted:
            raise RuntimeError(f"{table['name']} has {table['rows']} rows of {counted}")


def _settle() -> None:
    """Write all dirty pages, so that earlier writes do not slow the next one."""
    subprocess.run([program("sync")], check=True)
