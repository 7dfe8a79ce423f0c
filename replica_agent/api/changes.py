"""Routes of the change feed: change sets as JSON, changed rows as Arrow."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tidelock.csnlog.ids import Csn
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, number, seconds
from tidelock.replica_agent.changes.sets import ChangedPart, ChangePage
from tidelock.replica_agent.operations import Operations
from tidelock.replica_agent.partitions import named
from tidelock.replica_agent.schema import TableSchema, full_name


class ChangeRoutes:
    """Handlers of /api/v1/tables/{table}/changes."""

    def __init__(self, agent: Operations) -> None:
        """Serve ``agent``."""
        self._agent = agent

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/api/v1/tables/{table}/changes", self.sets)]

    async def sets(self, request: web.Request) -> web.Response:
        """List what commits have added to a table and removed from it."""
        since, until = number(request, "from"), number(request, "to")
        if since is None:
            msg = "the changes of a table need from=: the CSN behind which they begin"
            raise BadRequestError(msg)
        schema, page = await self._agent.changes.page(
            full_name(request.match_info["table"]),
            Csn(since),
            None if until is None else Csn(until),
            files_max=number(request, "files_max"),
            bytes_max=number(request, "bytes_max"),
            wait_s=seconds(request, "wait_s") or 0.0,
        )
        return answer(_shown(schema, page))


def _shown(schema: TableSchema, page: ChangePage) -> dict[str, Any]:
    def shown(part: ChangedPart, csns: tuple[Csn, Csn]) -> dict[str, Any]:
        # At the end of the page that is asked for rather than at its own: fewer CSNs are read.
        csn = next(csn for csn in csns if part.visible(csn))
        row = part.row
        return {
            "part": row.part,
            "tid": part.tid,
            "path": f"/snapshots/{csn}/{schema.name.replace('.', '/')}/{row.name}",
            "partition": named(row.path, schema),
            "rows": row.rows,
            "length": row.length,
        }

    return {
        "to": page.to,
        "complete": page.complete,
        "sets": [
            {
                "csn": one.csn,
                "time_ms": one.time_ms,
                "tids": one.tids,
                "added": [shown(part, (page.to, one.csn)) for part in one.added],
                "removed": [shown(part, (page.since, Csn(one.csn - 1))) for part in one.removed],
            }
            for one in page.sets
        ],
    }
