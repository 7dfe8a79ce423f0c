"""The moment of a strike: the victim has served part of the running stage, others must serve its rest."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from demo import nemesis
from demo.failure import DemoError
from demo.nemesis import Nemesis, Watch
from tidelock.errors import UnavailableError
from workloads.agents import Agents, Served


@dataclass
class Stage:
    """A stage in the form of Spark's status tracker."""

    stageId: int  # noqa: N815 - as in PySpark
    numTasks: int  # noqa: N815
    numCompletedTasks: int  # noqa: N815
    numActiveTasks: int  # noqa: N815


@dataclass
class World:
    """Spark, the agents and the cluster; each request moves to the next scene, the last one stays."""

    scenes: Sequence[tuple[Sequence[Stage], int]]
    looks: int = 0
    signals: list[signal.Signals] = field(default_factory=list)
    csns: dict[str, list[int | None]] = field(default_factory=dict)
    seen: threading.Event = field(default_factory=threading.Event)

    def statusTracker(self) -> World:  # noqa: N802 - as in PySpark
        """Return this world as the tracker."""
        return self

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        """Return the stages of the present scene, and move on."""
        self.looks += 1
        if self.looks > len(self.scenes):
            self.seen.set()
        return [stage.stageId for stage in self._scene()[0]]

    def getStageInfo(self, stage: int) -> Stage | None:  # noqa: N802
        """Return a stage of the scene."""
        return next((item for item in self._scene()[0] if item.stageId == stage), None)

    def served(self, _replica: str) -> Served:
        """Return the reads that the victim has served so far."""
        opens = self._scene()[1]
        return Served(opens, 1000 * opens)

    def kill(self, _replica: str, signum: signal.Signals) -> bool:
        """Record the signal."""
        self.signals.append(signum)
        return True

    def start(self, _replica: str, *, timeout_s: float) -> None:
        """Start the victim at once."""

    def log(self, replica: str) -> Path:
        """Return the path of a log."""
        return Path(replica)

    @property
    def replicas(self) -> list[str]:
        """Return all replicas."""
        return ["r1", "r2", "r3"]

    def snapshot_csn(self, replica: str) -> int:
        """Return the next of the CSNs; None = no answer."""
        csns = self.csns[replica]
        csn = csns.pop(0) if len(csns) > 1 else csns[0]
        if csn is None:
            raise UnavailableError("down")
        return csn

    def _scene(self) -> tuple[Sequence[Stage], int]:
        return self.scenes[min(max(self.looks, 1), len(self.scenes)) - 1]


def nemesis_of(world: World) -> Nemesis:
    """Return the nemesis under test."""
    anything = cast("Any", world)
    return Nemesis(anything, anything, cast("Agents", anything), "r1")


def watch(world: World, signum: signal.Signals = signal.SIGKILL) -> Watch:
    """Run a query until all scenes are over, or the strike has come."""
    with nemesis_of(world).during(signum) as result:
        while result.strike is None and result.error is None:
            if world.seen.wait(0.01):
                break
    return result


def test_it_strikes_between_two_tasks_of_a_stage_that_the_victim_serves() -> None:
    """The strike reports the stage, its tasks, and the victim's reads since the query began."""
    world = World([([Stage(7, 12, 0, 2)], 40), ([Stage(7, 12, 3, 2)], 55)])
    strike = watch(world).strike
    assert strike is not None
    assert world.signals == [signal.SIGKILL]
    assert (strike.stage, strike.tasks, strike.done, strike.left, strike.opens) == (7, 12, 3, 9, 15)
    assert strike.served == Served(15, 15_000)


@pytest.mark.parametrize(
    "scenes",
    [
        pytest.param([([Stage(7, 12, 0, 2)], 0), ([Stage(7, 12, 3, 2)], 0)], id="the victim served nothing"),
        pytest.param([([Stage(7, 12, 0, 2)], 0), ([Stage(7, 12, 0, 2)], 9)], id="no task has finished"),
        pytest.param([([Stage(7, 4, 0, 2)], 0), ([Stage(7, 4, 2, 2)], 9)], id="all tasks have started"),
        pytest.param([([Stage(7, 12, 3, 2)], 9)], id="nothing was read since the stage was first seen"),
        pytest.param(
            [([Stage(7, 12, 0, 2)], 0), ([Stage(7, 12, 3, 1), Stage(8, 12, 0, 1)], 9)],
            id="reads may be those of another stage",
        ),
        pytest.param([([Stage(7, 12, 0, 2)], 0), ([Stage(7, 12, 3, 0)], 9)], id="no task runs"),
        pytest.param([([], 0), ([], 9)], id="nothing runs"),
    ],
)
def test_it_waits_for_all_its_conditions(scenes: Sequence[tuple[Sequence[Stage], int]]) -> None:
    """The nemesis strikes only if all conditions hold, and reports it otherwise."""
    world = World(scenes)
    assert watch(world).strike is None
    assert world.signals == []


def test_it_strikes_once_however_long_the_query() -> None:
    """A query of any length gets one signal."""
    world = World([([Stage(7, 12, 0, 2)], 0), ([Stage(7, 12, 3, 2)], 9)])
    with nemesis_of(world).during(signal.SIGSTOP) as result:
        while result.strike is None:
            world.seen.wait(0.01)
    assert world.signals == [signal.SIGSTOP]


def test_a_watch_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that does not answer the watch is an error of the demo."""
    world = World([([Stage(7, 12, 0, 2)], 0)])
    answers = iter([Served(0, 0)])

    def served(_replica: str) -> Served:
        try:
            return next(answers)
        except StopIteration:
            raise UnavailableError("gone") from None

    monkeypatch.setattr(world, "served", served)
    with pytest.raises(DemoError, match="could not be struck: gone"):
        watch(world)


@pytest.mark.parametrize(
    ("signum", "sent"), [(signal.SIGKILL, []), (signal.SIGSTOP, [signal.SIGCONT])], ids=["killed", "frozen"]
)
def test_it_waits_until_the_victim_is_where_the_others_are(
    signum: signal.Signals, sent: list[signal.Signals]
) -> None:
    """A killed replica is started, a frozen one continued; both are back when they have caught up."""
    world = World([([], 0)], csns={"r1": [None, 5, 9, 12, 14], "r2": [10], "r3": [9, 11, 12, 12]})
    assert nemesis_of(world).bring_back(signum, 5.0) >= 0
    assert world.signals == sent
    assert world.csns["r1"] == [14]


def test_a_victim_that_stays_behind_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the CSN of the victim and the path of its log."""
    monkeypatch.setattr(nemesis, "LOOK_INTERVAL_S", 0.0)
    world = World([([], 0)], csns={"r1": [3], "r2": [10], "r3": [9]})
    with pytest.raises(DemoError, match=r"r1 is at CSN 3 .* the others are at 10; see r1"):
        nemesis_of(world).bring_back(signal.SIGSTOP, 0.0)
