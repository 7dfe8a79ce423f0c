"""Turns of the transactions whose commit was overtaken after their validation (rule commit).

Every commit sets ``csn/head``, so each one that comes between validation and commit of another transaction
makes that one validate again (F11). A home that commits all the time would overtake its own transactions for
as long as it has any. So one that was overtaken takes a turn: while it tries again, its home sends no other
commit. Those of other homes, and those that are under way, may still come first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, Self

from tidelock.replica_agent.transactions.transaction import Transaction


class HeadTurns:
    """The turns of one home, in the order in which they are asked for. Use it from one event loop.

    Args:
        turn_s: How long a turn lasts, at most.
    """

    def __init__(self, turn_s: float) -> None:
        self._turn_s: Final = turn_s
        self._order: Final = asyncio.Lock()
        self._owner: Transaction | None = None
        self._free: Final = asyncio.Event()
        self._free.set()

    @contextlib.asynccontextmanager
    async def taken(self, tx: Transaction, timeout_s: float) -> AsyncIterator[Self]:
        """Wait for the turn of a transaction; the block is left when it has tried for as long as that lasts.

        Raises:
            TimeoutError: Its turn has not come in time.
        """
        async with asyncio.timeout(timeout_s):
            await self._order.acquire()
        self._owner = tx
        self._free.clear()
        end = asyncio.get_running_loop().call_later(self._turn_s, self._free.set)
        try:
            yield self
        finally:
            end.cancel()
            self._owner = None
            self._free.set()
            self._order.release()

    def lasts(self) -> bool:
        """Return whether the turn that was taken still holds back the other commits of this home."""
        return not self._free.is_set()

    async def others_over(self, tx: Transaction) -> None:
        """Wait while another transaction has a turn."""
        if self._owner is not tx:
            await self._free.wait()
