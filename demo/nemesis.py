"""The faults of replica 1: it is killed or frozen in the middle of a query that reads from it.

"In the middle" is taken literally. A watcher reads from Spark which stage runs, and from replica 1's /metrics
how many reads it has begun. It strikes when only one stage has running tasks, replica 1 has begun reads since
that stage was first seen, some tasks of the stage have finished and at least one has not even started: so
replica 1 has answered an OPEN of this stage, and the rest must be read from another replica.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from demo.cluster import DemoCluster
from demo.failure import DemoError
from tidelock.errors import UnavailableError
from workloads.agents import Agents, Served

if TYPE_CHECKING:
    from pyspark import SparkContext, SparkStageInfo

#: Seconds between two checks. A check costs a request to Spark's status store and one to the agent.
LOOK_INTERVAL_S: Final = 0.01
#: This part of a stage's tasks has finished before the strike.
DONE_MIN: Final = 0.2


@dataclass(frozen=True, slots=True)
class Strike:
    """One signal sent to the victim while a query ran.

    Attributes:
        stage: The stage that ran.
        tasks: Of that stage.
        done: Of them, finished before the signal.
        left: Of them, not finished when the signal had its effect.
        opens: Reads that the victim had begun since the stage was first seen.
        served: What the victim had served since the query began, by its /metrics just before the signal: a
            killed agent reports nothing any more, so it may have been a little more.
    """

    stage: int
    tasks: int
    done: int
    left: int
    opens: int
    served: Served


@dataclass
class Watch:
    """The strike of one query (None before the strike), and the error that has ended the watch early."""

    strike: Strike | None = None
    error: Exception | None = None


class Nemesis:
    """The watcher that strikes one replica."""

    def __init__(self, context: SparkContext, cluster: DemoCluster, agents: Agents, victim: str) -> None:
        self._tracker = context.statusTracker()
        self._cluster = cluster
        self._agents = agents
        self._victim = victim

    @contextmanager
    def during(self, signum: signal.Signals) -> Iterator[Watch]:
        """Strike once while the block runs one query; never, if the right moment does not occur."""
        watch = Watch()
        over = threading.Event()
        begin = self._agents.served(self._victim)
        watcher = threading.Thread(target=self._run, args=(signum, begin, over, watch), name="nemesis")
        watcher.start()
        try:
            yield watch
        finally:
            over.set()
            watcher.join()
        if watch.error is not None:
            raise DemoError(f"{self._victim} could not be struck: {watch.error}") from watch.error

    def bring_back(self, signum: signal.Signals, timeout_s: float) -> float:
        """Undo a strike, wait until the victim has caught up with the others, return how long that took.

        DemoError when it takes longer than `timeout_s`; UnavailableError when the victim does not start.
        """
        begin = time.monotonic()
        if signum is signal.SIGSTOP:
            self._cluster.kill(self._victim, signal.SIGCONT)
        else:
            self._cluster.start(self._victim, timeout_s=timeout_s)
        others = [replica for replica in self._agents.replicas if replica != self._victim]
        while True:
            target = max(map(self._agents.snapshot_csn, others))
            reached = self._reached()
            waited_s = time.monotonic() - begin
            if reached >= target:
                return waited_s
            if waited_s > timeout_s:
                raise DemoError(
                    f"{self._victim} is at CSN {reached} after {timeout_s:.0f} s, the others are at "
                    f"{target}; see {self._cluster.log(self._victim)}"
                )
            time.sleep(LOOK_INTERVAL_S)

    def _reached(self) -> int:
        try:
            return self._agents.snapshot_csn(self._victim)
        except UnavailableError:
            return 0  # it does not answer yet

    def _run(self, signum: signal.Signals, begin: Served, over: threading.Event, watch: Watch) -> None:
        first_seen: dict[int, Served] = {}
        try:
            while watch.strike is None and not over.wait(LOOK_INTERVAL_S):
                watch.strike = self._look(signum, begin, first_seen)
        except Exception as error:
            watch.error = error

    def _look(self, signum: signal.Signals, begin: Served, first_seen: dict[int, Served]) -> Strike | None:
        running = self._running()
        if len(running) != 1:
            return None
        [stage] = running
        served = self._agents.served(self._victim)
        opens = served.opens - first_seen.setdefault(stage.stageId, served).opens
        waiting = stage.numTasks - stage.numCompletedTasks - stage.numActiveTasks
        if opens == 0 or stage.numCompletedTasks < stage.numTasks * DONE_MIN or waiting == 0:
            return None
        self._cluster.kill(self._victim, signum)
        now = self._tracker.getStageInfo(stage.stageId) or stage
        return Strike(
            stage=stage.stageId,
            tasks=stage.numTasks,
            done=stage.numCompletedTasks,
            left=now.numTasks - now.numCompletedTasks,
            opens=opens,
            served=served.since(begin),
        )

    def _running(self) -> list[SparkStageInfo]:
        """The stages that have running tasks."""
        stages = map(self._tracker.getStageInfo, self._tracker.getActiveStageIds())
        return [stage for stage in stages if stage is not None and stage.numActiveTasks > 0]
