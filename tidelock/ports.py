"""Reservation of ports of this machine for servers that are started a moment later.

No process listens on a chosen port before its server is started, or while it is restarted, so another program
that chooses ports finds the port free. Therefore a choice is kept as a lock on one byte of a file that all
programs of the user share: byte n is port n. The kernel releases the locks when the process ends, even if it
is killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Sequence
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

    def free_ports(self, count: int, wanted: Sequence[int] = ()) -> list[int]:
        """Return distinct ports that are neither used nor reserved; UnavailableError if too few exist.

        Args:
            count: Number of ports.
            wanted: Distinct ports, at most `count`: each that is free is returned, at its place in `wanted`.
        """
        free: list[int] = []
        with self._lock, contextlib.ExitStack() as bound:
            file = self._open()
            for port in self._candidates(wanted):
                candidate = bound.enter_context(socket.socket())
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with contextlib.suppress(OSError):
                    candidate.bind((HOST, port))
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                    free.append(port)
                if len(free) == count:
                    self._keep(free)
                    others = iter([port for port in free if port not in wanted])
                    return [port if port in free else next(others) for port in wanted] + [*others]
            self._release(free)
        raise UnavailableError(
            f"fewer than {count} free ports between {PORTS.start} and {PORTS.stop}; end servers that use them"
        )

    def _candidates(self, wanted: Sequence[int]) -> Iterable[int]:
        kept = set(self._kept)  # the kernel grants a process its own locks again
        candidates = dict.fromkeys((*wanted, *random.sample(PORTS, len(PORTS))))
        return (port for port in candidates if port not in kept)

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


def free_ports(count: int, wanted: Sequence[int] = ()) -> list[int]:
    """Return distinct ports as `Reservations.free_ports` does, reserved for this process."""
    return _RESERVATIONS.free_ports(count, wanted)


def in_use(host: str, port: int) -> bool:
    """Return whether a server listens at an address; False where the host is not this machine."""
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
