"""Signals to a process and all processes that it has started: an agent with its reader and SQL workers.

A process that was started by `processes.start` leads a new session and process group, and its workers remain
in that group. Linux does not use a pid again while a process group has that number. So the number identifies
the group as long as the group has a member.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidelock import processes
from tidelock.processes import ENDED, GROUP, SESSION, START_TICKS, STATE, Identity

_POLL_S: Final = 0.02


def send(leader: Identity, signum: signal.Signals) -> bool:
    """Send a signal to the group of a process, even if only workers are left; return False if it is empty.

    After SIGSTOP the call returns when all of them have stopped.
    """
    if not (members := list(_members(leader))):
        return False
    try:
        os.killpg(leader.pid, signum)
    except ProcessLookupError:
        return False
    if signum is signal.SIGSTOP:
        processes.await_stopped(members)
    return True


def stop(leader: Identity, *, grace_s: float) -> None:
    """End the group: SIGTERM to its leader, which ends its workers, and SIGKILL to all after `grace_s`.

    Returns when all processes have ended; TimeoutError if a process survives SIGKILL (an uninterruptible wait
    of the kernel).
    """
    if processes.send(leader, signal.SIGTERM):
        send(leader, signal.SIGCONT)  # a stopped process receives SIGTERM only when it is continued
        processes.wait(leader, grace_s)
    kill(leader)


def kill(leader: Identity) -> None:
    """End the group by SIGKILL and return when all processes have ended; TimeoutError as in `stop`."""
    deadline = time.monotonic() + processes.KILL_TIMEOUT_S
    while send(leader, signal.SIGKILL):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"a process of group {leader.pid} still runs {processes.KILL_TIMEOUT_S:.0f} s after SIGKILL"
            )
        time.sleep(_POLL_S)
    processes.alive(leader)  # reaps a child of this process


def _members(leader: Identity) -> Iterator[int]:
    """Yield the pids of a group's running processes; none if the number identifies another group now."""
    if processes.boot_id() != leader.boot_id:
        return
    members = []
    for pid in (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()):
        fields = processes.stat_of(pid)
        if fields and int(fields[GROUP]) == leader.pid and fields[STATE] not in ENDED:
            members.append((pid, int(fields[SESSION]), int(fields[START_TICKS])))
    for pid, session, start_ticks in members:
        if session != leader.pid or start_ticks < leader.start_ticks:
            return
        if pid == leader.pid and start_ticks != leader.start_ticks:
            return
    yield from (pid for pid, _, _ in members)
