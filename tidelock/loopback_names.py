"""Names below `.localhost` are this machine, also where the system's resolver does not know them.

RFC 6761 section 6.3 asks resolvers for that: systemd-resolved and nss-myhostname do it, plain glibc and the
resolver of macOS do not. A resolver that does know such a name is followed: on the network of a container
engine, `r2.localhost` is another container.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = "127.0.0.1"
#: A name that was unknown is asked for again after this time, in seconds: in a container it is unknown while
#: the container that has it is down.
UNKNOWN_S: Final = 5.0
_SUFFIX: Final = ".localhost"


class LoopbackNames:
    """The answers of the resolver about names below `.localhost`; any number of threads may use one object.

    Args:
        knows: Return whether the resolver knows a name.
        now_s: Monotonic time.
    """

    def __init__(self, knows: Callable[[str], bool], now_s: Callable[[], float] = time.monotonic) -> None:
        self._knows = knows
        self._now_s = now_s
        #: When to ask again for a name, 0 for one that is known. As many names as a cluster has replicas.
        self._ask_at: dict[str, float] = {}

    def reachable(self, address: str) -> str:
        """Return `host:port` to connect to: with the loopback address for a name that needs it."""
        host, colon, port = address.rpartition(":")
        name = host.lower().removesuffix(".")
        if not name.endswith(_SUFFIX) or self._known(name):
            return address
        return f"{LOOPBACK}{colon}{port}"

    def _known(self, name: str) -> bool:
        """Return whether the resolver knows a name; once known, a name is left to the resolver for good.

        Otherwise the address of a container that has died would become that of this one.
        """
        ask_at = self._ask_at.get(name)
        if ask_at is None or (ask_at and self._now_s() >= ask_at):
            self._ask_at[name] = 0.0 if self._knows(name) else self._now_s() + UNKNOWN_S
        return not self._ask_at[name]


def system_knows(name: str) -> bool:
    """Return whether the resolver of the system knows a name."""
    try:
        socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return True


def as_reached(host: str, location: str) -> str:
    """Return a URL for a client that has named the server, in its header Host, by `host`.

    A client that has come by the loopback address may have no way to a name below `.localhost`. Java's follow
    redirects by themselves, so that :func:`reachable` cannot help them.
    """
    url = urlsplit(location)
    if host.rpartition(":")[0] != LOOPBACK or not (url.hostname or "").endswith(_SUFFIX):
        return location
    return url._replace(netloc=LOOPBACK if url.port is None else f"{LOOPBACK}:{url.port}").geturl()


_names: Final = LoopbackNames(system_knows)


def reachable(address: str) -> str:
    """Return `host:port` as this process can connect to it; see :class:`LoopbackNames`."""
    return _names.reachable(address)
