"""Processes that survive their terminal, and are ended only when they surely are the ones that were started.

A pid alone names nobody: it is used again after a while, and after a reboot at once. So a process is known by
its pid, the time at which it was started and the boot of the machine; a pid file holds all three. Signals go
through a pidfd that is opened before the identity is checked, so they cannot reach a successor (Linux 5.3 or
newer).

What is not promised: a crash of this process between the start of a child and the writing of its pid file
leaves a child that no file names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

#: How long a process that was sent SIGKILL may take to be gone, in seconds: the kernel has to write back and
#: free.
KILL_TIMEOUT_S: Final = 30.0

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Fields of /proc/<pid>/stat after the command's name (proc(5): state is field 3, starttime field 22).
_STATE, _START_TICKS = 0, 19
#: Children of this process. They are kept until they have ended, since only their parent can reap them.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclasses.dataclass(frozen=True)
class Identity:
    """One process for ever: `start_ticks` counts from the boot that `boot_id` names."""

    pid: int
    start_ticks: int
    boot_id: str


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file while inside; it is given back even when this process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start(
    command: Sequence[str], *, pid_file: Path, log: Path, folder: Path, env: Mapping[str, str] | None = None
) -> Identity:
    """Start a process in a session of its own, working in `folder`, its output added to `log`.

    It gets no terminal, no standard input and no signal meant for the foreground. OSError if it cannot be
    started.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=env,
            start_new_session=True,
        )
    _children[child.pid] = child
    # A child that has already ended is still in /proc, as a zombie, until somebody polls it.
    return record(child.pid, pid_file)


def record(pid: int, pid_file: Path) -> Identity:
    """Write a process that has just been started into its pid file."""
    _, start_ticks = _stat(pid) or ("", 0)
    identity = Identity(pid, start_ticks, _boot_id())
    pid_file.write_text(json.dumps(dataclasses.asdict(identity)) + "\n", encoding="utf-8")
    return identity


def load(pid_file: Path) -> Identity | None:
    """Return the process that a pid file names; None if there is none, or no sense in it (a torn write)."""
    try:
        fields = json.loads(pid_file.read_text(encoding="utf-8"))
        return Identity(int(fields["pid"]), int(fields["start_ticks"]), str(fields["boot_id"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def alive(process: Identity) -> bool:
    """Whether this very process is still running; one that has ended and waits for its parent is not."""
    if child := _children.get(process.pid):
        child.poll()
        if child.returncode is not None:
            _children.pop(process.pid, None)
    stat = _stat(process.pid)
    return (
        stat is not None
        and stat[0] not in {"Z", "X"}
        and stat[1] == process.start_ticks
        and process.boot_id == _boot_id()
    )


def send(process: Identity, signum: signal.Signals) -> bool:
    """Send a signal to this very process; False if it has ended."""
    with _pidfd(process) as pidfd:
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, signum)
        except ProcessLookupError:
            return False
        return True


def wait(process: Identity, timeout_s: float) -> bool:
    """Wait until the process has ended; False if it still runs after the time."""
    with _pidfd(process) as pidfd:
        if pidfd is not None:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            poller.poll(timeout_s * 1000)
    return not alive(process)


def stop(process: Identity, *, grace_s: float) -> None:
    """End the process: SIGTERM, and SIGKILL if it is still there after `grace_s`; return when it is gone.

    TimeoutError if not even that helps (a process in an uninterruptible wait of the kernel).
    """
    if send(process, signal.SIGTERM) and not wait(process, grace_s):
        # A stopped process (SIGSTOP) takes SIGTERM only when it is continued, SIGKILL at once.
        kill(process)


def kill(process: Identity) -> None:
    """End the process by SIGKILL; return when it is gone. TimeoutError as in `stop`."""
    if send(process, signal.SIGKILL) and not wait(process, KILL_TIMEOUT_S):
        raise TimeoutError(f"process {process.pid} is still there {KILL_TIMEOUT_S:.0f} s after SIGKILL")


@contextlib.contextmanager
def _pidfd(process: Identity) -> Iterator[int | None]:
    """A descriptor of this very process, or None if it has ended."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError as error:
        # EINVAL: the pid has become the number of a thread of somebody else.
        if error.errno not in {errno.ESRCH, errno.EINVAL}:
            raise
        yield None
        return
    try:
        # Only now: from here on the descriptor stays with whoever has the pid, so a match is a match for
        # good.
        yield pidfd if alive(process) else None
    finally:
        os.close(pidfd)


def _stat(pid: int) -> tuple[str, int] | None:
    """State and start time of a process, from /proc; None if there is none of this pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name stands in parentheses and may hold anything, so the fields begin after the last one.
    fields = text.rpartition(")")[2].split()
    return fields[_STATE], int(fields[_START_TICKS])


def _boot_id() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()
