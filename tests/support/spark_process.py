"""A Spark session in a process of its own, spoken to by a test (tests/support/spark_jobs.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.source import ROOT
from tidelock import java

#: How long a session may take to end, in seconds.
STOP_TIMEOUT_S = 60.0


class SparkJobError(Exception):
    """The job failed; the message is that of the exception in the session."""


class SparkProcess:
    """A session; jobs are run one after the other."""

    def __init__(self, kind: str, folder: Path) -> None:
        """Start it; `folder` is where it works. The first job waits for it."""
        environ = os.environ | {
            "JAVA_HOME": str(java.home_for_spark(java.find(), folder)),
            # Reads of a snapshot start no Python worker: if one were started, it would fail.
            "PYSPARK_PYTHON": "/nonexistent/python",
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }
        if kind == "connect":
            environ["SPARK_TESTING"] = "1"  # the server takes any free port
        self._log = (folder / f"spark-{kind}.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.spark_jobs", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=folder,
            env=environ,
        )

    def send(self, job: str, **args: Any) -> None:
        """Have a job begun; `receive` gives what came of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": job, "args": args}) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """Wait for the end of the job; SparkJobError when it failed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the session ended; see {self._log.name}")
        answer = json.loads(line)
        if "error" in answer:
            raise SparkJobError(answer["error"])
        return answer["result"]

    def call(self, job: str, **args: Any) -> Any:
        """Run a job and return its result."""
        self.send(job, **args)
        return self.receive()

    def sql(self, query: str) -> list[list[Any]]:
        """Rows of a query over the attached views."""
        rows: list[list[Any]] = self.call("sql", query=query)
        return rows

    def close(self) -> None:
        """Stop the session."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
