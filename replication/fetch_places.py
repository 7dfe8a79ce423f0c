"""Places for parts that are being fetched: a bound of their number and of their bytes in memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass


class FetchPlaces:
    """A semaphore for parts. Use it from one event loop.

    The owners of parts take turns, so that a transaction of a few parts does not wait for all parts of one
    that has thousands. Every second turn is that of the owner None, if it waits: the parts of committed
    transactions. Of one owner the part that waits longest is next.

    Args:
        parts_max: Most parts that have a place at once.
        bytes_max: Most bytes of them; a part that is larger gets a place when no other part has one.
    """

    def __init__(self, parts_max: int, bytes_max: int) -> None:
        self._parts_left, self._parts_max = parts_max, parts_max
        self._bytes_left = bytes_max
        #: By owner, the next one first: the parts that wait.
        self._waiting: OrderedDict[Hashable, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()
        self._last: Hashable = None

    @asynccontextmanager
    async def taken(self, length: int, owner: Hashable) -> AsyncIterator[Place]:
        """Wait for a place of a part of so many bytes, and keep it during the block."""
        if self._waiting or not self._fits(length):
            await self._turn(length, owner)
        else:
            self._take(length)
        place = Place(length)
        try:
            yield place
        finally:
            if place.held:
                self._give_back(length)

    async def pass_on(self, place: Place, owner: Hashable) -> None:
        """Give a place to a part that waits, if one does, and wait for another turn."""
        if self._waiting:
            place.held = False
            self._give_back(place.length)
            await self._turn(place.length, owner)
            place.held = True

    async def _turn(self, length: int, owner: Hashable) -> None:
        """Wait until those before have a place, and there is one; it is taken then."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append((length, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(length)
            else:
                self._admit()  # this part may have been the one that did not fit
            raise

    def _fits(self, length: int) -> bool:
        return self._parts_left == self._parts_max or (self._parts_left > 0 and self._bytes_left >= length)

    def _take(self, length: int) -> None:
        self._parts_left -= 1
        self._bytes_left -= length

    def _give_back(self, length: int) -> None:
        self._parts_left += 1
        self._bytes_left += length
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            owner = self._next_owner()
            parts = self._waiting[owner]
            length, turn = parts[0]
            if not turn.done() and not self._fits(length):
                return
            parts.popleft()
            if not parts:
                del self._waiting[owner]
            if turn.done():  # it was cancelled, and its owner keeps the turn
                continue
            if parts:
                self._waiting.move_to_end(owner)
            self._last = owner
            self._take(length)
            turn.set_result(None)

    def _next_owner(self) -> Hashable:
        first = next(iter(self._waiting))
        if None not in self._waiting or len(self._waiting) == 1:
            return first
        if self._last is not None:
            return None
        return first if first is not None else next(one for one in self._waiting if one is not None)


@dataclass(slots=True)
class Place:
    """A place of a part.

    Attributes:
        length: Bytes of the part.
        held: The part has the place; not while it waits for another turn.
    """

    length: int
    held: bool = True
