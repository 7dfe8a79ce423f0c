"""The process of a session of Spark, as the runner sees it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from chaos.spark.job import SparkEndedError, SparkJobError
from tests.support.spark import class_archive
from tests.support.spark.process import environment
from tidelock import processes
from tidelock.cluster import process_groups
from workloads.child import Child, ChildEndedError

#: How long a session may take to end, in seconds.
STOP_TIMEOUT_S: Final = 60.0
#: A failed task is tried again, as on a cluster.
LOCAL: Final = "local[2,3]"
#: Settings of a session beside others on a small machine.
_CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.cores.max": "1",
}
#: The second compiler costs more than it saves in a session that lives for minutes.
_QUICK_START: Final = "-XX:TieredStopAtLevel=1"


class Driver:
    """A session in a process of its own, which runs one job at a time.

    Args:
        number: Which of the sessions it is.
        folder: Made; its working directory, with its log.
        master: Spark's master; None = in the process itself.
        host: The address at which executors reach the driver.
    """

    def __init__(
        self, number: int, folder: Path, *, master: str | None = None, host: str = "127.0.0.1"
    ) -> None:
        folder.mkdir(parents=True)
        self.number = number
        #: The name of the job that runs; for reports.
        self.job: str | None = None
        #: The addresses of the agents that it has joined; None at first.
        self.urls: Sequence[str] | None = None
        conf = dict(_CONF)
        if master is None:
            conf["spark.driver.extraJavaOptions"] = f"{class_archive.java_options()} {_QUICK_START}"
        else:
            conf |= {"spark.driver.host": host, "spark.driver.bindAddress": "0.0.0.0"}  # noqa: S104 - executors are elsewhere
        env = environment(folder, python_workers=True)
        if master is not None:
            env |= {"SPARK_LOCAL_IP": host}
        self._child = Child(
            "chaos.spark.jobs",
            master or LOCAL,
            json.dumps(conf),
            log=folder / "spark.log",
            folder=folder,
            env=env,
            own_session=True,
        )
        self.pid: Final = self._child.process.pid
        self._identity = processes.record(self.pid, folder / "spark.pid")
        self._lock = threading.Lock()
        self._reaped = False

    def call(self, job: str, **args: Any) -> Any:
        """Run a method of `chaos.spark.jobs.Jobs`, and return its result.

        Raises:
            SparkJobError: It failed.
            SparkEndedError: The driver has ended.
        """
        try:
            self._child.send({"job": job, "args": args})
            answer = self._child.receive()
        except (ChildEndedError, ValueError) as error:  # ValueError: a pipe that was closed meanwhile
            raise SparkEndedError(f"driver {self.number}: {error}") from error
        if "error" in answer:
            raise SparkJobError(answer["error"])
        return answer["result"]

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._child.process.poll() is None

    def kill(self) -> None:
        """Kill the driver, its JVM, and the executors that are its children (SIGKILL)."""
        process_groups.kill(self._identity)

    def close(self) -> None:
        """End the session, and wait for its end."""
        if self.alive:
            self._child.end_input()
            processes.wait(self._identity, STOP_TIMEOUT_S)
        self.kill()
        self._child.reap()
