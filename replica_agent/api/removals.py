"""Routes of statements that take whole partitions out of tables."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.api.operations import Operations
from tidelock.replica_agent.config.states import Action
from tidelock.replica_agent.transactions.statements.removals import Removed
from tidelock.replica_agent.transactions.transaction import Transaction, TxState


class PartitionBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of drop_partition: each partition column with its value, null as null."""

    partition: dict[str, Any]


class MoveBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of move_partition: which partition, and into which table."""

    partition: dict[str, Any]
    into: str


class RemovalRoutes:
    """Handlers of drop_partition, truncate and move_partition below /api/v1/transactions."""

    def __init__(self, agent: Operations) -> None:
        """Serve ``agent``."""
        self._agent = agent

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        base = "/api/v1/transactions/{tid}"
        return [
            web.post(base + "/drop_partition/{table}", self.drop_partition),
            web.post(base + "/truncate/{table}", self.truncate),
            web.post(base + "/move_partition/{table}", self.move_partition),
        ]

    def _find(self, request: web.Request) -> Transaction:
        tx = self._agent.transactions.find(request.match_info["tid"])
        self._agent.transactions.touch(tx)
        if tx.state is TxState.OPEN:  # of any other the statement itself tells more
            self._agent.require(Action.INSERT)
        return tx

    async def drop_partition(self, request: web.Request) -> web.Response:
        """Remove one partition of a table."""
        tx, asked = self._find(request), await body(request, PartitionBody)
        done = await self._agent.removals.drop_partition(tx, request.match_info["table"], asked.partition)
        return self._done(tx, done)

    async def truncate(self, request: web.Request) -> web.Response:
        """Remove all rows of a table."""
        tx = self._find(request)
        return self._done(tx, await self._agent.removals.truncate(tx, request.match_info["table"]))

    async def move_partition(self, request: web.Request) -> web.Response:
        """Move one partition into another table."""
        tx, asked = self._find(request), await body(request, MoveBody)
        table = request.match_info["table"]
        return self._done(
            tx, await self._agent.removals.move_partition(tx, table, asked.into, asked.partition)
        )

    def _done(self, tx: Transaction, done: Removed) -> web.Response:
        self._agent.transactions.touch(tx)
        return answer({"rows": done.rows, "parts": done.parts})
