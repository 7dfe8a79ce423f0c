"""A worker process for tests of the rules of all worker processes; its requests say what it does.

Its configuration says how it starts: with ``b"hang"`` and ``b"die"`` it does not end its start. Then it
answers ``b"config"`` with its configuration, ``b"die"`` by ending with status 3, ``b"work"`` with
``b"working"``, after which no thread of it runs again, and anything else with the same bytes.
"""

from __future__ import annotations

import itertools
import os
import queue
import signal
import socket
import threading
import time

from tidelock.replica_agent.workers import child
from tidelock.replica_agent.workers.frames import pack


def main() -> None:
    """Answer until the agent has ended."""
    given = child.begin(ignored=(signal.SIGTERM,))
    if given.config == b"hang":
        time.sleep(3600)
    if given.config == b"die":
        os._exit(3)
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(given.connection, asked), daemon=True).start()
    given.connection.sendall(child.STARTED)
    for shared in given.sockets:
        shared.sendall(b"shared")
    while True:
        match asked.get():
            case b"config":
                given.connection.sendall(pack(given.config))
            case b"die":
                os._exit(3)
            case b"work":
                # One endless call in C, which keeps the other thread from running.
                sum(itertools.chain(map(given.connection.send, [pack(b"working")]), range(1 << 62)))
            case other:
                given.connection.sendall(pack(other))


def _receive(connection: socket.socket, asked: queue.SimpleQueue[bytes]) -> None:
    for request in child.requests(connection):
        asked.put(request)


if __name__ == "__main__":
    main()
