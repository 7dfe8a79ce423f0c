"""Routes of tables: definition, list, the parts of a table at a CSN."""

from __future__ import annotations

import base64
import binascii

import msgspec
import pyarrow as pa
from aiohttp import web

from tidelock.csnlog.core.ids import Csn, TableName
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, body, number
from tidelock.replica_agent.api.operations import Operations
from tidelock.replica_agent.storage.catalog_reads import TableRow
from tidelock.replica_agent.tables.schema import Derivation, TableSchema, full_name
from tidelock.wire.tables import CreatedTable, CreateTableRequest, PartInfo, TableInfo


def _derivation(asked: CreateTableRequest) -> Derivation | None:
    """Return what the table is to be derived from; BadRequestError when only half of it is given."""
    if asked.derived_from is None and asked.derived_sql is None:
        return None
    if asked.derived_from is None or asked.derived_sql is None:
        msg = "a derived table needs both derived_from, the source, and derived_sql, a SELECT of inserted"
        raise BadRequestError(msg)
    return Derivation(full_name(asked.derived_from), asked.derived_sql)


class TableRoutes:
    """Handlers below /api/v1/tables and /api/v1/parts."""

    def __init__(self, agent: Operations) -> None:
        """Serve ``agent``."""
        self._agent = agent

    async def create(self, request: web.Request) -> web.Response:
        """Create a table: a transaction of one statement."""
        asked = await body(request, CreateTableRequest)
        try:
            arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(asked.schema, validate=True)))
        except (binascii.Error, pa.ArrowInvalid, OSError) as error:
            msg = f"schema is not a base64 Arrow IPC schema message: {error}"
            raise BadRequestError(msg) from error
        schema = TableSchema.from_request(
            asked.name,
            arrow,
            asked.partition_by,
            asked.sort_by,
            asked.properties,
            derivation=_derivation(asked),
            columns_max=self._agent.settings.columns_max,
            retention_s_min=self._agent.settings.history_retention_s,
        )
        done = await self._agent.create_table(schema)
        return answer(
            msgspec.convert({**schema.definition(), "csn": done.csn, "version": 0}, CreatedTable), 201
        )

    async def _csn(self, request: web.Request, table: TableName | None = None) -> Csn:
        csn = number(request, "csn")
        if csn is None:
            return self._agent.waiters.reached
        await self._agent.require_read(Csn(csn), table)
        return Csn(csn)

    def _describe(self, table: TableRow, csn: Csn) -> TableInfo:
        parts, rows, size = self._agent.catalog.reader.totals(table.name, csn)
        schema = base64.b64encode(table.arrow_schema).decode()
        shown = {
            "version": table.version,
            "arrow_schema": schema,
            "parts": parts,
            "rows": rows,
            "bytes": size,
        }
        return msgspec.convert({**table.definition, **shown, "arrow_schema": schema}, TableInfo)

    async def list(self, request: web.Request) -> web.Response:
        """Show all tables at a CSN (default: what is applied here)."""
        csn = await self._csn(request)
        return answer([self._describe(table, csn) for table in self._agent.catalog.reader.tables(csn)])

    async def show(self, request: web.Request) -> web.Response:
        """Show one table."""
        name = full_name(request.match_info["table"])
        csn = await self._csn(request, name)
        return answer(self._describe(self._agent.catalog.reader.require_table(name, csn), csn))

    async def show_inside(self, request: web.Request) -> web.Response:
        """Show one table as it is for a transaction, also to who has a token of it."""
        name = full_name(request.match_info["table"])
        csn = self._agent.transactions.find(request.match_info["tid"]).tid.snapshot
        return answer(self._describe(self._agent.catalog.reader.require_table(name, csn), csn))

    async def parts(self, request: web.Request) -> web.Response:
        """List the parts of a table that are visible at a CSN."""
        name = full_name(request.query.get("table", ""))
        csn = await self._csn(request, name)
        self._agent.catalog.reader.require_table(name, csn)
        namespace, _, short = name.partition(".")
        return answer(
            [
                PartInfo(
                    part=part.part,
                    path=part.path,
                    rows=part.rows,
                    length=part.length,
                    checksum=part.checksum,
                    file=f"{namespace}/{short}/{part.name}",
                )
                for part in self._agent.catalog.reader.parts(name, csn)
            ]
        )
