"""Detached processes outlive their starter, and only the process that was started is ever ended."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import eventually
from tidelock import processes
from tidelock.processes import Identity

TIMEOUT_S = 30.0
#: Threads that run without the interpreter's lock, so several at a time.
BUSY_THREADS = """
import hashlib, threading
data = bytes(1 << 24)
def work():
    while True:
        hashlib.sha256(data)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 1; done"


class Starter:
    """A helper that starts processes in a folder, and ends the remaining ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pid_file = folder / "pid"
        self.started: list[Identity] = []

    def __call__(self, *command: str) -> Identity:
        """Start a command; its output goes to `out`."""
        log = self.folder / "out"
        process = processes.start(command, pid_file=self.pid_file, log=log, folder=self.folder)
        self.started.append(process)
        return process


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    """A starter whose processes end with the test."""
    starter = Starter(tmp_path)
    yield starter
    for process in starter.started:
        processes.kill(process)


def test_a_stopped_process_is_gone(start: Starter) -> None:
    """A started process runs, is found by its pid file, and ends with a stop, which may be repeated."""
    process = start("sleep", "600")
    assert processes.load(start.pid_file) == process
    assert processes.alive(process)
    processes.stop(process, grace_s=TIMEOUT_S)
    assert not processes.alive(process)
    processes.stop(process, grace_s=TIMEOUT_S)


def test_a_session_of_its_own(start: Starter) -> None:
    """A process has no terminal and no input, runs in its folder, and appends its output to the log."""
    (start.folder / "out").write_text("before\n", encoding="utf-8")
    process = start("sh", "-c", "pwd; cat; exec sleep 600")
    assert os.getsid(process.pid) == process.pid
    eventually(lambda: (start.folder / "out").read_text(encoding="utf-8") == f"before\n{start.folder}\n")


def test_it_survives_who_started_it(start: Starter) -> None:
    """A process runs on when its starter has ended, and another process can stop it by its pid file."""
    code = f"""
        from pathlib import Path
        from tidelock import processes
        folder = Path({str(start.folder)!r})
        processes.start(["sleep", "600"], pid_file=folder / "pid", log=folder / "out", folder=folder)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=TIMEOUT_S)
    process = processes.load(start.pid_file)
    assert process is not None
    assert processes.alive(process)
    processes.stop(process, grace_s=TIMEOUT_S)
    assert not psutil.pid_exists(process.pid) or psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE


def test_who_started_a_process_that_lives_on_ends_without_a_warning(tmp_path: Path) -> None:
    """Such a process outlives its starter on purpose, so Python warns of no open process."""
    script = textwrap.dedent(
        f"""\
        from pathlib import Path
        from tidelock import processes
        folder = Path({str(tmp_path)!r})
        processes.start(["sleep", "600"], pid_file=folder / "pid", log=folder / "out", folder=folder)
        """
    )
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    process = processes.load(tmp_path / "pid")
    assert process is not None
    assert processes.alive(process)
    processes.kill(process)
    assert done.stderr == ""


def test_a_stubborn_process_is_killed(start: Starter) -> None:
    """A process that ignores SIGTERM is killed when its grace is over."""
    process = start("sh", "-c", STUBBORN)
    eventually(lambda: (start.folder / "out").read_text(encoding="utf-8") == "ready\n")
    processes.stop(process, grace_s=0.05)
    assert not processes.alive(process)


def test_a_frozen_process_is_killed(start: Starter) -> None:
    """A process that was stopped by SIGSTOP, and so cannot take SIGTERM, is killed."""
    process = start("sleep", "600")
    processes.send(process, signal.SIGSTOP)
    processes.stop(process, grace_s=0.05)
    assert not processes.alive(process)


def test_a_frozen_process_runs_nothing_more(start: Starter) -> None:
    """The kernel stops threads on other processors later; one of them may answer a request until then."""
    process = start(sys.executable, "-c", BUSY_THREADS)
    eventually(lambda: (start.folder / "out").read_text(encoding="utf-8") == "ready\n")
    for _ in range(50):
        processes.send(process, signal.SIGSTOP)
        threads = [processes.stat_of(int(path.name)) for path in Path(f"/proc/{process.pid}/task").iterdir()]
        assert len(threads) > 4
        assert {fields[processes.STATE] for fields in threads if fields} == {"T"}
        processes.send(process, signal.SIGCONT)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another boot"}])
def test_a_used_again_pid_is_left_alone(start: Starter, change: dict[str, object]) -> None:
    """A process with the same pid but another start time or another boot of the machine gets no signal."""
    process = start("sleep", "600")
    stranger = dataclasses.replace(process, **change)  # type: ignore[arg-type]
    assert not processes.alive(stranger)
    assert not processes.send(stranger, signal.SIGKILL)
    processes.stop(stranger, grace_s=0.05)
    processes.kill(stranger)
    assert processes.wait(stranger, 0.05)
    assert processes.alive(process)


def test_a_process_that_ended_by_itself(start: Starter) -> None:
    """A child that has ended is not alive, and nothing remains of it."""
    process = start("true")
    assert processes.wait(process, TIMEOUT_S)
    assert not psutil.pid_exists(process.pid)


def test_a_wait_for_a_running_process_gives_up(start: Starter) -> None:
    """A wait for a process that goes on ends with False."""
    assert not processes.wait(start("sleep", "600"), 0.05)


@pytest.mark.parametrize("text", ["", "{", "[]", "17", json.dumps({"pid": 1}), json.dumps({"pid": "x"})])
def test_a_torn_pid_file_names_nobody(tmp_path: Path, text: str) -> None:
    """A pid file that is missing or half written names no process."""
    assert processes.load(tmp_path / "none") is None
    (tmp_path / "pid").write_text(text, encoding="utf-8")
    assert processes.load(tmp_path / "pid") is None


def test_a_command_that_does_not_exist(start: Starter) -> None:
    """A command that cannot be started is an OSError and leaves no pid file."""
    with pytest.raises(FileNotFoundError):
        start("/nonexistent/command")
    assert not start.pid_file.exists()


def test_lock_excludes_and_dies_with_its_holder(tmp_path: Path) -> None:
    """A lock keeps others out while it is held, and is free again after the death of its holder."""
    code = f"""
        from pathlib import Path
        from tidelock import processes
        with processes.locked(Path({str(tmp_path / "lock")!r})):
            print("held", flush=True)
            input()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        probe = ["flock", "--nonblock", str(tmp_path / "lock"), "true"]
        assert subprocess.run(probe, check=False).returncode == 1
        holder.kill()
    with processes.locked(tmp_path / "lock"):
        assert subprocess.run(probe, check=False).returncode == 1
    assert subprocess.run(probe, check=False).returncode == 0
