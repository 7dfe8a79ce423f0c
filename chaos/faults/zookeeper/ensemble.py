"""The servers of ZooKeeper as they answer, and the connections and sessions that agents have there."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chaos.world import World

TIMEOUT_S: Final = 3.0
_ESTABLISHED: Final = "01"
#: Requests of ZooKeeper's protocol, by their numbers, and the end of a session.
_EXISTS, _CLOSE = 3, -11
_SESSION_MS: Final = 10_000
#: The answer to `exists`: xid, zxid, error; then the znode's times and versions, up to its owner.
_OWNER: Final = struct.Struct("!iqi qqqq iii q")
#: The number that ZooKeeper mixes with that of a session to seed its password.
_SECRET: Final = 0xB3415C00
_MULTIPLIER, _MASK = 0x5DEECE66D, (1 << 48) - 1


def address(world: World, server: str) -> tuple[str, int]:
    """Return host and port of a server."""
    places = world.cluster.zk.partition("/")[0].split(",")
    host, _, port = places[world.cluster.zookeepers.index(server)].rpartition(":")
    return host, int(port)


def answer(world: World, server: str, word: str) -> str | None:
    """Return the answer of a server to a four-letter word; None if it does not answer in time."""
    try:
        with socket.create_connection(address(world, server), TIMEOUT_S) as connection:
            connection.sendall(word.encode("ascii"))
            with connection.makefile("rb") as stream:
                return stream.read().decode("utf-8", errors="replace") or None
    except OSError:
        return None


def mode(world: World, server: str) -> str | None:
    """Return `leader`, `follower` or `standalone`; None while a server serves no clients."""
    for line in (answer(world, server, "srvr") or "").splitlines():
        if line.startswith("Mode: "):
            return line.removeprefix("Mode: ").strip()
    return None


def connected(world: World, replica: str) -> str | None:
    """Return the server that an agent is connected to, by the sockets of its host; None if to none."""
    node = world.cluster.node(replica)
    places = {_hexadecimal(world, server): server for server in world.cluster.zookeepers}
    try:
        lines = Path(f"/proc/{node.pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    for line in lines:
        _, _, remote, state, *_ = line.split()
        if state == _ESTABLISHED and remote in places:
            return places[remote]
    return None


def owner(world: World, path: str) -> int | None:
    """Return the session that holds an ephemeral znode; None if there is no such znode.

    Args:
        world: The run.
        path: Its path below the root of the cluster.

    Raises:
        OSError: No server answers.
    """
    root = world.cluster.zk.partition("/")[2]
    text = f"/{root}/{path}".encode()
    with _session(world, 0, bytes(16)) as connection:
        _send(connection, struct.pack(f"!iii{len(text)}s?", 1, _EXISTS, len(text), text, False))
        found = _receive(connection)
        _send(connection, struct.pack("!ii", 2, _CLOSE))
    if len(found) < _OWNER.size:
        return None
    return int(_OWNER.unpack_from(found)[-1])


def end_session(world: World, session: int) -> None:
    """Let a session end on the servers, as an expiry does: its client is told when it asks again.

    Raises:
        OSError: No server answers.
    """
    with _session(world, session, password(session)) as connection:
        _send(connection, struct.pack("!ii", 1, _CLOSE))
        _receive(connection)


def password(session: int) -> bytes:
    """Return the password of a session: 16 bytes of Java's generator, which its number seeds."""
    state = (session ^ _SECRET ^ _MULTIPLIER) & _MASK
    found = b""
    for _ in range(4):
        state = (state * _MULTIPLIER + 0xB) & _MASK
        found += (state >> 16).to_bytes(4, "little")
    return found


@contextmanager
def _session(world: World, session: int, secret: bytes) -> Iterator[socket.socket]:
    """Open a session, or take one over, at the first server that answers."""
    for server in world.cluster.zookeepers:
        if mode(world, server) is None:
            continue
        with socket.create_connection(address(world, server), TIMEOUT_S) as connection:
            greeting = struct.pack(
                f"!iqiqi{len(secret)}s?", 0, 0, _SESSION_MS, session, len(secret), secret, False
            )
            _send(connection, greeting)
            _receive(connection)
            yield connection
            return
    raise ConnectionError("no server of ZooKeeper serves")


def _hexadecimal(world: World, server: str) -> str:
    """Return an address as /proc/net/tcp writes it: a machine's word, and the port."""
    host, port = address(world, server)
    (word,) = struct.unpack("=I", socket.inet_aton(socket.gethostbyname(host)))
    return f"{word:08X}:{port:04X}"


def _send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(struct.pack("!i", len(frame)) + frame)


def _receive(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        head = stream.read(4)
        if len(head) < 4:  # noqa: PLR2004 - a length has four bytes
            raise ConnectionError("the server of ZooKeeper has ended the connection")
        return stream.read(struct.unpack("!i", head)[0])
