"""Signals that end a run of the benchmark end what it has started, too."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Final, NoReturn

import psutil

#: The signals of a time limit or a service manager, of Ctrl-C, and of a terminal that is closed.
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: How long the kernel may take to free what was killed, in seconds.
_KILL_TIMEOUT_S: Final = 30.0


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn such a signal into the end of all processes that this one has started, and SystemExit.

    They are killed: they work on data that is deleted afterwards, and one that drains, or whose ZooKeeper is
    held, may outlast a time limit that ends in SIGKILL.
    """

    def end(signum: int, _frame: object) -> NoReturn:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # a second one would interrupt the end
        _kill_descendants()
        sys.exit(128 + signum)

    before = {signum: signal.signal(signum, end) for signum in _SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _kill_descendants() -> None:
    """Kill the processes that this one has started, and those that they have started meanwhile."""
    while found := [child for child in psutil.Process().children(recursive=True) if not _tracks(child)]:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _, alive = psutil.wait_procs(found, timeout=_KILL_TIMEOUT_S)
        if alive:
            print(f"processes {alive} are still there after SIGKILL", file=sys.stderr)
            return


def _tracks(process: psutil.Process) -> bool:
    """Whether it is Python's tracker of semaphores, which ends with this process, and is told so by it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    return False
