"""Routes for operators: horizon, compaction, audits."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web
from msgspec.structs import asdict

from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, body, flag, number
from tidelock.replica_agent.readers.disconnects import is_waiting
from tidelock.replica_agent.services.administration import AdministrationService
from tidelock.wire.cluster import (
    HorizonAnswer,
    HorizonBound,
    HorizonRequest,
    LostPartRequest,
    OptimizeAnswer,
    OptimizeRequest,
    SwitchesAnswer,
    SwitchRequest,
)


@dataclass(slots=True, eq=False, repr=False)
class AdministrationRoutes:
    """Handlers below /api/v1/admin and /api/v1/audit."""

    service: AdministrationService

    async def horizon(self, request: web.Request) -> web.Response:
        """Raise the horizon to a CSN, or as far as possible, regardless of the retention of history."""
        asked = await body(request, HorizonRequest)
        csn = None if asked.csn is None else Csn(asked.csn)
        moved = await self.service.force_horizon(csn, drop_pins=asked.drop_pins)
        return answer(HorizonAnswer(moved.horizon, HorizonBound(**asdict(moved.held_by))))

    async def switch(self, request: web.Request) -> web.Response:
        """Set a switch of this replica until its agent is started again, and show all of them."""
        asked = await body(request, SwitchRequest)
        return answer(SwitchesAnswer(self.service.set_switch(asked.name, asked.value)))

    async def optimize(self, request: web.Request) -> web.Response:
        """Merge the parts of a table or of one partition until nothing is left to merge or the time is up."""
        asked = await body(request, OptimizeRequest)
        if not asked.timeout_s > 0:
            msg = f"timeout_s={asked.timeout_s} is not above 0; give seconds above 0, or leave it out"
            raise BadRequestError(msg)
        min_csn = None if asked.min_csn is None else Csn(asked.min_csn)
        found = await self.service.optimize(
            asked.table, asked.partition, timeout_s=asked.timeout_s, min_csn=min_csn
        )
        return answer(OptimizeAnswer(**found.describe(), csn=self.service.reached))

    async def resolve_lost(self, request: web.Request) -> web.Response:
        """Say what is lost with a part that no replica holds, and declare it lost if that is confirmed."""
        asked = await body(request, LostPartRequest)
        found = await self.service.lost_parts.resolve(
            PartId(asked.part), confirm=asked.confirm, without=asked.without, by=asked.by, why=asked.why
        )
        return answer(found)

    async def audit(self, request: web.Request) -> web.Response:
        """Audit this replica; the answer arrives when the audit is done, or after ``audit_timeout_s``."""
        self.service.admit_audit()
        deep = flag(request.query, "deep")
        return answer(await self.service.auditor.run(deep=deep, abandoned=lambda: not is_waiting(request)))

    async def digests(self, request: web.Request) -> web.Response:
        """Return the digests of this replica at a CSN, for comparison; ``tables=0`` leaves the parts out."""
        csn, above = number(request.query, "csn"), number(request.query, "above")
        if csn is None:
            raise BadRequestError("digests need a CSN; give csn=")
        tables = flag(request.query, "tables", default=True)
        found = await self.service.digests(Csn(csn), None if above is None else Csn(above), tables=tables)
        return answer(found)
