"""The worker's side of a worker process: its configuration, and its end when the agent has ended.

The main function of a worker's module calls :func:`begin` first, sends :data:`STARTED` when the process takes
requests, and has a thread or task wait for :func:`requests` as long as the process runs.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

import msgspec

from tidelock.replica_agent.workers.frames import pack, read_frame, receive_frame

_PR_SET_PDEATHSIG: Final = 1
#: The empty frame by which a process reports that it has started.
STARTED: Final = pack()


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a worker process at its start: its configuration and its sockets.

    Attributes:
        connection: The socket to its agent.
        config: Its configuration, as the agent sent it.
        sockets: The sockets that it shares with the agent, in the order of ``Program.sockets``.
    """

    connection: socket.socket
    config: bytes
    sockets: tuple[socket.socket, ...]


def begin(*, ignored: Iterable[signal.Signals]) -> Given:
    """Tie this process to its agent and return its input; ends the process if the agent has ended.

    Args:
        ignored: Signals that reach this process only because it is in the agent's process group (a terminal
            sends SIGINT to all of it). The agent ends its workers itself.
    """
    agent, *descriptors = map(int, sys.argv[1:])
    _die_with(agent)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    connection, *sockets = (socket.socket(fileno=descriptor) for descriptor in descriptors)
    return Given(connection=connection, config=next(requests(connection)), sockets=tuple(sockets))


def requests(connection: socket.socket) -> Iterator[bytes]:
    """Yield the agent's frames; when the agent ends, this process ends at once, without clean-up.

    The process must not outlive the agent, not even by one answer: the next agent on the same data directory
    alone decides what happens there.
    """
    try:
        while True:
            yield receive_frame(connection)
    except (EOFError, OSError):
        os._exit(0)


async def requests_async(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the frames that the agent sends, as :func:`requests`, for a process with an event loop."""
    try:
        while True:
            yield await read_frame(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        os._exit(0)


def _die_with(agent: int) -> None:
    """Have the kernel end this process with its parent, in case this process cannot notice that itself."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        os._exit(0)
