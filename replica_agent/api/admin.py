"""Routes of operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.services.administration import AdministrationService

#: How long an optimize runs when the request does not say.
OPTIMIZE_TIMEOUT_S = 60.0


class OptimizeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /admin/optimize; ``partition``: each partition column with its value."""

    table: str
    partition: dict[str, Any] | None = None
    timeout_s: float = OPTIMIZE_TIMEOUT_S
    min_csn: int | None = None


class HorizonBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /admin/horizon; ``csn``: None = as far as it goes; ``drop_pins``: end the pins below."""

    csn: int | None = None
    drop_pins: bool = False


@dataclass(slots=True, eq=False, repr=False)
class AdminRoutes:
    """Handlers below /api/v1/admin."""

    service: AdministrationService

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/api/v1/admin/optimize", self.optimize),
            web.post("/api/v1/admin/horizon", self.horizon),
        ]

    async def horizon(self, request: web.Request) -> web.Response:
        """Raise the horizon to a CSN, or as far as it goes, without regard to the retention of history."""
        asked = await body(request, HorizonBody)
        csn = None if asked.csn is None else Csn(asked.csn)
        moved = await self.service.force_horizon(csn, drop_pins=asked.drop_pins)
        return answer({"horizon": moved.horizon, "holding_back": moved.held_by.describe()})

    async def optimize(self, request: web.Request) -> web.Response:
        """Merge the parts of a table, or one partition, until nothing can be merged or the time is over."""
        asked = await body(request, OptimizeBody)
        if not asked.timeout_s > 0:
            msg = f"timeout_s={asked.timeout_s} is no time to work; give seconds above 0, or leave it out"
            raise BadRequestError(msg)
        min_csn = None if asked.min_csn is None else Csn(asked.min_csn)
        found = await self.service.optimize(
            asked.table, asked.partition, timeout_s=asked.timeout_s, min_csn=min_csn
        )
        return answer({**found.describe(), "csn": self.service.reached})
