"""Lets requests of a crowd begin a few at a time, so that the event loop gets to all others in between."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

#: Requests that begin in one iteration of the loop. Each takes a fraction of a millisecond of it.
_PER_TURN: Final = 16


@dataclass(slots=True, eq=False, repr=False)
class Turnstile:
    """Lets so many callers through in each iteration of the event loop, first come first served.

    An iteration carries out all that is ready. If thousands of requests arrive at once, it takes seconds, and
    `/healthz`, heartbeats and peers wait for its end. Those that wait here are as many as there are requests
    under way, which the limit of open files bounds.
    """

    per_turn: int = _PER_TURN
    _left: int = field(default=0, init=False)
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque, init=False)
    _turning: bool = field(default=False, init=False)  # the next turn is scheduled

    async def enter(self) -> None:
        """Return at once if the turn has room, otherwise in a later iteration."""
        loop = asyncio.get_running_loop()
        if not self._turning:
            self._turning, self._left = True, self.per_turn
            loop.call_soon(self._turn)
        if self._left:
            self._left -= 1
            return
        ticket: asyncio.Future[None] = loop.create_future()
        self._waiting.append(ticket)
        await ticket

    def _turn(self) -> None:
        """Let the next ones through; the turns end with the first one that nobody has used."""
        self._left = self.per_turn
        while self._left and self._waiting:
            ticket = self._waiting.popleft()
            if not ticket.done():  # its request has ended meanwhile
                ticket.set_result(None)
                self._left -= 1
        self._turning = self._left < self.per_turn
        if self._turning:
            asyncio.get_running_loop().call_soon(self._turn)
