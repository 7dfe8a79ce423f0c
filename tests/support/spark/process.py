"""A Spark session in a separate process, which runs jobs for a test (tests/support/spark/jobs.py)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from tests.support.project.source import ROOT
from tests.support.spark import class_archive
from tests.support.waiting import eventually
from tidelock import java, processes
from tidelock.cluster import process_groups
from workloads.child import Child

#: How long a session may take to end, in seconds.
STOP_TIMEOUT_S = 60.0
#: The priority of a session that starts Python processes, where it may be raised.
_AHEAD: Final = -5
#: The class of an executor that is a separate process.
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"


class SparkJobError(Exception):
    """The job failed; the message is the one of the exception in the session."""


class SparkProcess:
    """A session that runs one job at a time, as a context manager.

    Args:
        kind: As in tests/support/spark/jobs.py, or the address of a master.
        folder: Working directory. The first job waits for the start.
        conf: More settings of the session.
        python_workers: Tasks may start Python workers. By default they cannot, which proves that reads and
            writes of tables need none.
        pyspark: Folder with another PySpark than that of this environment.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        conf: Mapping[str, str] | None = None,
        python_workers: bool = False,
        pyspark: Path | None = None,
    ) -> None:
        jvm = {
            f"spark.{side}.extraJavaOptions": class_archive.java_options() for side in ("driver", "executor")
        }
        environ = environment(folder, python_workers=python_workers, pyspark=pyspark)
        if kind == "connect":
            environ["SPARK_TESTING"] = "1"  # the server takes any free port
        self._child = Child(
            "tests.support.spark.jobs",
            kind,
            json.dumps({**jvm, **(conf or {})}),
            log=folder / "spark.log",
            folder=folder,
            env=environ,
            own_session=True,
        )
        if python_workers:
            # Spark gives each of its Python processes ten seconds to start, and has no setting for that.
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, self._child.process.pid, _AHEAD)
        self._identity = processes.record(self._child.process.pid, folder / "spark.pid")
        self._running: str | None = None

    def send(self, job: str, **args: Any) -> None:
        """Begin a job; `receive` returns its result, which must not reach another test."""
        assert self._running is None, f"a test was cut off in its job {self._running!r}, which still runs"
        self._running = job
        self._child.send({"job": job, "args": args})

    def receive(self) -> Any:
        """Wait for the end of the job and return its result; SparkJobError if it failed."""
        answer = self._child.receive()
        self._running = None
        if "error" in answer:
            raise SparkJobError(answer["error"])
        return answer["result"]

    def call(self, job: str, **args: Any) -> Any:
        """Run a job and return its result."""
        self.send(job, **args)
        return self.receive()

    def sql(self, query: str) -> list[list[Any]]:
        """Return the rows of a query over the attached views."""
        rows: list[list[Any]] = self.call("sql", query=query)
        return rows

    @property
    def alive(self) -> bool:
        """Whether the session runs: it was neither closed nor killed."""
        return self._child.process.poll() is None

    @property
    def driver(self) -> psutil.Process:
        """The Python process of the driver."""
        return psutil.Process(self._child.process.pid)

    def kill(self) -> None:
        """Kill the driver, its JVM and its executors (SIGKILL); do nothing if they have ended."""
        process_groups.kill(self._identity)
        self._child.reap()

    def close(self) -> None:
        """Stop the session."""
        if self.alive:
            self._child.end_input()
            processes.wait(self._identity, STOP_TIMEOUT_S)
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def environment(folder: Path, *, python_workers: bool = False, pyspark: Path | None = None) -> dict[str, str]:
    """Return the environment of Spark's programs; see :class:`SparkProcess`."""
    paths = [pyspark, ROOT] if pyspark else [ROOT]
    return os.environ | {
        "JAVA_HOME": str(java.home_for_spark(java.find(), folder)),
        "PYSPARK_PYTHON": sys.executable if python_workers else "/nonexistent/python",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run_program(folder: Path, module: str, *arguments: str) -> str:
    """Run a module of the checkout that makes its own session; return its output."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment(folder, python_workers=True),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def executors(leader: psutil.Process) -> list[psutil.Process]:
    """Return the executors among the processes that `leader` and its descendants have started."""
    return [process for process in _descendants(leader) if _EXECUTOR in " ".join(_command(process))]


def freeze(process: psutil.Process) -> None:
    """Stop a process and all its descendants, as a long pause of their machine would."""
    _signal(process, signal.SIGSTOP)


def thaw(process: psutil.Process) -> None:
    """Continue a process and all its descendants after `freeze`."""
    _signal(process, signal.SIGCONT)


def require_over(executor: psutil.Process) -> None:
    """Wait until an executor that was continued has finished its work: it is idle, or has ended."""

    def rests() -> bool:
        before = _spent(executor)
        return psutil.wait_procs([executor], timeout=1.0)[0] != [] or _spent(executor) - before < 0.1

    eventually(rests, what="an executor that has nothing more to do")


def _spent(process: psutil.Process) -> float:
    """Return the processor seconds that a process and its descendants have used."""
    try:
        family = (process, *process.children(recursive=True))
        return sum(sum(member.cpu_times()[:2]) for member in family)
    except psutil.NoSuchProcess:
        return 0.0


def _signal(process: psutil.Process, signum: signal.Signals) -> None:
    for member in (process, *_descendants(process)):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.send_signal(signum)


def _descendants(leader: psutil.Process) -> list[psutil.Process]:
    try:
        descendants: list[psutil.Process] = leader.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return descendants


def _command(process: psutil.Process) -> list[str]:
    try:
        words: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return words
