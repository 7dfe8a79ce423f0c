"""Open connections that no request uses, for the next ones."""

from __future__ import annotations

import socket
import threading
import weakref
from typing import Final, Generic, Protocol, TypeVar

from urllib3.util.wait import wait_for_read

from tidelock.client.agents import forks

#: Connections to one agent that are kept open for the next request.
KEPT_MAX: Final = 64


class Closable(Protocol):
    """A connection."""

    @property
    def sock(self) -> socket.socket | None:
        """The socket; None if it is closed."""

    def close(self) -> None:
        """Close it; harmless if it is closed."""


C = TypeVar("C", bound=Closable)


class KeptConnections(Generic[C]):
    """Connections by the addresses of agents; each is used by one thread at a time.

    Args:
        owner: The connections are closed when it is gone.
    """

    def __init__(self, owner: object) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[C]] = {}
        self._closed = False
        # A user may forget to close a client; its sockets are not left to the garbage collector.
        weakref.finalize(owner, self.close)
        forks.register(self)

    def take(self, address: str) -> C | None:
        """Return a connection that is open; None if there is none."""
        while connection := self._pop(address):
            # An agent that was stopped, or was tired of waiting, has closed it: then it is readable.
            if connection.sock is not None and not wait_for_read(connection.sock, timeout=0):
                return connection
            connection.close()
        return None

    def give_back(self, address: str, connection: C) -> None:
        """Keep a connection for the next request, or close it."""
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if not self._closed and len(idle) < KEPT_MAX:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all, and keep none from now on."""
        with self._lock:
            self._closed = True
            self._close_all()

    def after_fork(self) -> None:
        """Close the copies of a child: its parent's connections stay open by that."""
        self._lock = threading.Lock()  # a thread of the parent may hold the other one
        self._close_all()

    def _pop(self, address: str) -> C | None:
        with self._lock:
            idle = self._idle.get(address)
            return idle.pop() if idle else None

    def _close_all(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
