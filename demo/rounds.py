"""A round: all queries in Spark at one CSN, pinned to replica 1, perhaps with a strike in the last one."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from demo.failure import DemoError
from demo.nemesis import Nemesis, Strike
from tidelock.client import Database
from workloads.agents import Agents, Served
from workloads.compare import Row
from workloads.tpch.queries import TABLES, TpchQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How long to wait for a commit after the last round, in seconds.
NEXT_CSN_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05
_FILE_SYSTEM: Final = "org.apache.hadoop.fs.FileSystem"


class FaultKind(Enum):
    """The fault of replica 1 in a round."""

    UNDISTURBED = "undisturbed"
    KILLED = "killed"
    FROZEN = "frozen"

    @property
    def signum(self) -> signal.Signals | None:
        """The signal that replica 1 receives."""
        return {FaultKind.KILLED: signal.SIGKILL, FaultKind.FROZEN: signal.SIGSTOP}.get(self)


@dataclass(frozen=True, slots=True)
class RoundAnswer:
    """One query of a round: its rows and its duration."""

    query: TpchQuery
    rows: list[Row]
    duration_s: float


@dataclass(slots=True)
class Round:
    """One round.

    Attributes:
        number: From 0.
        kind: What happened to replica 1.
        csn: That all queries read at.
        answers: In the order of the queries.
        calm: The last query once more, before the strike: what it takes, and what it says, without one.
        served: What each replica served during the last query; the struck one until it was struck.
        strike: What was done to replica 1, if anything was.
        catch_up_s: How long it then took to be where the others are.
    """

    number: int
    kind: FaultKind
    csn: int
    answers: list[RoundAnswer] = field(default_factory=list)
    served: dict[str, Served] = field(default_factory=dict)
    calm: RoundAnswer | None = None
    strike: Strike | None = None
    catch_up_s: float | None = None

    @property
    def target(self) -> RoundAnswer:
        """The query in which replica 1 is struck, the last one."""
        return self.answers[-1]

    def hit(self, victim: str) -> bool:
        """Whether a running task was hit: the query's bytes came from the victim first, then from others."""
        if self.strike is None or self.strike.left == 0:
            return False
        others = sum(served.byte_count for replica, served in self.served.items() if replica != victim)
        return self.served[victim].byte_count > 0 and others > 0


class RoundRunner:
    """Runs rounds in one Spark session."""

    def __init__(
        self, spark: SparkSession, db: Database, agents: Agents, nemesis: Nemesis, replica: str
    ) -> None:
        self._spark = spark
        self._db = db
        self._agents = agents
        self.nemesis = nemesis
        self._replica = replica

    def round(self, number: int, kind: FaultKind, queries: Sequence[TpchQuery], *, above_csn: int) -> Round:
        """Run one round at a CSN above `above_csn`.

        A struck replica is left unchanged: the caller brings it back. DemoError if no commit arrives in
        time.
        """
        import tidelock.spark as tl  # noqa: PLC0415 - PySpark is asked for when the demo runs

        self._wait_above(above_csn)
        with tl.attach(self._spark, self._db, tables=TABLES, replica=self._replica, failover=True) as snap:
            result = Round(number, kind, snap.csn)
            result.answers = [self._ask(query) for query in queries[:-1]]
            signum = kind.signum
            if signum is not None:
                result.calm = self._ask(queries[-1])
            before = self._served()
            if signum is None:
                result.answers.append(self._ask(queries[-1]))
                after = self._served()
            else:
                with self.nemesis.during(signum) as watch:
                    result.answers.append(self._ask(queries[-1]))
                result.strike = watch.strike
                after = self._served(besides=self._replica if result.strike else None)
            result.served = {replica: after[replica].since(before[replica]) for replica in after}
            if result.strike is not None:
                result.served[self._replica] = result.strike.served
                _forget(self._spark)
        return result

    def _ask(self, query: TpchQuery) -> RoundAnswer:
        begin = time.monotonic()
        rows = [tuple(row) for row in self._spark.sql(query.for_spark).collect()]
        return RoundAnswer(query, rows, time.monotonic() - begin)

    def _served(self, besides: str | None = None) -> Mapping[str, Served]:
        return {
            replica: self._agents.served(replica) for replica in self._agents.replicas if replica != besides
        }

    def _wait_above(self, csn: int) -> None:
        deadline = time.monotonic() + NEXT_CSN_TIMEOUT_S
        while self._agents.snapshot_csn(self._replica) <= csn:
            if time.monotonic() > deadline:
                raise DemoError(f"no commit came after CSN {csn} within {NEXT_CSN_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)


def _forget(spark: SparkSession) -> None:
    """Let the next round begin with replica 1 again, in the driver and in all executors.

    Hadoop's client keeps the replica to which it has switched until its process ends. That is right for
    jobs, and wrong for a demo that wants to strike the same replica twice, so all clients are closed.
    """
    # One task each would do; some more, since the scheduler promises nothing.
    tasks = 4 * spark.sparkContext.defaultParallelism
    # Spark offers no other way to the JVM of an executor.
    spark.range(0, tasks, numPartitions=tasks).selectExpr(f"reflect('{_FILE_SYSTEM}', 'closeAll')").collect()
    jvm: Any = spark._jvm  # noqa: SLF001 - nor to Hadoop's classes in this one
    jvm.org.apache.hadoop.fs.FileSystem.closeAll()
