"""Routes of the change feed: change sets as JSON, changed rows as Arrow."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.arrow import send_rows
from tidelock.replica_agent.api.http import answer, body, number, seconds
from tidelock.replica_agent.services.reads import ReadService
from tidelock.replica_agent.storage.change_sets import CsnChangePage, PartChange
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.tables.partitions import named
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.wire.changes import ChangedPart as ShownPart
from tidelock.wire.changes import ChangedRowsRequest, ChangePageAnswer, ChangeSetAnswer


@dataclass(slots=True, eq=False, repr=False)
class ChangeRoutes:
    """Handlers of /api/v1/tables/{table}/changes."""

    service: ReadService

    async def sets(self, request: web.Request) -> web.Response:
        """List the parts that commits have added to a table and removed from it."""
        since, until = number(request.query, "from"), number(request.query, "to")
        if since is None:
            msg = "the changes of a table need from=, the CSN after which they begin"
            raise BadRequestError(msg)
        schema, page = await self.service.changes.page(
            full_name(request.match_info["table"]),
            Csn(since),
            None if until is None else Csn(until),
            files_max=number(request.query, "files_max"),
            bytes_max=number(request.query, "bytes_max"),
            wait_s=seconds(request.query, "wait_s") or 0.0,
        )
        schemas = self.service.changes.schemas(schema.id, page)
        # There can be many thousands of parts.
        return answer(await asyncio.to_thread(_shown, schema, schemas, page))

    async def rows(self, request: web.Request) -> web.StreamResponse:
        """Stream the rows that commits have changed."""
        asked = await body(request, ChangedRowsRequest)
        since, until = _range(asked)
        with self.service.failures.noted(None, "the read of changes"):
            table = full_name(request.match_info["table"])
            named_at = None if asked.named_at is None else Csn(asked.named_at)
            wanted = await self.service.changes.rows(table, since, until, net=asked.net, named_at=named_at)
            async with self.service.sql.statement(wanted) as running:
                return await send_rows(request, running)


def _range(asked: ChangedRowsRequest) -> tuple[Csn, Csn]:
    """Return the requested range, without its first CSN; BadRequestError when a bound is missing."""
    match asked.since, asked.to, asked.csn:
        case int(since), int(to), None:
            return Csn(since), Csn(to)
        case None, None, int(csn):
            return Csn(csn - 1), Csn(csn)
    msg = "the changed rows of a table need from and to: (from, to]; or csn: that commit alone"
    raise BadRequestError(msg)


def _shown(schema: TableSchema, schemas: Mapping[Csn, TableSchema], page: CsnChangePage) -> ChangePageAnswer:
    partition = functools.cache(functools.partial(named, schema=schema))

    def shown(part: PartChange, csns: tuple[Csn, Csn]) -> ShownPart:
        # A CSN at an end of the page comes before the part's own: fewer CSNs are read.
        csn = next(csn for csn in csns if part.visible(csn))
        row, there = part.row, schemas[csn]
        layout = there.layout(row.columns_csn)
        return ShownPart(
            part=row.part,
            tid=part.tid,
            path=f"/snapshots/{csn}/{there.name.replace('.', '/')}/{row.name}",
            partition=partition(row.path),
            rows=row.rows,
            length=row.length,
            file_length=row.length if layout is None else layout.length(row.rows, row.length),
        )

    return ChangePageAnswer(
        to=page.to,
        complete=page.complete,
        time_ms=page.time_ms,
        sets=tuple(
            ChangeSetAnswer(
                csn=one.csn,
                time_ms=one.time_ms,
                tids=tuple(one.tids),
                added=tuple(shown(part, (page.to, one.csn)) for part in one.added),
                removed=tuple(shown(part, (page.since, Csn(one.csn - 1))) for part in one.removed),
            )
            for one in page.sets
        ),
    )
