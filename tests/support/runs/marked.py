"""Processes that carry a variable in the environment with which their program was started.

All descendants of a process carry its variables, also those that lead a session of their own, whose parents
have ended, or that were forked without an exec. So a variable that only one run of the tests has names what
that run has started, and nothing else: no name of a program does that.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: How long the kernel may take to free what was killed, in seconds.
KILL_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05


def marked(marker: str) -> Iterator[int]:
    """Yield the pids of the processes that run and carry a marker, but for this one.

    Args:
        marker: `NAME=value`, as /proc/<pid>/environ has it (proc(5)); that of a zombie is empty.
    """
    wanted = marker.encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            # Gone meanwhile, or a process of another user, which carries no marker of ours.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)


def kill_marked(marker: str) -> None:
    """SIGKILL all that carry a marker, until none does; TimeoutError if one survives that."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while found := list(marked(marker)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {found} are still there after {KILL_TIMEOUT_S:.0f} s")
        for pid in found:
            _kill(pid, marker)
        time.sleep(_POLL_S)


def _kill(pid: int, marker: str) -> None:
    """Kill a process if it still is the one that carries the marker: its pid may be another's by now."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError, PermissionError):
        pidfd = os.pidfd_open(pid)
        try:
            if marker.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def guard(pid: int, marker: str) -> None:
    """Wait until the run has ended, then end what it has started and what is still there."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    try:
        run = os.pidfd_open(pid)
    except ProcessLookupError:
        run = None
    # Only the parent of this process is the run: once it is gone, its pid may be that of another one.
    if run is not None and os.getppid() == pid:
        poller = select.poll()
        poller.register(run, select.POLLIN)
        poller.poll()
    kill_marked(marker)


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2])
