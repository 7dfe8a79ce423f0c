"""Routes of tables: definition, list, the parts of a table at a CSN."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from aiohttp import web

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, body, number, send_json
from tidelock.replica_agent.services.administration import AdministrationService
from tidelock.replica_agent.services.definitions import Defined, DefinitionService, Statement
from tidelock.replica_agent.tables.column_changes import ColumnChanges
from tidelock.replica_agent.tables.schema import columns_in
from tidelock.replica_agent.transactions.statements.definitions import column_limits
from tidelock.wire.tables import (
    AlterTableRequest,
    CloneRequest,
    CommittedTable,
    CreateTableRequest,
    DefinedTable,
    DroppedTable,
    UndropRequest,
)


@dataclass(slots=True, eq=False, repr=False)
class TableRoutes:
    """Handlers below /api/v1/tables and /api/v1/parts."""

    service: AdministrationService
    definitions: DefinitionService

    async def create(self, request: web.Request) -> web.Response:
        """Create a table, as a transaction of one statement."""
        asked = await body(request, CreateTableRequest)
        if asked.sql is not None:
            msg = "a table is created from SQL inside a transaction, which its client keeps alive; begin one"
            raise BadRequestError(msg)
        return await self._defined(await self.definitions.alone(self._creating(asked)), 201)

    async def create_inside(self, request: web.Request) -> web.Response:
        """Create a table inside a transaction."""
        return await self._inside(request, self._creating(await body(request, CreateTableRequest)), 201)

    def _creating(self, asked: CreateTableRequest) -> Statement:
        if (asked.schema is None) == (asked.sql is None):
            msg = "a table is created with a schema, or with the columns and rows of a SELECT (sql); give one"
            raise BadRequestError(msg)
        arrow = None if asked.schema is None else _schema_in("schema", asked.schema)
        if (asked.derived_from is None) != (asked.derived_sql is None):
            msg = "a derived table needs both derived_from, the source, and derived_sql, a SELECT of inserted"
            raise BadRequestError(msg)
        return self.definitions.creating(asked, arrow)

    async def alter(self, request: web.Request) -> web.Response:
        """Give a table another name, other properties or columns, as a transaction of one statement."""
        asked = await body(request, AlterTableRequest)
        columns = self._changes(request, asked)
        if asked.reads_rows or any(column.generated is not None for column in columns.add):
            msg = (
                "types are changed, and checks and generated columns added, inside a transaction, which its "
                "client keeps alive while rows are read; begin one"
            )
            raise BadRequestError(msg)
        return await self._defined(await self.definitions.alone(self._altering(request, asked, columns)), 200)

    async def alter_inside(self, request: web.Request) -> web.Response:
        """Give a table another name, other properties or columns, inside a transaction."""
        asked = await body(request, AlterTableRequest)
        return await self._inside(request, self._altering(request, asked, self._changes(request, asked)), 200)

    def _altering(self, request: web.Request, asked: AlterTableRequest, columns: ColumnChanges) -> Statement:
        name = request.match_info["table"]
        return self.definitions.altering(name, to=asked.name, properties=asked.properties, columns=columns)

    def _changes(self, request: web.Request, asked: AlterTableRequest) -> ColumnChanges:
        name, limits = request.match_info["table"], column_limits(self.definitions.settings)
        added = () if asked.add is None else columns_in(_schema_in("add", asked.add), name, limits)
        return ColumnChanges(
            drop=asked.drop,
            rename=asked.rename,
            add=added,
            nullable=asked.nullable,
            types=asked.types,
            order=asked.order,
            default=asked.default,
            comment=asked.comment,
            checks=asked.checks,
            generated=asked.generated,
        )

    async def drop(self, request: web.Request) -> web.Response:
        """Drop a table, as a transaction of one statement."""
        found = await self.definitions.alone(self.definitions.dropping(request.match_info["table"]))
        return answer(DroppedTable(found.made.definition.definition["name"], found.done.csn))

    async def drop_inside(self, request: web.Request) -> web.Response:
        """Drop a table inside a transaction, and return its last definition."""
        return await self._inside(request, self.definitions.dropping(request.match_info["table"]), 200)

    async def undrop(self, request: web.Request) -> web.Response:
        """Bring a dropped table back, as a transaction of one statement."""
        return await self._defined(await self.definitions.alone(await self._undropping(request)), 200)

    async def undrop_inside(self, request: web.Request) -> web.Response:
        """Bring a dropped table back inside a transaction."""
        return await self._inside(request, await self._undropping(request), 200)

    async def _undropping(self, request: web.Request) -> Statement:
        asked = await body(request, UndropRequest)
        csn = None if asked.csn is None else Csn(asked.csn)
        return self.definitions.undropping(request.match_info["table"], to=asked.name, csn=csn)

    async def clone_inside(self, request: web.Request) -> web.Response:
        """Create a table with the definition and the parts of another one inside a transaction."""
        asked = await body(request, CloneRequest)
        return await self._inside(request, self.definitions.cloning(request.match_info["table"], asked), 201)

    async def _inside(self, request: web.Request, statement: Statement, status: int) -> web.Response:
        found = await self.definitions.inside(request.match_info["tid"], statement)
        made = found.made.definition
        shown = await self.service.shown(made.definition, found.at, found.all)
        told = {**shown, "version": made.version, "rows": found.made.rows}
        return answer(msgspec.convert(told, DefinedTable), status)

    async def _defined(self, found: Defined, status: int) -> web.Response:
        made = found.made.definition
        shown = await self.service.shown(made.definition, found.done.csn)
        told = {**shown, "csn": found.done.csn, "version": made.version, "rows": found.made.rows}
        return answer(msgspec.convert(told, CommittedTable), status)

    async def list(self, request: web.Request) -> web.Response:
        """List all tables at a CSN (default: the CSN that is applied here)."""
        csn = await self.service.readable(number(request.query, "csn"))
        return answer(await self.service.describe_all(csn))

    async def show(self, request: web.Request) -> web.Response:
        """Show one table."""
        return answer(await self.service.describe(*await self._table(request, request.match_info["table"])))

    async def show_inside(self, request: web.Request) -> web.Response:
        """Show one table as a transaction sees it; a token of the transaction is enough."""
        info = request.match_info
        return answer(await self.service.describe_inside(info["tid"], info["table"]))

    async def parts(self, request: web.Request) -> web.StreamResponse:
        """List the parts of a table that are visible at a CSN."""
        csn, table = await self._table(request, request.query.get("table", ""))
        return await send_json(request, await self.service.parts(csn, table))

    async def _table(self, request: web.Request, name: str) -> tuple[Csn, TableId]:
        return await self.service.readable_table(number(request.query, "csn"), name)


def _schema_in(field: str, text: str) -> pa.Schema:
    """Return the columns in a field of a request; BadRequestError if there are none."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, pa.ArrowInvalid, OSError) as error:
        raise BadRequestError(f"{field} is not a base64 Arrow IPC schema message: {error}") from error
