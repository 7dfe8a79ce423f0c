"""Looks whether a process listens at an address, by connections that are closed at once.

Silence is no refusal: the machine of an address that does not answer may be down, frozen or cut off.
"""

from __future__ import annotations

import asyncio
import errno
import socket

#: The machine that looks has no address of that family, as ::1 where IPv6 is off.
_NO_FAMILY = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH})


async def refusal(address: str, *, timeout_s: float) -> OSError | None:
    """Return the error that shows that no process listens at ``host:port``; None if that is not certain.

    ConnectionRefusedError: Each IP address of the host refuses connections, as only a machine that runs does.
    ``socket.gaierror``: The name is unknown here.
    """
    host, _, port = address.rpartition(":")
    refused: OSError | None = None
    try:
        async with asyncio.timeout(timeout_s):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            for family, kind, protocol, _, name in found:
                error = await _connected(family, kind, protocol, name)
                if error is None or error.errno not in {errno.ECONNREFUSED, *_NO_FAMILY}:
                    return None
                refused = error if error.errno == errno.ECONNREFUSED else refused
    except socket.gaierror as error:
        return error
    except (OSError, TimeoutError, ValueError):
        return None
    return refused


async def _connected(family: int, kind: int, protocol: int, name: tuple[object, ...]) -> OSError | None:
    """Connect once; return the error of the system, or None."""
    with socket.socket(family, kind, protocol) as probe:
        probe.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(probe, name)
        except OSError as error:
            return error
    return None
