"""Routes of namespaces: create, drop, list."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from tidelock.replica_agent.api.http import answer, body, number
from tidelock.replica_agent.services.administration import AdministrationService
from tidelock.replica_agent.services.definitions import DefinitionService, Statement
from tidelock.wire.tables import CreateNamespaceRequest, DefinedNamespace


@dataclass(slots=True, eq=False, repr=False)
class NamespaceRoutes:
    """Handlers below /api/v1/namespaces."""

    service: AdministrationService
    definitions: DefinitionService

    async def list_namespaces(self, request: web.Request) -> web.Response:
        """List all namespaces at a CSN (default: the CSN that is applied here)."""
        csn = await self.service.readable(number(request.query, "csn"))
        return answer(await self.service.namespaces(csn))

    async def create_namespace(self, request: web.Request) -> web.Response:
        """Create a namespace, as a transaction of one statement."""
        asked = await body(request, CreateNamespaceRequest)
        return await self._alone(asked.name, self.definitions.founding(asked.name, asked.properties), 201)

    async def create_namespace_inside(self, request: web.Request) -> web.Response:
        """Create a namespace inside a transaction."""
        asked = await body(request, CreateNamespaceRequest)
        statement = self.definitions.founding(asked.name, asked.properties)
        return await self._inside(request, asked.name, statement, 201)

    async def drop_namespace(self, request: web.Request) -> web.Response:
        """Drop a namespace, as a transaction of one statement; with ``cascade=1`` its tables too."""
        return await self._alone(request.match_info["namespace"], self._dropping(request), 200)

    async def drop_namespace_inside(self, request: web.Request) -> web.Response:
        """Drop a namespace inside a transaction; with ``cascade=1`` its tables too."""
        return await self._inside(request, request.match_info["namespace"], self._dropping(request), 200)

    def _dropping(self, request: web.Request) -> Statement:
        cascade = bool(number(request.query, "cascade"))
        return self.definitions.clearing(request.match_info["namespace"], cascade=cascade)

    async def _alone(self, name: str, statement: Statement, status: int) -> web.Response:
        found = await self.definitions.alone(statement)
        return answer(DefinedNamespace(name, found.done.csn), status)

    async def _inside(
        self, request: web.Request, name: str, statement: Statement, status: int
    ) -> web.Response:
        await self.definitions.inside(request.match_info["tid"], statement)
        return answer(DefinedNamespace(name, None), status)
