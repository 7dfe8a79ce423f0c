"""Routes of snapshots and queries."""

from __future__ import annotations

import io
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from aiohttp import web

from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.errors import BadRequestError, UnsupportedInTransactionError
from tidelock.replica_agent.api.arrow import ARROW_STREAM, send_rows
from tidelock.replica_agent.api.bearer import claims_of, shows_life
from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.services.reads import OwnRead, ReadService
from tidelock.replica_agent.snapshots.pinned import Pin
from tidelock.replica_agent.sql.pool import Mutation, SqlRequest, select_statement
from tidelock.replica_agent.sql.request import SomeParts
from tidelock.replica_agent.tables.names import full_name, is_system_table
from tidelock.wire.reads import QueryRequest, SnapshotClosed, SnapshotPin, SnapshotRequest


def _shown(pin: Pin) -> SnapshotPin:
    return SnapshotPin(pin.id, pin.csn, pin.ttl_s)


@dataclass(slots=True, eq=False, repr=False)
class ReadingRoutes:
    """Handlers below /api/v1/snapshots and /api/v1/query."""

    service: ReadService

    async def open(self, request: web.Request) -> web.Response:
        """Choose or check a CSN and pin it."""
        asked = await body(request, SnapshotRequest)
        pin = await self.service.open_snapshot(
            csn=None if asked.csn is None else Csn(asked.csn),
            at_ms=asked.at_ms,
            min_csn=None if asked.min_csn is None else Csn(asked.min_csn),
            ttl_s=asked.ttl_s,
        )
        return answer(_shown(pin), 201)

    async def list(self, _request: web.Request) -> web.Response:
        """List the snapshots that clients hold through this replica."""
        return answer(self.service.snapshots.describe())

    async def renew(self, request: web.Request) -> web.Response:
        """Restart the lease of a snapshot."""
        return answer(_shown(await self.service.snapshots.renew(request.match_info["id"])))

    async def close(self, request: web.Request) -> web.Response:
        """Release the pin of a snapshot."""
        await self.service.snapshots.close(request.match_info["id"])
        return answer(SnapshotClosed(request.match_info["id"]))

    async def query(self, request: web.Request) -> web.StreamResponse:
        """Run a statement and stream the rows as Arrow IPC.

        A failure after the first byte cuts the connection without the final chunk, so that no client can
        mistake the cut for the end of the rows.
        """
        return await self._run(request, await body(request, QueryRequest))

    async def query_inside(self, request: web.Request) -> web.StreamResponse:
        """Run a statement inside the transaction of the path; a token of the transaction is enough."""
        asked = await body(request, QueryRequest)
        tid = request.match_info["tid"]
        if asked.csn is not None or asked.tid not in {None, tid}:
            msg = "a query inside a transaction reads at the CSN of the transaction; leave csn and tid out"
            raise BadRequestError(msg)
        return await self._run(request, msgspec.structs.replace(asked, tid=tid))

    async def _run(self, request: web.Request, asked: QueryRequest) -> web.StreamResponse:
        claims = claims_of(request)
        with self.service.failures.noted(asked.tid, "the query", spoils=claims is None):
            statement = await self._prepare(asked, request)
            async with self.service.sql.statement(statement) as running:
                if running.affected is not None:
                    if claims is not None:
                        msg = "a token allows one SELECT as SQL; add rows with insert()"
                        raise UnsupportedInTransactionError(msg)
                    return await self._insert(statement, Mutation(running.affected, running))
                at_end = self.service.record_reads(asked.tid, running)
                return await send_rows(request, running, at_end=at_end)

    async def _insert(self, statement: SqlRequest, running: Mutation) -> web.Response:
        """Stage the rows of INSERT INTO ... SELECT; the answer is one row with their number."""
        done = await self.service.insert_select(statement, running)
        counts = {"rows_inserted": [done.rows_inserted], "parts_added": [done.parts_added]}
        sink = io.BytesIO()
        table = pa.table(counts)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return web.Response(body=sink.getvalue(), content_type=ARROW_STREAM)

    async def _prepare(self, asked: QueryRequest, request: web.Request) -> SqlRequest:
        if (asked.csn is None) == (asked.tid is None) or (asked.sql is None) == (asked.table is None):
            msg = "a query needs exactly one of csn and tid, and exactly one of sql and table"
            raise BadRequestError(msg)
        claims = claims_of(request)
        if claims is not None and asked.table is not None and not is_system_table(asked.table):
            claims.require_table(full_name(asked.table))
        some = self._some(asked)
        if asked.tid is not None:
            own = await self.service.prepare_own_read(asked.tid, sign_of_life=shows_life(request))
        else:
            own = OwnRead(Csn(asked.csn or 0), (), ())
            await self.service.prepare_query(own.csn, asked.table)
        sql = (
            asked.sql
            if asked.sql is not None
            else select_statement(asked.table or "", asked.columns, asked.where, some=some is not None)
        )
        only = None if claims is None or claims.tables is None else tuple(sorted(claims.tables))
        return SqlRequest(
            csn=own.csn,
            tid=asked.tid,
            sql=sql,
            params=tuple(asked.params),
            adopted=own.adopted,
            only=only,
            some=some,
            live=await self.service.live_rows(sql),
            defined=own.defined,
        )

    @staticmethod
    def _some(asked: QueryRequest) -> SomeParts | None:
        if asked.parts is None:
            return None
        if asked.table is None or asked.csn is None:
            msg = "a query of some parts needs csn and table; give both"
            raise BadRequestError(msg)
        return SomeParts(full_name(asked.table), tuple(map(PartId, asked.parts)))
