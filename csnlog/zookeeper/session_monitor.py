"""The own clock's judgement of the link to ZooKeeper, and the requests that are under way.

The module does not import kazoo; :mod:`tidelock.csnlog.zookeeper.kazoo_store` connects it. All times are of
the monotonic clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidelock.csnlog.core.results import Unknown
from tidelock.csnlog.core.store import LinkState
from tidelock.csnlog.zookeeper.kazoo_bridge import AsyncReply

log = logging.getLogger("tidelock.zookeeper")

#: Share of the session timeout without a proof of life after which nothing may be assumed of the session.
_DEADLINE_SHARE: Final = 2 / 3
#: Share of it after which an idle link is probed.
_IDLE_SHARE: Final = 1 / 4
#: Share of it that the first attempt to connect may take, and how often that is doubled at most.
_ATTEMPT_SHARE: Final = 1 / 6
_SLOW_MAX: Final = 3
#: How often the clock is read within the shortest of the timeouts.
_TICKS: Final = 10


class SessionClock:
    """The time until which the session is certainly alive.

    A server counts the session timeout from the last request that it received. The client knows only when it
    sent that request, which was earlier. So it counts from there, and keeps a third of the timeout for
    finding another server.
    """

    def __init__(self, session_timeout_s: float) -> None:
        self.session_timeout_s = session_timeout_s
        self._proof_s = float("-inf")

    def prove(self, sent_s: float) -> None:
        """Note that a request sent at ``sent_s`` has been answered (in kazoo's thread)."""
        self._proof_s = max(self._proof_s, sent_s)

    @property
    def deadline_s(self) -> float:
        """The moment from which on nothing may be assumed of the session."""
        return self._proof_s + self.session_timeout_s * _DEADLINE_SHARE

    def idle(self, now_s: float) -> bool:
        """Return whether the last proof is so old that a new one should be requested."""
        return now_s >= self._proof_s + self.session_timeout_s * _IDLE_SHARE


class ConnectBackoff:
    """The time that one attempt to connect may take, for the TCP connection and for the greeting each.

    A server that is just starting, or frozen, may accept a connection and never answer it. A client that
    waits for it as long as a session lasts, as kazoo does, loses the session. So an attempt is short, and
    becomes longer only while servers turn out to be slow.
    """

    def __init__(self, clock: SessionClock) -> None:
        self._clock = clock
        self._slow = 0

    @property
    def attempt_s(self) -> float:
        """Time for the next attempt."""
        return min(_ATTEMPT_SHARE * (1 << self._slow), 1.0) * self._clock.session_timeout_s

    def ran_out(self) -> None:
        """Note that an attempt took too long."""
        self._slow = min(self._slow + 1, _SLOW_MAX)

    def answered(self) -> None:
        """Note that a server has answered."""
        self._slow = 0


class InFlight:
    """The requests without answer, oldest first: at most ``limit``; a caller waits at most ``timeout_s``.

    A request keeps its slot until it is answered or the connection breaks, also when its caller got Unknown:
    it is still queued or under way.
    """

    def __init__(self, *, limit: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._places = asyncio.Semaphore(limit)
        self._replies: dict[AsyncReply, None] = {}

    def __len__(self) -> int:
        return len(self._replies)

    async def place(self) -> bool:
        """Wait for a slot, which :meth:`add` uses or :meth:`leave` releases; False if none became free."""
        if not self._places.locked():
            return await self._places.acquire()  # the usual case, without the cost of a timer
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._places.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        """Release a slot unused."""
        self._places.release()

    def add(self, reply: AsyncReply) -> None:
        """Put a request that was sent just now into its slot."""
        self._replies[reply] = None

    def answer(self, reply: AsyncReply, value: object) -> None:
        """Hand an answer to its caller; the answer to an abandoned or timed-out request has no receiver."""
        if reply in self._replies:
            del self._replies[reply]
            self._places.release()
            _complete(reply, value)

    def abandon(self, cause: str) -> None:
        """Answer all callers that the outcome of their requests is unknown."""
        for reply in self._replies:
            self._places.release()
            _complete(reply, Unknown(cause))
        self._replies.clear()

    def expire(self, now_s: float) -> None:
        """Answer the callers that have waited long enough that the outcome of their requests is unknown."""
        for reply in self._replies:
            if now_s - reply.sent_s < self.timeout_s:
                return
            _complete(reply, Unknown(f"no answer within {self.timeout_s:g} s"))


def _complete(reply: AsyncReply, value: object) -> None:
    if not reply.future.done():
        reply.future.set_result(value)


@dataclass(slots=True, kw_only=True, eq=False)
class SessionMonitor:
    """State of link and session: valid only as far as the clock allows, and reported to listeners.

    Attributes:
        clock: Holds the proofs that the session is alive.
        in_flight: The requests, which end with the link.
        up: Returns whether a connection exists at this moment.
        cut: Breaks the connection, so that another server is tried.
        probe: Sends a request that changes nothing.
    """

    clock: SessionClock
    in_flight: InFlight
    up: Callable[[], bool]
    cut: Callable[[], None]
    probe: Callable[[], None]
    session: int = field(default=0, init=False)
    changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    #: The loop was notified of the connection, and its deadline has not passed since.
    _believed: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)
    _notified: tuple[LinkState, int] = field(default=(LinkState.SUSPENDED, 0), init=False)
    _listeners: list[Callable[[], None]] = field(default_factory=list, init=False)
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)

    @property
    def link(self) -> LinkState:
        """CONNECTED only while the session is certainly alive at this moment."""
        if self._believed and self.up() and time.monotonic() < self.clock.deadline_s:
            return LinkState.CONNECTED
        return LinkState.SUSPENDED

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change of link or session."""
        self._listeners.append(listener)

    def came_up(self, session: int) -> None:
        """Note that a connection exists, in this session."""
        if not self._closed:
            self._believed = True
            self.session = session
            self.tell()

    def went_down(self) -> None:
        """Note that the connection was lost."""
        self._end("the connection was lost")

    def close(self) -> None:
        """Go down for good."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._end("the store was closed")

    def tick(self) -> None:
        """Let requests time out, notice a silent server, probe an idle one; then schedule the next tick."""
        now_s = time.monotonic()
        self.in_flight.expire(now_s)
        if self._believed and now_s >= self.clock.deadline_s:
            log.warning("no answer from ZooKeeper for 2/3 of the session timeout; trying another server")
            self._end("no answer for so long that the session may have ended")
            self.cut()
        elif self._believed and not self.in_flight and self.clock.idle(now_s):
            self.probe()
        self.tell()
        delay_s = min(self.in_flight.timeout_s, self.clock.session_timeout_s) / _TICKS
        if self._believed:
            delay_s = min(delay_s, max(self.clock.deadline_s - now_s, 0.0))
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.tick)

    def _end(self, cause: str) -> None:
        self._believed = False
        self.in_flight.abandon(cause)
        self.tell()

    def tell(self) -> None:
        """Notify the listeners if link or session have changed since the last notification."""
        state = (self.link, self.session)
        if state != self._notified:
            self._notified = state
            log.info("ZooKeeper session %#x is %s", self.session, self.link.value)
            self.changed.set()
            for listener in self._listeners:
                listener()
