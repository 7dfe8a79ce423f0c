"""Probes of connections that wait for an answer, so that a machine which is gone holds no client for long.

A statement may take long, so its client waits long. The kernel of a machine that is up answers a probe,
however busy or frozen the agent on it is. Where no probe is answered, the machine has lost its power or its
network, and no answer will come over this connection.
"""

from __future__ import annotations

import socket
from typing import Final

#: Probes that stay unanswered before the connection is given up.
_PROBES: Final = 3
#: The options for the silence before the first probe: that of Linux, and that of macOS.
_IDLE: Final = ("TCP_KEEPIDLE", "TCP_KEEPALIVE")

#: An option of a socket: its level, its name and its value.
SocketOption = tuple[int, int, int]


def options(dead_s: float) -> list[SocketOption]:
    """Return the options of a socket that is given up after so many seconds without a sign of the machine.

    Half of them are silence, after which probes are sent.
    """
    found = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    idle_s = max(1, round(dead_s / 2))
    values = {
        **dict.fromkeys(_IDLE, idle_s),
        "TCP_KEEPINTVL": max(1, round((dead_s - idle_s) / _PROBES)),
        "TCP_KEEPCNT": _PROBES,
    }
    return found + [
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in values.items()
        if hasattr(socket, name)
    ]
