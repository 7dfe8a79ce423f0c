"""Runs a program whose system calls are supervised: ``python -m tests.chaos.launcher SOCKET PROGRAM ...``.

The program has the launcher's pid. Before it begins, :mod:`tests.chaos.supervisor` gets the listener through
SOCKET.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Sequence

from tests.chaos import seccomp


def be_supervised(address: str) -> None:
    """Install the filter and hand its listener over; the process has no other thread. OSError if refused."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    installed = threading.Event()
    listener = -1

    def hand_over() -> None:
        # This thread is older than the filter, so its own sendmsg does not wait for the supervisor.
        installed.wait()
        socket.send_fds(connection, [str(os.getpid()).encode()], [listener])

    messenger = threading.Thread(target=hand_over)
    messenger.start()
    try:
        listener = seccomp.install()
    finally:
        installed.set()
        messenger.join()


def main(arguments: Sequence[str]) -> None:
    """Be supervised, and become the program."""
    address, *command = arguments
    be_supervised(address)
    os.execv(command[0], command)  # noqa: S606 - it becomes the program that it was given


if __name__ == "__main__":
    main(sys.argv[1:])
