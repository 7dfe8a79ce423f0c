"""A run of the tests or of the benchmark leaves no process behind, in whichever way it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.project.source import ROOT
from tests.support.runs import held_tests
from tests.support.waiting import eventually
from tidelock.testing.leftovers import kill_marked, marked

#: An environment variable of every process that a run of these tests has started.
TRACE = "TIDELOCK_INTERRUPTED_RUN"
#: Runs pytest. A run in the background of a shell ignores Ctrl-C, and so would the one that it starts.
PYTEST = """
import signal, sys, pytest
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(pytest.main())
"""
#: A start of Spark beside two clusters, on a machine that others use, in seconds.
START_TIMEOUT_S = 240.0


def commands(trace: str) -> Iterator[str]:
    """The command lines of the processes that carry a value of `TRACE`."""
    for pid in marked(trace):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")


@contextmanager
def held_run(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A run of two workers, each in the middle of a test, and the value of `TRACE` in its processes."""
    trace = f"{TRACE}={uuid.uuid4().hex}"
    name, _, value = trace.partition("=")
    environ = {key: text for key, text in os.environ.items() if not key.startswith("PYTEST_")}
    with (folder / "pytest.log").open("wb") as output:
        run = subprocess.Popen(
            [
                *(sys.executable, "-c", PYTEST, "-n", "2", "--dist", "load", "-p", "no:cacheprovider"),
                f"--basetemp={folder / 'temp'}",
                held_tests.__file__,
            ],
            cwd=ROOT,
            env=environ | {name: value, held_tests.HELD: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:

        def held() -> bool:
            assert run.poll() is None, (folder / "pytest.log").read_text(encoding="utf-8")
            return all((folder / each).exists() for each in ("forked", "executed"))

        eventually(held, timeout_s=START_TIMEOUT_S, what="the tests that are held")
        yield run, trace
    finally:
        kill_marked(trace)
        run.wait()


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("signum", "whole_group"),
    [
        pytest.param(signal.SIGINT, True, marks=pytest.mark.slow),  # Ctrl-C
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.slow),  # what ends a job of a CI
        pytest.param(signal.SIGKILL, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.slow),
    ],
    ids=["SIGINT", "SIGTERM", "SIGKILL", "SIGKILL of the controller"],
)
def test_an_interrupted_run_leaves_no_process_behind(
    tmp_path: Path, signum: signal.Signals, whole_group: bool
) -> None:
    """Its ZooKeeper servers, its agents with their readers, and Spark end with the run."""
    with held_run(tmp_path) as (run, trace):
        started = len(list(marked(trace)))
        if whole_group:
            os.killpg(run.pid, signum)
        else:
            run.send_signal(signum)
        run.wait()
        assert started > 10, "the run had started nothing that could be left"
        eventually(lambda: not list(marked(trace)), what="the end of all processes of the run")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_bench_leaves_no_process_behind(tmp_path: Path, signum: signal.Signals) -> None:
    """Its ZooKeeper, its agents, its clients and its folder go when a time limit or Ctrl-C ends it."""
    value = uuid.uuid4().hex
    trace = f"{TRACE}={value}"
    with (tmp_path / "bench.log").open("wb") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "bench", "commits", "--quick", "--out", str(tmp_path / "results")],
            cwd=ROOT,
            env=os.environ | {TRACE: value, "TMPDIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:

        def clients_run() -> bool:
            assert run.poll() is None, (tmp_path / "bench.log").read_text(encoding="utf-8")
            return sum("multiprocessing.forkserver" in command for command in commands(trace)) > 1

        eventually(clients_run, timeout_s=START_TIMEOUT_S, what="the clients of the benchmark")
        started = list(commands(trace))
        run.send_signal(signum)
        assert run.wait() == 128 + signum
        for program in ("zookeeper", "tidelock.replica_agent.main"):
            assert any(program in command for command in started), "nothing ran that could be left"
        eventually(lambda: not list(marked(trace)), what="the end of all processes of the run")
        assert not list(tmp_path.glob("tidelock-bench-*"))
    finally:
        kill_marked(trace)
        run.wait()
