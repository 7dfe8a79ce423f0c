"""Routes for operators."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from aiohttp import web

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.services.administration import AdministrationService
from tidelock.wire.cluster import HorizonAnswer, HorizonBound, HorizonRequest, OptimizeAnswer, OptimizeRequest


@dataclass(slots=True, eq=False, repr=False)
class AdminRoutes:
    """Handlers below /api/v1/admin."""

    service: AdministrationService

    async def horizon(self, request: web.Request) -> web.Response:
        """Raise the horizon to a CSN, or as far as possible, regardless of the retention of history."""
        asked = await body(request, HorizonRequest)
        csn = None if asked.csn is None else Csn(asked.csn)
        moved = await self.service.force_horizon(csn, drop_pins=asked.drop_pins)
        return answer(HorizonAnswer(moved.horizon, HorizonBound(**asdict(moved.held_by))))

    async def optimize(self, request: web.Request) -> web.Response:
        """Merge the parts of a table or of one partition until nothing is left to merge or the time is up."""
        asked = await body(request, OptimizeRequest)
        if not asked.timeout_s > 0:
            msg = f"timeout_s={asked.timeout_s} is no time to work; give seconds above 0, or leave it out"
            raise BadRequestError(msg)
        min_csn = None if asked.min_csn is None else Csn(asked.min_csn)
        found = await self.service.optimize(
            asked.table, asked.partition, timeout_s=asked.timeout_s, min_csn=min_csn
        )
        return answer(OptimizeAnswer(**asdict(found), csn=self.service.reached))
