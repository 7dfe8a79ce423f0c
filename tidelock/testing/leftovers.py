"""Removes what clusters of dead owners have left behind: their processes, namespaces and disks."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tidelock.testing import disks, namespaces
from tidelock.testing.owners import VARIABLE, left_behind

#: How long the kernel may take to free what was killed, in seconds.
KILL_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05


def sweep() -> None:
    """Remove what dead owners have left behind, and nothing of others."""
    _kill_all(lambda item: item.startswith(f"{VARIABLE}=") and left_behind(item.partition("=")[2]))
    namespaces.sweep()
    disks.sweep()


def kill_marked(marker: str) -> None:
    """SIGKILL all processes that carry a variable in their environment, until none does.

    All descendants of a process carry its variables, also those that lead a session of their own, whose
    parents have ended, or that were forked without an exec. So a variable that only one run of the tests has
    names what that run has started, and nothing else: no name of a program does that. TimeoutError if one
    survives.

    Args:
        marker: `NAME=value`, as /proc/<pid>/environ has it (proc(5)).
    """
    _kill_all(marker.__eq__)


def marked(marker: str) -> Iterator[int]:
    """Yield the pids of the processes that run and carry a marker, but for this one."""
    return _carriers(marker.__eq__)


def _kill_all(wanted: Callable[[str], bool]) -> None:
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while found := list(_carriers(wanted)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {found} are still there after {KILL_TIMEOUT_S:.0f} s")
        for pid in found:
            _kill(pid, wanted)
        time.sleep(_POLL_S)


def _carriers(wanted: Callable[[str], bool]) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid() and _carries(folder, wanted):
            yield int(folder.name)


def _carries(folder: Path, wanted: Callable[[str], bool]) -> bool:
    """Return whether a process carries what is wanted; the environment of a zombie is empty."""
    # Gone meanwhile, or a process of another user, which carries no marker of ours.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        items = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        return any(wanted(item) for item in items)
    return False


def _kill(pid: int, wanted: Callable[[str], bool]) -> None:
    """Kill a process if it still is the one that carries the marker: its pid may be another's by now."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
        pidfd = os.pidfd_open(pid)
        try:
            if _carries(Path(f"/proc/{pid}"), wanted):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
