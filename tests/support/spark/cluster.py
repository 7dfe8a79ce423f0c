"""A Spark cluster whose master and workers are processes of this machine, by Spark's own start script.

Each worker has a separate address on the loopback interface, since Spark runs the second copy of a slow task
only on another host.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil
import pyspark
import urllib3

from tests.support.spark import class_archive, process
from tests.support.waiting import eventually
from tidelock import ports, processes
from tidelock.cluster import process_groups
from tidelock.processes import Identity

_DEPLOY: Final = "org.apache.spark.deploy"


class SparkCluster:
    """A master and workers with one core each, as a context manager.

    Args:
        folder: Folder for logs and for the executors' files.
        workers: Number of workers.
        python_workers: As for :class:`SparkProcess`.
    """

    def __init__(self, folder: Path, *, workers: int = 2, python_workers: bool = False) -> None:
        self._folder = folder
        self._workers = workers
        self._environ = process.environment(folder, python_workers=python_workers) | {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": class_archive.java_options(),
        }
        self._open = ExitStack()
        self._leaders: list[Identity] = []
        self._numbers = itertools.count(1)
        self._port, self._page = ports.free_ports(2)

    @property
    def master(self) -> str:
        """The address for sessions."""
        return f"spark://{ports.HOST}:{self._port}"

    def executors(self) -> list[psutil.Process]:
        """Return the running executors of all sessions."""
        found = []
        for leader in self._leaders:
            if processes.alive(leader):
                found += process.executors(psutil.Process(leader.pid))
        return found

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            self._start(opening, "master.Master", self._port, self._page)
            eventually(lambda: self._alive_workers() == 0, what="the master")
            for number in range(self._workers):
                host = f"127.0.0.{number + 2}"
                port, page = ports.free_ports(2)
                work = self._folder / f"work-{number}"
                size = ("--cores", "1", "--memory", "1g", "--work-dir", str(work))
                self._start(opening, "worker.Worker", port, page, *size, self.master, host=host)
            eventually(lambda: self._alive_workers() == self._workers, what="all workers")
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _start(
        self,
        opening: ExitStack,
        program: str,
        port: int,
        page: int,
        *options: str,
        host: str = ports.HOST,
    ) -> None:
        address = ("--host", host, "--port", str(port), "--webui-port", str(page))
        script = Path(pyspark.__path__[0], "bin", "spark-class")
        name = f"{program.partition('.')[0]}-{next(self._numbers)}"
        leader = processes.start(
            [str(script), f"{_DEPLOY}.{program}", *address, *options],
            pid_file=self._folder / f"{name}.pid",
            log=self._folder / f"{name}.log",
            folder=self._folder,
            env=self._environ | {"SPARK_LOCAL_IP": host},
        )
        self._leaders.append(leader)
        opening.callback(process_groups.kill, leader)

    def _alive_workers(self) -> int | None:
        try:
            answer = urllib3.request("GET", f"http://{ports.HOST}:{self._page}/json/", retries=False)
        except urllib3.exceptions.HTTPError:
            return None
        # A master that is starting answers with a page for people.
        found = answer.status == 200 and answer.headers.get("Content-Type", "").startswith("text/json")
        return int(answer.json()["aliveworkers"]) if found else None
