"""The answer whether this replica holds a part: it reads all bytes first (rule lost-parts).

That may take long, and an answer must not: a replica that does not answer counts as silent, and an operator
may go on without it. So the read goes on by itself, and a replica that asks meanwhile is told that it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tidelock.csnlog.core.ids import PartId
from tidelock.replica_agent.replicas.catalog_port import ReplicaCatalogPort


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class HeldParts:
    """Reads the parts that replicas ask for, one at a time.

    Attributes:
        answer_s: Longest time to an answer, in seconds.
        damaged: Called with a part whose bytes are wrong, and what found that; it is fetched again.
    """

    port: ReplicaCatalogPort
    answer_s: float
    damaged: Callable[[PartId, str], None]
    #: The part that is read, or was read last and not told since.
    _part: PartId | None = field(default=None, init=False)
    _read: asyncio.Task[bool] | None = field(default=None, init=False)

    async def holds(self, part: PartId) -> bool | None:
        """Return whether the part is held; None while its bytes are read, or those of another part."""
        row = self.port.catalog.reader.part(part)
        if row is None or row.state != "held":
            return False
        if self._read is None or (self._part != part and self._read.done()):
            self._part, self._read = part, asyncio.create_task(self._whole(part), name=f"read {part}")
        asked, read = self._part, self._read
        await asyncio.wait([read], timeout=self.answer_s)
        if asked != part or not read.done():
            return None
        if self._read is read:
            self._read = None  # the next question is about that moment
        return read.result()

    async def close(self) -> None:
        """End a read that is under way."""
        if self._read is not None:
            self._read.cancel()
            await asyncio.gather(self._read, return_exceptions=True)

    async def _whole(self, part: PartId) -> bool:
        damaged = await self.port.is_damaged(part)
        if damaged:
            self._read = None  # not told later: the part may be whole again by then
            self.damaged(part, "found damaged when a peer asked for it")
        return not damaged
