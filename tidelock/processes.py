"""Processes that survive their terminal, and signals that reach only the process that was started.

A pid alone does not identify a process: it is used again after a while, and after a reboot at once. So a
process is identified by its pid, its start time and the boot of the machine; a pid file holds all three.
Signals are sent through a pidfd that is opened before the identity is checked, so they cannot reach a later
process with the same pid (Linux 5.3 or newer).

Not promised: if this process crashes between the start of a child and the writing of the pid file, no file
names the child.
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
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

#: Time that a process may take to end after SIGKILL, in seconds: the kernel has to write back and free
#: memory.
KILL_TIMEOUT_S: Final = 30.0

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Fields of /proc/<pid>/stat after the command's name (proc(5): fields 3, 5, 6 and 22), and the states of a
#: process that has ended.
STATE, GROUP, SESSION, START_TICKS = 0, 2, 3, 19
ENDED: Final = frozenset("ZX")
#: The states of a thread that runs nothing, and how long the kernel may take to stop one, in seconds.
_HELD: Final = frozenset("TtZX")
_STOPPED_S: Final = 5.0
#: Pids of children of this process. A pid is kept until its child was reaped, which only the parent can do.
_children: set[int] = set()


@dataclasses.dataclass(frozen=True)
class Identity:
    """A process, identified forever: `start_ticks` counts from the boot that `boot_id` names."""

    pid: int
    start_ticks: int
    boot_id: str


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file during the block; it is released even if this process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start(
    command: Sequence[str], *, pid_file: Path, log: Path, folder: Path, env: Mapping[str, str] | None = None
) -> Identity:
    """Start a process in a new session, with the working directory `folder`, and append its output to `log`.

    The process gets no terminal, no standard input and no signal meant for the foreground. OSError if it
    cannot be started.
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
    _children.add(child.pid)
    # From here on this module reaps the child. It may outlive this process on purpose: an object without a
    # return code would report that in a ResourceWarning when it is deleted.
    child.returncode = 0
    # A child that has already ended is still in /proc, as a zombie, until it is polled.
    return record(child.pid, pid_file)


def record(pid: int, pid_file: Path) -> Identity:
    """Write the identity of a process that was just started to its pid file, and return the identity."""
    identity = _identity(pid)
    pid_file.write_text(json.dumps(dataclasses.asdict(identity)) + "\n", encoding="utf-8")
    return identity


def me() -> Identity:
    """Return the identity of this process."""
    return _identity(os.getpid())


def _identity(pid: int) -> Identity:
    fields = stat_of(pid)
    return Identity(pid, int(fields[START_TICKS]) if fields else 0, boot_id())


def load(pid_file: Path) -> Identity | None:
    """Return the process that a pid file names; None if the file is missing or damaged (a torn write)."""
    try:
        fields = json.loads(pid_file.read_text(encoding="utf-8"))
        return Identity(int(fields["pid"]), int(fields["start_ticks"]), str(fields["boot_id"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def alive(process: Identity) -> bool:
    """Return whether exactly this process is running; a zombie, which has ended, is not."""
    if process.pid in _children:
        _reap(process.pid)
    fields = stat_of(process.pid)
    return (
        fields is not None
        and fields[STATE] not in ENDED
        and int(fields[START_TICKS]) == process.start_ticks
        and process.boot_id == boot_id()
    )


def send(process: Identity, signum: signal.Signals) -> bool:
    """Send a signal to exactly this process; return False if it has ended.

    After SIGSTOP the call returns when the process has stopped, see :func:`await_stopped`.
    """
    with _pidfd(process) as pidfd:
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, signum)
        except ProcessLookupError:
            return False
        if signum is signal.SIGSTOP:
            await_stopped([process.pid])
        return True


def await_stopped(pids: Iterable[int]) -> None:
    """Wait until all threads of processes have stopped, which SIGSTOP does not do at once.

    A thread on another processor may still answer a request. A thread that waits for a disk stops only after
    it, so the wait is bounded.
    """
    until = time.monotonic() + _STOPPED_S
    for pid in pids:
        while time.monotonic() < until and not _is_stopped(pid):
            time.sleep(0.001)


def _is_stopped(pid: int) -> bool:
    try:
        threads = [int(folder.name) for folder in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return True  # it has ended
    found = (stat_of(thread) for thread in threads)
    return all(fields is None or fields[STATE] in _HELD for fields in found)


def wait(process: Identity, timeout_s: float) -> bool:
    """Wait until the process has ended; return False if it still runs after the timeout."""
    with _pidfd(process) as pidfd:
        if pidfd is not None:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            poller.poll(timeout_s * 1000)
    return not alive(process)


def stop(process: Identity, *, grace_s: float) -> None:
    """End the process by SIGTERM, and by SIGKILL if it still runs after `grace_s`; return when it has ended.

    TimeoutError if it survives SIGKILL (a process in an uninterruptible wait of the kernel).
    """
    if send(process, signal.SIGTERM) and not wait(process, grace_s):
        # A stopped process (SIGSTOP) receives SIGTERM only when it is continued, SIGKILL at once.
        kill(process)


def kill(process: Identity) -> None:
    """End the process by SIGKILL; return when it has ended. TimeoutError as in `stop`."""
    if send(process, signal.SIGKILL) and not wait(process, KILL_TIMEOUT_S):
        raise TimeoutError(f"process {process.pid} still runs {KILL_TIMEOUT_S:.0f} s after SIGKILL")


def _reap(pid: int) -> None:
    """Take the exit code of a child if it has ended, so that the kernel can forget it."""
    try:
        ended, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        ended = pid  # another thread was faster
    if ended:
        _children.discard(pid)


@contextlib.contextmanager
def _pidfd(process: Identity) -> Iterator[int | None]:
    """Yield a descriptor of exactly this process, or None if it has ended."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError as error:
        # EINVAL: the pid is now the number of a thread of another process.
        if error.errno not in {errno.ESRCH, errno.EINVAL}:
            raise
        yield None
        return
    try:
        # Checked only now: the descriptor stays bound to the process that had the pid when it was opened, so
        # a match remains valid.
        yield pidfd if alive(process) else None
    finally:
        os.close(pidfd)


def stat_of(pid: int) -> list[str] | None:
    """Return the fields of a process in /proc after the command's name; None if no process has this pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name is in parentheses and may contain any text, so the fields begin after the last one.
    return text.rpartition(")")[2].split()


def boot_id() -> str:
    """Return the id of the machine's boot."""
    return _BOOT_ID.read_text(encoding="ascii").strip()
