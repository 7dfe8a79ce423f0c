"""The few requests of ZooKeeper's protocol that no client library lets a test send."""

from __future__ import annotations

import socket
import struct

TIMEOUT_S = 20.0
_CLOSE = -11


def end_session(address: str, session: int, password: bytes) -> None:
    """Let a session end on the server while its client thinks that it is alive, as an expiry does."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        greeting = struct.pack(
            f"!iqiqi{len(password)}s?", 0, 0, 10_000, session, len(password), password, False
        )
        _send(connection, greeting)
        _receive(connection)
        _send(connection, struct.pack("!ii", 1, _CLOSE))
        _receive(connection)


def _send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(struct.pack("!i", len(frame)) + frame)


def _receive(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        (length,) = struct.unpack("!i", stream.read(4))
        return stream.read(length)
