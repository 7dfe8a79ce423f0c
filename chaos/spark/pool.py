"""Sessions of Spark that do the jobs of all workloads in turn, and are started again when they have died."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Final

from chaos.spark.driver import Driver
from chaos.spark.job import SparkEndedError, SparkJob, SparkJobError
from chaos.world import World

#: Pause of a session behind each job, in seconds.
_PAUSE_S: Final = 0.5
#: How often a job that must succeed is tried.
_TRIES: Final = 5


class Pool:
    """Some sessions; each takes the next job of a common list when it has done one.

    Args:
        world: The run, whose `drivers` are those that run.
        jobs: The jobs.
        sessions: How many sessions.
        pause_s: Pause of a session behind each job, in seconds.
    """

    def __init__(
        self, world: World, jobs: Sequence[SparkJob], *, sessions: int = 3, pause_s: float = _PAUSE_S
    ) -> None:
        self._world = world
        self._jobs = itertools.cycle(jobs)
        self._sessions = sessions
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._lives = itertools.count(1)
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        #: Errors that have ended a session and that no user should see: the run has failed.
        self.errors: list[BaseException] = []
        #: Jobs that have ended well.
        self.done = 0

    def start(self) -> None:
        """Start the sessions, which begin to work as soon as they can."""
        for number in range(1, self._sessions + 1):
            thread = threading.Thread(target=self._work, args=(number,), name=f"spark {number}")
            self._threads.append(thread)
            thread.start()

    @property
    def complete(self) -> bool:
        """Whether all sessions have begun."""
        return len(self._world.drivers) >= self._sessions

    def _work(self, number: int) -> None:
        try:
            while not self._over.wait(self._pause_s) and not self._world.stopping.is_set():
                driver = self._driver(number)
                if driver is not None:
                    with self._lock:
                        job = next(self._jobs)
                    self._run(driver, job)
        except BaseException as error:
            self.errors.append(error)

    def _driver(self, number: int) -> Driver | None:
        """Return a session that has joined the cluster as it is now; None if that is not possible now."""
        name = f"s{number}"
        cluster, driver = self._world.cluster, self._world.drivers.get(name)
        if driver is not None and not driver.alive:
            driver.close()
            driver = None
        if driver is None:
            folder = self._world.folder / "spark" / f"{name}-{next(self._lives)}"
            driver = Driver(number, folder, master=cluster.spark_master, host=cluster.driver_host)
        # All replicas that a session began with may have been replaced since.
        if driver.urls != (urls := cluster.urls):
            try:
                driver.call("join", urls=urls, token=cluster.secret)
            except (SparkJobError, SparkEndedError) as error:
                self._world.journal.note("note", text=f"Spark session {number} could not join: {error}")
                if self._world.drivers.get(name) is not driver:
                    driver.close()
                return None
            driver.urls = urls
        if self._world.drivers.get(name) is not driver:
            self._world.drivers[name] = driver
            self._world.journal.note("note", text=f"Spark session {number} runs, pid {driver.pid}")
        return driver

    def _run(self, driver: Driver, job: SparkJob) -> bool:
        driver.job = job.name
        try:
            job.run(driver)
        except SparkJobError:
            return False
        except SparkEndedError as error:
            self._world.journal.note("note", text=f"Spark session {driver.number} has ended: {error}")
            return False
        finally:
            driver.job = None
        with self._lock:
            self.done += 1
        return True

    def finish(self, jobs: Sequence[SparkJob]) -> None:
        """End the loops of all sessions, and do each of these jobs once; all is well again.

        Raises:
            SparkJobError: One of them has failed again and again.
        """
        self._over.set()
        for thread in self._threads:
            thread.join()
        for job in jobs:
            for _ in range(_TRIES):
                driver = self._driver(1)
                if driver is not None and self._run(driver, job):
                    break
            else:
                raise SparkJobError(
                    f"expected that {job.name} succeeds when all is well; it failed {_TRIES} times"
                )

    def stop(self) -> None:
        """End all sessions."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        for name in sorted(self._world.drivers):
            self._world.drivers.pop(name).close()
