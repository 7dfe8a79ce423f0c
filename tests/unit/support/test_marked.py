"""Processes of a run are found by their marker alone."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from tests.support.project.source import ROOT
from tests.support.waiting import eventually
from tidelock.testing.leftovers import kill_marked, marked

SLEEP = [sys.executable, "-c", "import signal; signal.pause()"]
#: Forks a child that leads a session of its own, and ends.
DAEMON = [sys.executable, "-c", "import os, signal; os.fork() or (os.setsid(), signal.pause())"]


@pytest.fixture
def marker() -> str:
    """A marker of this test alone."""
    return f"TIDELOCK_MARKED={uuid.uuid4().hex}"


def environ(marker: str) -> dict[str, str]:
    """The environment of a process that carries a marker."""
    name, _, value = marker.partition("=")
    return os.environ | {name: value}


def test_all_that_carry_the_marker_are_killed_and_nobody_else(marker: str) -> None:
    """Children and daemons with the marker are killed; a longer value is another marker."""
    other = subprocess.Popen(SLEEP, env=environ(f"{marker}0"))
    child = subprocess.Popen(SLEEP, env=environ(marker))
    subprocess.run(DAEMON, env=environ(marker), check=True)
    try:
        eventually(lambda: len(list(marked(marker))) == 2, what="both processes")
        kill_marked(marker)
        assert child.wait() == -9
        assert list(marked(marker)) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_guard_waits_for_the_end_of_its_parent(marker: str) -> None:
    """Processes that a parent leaves behind are killed when the parent has ended."""
    script = (
        "import os, subprocess, sys\n"
        f"subprocess.Popen({SLEEP!r})\n"
        "guard = [sys.executable, '-m', 'tests.support.runs.marked', str(os.getpid())]\n"
        f"subprocess.Popen([*guard, {marker!r}])\n"
        "input()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], env=environ(marker), cwd=ROOT, stdin=subprocess.PIPE
    )
    eventually(lambda: len(list(marked(marker))) == 3, what="parent, child and guard")
    parent.communicate(b"\n")
    eventually(lambda: not list(marked(marker)), what="the end of child and guard")
