"""Routes of tables: definition, list, the parts of a table at a CSN."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from aiohttp import web

from tidelock.csnlog.core.ids import Csn, TableName
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, body, number, send_json
from tidelock.replica_agent.services.administration import AdministrationService
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.tables.schema import Derivation
from tidelock.wire.tables import CreatedTable, CreateTableRequest


def _derivation(asked: CreateTableRequest) -> Derivation | None:
    """Return the derivation of the new table; BadRequestError when only half of it is given."""
    if asked.derived_from is None and asked.derived_sql is None:
        return None
    if asked.derived_from is None or asked.derived_sql is None:
        msg = "a derived table needs both derived_from, the source, and derived_sql, a SELECT of inserted"
        raise BadRequestError(msg)
    return Derivation(full_name(asked.derived_from), asked.derived_sql)


@dataclass(slots=True, eq=False, repr=False)
class TableRoutes:
    """Handlers below /api/v1/tables and /api/v1/parts."""

    service: AdministrationService

    async def create(self, request: web.Request) -> web.Response:
        """Create a table, as a transaction of one statement."""
        asked = await body(request, CreateTableRequest)
        try:
            arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(asked.schema, validate=True)))
        except (binascii.Error, pa.ArrowInvalid, OSError) as error:
            msg = f"schema is not a base64 Arrow IPC schema message: {error}"
            raise BadRequestError(msg) from error
        schema = self.service.check_schema(
            asked.name, arrow, asked.partition_by, asked.sort_by, asked.properties, _derivation(asked)
        )
        done = await self.service.create_table(schema)
        return answer(
            msgspec.convert({**schema.definition(), "csn": done.csn, "version": 0}, CreatedTable), 201
        )

    async def _csn(self, request: web.Request, table: TableName | None = None) -> Csn:
        return await self.service.readable(number(request.query, "csn"), table)

    async def list(self, request: web.Request) -> web.Response:
        """List all tables at a CSN (default: the CSN that is applied here)."""
        return answer(await self.service.describe_all(await self._csn(request)))

    async def show(self, request: web.Request) -> web.Response:
        """Show one table."""
        name = full_name(request.match_info["table"])
        return answer(await self.service.describe(name, await self._csn(request, name)))

    async def show_inside(self, request: web.Request) -> web.Response:
        """Show one table as a transaction sees it; a token of the transaction is enough."""
        name = full_name(request.match_info["table"])
        return answer(await self.service.describe(name, self.service.snapshot_of(request.match_info["tid"])))

    async def parts(self, request: web.Request) -> web.StreamResponse:
        """List the parts of a table that are visible at a CSN."""
        name = full_name(request.query.get("table", ""))
        csn = await self._csn(request, name)
        return await send_json(request, await self.service.parts(name, csn))
