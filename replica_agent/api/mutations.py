"""Routes of statements that change rows: delete, update, upsert, merge."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec
from aiohttp import web

from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.api.operations import Operations
from tidelock.replica_agent.config.states import Action
from tidelock.replica_agent.readers.disconnects import while_waiting
from tidelock.replica_agent.sql.mutation import DeleteRows, MergeRows, UpdateRows
from tidelock.replica_agent.transactions.registry import Transaction, TxState
from tidelock.wire.statements import ChangeResult, DeleteRequest, MergeSpec, UpdateRequest


class MutationRoutes:
    """Handlers of delete, update, upsert and merge below /api/v1/transactions."""

    def __init__(self, agent: Operations) -> None:
        """Serve ``agent``."""
        self._agent = agent

    async def delete(self, request: web.Request) -> web.Response:
        """Delete rows."""
        tx, asked = self._find(request), await body(request, DeleteRequest)
        action = DeleteRows(asked.where, tuple(asked.params))
        work = self._agent.mutations.delete(tx, request.match_info["table"], action)
        return await self._done(request, tx, work)

    async def update(self, request: web.Request) -> web.Response:
        """Give columns new values."""
        tx, asked = self._find(request), await body(request, UpdateRequest)
        action = UpdateRows(asked.set, asked.where, tuple(asked.params))
        work = self._agent.mutations.update(tx, request.match_info["table"], action)
        return await self._done(request, tx, work)

    async def upsert(self, request: web.Request) -> web.Response:
        """Insert rows, in the place of those with the same key: the body is an Arrow IPC stream."""
        on = tuple(name for name in request.query.get("on", "").split(",") if name)
        return await self._merge(request, MergeRows("", on, update=True, insert=True, upsert=True))

    async def merge(self, request: web.Request) -> web.Response:
        """Merge rows by key: the body is an Arrow IPC stream."""
        try:
            spec = msgspec.json.decode(request.query.get("spec", "{}"), type=MergeSpec)
        except msgspec.DecodeError as error:
            msg = f"spec= of a merge is not as expected: {error}; docs/protocol.md has its form"
            raise BadRequestError(msg) from error
        action = MergeRows(
            "",
            tuple(spec.on),
            update=spec.when_matched_update,
            delete=spec.when_matched_delete,
            insert=spec.when_not_matched_insert,
            params=tuple(spec.params),
        )
        return await self._merge(request, action)

    async def _merge(self, request: web.Request, action: MergeRows) -> web.Response:
        tx, table = self._find(request), request.match_info["table"]
        content, length = request.content.iter_any(), request.content_length
        return await self._done(request, tx, self._agent.mutations.merge(tx, table, action, content, length))

    def _find(self, request: web.Request) -> Transaction:
        tx = self._agent.transactions.find(request.match_info["tid"])
        self._agent.transactions.touch(tx)
        if tx.state is TxState.OPEN:  # of any other the statement itself tells more
            self._agent.require(Action.INSERT)
        return tx

    async def _done(
        self, request: web.Request, tx: Transaction, work: Coroutine[Any, Any, ChangeResult]
    ) -> web.Response:
        with self._agent.reading(str(tx.tid)):
            done = await while_waiting(request, work)
        self._agent.transactions.touch(tx)
        return answer(done)
