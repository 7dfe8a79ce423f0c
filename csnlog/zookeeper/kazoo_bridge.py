"""The bridge from kazoo's thread to the event loop: answers, watches, and calls in general.

The module does not import kazoo; :mod:`tidelock.csnlog.zookeeper.kazoo_store` connects these pieces to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

Watch = Callable[[], None]
#: The callback of a watch with its znode, preceded by whether it watches the children.
WatchKey = tuple[bool, str, Watch]

#: The session timeout in a server's first answer, in ms: an int32 after two others, length and version.
_TIMEOUT_AT: Final = slice(8, 12)


class LoopQueue:
    """Calls that another thread requests in the event loop, in order; one wake-up serves all pending ones."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._woken = False

    def post(self, call: Callable[..., None], *args: Any) -> None:
        """Request a call in the loop. Any thread may call this."""
        self._calls.append((call, args))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to notify
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._woken = False  # before the first look: a call posted from here on wakes the loop again
        while self._calls:
            call, args = self._calls.popleft()
            call(*args)


@dataclass(slots=True, kw_only=True, eq=False)
class AsyncReply:
    """The answer to one request, with the interface that kazoo expects; kazoo's thread completes it.

    Attributes:
        inbox: Carries the answer to the event loop.
        answered: Called there with this reply and the answer.
        proved: Called at once, in kazoo's thread, with the time at which an answered request was sent: the
            loop may be busy for long.
    """

    inbox: LoopQueue
    answered: Callable[[AsyncReply, object], None]
    proved: Callable[[float], None]
    future: asyncio.Future[object] = field(default_factory=asyncio.Future, init=False)
    sent_s: float = field(default_factory=time.monotonic, init=False)

    def prove(self) -> None:
        """Note that a server has answered."""
        self.proved(self.sent_s)

    def set(self, value: object = None) -> None:
        """Process the server's answer."""
        self.prove()
        self.inbox.post(self.answered, self, value)

    def set_exception(self, error: Exception) -> None:
        """Process an error, which need not come from a server."""
        self.inbox.post(self.answered, self, error)


class Watches:
    """The armed watches of a store. A watch that was lost with its connection fires when the link is back."""

    def __init__(self, inbox: LoopQueue) -> None:
        self._inbox = inbox
        self._armed: dict[WatchKey, Armed] = {}
        self._lost: list[Armed] = []

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, key: WatchKey) -> tuple[Armed, bool]:
        """Return the watch to give to kazoo, and whether it is new: the same key is armed once."""
        known = self._armed.get(key)
        armed = self._armed.setdefault(key, known or Armed(self, key))
        return armed, known is None

    def forget(self, armed: Armed) -> None:
        """Remove a watch that was not armed after all."""
        self._armed.pop(armed.key, None)

    def post(self, armed: Armed, *, lost: bool) -> None:
        """Process an event (in kazoo's thread)."""
        self._inbox.post(self._lost.append if lost else self._fire, armed)

    def fire_lost(self) -> None:
        """Fire the watches that were lost: from here on a new read makes sense."""
        lost, self._lost = self._lost, []
        for armed in lost:
            self._fire(armed)

    def _fire(self, armed: Armed) -> None:
        self.forget(armed)
        _, _, callback = armed.key
        callback()


class Armed:
    """One armed watch. kazoo keeps a set of them for each znode; the set holds the same object once."""

    __slots__ = ("_watches", "key")

    def __init__(self, watches: Watches, key: WatchKey) -> None:
        self._watches = watches
        self.key = key

    def __call__(self, event: Any) -> None:
        """Process an event from kazoo: a change of the znode, or, of type NONE, a lost connection."""
        self._watches.post(self, lost=event.type == "NONE")


class HandshakeSocket(socket.socket):
    """A connection that notes the session timeout in the server's first answer: kazoo does not expose it."""

    def __init__(self, connected: socket.socket, noted: Callable[[float], None]) -> None:
        super().__init__(fileno=connected.detach())
        self._noted = noted
        self._head: bytes | None = b""

    @property
    def greeted(self) -> bool:
        """Whether the server has answered the greeting."""
        return self._head is None

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Receive; call ``noted`` once with the timeout in seconds, 0 if the session had expired."""
        received = super().recv(bufsize, flags)
        if self._head is not None:
            self._head += received
            if len(self._head) >= _TIMEOUT_AT.stop:
                self._noted(int.from_bytes(self._head[_TIMEOUT_AT], "big") / 1000)
                self._head = None
        return received
