"""Routes of statements that take whole partitions out of tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.services.transactions import TransactionService
from tidelock.replica_agent.transactions.statements.removals import Removed
from tidelock.replica_agent.transactions.transaction import Transaction


class PartitionBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of drop_partition: each partition column with its value, null as null."""

    partition: dict[str, Any]


class MoveBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of move_partition: which partition, and into which table."""

    partition: dict[str, Any]
    into: str


@dataclass(slots=True, eq=False, repr=False)
class RemovalRoutes:
    """Handlers of drop_partition, truncate and move_partition below /api/v1/transactions."""

    service: TransactionService

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        base = "/api/v1/transactions/{tid}"
        return [
            web.post(base + "/drop_partition/{table}", self.drop_partition),
            web.post(base + "/truncate/{table}", self.truncate),
            web.post(base + "/move_partition/{table}", self.move_partition),
        ]

    def _find(self, request: web.Request) -> Transaction:
        return self.service.find_for_statement(request.match_info["tid"])

    async def drop_partition(self, request: web.Request) -> web.Response:
        """Remove one partition of a table."""
        tx, asked = self._find(request), await body(request, PartitionBody)
        done = await self.service.drop_partition(tx, request.match_info["table"], asked.partition)
        return self._done(done)

    async def truncate(self, request: web.Request) -> web.Response:
        """Remove all rows of a table."""
        tx = self._find(request)
        return self._done(await self.service.truncate(tx, request.match_info["table"]))

    async def move_partition(self, request: web.Request) -> web.Response:
        """Move one partition into another table."""
        tx, asked = self._find(request), await body(request, MoveBody)
        table = request.match_info["table"]
        return self._done(await self.service.move_partition(tx, table, asked.into, asked.partition))

    @staticmethod
    def _done(done: Removed) -> web.Response:
        return answer({"rows": done.rows, "parts": done.parts})
