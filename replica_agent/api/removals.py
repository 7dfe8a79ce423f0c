"""Routes of statements that take whole partitions out of tables."""

from __future__ import annotations

from aiohttp import web

from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.api.operations import Operations
from tidelock.replica_agent.config.states import Action
from tidelock.replica_agent.transactions.registry import Transaction, TxState
from tidelock.wire.statements import MoveRequest, PartitionRequest, RemoveResult


class RemovalRoutes:
    """Handlers of drop_partition, truncate and move_partition below /api/v1/transactions."""

    def __init__(self, agent: Operations) -> None:
        """Serve ``agent``."""
        self._agent = agent

    def _find(self, request: web.Request) -> Transaction:
        tx = self._agent.transactions.find(request.match_info["tid"])
        self._agent.transactions.touch(tx)
        if tx.state is TxState.OPEN:  # of any other the statement itself tells more
            self._agent.require(Action.INSERT)
        return tx

    async def drop_partition(self, request: web.Request) -> web.Response:
        """Remove one partition of a table."""
        tx, asked = self._find(request), await body(request, PartitionRequest)
        done = await self._agent.removals.drop_partition(tx, request.match_info["table"], asked.partition)
        return self._done(tx, done)

    async def truncate(self, request: web.Request) -> web.Response:
        """Remove all rows of a table."""
        tx = self._find(request)
        return self._done(tx, await self._agent.removals.truncate(tx, request.match_info["table"]))

    async def move_partition(self, request: web.Request) -> web.Response:
        """Move one partition into another table."""
        tx, asked = self._find(request), await body(request, MoveRequest)
        table = request.match_info["table"]
        return self._done(
            tx, await self._agent.removals.move_partition(tx, table, asked.into, asked.partition)
        )

    def _done(self, tx: Transaction, done: RemoveResult) -> web.Response:
        self._agent.transactions.touch(tx)
        return answer(done)
