"""Routes for audits."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, number
from tidelock.replica_agent.readers.disconnects import is_waiting
from tidelock.replica_agent.services.administration import AdministrationService


@dataclass(slots=True, eq=False, repr=False)
class AuditRoutes:
    """Handlers below /api/v1/audit."""

    service: AdministrationService

    async def audit(self, request: web.Request) -> web.Response:
        """Audit this replica; the answer arrives when the audit is done, or after ``audit_timeout_s``."""
        self.service.admit_audit()
        deep = _flag(request, "deep")

        return answer(await self.service.audit(deep=deep, abandoned=lambda: not is_waiting(request)))

    async def digests(self, request: web.Request) -> web.Response:
        """Return the digests of this replica at a CSN, for comparison; ``tables=0`` leaves the parts out."""
        csn, above = number(request, "csn"), number(request, "above")
        if csn is None:
            raise BadRequestError("digests are of a CSN: give csn=")
        tables = _flag(request, "tables", default=True)
        found = await self.service.digests(Csn(csn), None if above is None else Csn(above), tables=tables)
        return answer(found)


def _flag(request: web.Request, name: str, *, default: bool = False) -> bool:
    text = request.query.get(name)
    match text:
        case None:
            return default
        case "0" | "1":
            return text == "1"
    raise BadRequestError(f"query parameter {name}={text!r} is neither 0 nor 1")
