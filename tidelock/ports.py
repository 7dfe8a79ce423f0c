"""Ports of this machine for servers that are started a moment later.

Between the choice of a port and the start of its server, and while a server is started again, nobody listens
there, and another program that chooses ports finds it free. So a choice is kept, as a lock on one byte of a
file that all programs of the user share: byte n is port n. The kernel gives the locks back when the process
ends, however it ends.
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
#: Where ports are chosen: below those that the kernel gives to connections (ip(7), ip_local_port_range).
PORTS: Final = range(20_000, 32_000)
#: So many choices of one process are kept; the oldest go first, so that a long one does not take them all.
_KEPT: Final = 4096


class Reservations:
    """Choices of this process, known to all processes that use the same file.

    Record locks (fcntl(2)) belong to the process and end when it closes *any* descriptor of the file: so
    nothing else may open it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept: deque[int] = deque()
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def free_ports(self, count: int) -> list[int]:
        """Return different ports that nobody uses or has chosen; UnavailableError if there are not enough."""
        found: list[int] = []
        with self._lock, contextlib.ExitStack() as bound:
            file = self._open()
            for port in self._candidates():
                candidate = bound.enter_context(socket.socket())
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with contextlib.suppress(OSError):
                    candidate.bind((HOST, port))
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                    found.append(port)
                if len(found) == count:
                    self._keep(found)
                    return found
            self._give_back(found)
        raise UnavailableError(f"fewer than {count} free ports between {PORTS.start} and {PORTS.stop}")

    def _candidates(self) -> Iterator[int]:
        kept = set(self._kept)  # a process is never refused its own locks
        return (port for port in random.sample(PORTS, len(PORTS)) if port not in kept)

    def _keep(self, ports: list[int]) -> None:
        self._kept += ports
        self._give_back([self._kept.popleft() for _ in range(len(self._kept) - _KEPT)])

    def _give_back(self, ports: list[int]) -> None:
        for port in ports:
            fcntl.lockf(self._open(), fcntl.LOCK_UN, 1, port)

    def _open(self) -> int:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._file, flags, 0o600)
        return self._descriptor


#: Of this process, shared with the other processes of its user.
_RESERVATIONS: Final = Reservations(Path(tempfile.gettempdir(), f"tidelock-{os.getuid()}.ports"))


def free_ports(count: int) -> list[int]:
    """Return different ports that nobody uses or has chosen; UnavailableError if there are not enough."""
    return _RESERVATIONS.free_ports(count)
