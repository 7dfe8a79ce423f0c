"""Frames between an agent and a worker process: four bytes of length (big-endian), then payload.

The first frame from the agent is the configuration of the worker; the first frame from the worker is empty
and says that it has started. The room that runs the worker defines the content of later frames.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

_HEADER: Final = struct.Struct(">I")


def pack(*pieces: bytes) -> bytes:
    """Return the frame whose payload is these pieces, one after the other."""
    return b"".join((_HEADER.pack(sum(map(len, pieces))), *pieces))


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Return the payload of the next frame.

    Raises:
        asyncio.IncompleteReadError: The other side has ended.
        ConnectionError: Likewise.
    """
    (length,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
    return await reader.readexactly(length)


def receive_frame(connection: socket.socket) -> bytes:
    """Wait for the next frame and return its payload.

    Raises:
        EOFError: The other side has ended.
        OSError: Likewise.
    """
    (length,) = _HEADER.unpack(_receive(connection, _HEADER.size))
    return _receive(connection, length)


def _receive(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)
