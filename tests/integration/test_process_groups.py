"""Signals to a process and its workers, with real processes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tidelock import processes
from tidelock.cluster import process_groups
from tidelock.processes import Identity

DEADLINE_S = 30.0
WORKER = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
time.sleep(600)
"""
#: A program that starts a worker that ignores SIGTERM, prints its pid, and waits.
LEADER = f"""
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}], stdout=subprocess.PIPE)
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(600)
"""
Group = tuple[Identity, int]


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return bool(psutil.pid_exists(pid)) and str(psutil.Process(pid).status()) != psutil.STATUS_ZOMBIE


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """A leader and the pid of its worker."""
    log = tmp_path / "log"
    leader = processes.start(
        [sys.executable, "-c", LEADER], pid_file=tmp_path / "pid", log=log, folder=tmp_path
    )
    try:
        wait_for(lambda: log.read_text(encoding="utf-8").endswith("\n"))
        yield leader, int(log.read_text(encoding="utf-8"))
    finally:
        process_groups.kill(leader)


def test_kill_ends_the_workers_too(group: Group) -> None:
    """After `kill` neither the leader nor its worker runs; a second `kill` is harmless."""
    leader, worker = group
    process_groups.kill(leader)
    assert not runs(leader.pid)
    assert not runs(worker)
    process_groups.kill(leader)
    assert not process_groups.send(leader, signal.SIGTERM)


def test_workers_that_a_crash_has_left(group: Group) -> None:
    """The workers of a leader that died alone are still found and ended."""
    leader, worker = group
    processes.kill(leader)
    assert runs(worker)
    process_groups.kill(leader)
    assert not runs(worker)


def test_stop_kills_what_does_not_end(group: Group) -> None:
    """A worker that ignores SIGTERM is killed after its leader has ended."""
    leader, worker = group
    process_groups.stop(leader, grace_s=DEADLINE_S)
    assert not runs(leader.pid)
    assert not runs(worker)


def test_frozen_group_can_be_stopped(group: Group) -> None:
    """SIGSTOP freezes leader and worker; `stop` lets them go on so that they can end."""
    leader, worker = group
    assert process_groups.send(leader, signal.SIGSTOP)
    wait_for(
        lambda: {psutil.Process(pid).status() for pid in (leader.pid, worker)} == {psutil.STATUS_STOPPED}
    )
    process_groups.stop(leader, grace_s=DEADLINE_S)
    assert not runs(leader.pid)
    assert not runs(worker)


@pytest.mark.parametrize("other", [{"start_ticks": 1}, {"boot_id": "another boot"}])
def test_successor_of_a_pid_is_not_signalled(group: Group, other: dict[str, object]) -> None:
    """A later process with the pid of the started one gets no signal."""
    leader, worker = group
    stranger = Identity(
        **{"pid": leader.pid, "start_ticks": leader.start_ticks, "boot_id": leader.boot_id, **other}  # type: ignore[arg-type]
    )
    assert not process_groups.send(stranger, signal.SIGKILL)
    process_groups.kill(stranger)
    assert runs(leader.pid)
    assert runs(worker)
