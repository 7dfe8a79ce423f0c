"""A driver of Spark is killed, with its JVM, in the middle of a job."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from chaos.faults.fault import Aim, Fault, NotPossibleError, Proof
from chaos.spark.driver import Driver
from chaos.watching.waiting import NOTICE_TIMEOUT_S, comes_true
from chaos.world import World

#: How long a session may need to begin on a machine that is busy, in seconds.
SUCCESSOR_TIMEOUT_S: Final = 180.0


class _Ended(Proof):
    def __init__(self, driver: Driver, job: str) -> None:
        self._driver, self._job = driver, job

    def seen(self) -> str | None:
        """Return that the process is gone, and in which job."""
        if self._driver.alive:
            return None
        return f"driver {self._driver.number} (pid {self._driver.pid}) has ended in the job '{self._job}'"


class DriverKilled(Fault):
    """SIGKILL for one of the sessions of Spark, in the middle of a job.

    Reads end with it. What it wrote without a commit is never seen; what it had committed counts once, when
    another session runs the labelled job or the batch of the stream again. The fault ends when the session
    has a successor, so one is missing at most.
    """

    kind: ClassVar[str] = "driver killed"
    aim: ClassVar[Aim] = Aim.CLIENT
    harms: ClassVar[bool] = False
    lasts_s: ClassVar[tuple[float, float]] = (1.0, 3.0)

    @contextlib.contextmanager
    def inject(self, world: World, targets: Sequence[str], chosen: random.Random) -> Iterator[Proof]:
        """Kill a driver that runs a job, one of the targets if they name some.

        Raises:
            NotPossibleError: No driver ran a job for a long time.
        """
        named = [name for name in targets if name in world.drivers]
        found: list[tuple[Driver, str]] = []

        def busy() -> bool:
            drivers = [world.drivers[name] for name in sorted(world.drivers) if not named or name in named]
            found[:] = [(driver, job) for driver in drivers if (job := driver.job) is not None]
            return bool(found)

        if not comes_true(busy, NOTICE_TIMEOUT_S):
            raise NotPossibleError("no session of Spark runs a job")
        driver, job = chosen.choice(found)
        driver.kill()
        try:
            yield _Ended(driver, job)
        finally:
            comes_true(lambda: world.stopping.is_set() or _all_work(world), SUCCESSOR_TIMEOUT_S)


def _all_work(world: World) -> bool:
    return all(driver.alive for driver in list(world.drivers.values()))
