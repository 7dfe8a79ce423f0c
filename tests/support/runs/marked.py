"""The process of `guard.py`: it waits for the end of a run, and ends what the run has started."""

from __future__ import annotations

import os
import select
import signal
import sys

from tidelock.testing.leftovers import kill_marked


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
