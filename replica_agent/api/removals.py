"""Routes of statements that remove whole partitions from tables."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.services.transactions import TransactionService
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.wire.statements import MoveRequest, PartitionRequest


@dataclass(slots=True, eq=False, repr=False)
class RemovalRoutes:
    """Handlers of drop_partition, truncate and move_partition below /api/v1/transactions."""

    service: TransactionService

    def _find(self, request: web.Request) -> Transaction:
        return self.service.find_for_statement(request.match_info["tid"])

    async def drop_partition(self, request: web.Request) -> web.Response:
        """Remove one partition of a table."""
        tx, asked = self._find(request), await body(request, PartitionRequest)
        return answer(await self.service.drop_partition(tx, request.match_info["table"], asked.partition))

    async def truncate(self, request: web.Request) -> web.Response:
        """Remove all rows of a table."""
        tx = self._find(request)
        return answer(await self.service.truncate(tx, request.match_info["table"]))

    async def move_partition(self, request: web.Request) -> web.Response:
        """Move one partition into another table."""
        tx, asked = self._find(request), await body(request, MoveRequest)
        table = request.match_info["table"]
        return answer(await self.service.move_partition(tx, table, asked.into, asked.partition))
