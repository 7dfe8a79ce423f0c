"""Reservation of ports of this machine for servers that are started a moment later.

No process listens on a chosen port before its server is started, or while it is restarted, so another program
that chooses ports finds the port free. Therefore a choice is kept as a lock on one byte of a file that all
programs of the user share: byte n is port n. The kernel releases the locks when the process ends, even if it
is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidelock.errors import UnavailableError

HOST: Final = "127.0.0.1"
#: The range of the chosen ports, below the kernel's ports for connections (ip(7), ip_local_port_range).
PORTS: Final = range(20_000, 32_000)
#: Most ports that one process keeps. Beyond it the oldest are released, so that a process that runs for long
#: does not reserve all ports.
_KEPT_MAX: Final = 4096


class Reservations:
    """The ports that this process has reserved, visible to all processes that use the same file.

    Record locks (fcntl(2)) belong to the process and end when it closes *any* descriptor of the file, so no
    other code of the process may open the file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept: deque[int] = deque()
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def free_ports(self, count: int) -> list[int]:
        """Return distinct ports that are neither used nor reserved; UnavailableError if too few exist."""
        free: list[int] = []
        with self._lock, contextlib.ExitStack() as bound:
            file = self._open()
            for port in self._candidates():
                candidate = bound.enter_context(socket.socket())
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with contextlib.suppress(OSError):
                    candidate.bind((HOST, port))
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                    free.append(port)
                if len(free) == count:
                    self._keep(free)
                    return free
            self._release(free)
        raise UnavailableError(
            f"fewer than {count} free ports between {PORTS.start} and {PORTS.stop}; end servers that use them"
        )

    def _candidates(self) -> Iterator[int]:
        kept = set(self._kept)  # the kernel grants a process its own locks again
        return (port for port in random.sample(PORTS, len(PORTS)) if port not in kept)

    def _keep(self, ports: list[int]) -> None:
        self._kept += ports
        self._release([self._kept.popleft() for _ in range(len(self._kept) - _KEPT_MAX)])

    def _release(self, ports: list[int]) -> None:
        for port in ports:
            fcntl.lockf(self._open(), fcntl.LOCK_UN, 1, port)

    def _open(self) -> int:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._file, flags, 0o600)
        return self._descriptor


#: The reservations of this process, in a file that all processes of its user share.
_RESERVATIONS: Final = Reservations(Path(tempfile.gettempdir(), f"tidelock-{os.getuid()}.ports"))


def free_ports(count: int) -> list[int]:
    """Return distinct ports that are neither used nor reserved; UnavailableError if too few exist."""
    return _RESERVATIONS.free_ports(count)
