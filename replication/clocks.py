"""The wall clocks that this agent knows: its own, its peers', and that of the ZooKeeper leader.

Each answer of a peer says the time there. It is kept as the distance to the uptime of this machine, so that a
jump of the own wall clock changes no other one. A clock that was not heard of for a while is forgotten.

The uptime goes on while the machine is suspended; the monotonic clock of Python does not. By that one an
agent that wakes would carry the clocks of its peers on from where they were, and put them into its records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidelock.csnlog.core.ids import ReplicaId
from tidelock.csnlog.core.log_time import WITNESSES_MAX, ClockReading, agreed
from tidelock.csnlog.core.store import Written

#: Only Linux has the first one.
_UPTIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime_s() -> float:
    """Return the seconds since this machine was booted, those in which it was suspended included."""
    return time.clock_gettime(_UPTIME)


class ClockCheck(msgspec.Struct, frozen=True):
    """The own wall clock compared with the others.

    Attributes:
        offset_s: How far it is ahead of the middle one of the others; None if no other one is known.
        off: More than half of the others say that it is off by more than the bound.
        ahead_s: How far it is ahead of each of the others; the ZooKeeper leader is called ``zookeeper``.
    """

    offset_s: float | None
    off: bool
    ahead_s: Mapping[str, float]


class _Heard(msgspec.Struct, frozen=True):
    """A clock: how far it is ahead of the uptime (ms), and when that was heard."""

    ahead_ms: float
    at_s: float


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Clocks:
    """All clocks that are known here.

    Attributes:
        wall: Seconds since 1970 by the own wall clock.
        uptime: Seconds of :func:`uptime_s`.
        offset_max_s: A clock that is further off is wrong. An answer that took longer says nothing.
        kept_s: A peer's clock that was not heard of for so long is forgotten.
        server_kept_s: Likewise the leader's, which answers writes only.
    """

    wall: Callable[[], float]
    uptime: Callable[[], float]
    offset_max_s: float
    kept_s: float
    server_kept_s: float
    _peers: dict[ReplicaId, _Heard] = field(default_factory=dict, init=False)
    _server: _Heard | None = field(default=None, init=False)

    def own_ms(self) -> int:
        """Return the present time by the own wall clock (Unix, ms)."""
        return int(self.wall() * 1000)

    def begun(self) -> float:
        """Return the uptime at which a request begins whose answer says a time."""
        return self.uptime()

    def heard(self, peer: ReplicaId, time_ms: int, begun_s: float) -> None:
        """Note the clock of a peer from the answer to a request; 0: an older version says none."""
        if time_ms and self.uptime() - begun_s <= self.offset_max_s:
            self._peers[peer] = self._note(time_ms)

    def answered(self, values: Iterable[object], begun_s: float) -> None:
        """Note the clock of the ZooKeeper leader from the results of a multi."""
        stamps = [value.stamp for value in values if isinstance(value, Written)]
        if stamps and self.uptime() - begun_s <= self.offset_max_s:
            self._server = self._note(stamps[-1].time_ms)

    def reading(self) -> ClockReading:
        """Return the own clock and those of the peers, for a record."""
        return ClockReading(self.own_ms(), tuple(self._known().values())[:WITNESSES_MAX])

    def now_ms(self) -> int:
        """Return the present time that more than half of the clocks have reached (Unix, ms)."""
        return agreed((self.own_ms(), *self._known().values()), self._server_ms())

    def check(self) -> ClockCheck:
        """Compare the own clock with the others."""
        own, server = self.own_ms(), self._server_ms()
        others: dict[str, int] = {**self._known()} | ({} if server is None else {"zookeeper": server})
        ahead = {name: (own - other) / 1000 for name, other in others.items()}
        if not ahead:
            return ClockCheck(None, off=False, ahead_s=ahead)
        sorted_s = sorted(ahead.values())
        fast = sum(offset_s > self.offset_max_s for offset_s in sorted_s)
        slow = sum(offset_s < -self.offset_max_s for offset_s in sorted_s)
        middle_s = sorted_s[(len(sorted_s) - 1) // 2]
        return ClockCheck(middle_s, off=2 * max(fast, slow) > len(sorted_s), ahead_s=ahead)

    def _note(self, time_ms: int) -> _Heard:
        now_s = self.uptime()
        return _Heard(time_ms - now_s * 1000, now_s)

    def _known(self) -> dict[ReplicaId, int]:
        """Return the present time by each peer that was heard of lately, by replica."""
        now_s = self.uptime()
        fresh = {peer: one for peer, one in sorted(self._peers.items()) if now_s - one.at_s <= self.kept_s}
        return {peer: int(one.ahead_ms + now_s * 1000) for peer, one in fresh.items()}

    def _server_ms(self) -> int | None:
        now_s, server = self.uptime(), self._server
        if server is None or now_s - server.at_s > self.server_kept_s:
            return None
        return int(server.ahead_ms + now_s * 1000)
