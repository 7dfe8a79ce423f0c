"""A system that knows no name below `.localhost`, as Debian is without a package for it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tidelock import loopback_names
from tidelock.loopback_names import LOOPBACK, LoopbackNames

_real = socket.getaddrinfo


@contextlib.contextmanager
def unknown() -> Iterator[None]:
    """Let this process know no such name inside the block, and nothing of what it has known before."""
    fresh = LoopbackNames(loopback_names.system_knows)
    with (
        mock.patch.object(socket, "getaddrinfo", _getaddrinfo),
        mock.patch.object(loopback_names, "_names", fresh),
    ):
        yield


def write_hosts(path: Path) -> None:
    """Write a file of hosts for Java's property `jdk.net.hosts.file`; Java then uses no other resolver."""
    known = ["localhost", socket.gethostname()]
    path.write_text("".join(f"{LOOPBACK} {name}\n" for name in known), encoding="ascii")


def _getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
    if isinstance(host, str) and host.endswith(".localhost"):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return _real(host, *arguments, **options)
