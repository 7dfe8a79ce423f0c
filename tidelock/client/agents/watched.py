"""Sockets whose reader looks now and then whether the agent at the other end still lives.

An agent may take long to answer: it waits for a CSN, or works on a query for minutes. A frozen one, whose
process takes no step, looks the same; its kernel even accepts connections. So a client that can ask another
agent looks, while it waits, whether this one answers anything at all. It needs no timeout that is longer than
the longest work, and none that gives up an agent that is only slow.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, Final, Self

from urllib3.util.wait import wait_for_read

#: A reader that has waited so long looks, and again each time it has waited as long, in seconds.
LOOK_AFTER_S: Final = 0.7
#: How long an agent may take to show that it lives, in seconds. Together with the time before: how long a
#: reader waits for a frozen one; below 3 s, whatever it asked for.
SHOW_S: Final = 1.5
#: The same when no agent has shown it in time: then it is the machine, or the network, that is slow.
LAST_SHOW_S: Final = 15.0


class WatchedSocket(socket.socket):
    """A socket that ends its reads with TimeoutError as soon as the other end does not live."""

    _lives: Callable[[], bool]

    @classmethod
    def take(cls, plain: socket.socket, lives: Callable[[], bool]) -> Self:
        """Return a watched socket in place of a connected one, which must not be used any more.

        Args:
            plain: The connected socket.
            lives: Returns whether the agent at the other end lives; it may take `SHOW_S`.
        """
        timeout_s = plain.gettimeout()
        made = cls(plain.family, plain.type, plain.proto, fileno=plain.detach())
        made.settimeout(timeout_s)
        made._lives = lives
        return made

    def recv_into(self, *args: Any, **named: Any) -> int:
        """Receive bytes; TimeoutError when the timeout of the socket is over, or the other end is frozen."""
        timeout_s = self.gettimeout()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not wait_for_read(self, timeout=self._next_look_s(deadline)):
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("timed out")
            if not self._lives() and not wait_for_read(self, timeout=0):
                raise TimeoutError("the agent shows no sign of life")
        return super().recv_into(*args, **named)

    @staticmethod
    def _next_look_s(deadline: float | None) -> float:
        if deadline is None:
            return LOOK_AFTER_S
        return max(0.0, min(LOOK_AFTER_S, deadline - time.monotonic()))
