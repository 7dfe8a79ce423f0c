"""Spark with real executors on a cluster of three replicas; a test can make both of them fail.

A load is one transaction with a label that writes to one table; a separate process is its driver. Every
replica is checked after it: exactly its rows at its CSN, or no row of it; no file left on any disk; an audit
without findings; and the same CSN if the load is run again.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import psutil
import pyarrow as pa

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates
from tests.support.histories.evidence import leftovers
from tests.support.memory import MIB
from tests.support.spark import process
from tests.support.spark.cluster import SparkCluster
from tests.support.spark.process import SparkProcess
from tests.support.spark.proof import create, require_rows, require_settled
from tests.support.spark.rows import rows
from tests.support.spark.troubled_tasks import HOLD
from tests.support.waiting import eventually
from tidelock.cluster import LocalCluster

Way = Literal["path", "source"]

HOME: Final = "r1"
#: A replica that is not the home of the tested transaction.
OTHER: Final = "r2"
SETTINGS: Final[dict[str, Any]] = {
    **QUICK,
    "audit_settle_s": 3,
    "clean_interval_s": 1,
    "compaction": False,
    "fence_timeout_s": 4,
    "inline_part_bytes_max": 4096,
    "session_timeout_s": 6,
}
#: Failed attempts are repeated, and slow ones are run twice. A task writes its files while its rows arrive,
#: of all partitions at once, and sends them in small pieces.
CONF: Final = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.hadoop.parquet.block.size": "65536",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.3",
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    "spark.sql.optimizer.plannedWrite.enabled": "false",
    "spark.task.maxFailures": "5",
}
#: Largest memory of an agent at the end, in MiB; it begins with about 85.
AGENT_MIB_MAX: Final = 256
#: Ids of the rows in a table before a load.
BASE: Final = range(1_000_000, 1_000_200)
#: Ids of the rows that a load writes, and its number of tasks.
IDS: Final = range(2400)
TASKS: Final = 12


@dataclass(eq=False)
class SparkLab:
    """A running lab; `spark_laboratory` makes it."""

    cluster: LocalCluster
    gates: Gates
    folder: Path
    spark_cluster: SparkCluster | None
    _opened: ExitStack
    _spark: SparkProcess | None = None
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def spark(self) -> SparkProcess:
        """The session; a new one if the last one was killed."""
        if self._spark is None or not self._spark.alive:
            number = next(self._numbers)
            folder = self.folder / f"session-{number}"
            folder.mkdir()
            kind = "cluster" if self.spark_cluster is None else self.spark_cluster.master
            self._spark = SparkProcess(kind, folder, conf=CONF, python_workers=True)
            self._opened.enter_context(self._spark)
            self._spark.sql("SELECT 1")  # waits for the start, which takes a while on a busy machine
        return self._spark

    def executors(self) -> list[psutil.Process]:
        """Return the running executors."""
        if self.spark_cluster is not None:
            return self.spark_cluster.executors()
        return process.executors(self.spark.driver)

    @contextlib.contextmanager
    def load(self, way: Way = "path", **trouble: Any) -> Iterator[Load]:
        """Yield a load, with faults, into a new table with base rows; check the replicas after the block."""
        number = next(self._numbers)
        marks = self.folder / f"marks-{number}"
        marks.mkdir()
        self.cluster.up()
        load = Load(self, f"t{number}", f"load {number}", marks, {"marks": str(marks), **trouble}, way)
        with self.cluster.connect(HOME) as db:
            create(db, load.table)
            db.insert(load.table, pa.Table.from_batches([rows(BASE)]), wait="all")
        try:
            yield load
        except BaseException:
            if self._spark is not None:
                self._spark.kill()  # otherwise the next test could receive the answer to the last job
            raise
        self.cluster.up()
        require_settled(self.cluster)


@dataclass(eq=False)
class Load:
    """One load.

    Attributes:
        table: Name of the table that it writes to.
        label: Label of its transaction.
        marks: Folder of the marks of its attempts.
        trouble: Faults of its attempts, as arguments of `Trouble`.
        way: How Spark writes: by `tl.write` into a transaction of the driver, or by the data source.
    """

    lab: SparkLab
    table: str
    label: str
    marks: Path
    trouble: Mapping[str, Any]
    way: Way

    def arguments(self, ids: range = IDS, mode: str = "append") -> dict[str, Any]:
        """Return the arguments of the job `fill`, with the faults."""
        bounds = (ids.start, ids.stop, ids.step)
        return {"ids": bounds, "tasks": TASKS, "mode": mode, "trouble": self.trouble}

    def send(self, lease: float | None = None, **how: Any) -> None:
        """Begin the load at the home; `lease`, in seconds, is for the data source's transaction."""
        job, asked = self._job(HOME, **({} if lease is None else {"lease": lease}))
        self.lab.spark.send(job, **asked, **self.arguments(**how))

    def _job(self, home: str, **more: Any) -> tuple[str, dict[str, Any]]:
        """Return the job that runs the whole load, with its arguments for this home."""
        asked = {"tables": [self.table], "label": self.label, **more}
        if self.way == "path":
            return "load_once", {"url": self.lab.cluster.url(home), **asked}
        others = [replica for replica in self.lab.cluster.replicas if replica != home]
        return "save_once", {"urls": [self.lab.cluster.url(replica) for replica in (home, *others)], **asked}

    def repeat(self, at: str = OTHER, **how: Any) -> int:
        """Run the load again, without faults, at another replica; return the CSN of its label."""
        job, asked = self._job(at)
        csn = self.lab.spark.call(job, **asked, **self.arguments(**how) | {"trouble": None})
        assert isinstance(csn, int)
        return csn

    def begin(self, *, lease: float | None = None, wait: bool = True) -> None:
        """Begin the load at the home and write its files, without a commit; `wait` for the end of the job."""
        spark = self.lab.spark
        spark.call("begin", url=self.lab.cluster.url(HOME), label=self.label, lease=lease)
        spark.send("fill", table=self.table, **self.arguments())
        if wait:
            spark.receive()

    def hold(self) -> None:
        """Hold all attempts from now on."""
        (self.marks / HOLD).touch()

    def release(self) -> None:
        """Let held attempts continue."""
        (self.marks / HOLD).unlink()

    @contextlib.contextmanager
    def held(self, attempts: int = 1, **how: Any) -> Iterator[None]:
        """Begin the load as `send`; in the block so many attempts are held in the middle of their files."""
        self.hold()
        try:
            self.send(**how)
            self.await_held(attempts)
            yield
        finally:
            self.release()

    def await_held(self, attempts: int) -> None:
        """Wait until so many attempts are held, and bytes of their files are on a disk.

        The data source is an exception: an attempt with so few rows sends no byte before it has all rows.
        """
        eventually(lambda: len(self.met("held")) >= attempts, what=f"{attempts} attempts that are held")
        if self.way == "path":
            eventually(self.staged, what="files that are being written")

    def staged(self) -> list[str]:
        """Return the files on the replicas' disks that no committed transaction needs."""
        data_dirs = [self.lab.cluster.data_dir(replica) for replica in self.lab.cluster.replicas]
        return [left for data_dir in data_dirs for left in leftovers(data_dir)]

    def met(self, what: str) -> list[str]:
        """Return the marks of one kind of fault."""
        return sorted(path.name for path in self.marks.glob(f"{what}-*"))

    def require_rows(self, csn: int | None, ids: Iterable[int]) -> None:
        """Start all replicas, and require exactly these rows at a CSN on each of them."""
        self.lab.cluster.up()
        require_rows(self.lab.cluster, self.table, csn, ids)

    def require_once(self, csn: int) -> None:
        """Require that the load was committed once, at this CSN, and that a repetition changes nothing."""
        self.require_rows(csn, [*BASE, *IDS])
        assert self.repeat() == csn
        self.require_rows(None, [*BASE, *IDS])

    def require_nothing(self) -> None:
        """Require that no row of the load exists; then repeat it, and require that it is committed once."""
        self.require_rows(None, BASE)
        self.require_once(self.repeat())


@contextlib.contextmanager
def spark_laboratory(
    factory: ClusterFactory,
    folder: Path,
    *,
    standalone: bool = False,
    faults: Mapping[str, Mapping[str, str]] | None = None,
    zk: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[SparkLab]:
    """Run a lab: executors are two processes of the driver's JVM, or of workers of a standalone cluster.

    At its end the memory of the agents must be below `AGENT_MIB_MAX`.

    Args:
        factory: Makes the replicas; a commit needs two copies.
        folder: Folder for sessions, marks and gates.
        standalone: Executors belong to a cluster of a master and two workers.
        faults: By replica: fault points, and the fault at each of them while its gate is open.
        zk: As for the factory.
        settings: More settings of the agents.
    """
    gates = Gates(folder / "gates", faults or {})
    with ExitStack() as opened:
        workers = opened.enter_context(SparkCluster(folder, python_workers=True)) if standalone else None
        cluster = factory(
            settings=SETTINGS | dict(settings or {}),
            environment_of={replica: gates.environment(replica) for replica in faults or {}},
            zk=zk,
        )
        yield SparkLab(cluster, gates, folder, workers, opened)
        cluster.up()
        used = {replica: agent_bytes(cluster, replica) // MIB for replica in cluster.replicas}
        assert max(used.values()) < AGENT_MIB_MAX, f"MiB of the agents: {used}"


def agent_bytes(cluster: LocalCluster, replica: str) -> int:
    """Return the resident memory of a running agent, in bytes."""
    return int(psutil.Process(cluster.pid(replica)).memory_info().rss)
