"""A door before a data port, behind which an answer takes long: it says so, as a reader process does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Final

from tidelock.replica_agent.readers.signs import SIGN, SIGN_S

_READ_BYTES: Final = 64 << 10


class SlowDoor:
    """Passes connections on to an address; the first file that is opened waits, behind signs of life.

    Args:
        address: `host:port` of the data port.
        wait_s: How long the first answer to an OPEN takes, in seconds.

    Attributes:
        address: `host:port` of the door.
        opened: How many files were opened.
    """

    def __init__(self, address: str, wait_s: float) -> None:
        host, _, port = address.rpartition(":")
        self._to = host, int(port)
        self._wait_s = wait_s
        self.opened = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more; connections end with their clients."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._to) as server:
            threading.Thread(target=_pump, args=(server, client), daemon=True).start()
            while asked := client.recv(_READ_BYTES):
                if b"op=OPEN" in asked and self._is_first():
                    self._wait(client)
                server.sendall(asked)

    def _is_first(self) -> bool:
        with self._lock:
            self.opened += 1
            return self.opened == 1

    def _wait(self, client: socket.socket) -> None:
        until = time.monotonic() + self._wait_s
        while time.monotonic() < until:
            time.sleep(SIGN_S)
            client.sendall(SIGN)


def _pump(server: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := server.recv(_READ_BYTES):
            client.sendall(data)
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
