"""Signals to a process and everything it has started: an agent with its reader and SQL workers.

A process that was started by `processes.start` leads a session and a process group of its own, and its
workers stay in it. Linux does not use a pid again while a process group has that number, so as long as the
group has a member, its number means that group and no other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidelock import processes
from tidelock.processes import Identity

_POLL_S: Final = 0.02
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Fields of /proc/<pid>/stat after the command's name (proc(5): pgrp is field 5, session 6, starttime 22).
_STATE, _GROUP, _SESSION, _START_TICKS = 0, 2, 3, 19


def send(leader: Identity, signum: signal.Signals) -> bool:
    """Send a signal to the group of a process, also when only workers of it are left; False if none is."""
    if not any(True for _ in _members(leader)):
        return False
    try:
        os.killpg(leader.pid, signum)
    except ProcessLookupError:
        return False
    return True


def stop(leader: Identity, *, grace_s: float) -> None:
    """End the group: SIGTERM to its leader, which is to end its workers, and SIGKILL to all after `grace_s`.

    Returns when all are gone; TimeoutError if a process survives SIGKILL (an uninterruptible wait of the
    kernel).
    """
    if processes.send(leader, signal.SIGTERM):
        send(leader, signal.SIGCONT)  # a process that was stopped takes SIGTERM only when it goes on
        processes.wait(leader, grace_s)
    kill(leader)


def kill(leader: Identity) -> None:
    """End the group by SIGKILL and return when all are gone; TimeoutError as in `stop`."""
    deadline = time.monotonic() + processes.KILL_TIMEOUT_S
    while send(leader, signal.SIGKILL):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"a process of group {leader.pid} is still there after {processes.KILL_TIMEOUT_S:.0f} s"
            )
        time.sleep(_POLL_S)
    processes.alive(leader)  # reaps a child of this process


def _members(leader: Identity) -> Iterator[int]:
    """Pids of the processes of a group that run, none if its number belongs to somebody else by now."""
    if _BOOT_ID.read_text(encoding="ascii").strip() != leader.boot_id:
        return
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = (
                (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            )
            if int(fields[_GROUP]) == leader.pid and fields[_STATE] not in {"Z", "X"}:
                found.append((int(folder.name), int(fields[_SESSION]), int(fields[_START_TICKS])))
    for pid, session, start_ticks in found:
        if session != leader.pid or start_ticks < leader.start_ticks:
            return
        if pid == leader.pid and start_ticks != leader.start_ticks:
            return
    yield from (pid for pid, _, _ in found)
