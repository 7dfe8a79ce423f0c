"""Routes of CSNs and their times."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from tidelock.csnlog.core.ids import CSN_MAX, Csn, PartId, parse_part_id
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, flag, number
from tidelock.replica_agent.services.history import HistoryService


@dataclass(slots=True, eq=False, repr=False)
class HistoryRoutes:
    """Handlers below /api/v1/csns, and of the last change of a table."""

    service: HistoryService

    async def csn_at(self, request: web.Request) -> web.Response:
        """Return the newest CSN whose effective time is not after a time."""
        at_ms = number(request.query, "at_ms")
        if at_ms is None:
            raise BadRequestError("at_ms is missing; give milliseconds since 1970")
        return answer(await self.service.csn_at(at_ms))

    async def time_of(self, request: web.Request) -> web.Response:
        """Return the effective time of a CSN."""
        return answer(await self.service.time_of(_csn(request)))

    async def in_sync_replicas(self, request: web.Request) -> web.Response:
        """Return the replicas that have applied a CSN."""
        return answer(await self.service.in_sync_replicas(_csn(request)))

    async def last_change(self, request: web.Request) -> web.Response:
        """Return the last commit that changed a table."""
        min_csn = number(request.query, "min_csn")
        found = await self.service.last_change(
            request.match_info["table"], None if min_csn is None else Csn(min_csn)
        )
        return answer(found)

    async def explain_part(self, request: web.Request) -> web.Response:
        """Say whether a part is visible at a CSN, and why."""
        part, csn = request.match_info["part"], number(request.query, "csn")
        try:
            parse_part_id(part)
        except ValueError as error:
            raise BadRequestError(str(error)) from error
        return answer(await self.service.explain_part(PartId(part), None if csn is None else Csn(csn)))

    async def statistics(self, request: web.Request) -> web.Response:
        """Return the size of a table at a CSN, and the values of its columns."""
        csn = number(request.query, "csn")
        distinct = flag(request.query, "distinct")
        found = await self.service.statistics(
            request.match_info["table"], None if csn is None else Csn(csn), distinct=distinct
        )
        return answer(found)


def _csn(request: web.Request) -> Csn:
    text = request.match_info["csn"]
    if not (text.isascii() and text.isdecimal() and int(text) <= CSN_MAX):
        raise BadRequestError(f"{text[:40]!r} is no CSN; give a whole number of at most {CSN_MAX}")
    return Csn(int(text))
