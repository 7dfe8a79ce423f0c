"""The last limit of a test ends its process, where the first limit is held up."""

from __future__ import annotations

import pytest

from tests.support.project.source import ROOT

CONFTEST = """
from tests.support.runs import last_limit

pytest_plugins = ["tests.support.runs.last_limit"]
last_limit.GRACE_S = 1.0
"""
HELD_UP = """
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest


def test_before():
    pass


@pytest.mark.timeout(1)
def test_held_up():
    with ThreadPoolExecutor(1) as threads:
        threads.submit(threading.Barrier(2).wait).result()


def test_after():
    pass
"""


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *options: str) -> pytest.RunResult:
    """Run a test that is held up, and one before and one behind it."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\ntimeout = 300")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(HELD_UP)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options, timeout=60)


def test_a_test_that_never_ends_ends_its_process(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of pytest-timeout is held up by the threads that the test joins; all stacks are printed."""
    done = run(pytester, monkeypatch)
    assert done.ret == 1
    assert "Timeout (0:00:02)!" in done.stderr.str()
    assert "in test_held_up" in done.stderr.str()


def test_the_other_tests_of_a_run_are_told(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of several workers fails with the name of the test, and ends."""
    done = run(pytester, monkeypatch, "-n", "2", "--dist", "loadfile", "--max-worker-restart", "0")
    assert done.ret != 0
    name = "test_the_other_tests_of_a_run_are_told.py::test_held_up"
    assert f"crashed while running '{name}'" in done.stdout.str()
