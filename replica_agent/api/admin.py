"""Routes of operators."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.api.operations import Operations
from tidelock.wire.cluster import HorizonAnswer, HorizonBound, HorizonRequest, OptimizeAnswer, OptimizeRequest


class AdminRoutes:
    """Handlers below /api/v1/admin."""

    def __init__(self, agent: Operations) -> None:
        """Serve ``agent``."""
        self._agent = agent

    async def horizon(self, request: web.Request) -> web.Response:
        """Raise the horizon to a CSN, or as far as it goes, without regard to the retention of history."""
        asked = await body(request, HorizonRequest)
        csn = None if asked.csn is None else Csn(asked.csn)
        moved = await self._agent.force_horizon(csn, drop_pins=asked.drop_pins)
        return answer(HorizonAnswer(moved.horizon, HorizonBound(**asdict(moved.held_by))))

    async def optimize(self, request: web.Request) -> web.Response:
        """Merge the parts of a table, or one partition, until nothing can be merged or the time is over."""
        asked = await body(request, OptimizeRequest)
        if not asked.timeout_s > 0:
            msg = f"timeout_s={asked.timeout_s} is no time to work; give seconds above 0, or leave it out"
            raise BadRequestError(msg)
        min_csn = None if asked.min_csn is None else Csn(asked.min_csn)
        found = await self._agent.optimize(
            asked.table, asked.partition, timeout_s=asked.timeout_s, min_csn=min_csn
        )
        return answer(OptimizeAnswer(**asdict(found), csn=self._agent.waiters.reached))
