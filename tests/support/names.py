"""Names that end in `.localhost` are this machine (RFC 6761 section 6.3), even if the system knows none."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

LOOPBACK = "127.0.0.1"
_real = socket.getaddrinfo


@contextlib.contextmanager
def local() -> Iterator[None]:
    """Let this process resolve such names to the loopback address inside the block."""
    with mock.patch.object(socket, "getaddrinfo", _getaddrinfo):
        yield


def write_hosts(path: Path, names: Iterable[str]) -> None:
    """Write a file of hosts for Java's property `jdk.net.hosts.file`; Java then uses no other resolver."""
    everyone = ["localhost", socket.gethostname(), *names]
    path.write_text("".join(f"{LOOPBACK} {name}\n" for name in everyone), encoding="ascii")


def _getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
    is_local = isinstance(host, str) and host.endswith(".localhost")
    return _real(LOOPBACK if is_local else host, *arguments, **options)
