"""The tools of this folder, on small programs: the chosen call is hit, or fails; unflushed bytes are lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import tidelock.csnlog.record_skipper
import tidelock.csnlog.tree_maker
import tidelock.replica_agent.main  # noqa: F401 - all three register fault points
from tests.chaos import cut_points, disks, seccomp
from tests.chaos.disks import Disk
from tests.chaos.supervisor import Supervisor, Trap
from tests.support.faults import ability
from tests.support.project import source
from tidelock.csnlog import faults

#: A program that makes three fsyncs of one file, in threads, and prints the end of each.
FSYNCS: Final = """
import os, sys, threading
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
def sync():
    try:
        os.fsync(fd)
        print("done", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
for _ in range(3):
    thread = threading.Thread(target=sync)
    thread.start()
    thread.join()
os.rename(sys.argv[1], sys.argv[1] + ".new")
"""

#: A program that makes a disk, and dies with it.
DISK_OF_A_KILLED_RUN: Final = """
import os, signal
from pathlib import Path
from tests.chaos.disks import Disk
Disk(Path({image!r}), Path({at!r}))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_power_is_cut_at_every_point() -> None:
    """A new fault point of an agent belongs into a test of power cuts."""
    registered = {name for name in faults.names() if not name.startswith("tests.")}
    assert registered == cut_points.TESTED | cut_points.WITHOUT_DISK


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor of programs that a test runs."""
    ability.require(seccomp.unable())
    with Supervisor(tmp_path / "calls") as running:
        yield running


def run(supervisor: Supervisor, file: Path) -> subprocess.CompletedProcess[str]:
    """Run FSYNCS under the supervisor."""
    launcher = (sys.executable, "-m", "tests.chaos.launcher", str(supervisor.address))
    command = (*launcher, sys.executable, "-c", FSYNCS, str(file))
    return subprocess.run(command, cwd=source.ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_calls_of_every_thread_are_counted(supervisor: Supervisor, tmp_path: Path) -> None:
    """Calls of every thread are counted with their objects, and are carried out."""
    with supervisor.armed(Trap("fsync", 0)) as trap:
        done = run(supervisor, tmp_path / "file")
    assert (done.returncode, done.stdout) == (0, "done\n" * 3), done.stderr
    assert [str(call) for call in trap.passed] == [f"fsync({tmp_path / 'file'})"] * 3
    assert trap.hit is None


@pytest.mark.parametrize("at", [1, 2, 3])
def test_the_process_dies_before_the_call(supervisor: Supervisor, tmp_path: Path, at: int) -> None:
    """After SIGKILL at the n-th call the calls before it were made, and it was not."""
    with supervisor.armed(Trap("fsync", at)) as trap:
        done = run(supervisor, tmp_path / "file")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "done\n" * (at - 1))
    assert str(trap.hit) == f"fsync({tmp_path / 'file'})"


def test_a_rename_is_told_by_its_path(supervisor: Supervisor, tmp_path: Path) -> None:
    """Arguments that are paths are read from the process's memory."""
    with supervisor.armed(Trap("rename", 1)) as trap:
        done = run(supervisor, tmp_path / "file")
    assert done.returncode == -signal.SIGKILL
    assert str(trap.hit) == f"rename({tmp_path / 'file'})"
    assert (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("trap", "expected"),
    [
        (Trap("fsync", 2, error=errno.EIO), ["done", str(errno.EIO), "done"]),
        (Trap("fsync", 2, error=errno.EIO, lasting=True), ["done", str(errno.EIO), str(errno.EIO)]),
        (Trap("fsync", 4, error=errno.EIO), ["done"] * 3),
        (Trap("fsync", 1, error=errno.EIO, about=lambda _: False), ["done"] * 3),
        (Trap("fsync", 1, error=0), ["done"] * 3),
    ],
    ids=["once", "lasting", "never made", "about nothing", "as if it were done"],
)
def test_the_chosen_call_fails_with_its_errno(
    supervisor: Supervisor, tmp_path: Path, trap: Trap, expected: list[str]
) -> None:
    """The n-th call, and on request all later ones, end with the errno; the program goes on."""
    with supervisor.armed(trap):
        done = run(supervisor, tmp_path / "file")
    assert (done.returncode, done.stdout.split()) == (0, expected), done.stderr
    assert (trap.hit is None) == (trap.at > 3 or not trap.passed)


def test_every_kind_is_known_on_this_machine() -> None:
    """Each kind has a call on this machine, and no call is of two kinds."""
    calls = [call for kind in seccomp.KINDS.values() for call in kind]
    assert len(calls) == len(set(calls))
    known = set(seccomp.names())
    assert known <= set(calls)
    assert all(known.intersection(kind) for kind in seccomp.KINDS.values())


def test_the_disk_of_a_killed_run_is_given_back(tmp_path: Path) -> None:
    """Its folder can be removed again; a disk with a running owner is left alone."""
    ability.require(disks.unable())
    code = DISK_OF_A_KILLED_RUN.format(image=str(tmp_path / "lost"), at=str(tmp_path / "killed"))
    dead = subprocess.run([sys.executable, "-c", code], cwd=source.ROOT, timeout=60, check=False)
    assert dead.returncode == -signal.SIGKILL
    assert (tmp_path / "killed").is_mount()
    disk = Disk(tmp_path / "image", tmp_path / "disk")  # sweeps
    try:
        assert not (tmp_path / "killed").is_mount()
        assert disks.sweep() == []
        assert disk.at.is_mount()
    finally:
        disk.close()


def test_what_nobody_flushed_is_lost(tmp_path: Path) -> None:
    """After a power cut a file has its bytes if they were flushed, and its name if its folder was."""
    ability.require(disks.unable())
    disk = Disk(tmp_path / "image", tmp_path / "disk")
    try:
        for name in ("flushed", "forgotten"):
            (disk.at / name).write_bytes(b"bytes")
        fd = os.open(disk.at / "flushed", os.O_RDONLY)
        os.fsync(fd)  # noqa: TID251 - what the test is about
        os.close(fd)
        (disk.at / "flushed").rename(disk.at / "renamed")
        disk.copy(tmp_path / "platter")
        disk.revert(tmp_path / "platter")
        assert (disk.at / "flushed").read_bytes() == b"bytes"
        assert not (disk.at / "renamed").exists()
        forgotten = disk.at / "forgotten"
        assert not forgotten.exists() or forgotten.read_bytes() == b""
    finally:
        disk.close()
