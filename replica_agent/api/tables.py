"""Routes of tables: definition, list, the parts of a table at a CSN."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from aiohttp import web

from tidelock.csnlog.core.ids import Csn, TableName
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, body, number
from tidelock.replica_agent.services.administration import AdministrationService
from tidelock.replica_agent.storage.catalog_reads import TableRow
from tidelock.replica_agent.tables.schema import Derivation, full_name


class CreateBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /tables; ``schema`` is a base64 Arrow IPC schema message."""

    name: str
    schema: str
    partition_by: list[str] = []
    sort_by: list[str] = []
    properties: dict[str, str] = {}
    derived_from: str | None = None
    derived_sql: str | None = None

    def derivation(self) -> Derivation | None:
        """Return what the table is to be derived from; BadRequestError when only half of it is given."""
        if self.derived_from is None and self.derived_sql is None:
            return None
        if self.derived_from is None or self.derived_sql is None:
            msg = "a derived table needs both derived_from, the source, and derived_sql, a SELECT of inserted"
            raise BadRequestError(msg)
        return Derivation(full_name(self.derived_from), self.derived_sql)


@dataclass(slots=True, eq=False, repr=False)
class TableRoutes:
    """Handlers below /api/v1/tables and /api/v1/parts."""

    service: AdministrationService

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/api/v1/tables", self.create),
            web.get("/api/v1/tables", self.list),
            web.get("/api/v1/tables/{table}", self.show),
            web.get("/api/v1/transactions/{tid}/tables/{table}", self.show_inside),
            web.get("/api/v1/parts", self.parts),
        ]

    async def create(self, request: web.Request) -> web.Response:
        """Create a table: a transaction of one statement."""
        asked = await body(request, CreateBody)
        try:
            arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(asked.schema, validate=True)))
        except (binascii.Error, pa.ArrowInvalid, OSError) as error:
            msg = f"schema is not a base64 Arrow IPC schema message: {error}"
            raise BadRequestError(msg) from error
        schema = self.service.check_schema(
            asked.name, arrow, asked.partition_by, asked.sort_by, asked.properties, asked.derivation()
        )
        done = await self.service.create_table(schema)
        return answer({**schema.definition(), "csn": done.csn, "version": 0}, 201)

    async def _csn(self, request: web.Request, table: TableName | None = None) -> Csn:
        return await self.service.readable(number(request, "csn"), table)

    def _describe(self, table: TableRow, csn: Csn) -> dict[str, Any]:
        parts, rows, size = self.service.totals(table.name, csn)
        schema = base64.b64encode(table.arrow_schema).decode()
        return {
            **table.definition,
            "version": table.version,
            "arrow_schema": schema,
            "parts": parts,
            "rows": rows,
            "bytes": size,
        }

    async def list(self, request: web.Request) -> web.Response:
        """Show all tables at a CSN (default: what is applied here)."""
        csn = await self._csn(request)
        return answer([self._describe(table, csn) for table in self.service.all_tables(csn)])

    async def show(self, request: web.Request) -> web.Response:
        """Show one table."""
        name = full_name(request.match_info["table"])
        csn = await self._csn(request, name)
        return answer(self._describe(self.service.table(name, csn), csn))

    async def show_inside(self, request: web.Request) -> web.Response:
        """Show one table as it is for a transaction, also to who has a token of it."""
        name = full_name(request.match_info["table"])
        csn = self.service.snapshot_of(request.match_info["tid"])
        return answer(self._describe(self.service.table(name, csn), csn))

    async def parts(self, request: web.Request) -> web.Response:
        """List the parts of a table that are visible at a CSN."""
        name = full_name(request.query.get("table", ""))
        csn = await self._csn(request, name)
        namespace, _, short = name.partition(".")
        return answer(
            [
                {
                    "part": part.part,
                    "path": part.path,
                    "rows": part.rows,
                    "length": part.length,
                    "checksum": part.checksum,
                    "file": f"{namespace}/{short}/{part.name}",
                }
                for part in self.service.parts(name, csn)
            ]
        )
