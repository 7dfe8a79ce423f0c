"""Points of the past that a statement goes back to, kept readable while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import BadRequestError
from tidelock.replica_agent.services.tags import TagService
from tidelock.replica_agent.snapshots.pinned import Snapshots
from tidelock.wire.statements import PastPoint


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class PastPoints:
    """Looks points up and pins them."""

    snapshots: Snapshots
    tags: TagService

    @asynccontextmanager
    async def held(self, point: PastPoint) -> AsyncIterator[Csn]:
        """Give the CSN of a point, which is pinned inside the block, so that no part of it is collected.

        Raises:
            BadRequestError: Not one of CSN, tag and time is given.
            UnknownTagError: There is no such tag.
            SnapshotTooOldError, NoSuchCsnError, StandbyError, UnavailableError: As :meth:`Snapshots.open`.
        """
        if sum(given is not None for given in (point.csn, point.tag, point.at_ms)) != 1:
            msg = "the past is named by a CSN, a tag or a time: give one of them"
            raise BadRequestError(msg)
        csn = point.csn if point.tag is None else (await self.tags.find(point.tag)).csn
        at = None if csn is None else Csn(csn)
        pin = await self.snapshots.open(csn=at, at_ms=point.at_ms, min_csn=None, ttl_s=None)
        try:
            yield pin.csn
        finally:
            await self.snapshots.close(pin.id)
