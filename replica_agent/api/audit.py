"""Routes of the audit."""

from __future__ import annotations

import asyncio

from aiohttp import web

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, number
from tidelock.replica_agent.api.operations import Operations
from tidelock.replica_agent.audit.digests import digests
from tidelock.replica_agent.config.states import Action
from tidelock.replica_agent.readers.disconnects import is_waiting


class AuditRoutes:
    """Handlers below /api/v1/audit."""

    def __init__(self, agent: Operations) -> None:
        """Serve ``agent``."""
        self._agent = agent

    async def audit(self, request: web.Request) -> web.Response:
        """Audit this replica; the answer comes when it is done, or ``audit_timeout_s`` are over."""
        self._agent.require(Action.LATEST)
        deep = _flag(request, "deep")

        return answer(await self._agent.auditor.run(deep=deep, abandoned=lambda: not is_waiting(request)))

    async def digests(self, request: web.Request) -> web.Response:
        """Tell what other replicas are compared with at a CSN; ``tables=0`` leaves the parts out."""
        csn, above = number(request, "csn"), number(request, "above")
        if csn is None:
            raise BadRequestError("digests are of a CSN: give csn=")
        tables = _flag(request, "tables", default=True)
        if tables or csn > self._agent.waiters.reached:  # outcomes outlive the horizon
            await self._agent.require_read(Csn(csn))
        found = await asyncio.to_thread(
            digests,
            self._agent.settings.data_dir,
            self._agent.replica,
            Csn(csn),
            None if above is None else Csn(above),
            tables=tables,
        )
        return answer(found)


def _flag(request: web.Request, name: str, *, default: bool = False) -> bool:
    text = request.query.get(name)
    match text:
        case None:
            return default
        case "0" | "1":
            return text == "1"
    raise BadRequestError(f"query parameter {name}={text!r} is neither 0 nor 1")
