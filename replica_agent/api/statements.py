"""Routes of statements that change or remove rows: delete, update, upsert, merge, whole partitions."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from tidelock.column_names import split_list
from tidelock.errors import BadRequestError
from tidelock.replica_agent.api.http import answer, body
from tidelock.replica_agent.readers.disconnects import while_waiting
from tidelock.replica_agent.services.transactions import TransactionService
from tidelock.replica_agent.sql.mutation import DeleteRows, MergeRows, UpdateRows
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.wire.statements import (
    ChangeResult,
    DeleteRequest,
    MergeSpec,
    MoveRequest,
    PartitionRequest,
    RestoreRequest,
    UpdateRequest,
)


@dataclass(slots=True, eq=False, repr=False)
class StatementRoutes:
    """Handlers of statements below /api/v1/transactions, except the insert."""

    service: TransactionService

    async def delete(self, request: web.Request) -> web.Response:
        """Delete rows."""
        tx, asked = self._find(request), await body(request, DeleteRequest)
        action = DeleteRows(asked.where, tuple(asked.params))
        work = self.service.delete(tx, request.match_info["table"], action)
        return await self._done(request, work)

    async def update(self, request: web.Request) -> web.Response:
        """Give columns new values."""
        tx, asked = self._find(request), await body(request, UpdateRequest)
        action = UpdateRows(asked.set, asked.where, tuple(asked.params))
        work = self.service.update(tx, request.match_info["table"], action)
        return await self._done(request, work)

    async def upsert(self, request: web.Request) -> web.Response:
        """Insert rows and replace the rows with the same key: the body is an Arrow IPC stream."""
        on = split_list(request.query.get("on", ""))
        return await self._merge(request, MergeRows("", on, update=True, insert=True, upsert=True))

    async def merge(self, request: web.Request) -> web.Response:
        """Merge rows by key: the body is an Arrow IPC stream."""
        try:
            spec = msgspec.json.decode(request.query.get("spec", "{}"), type=MergeSpec)
        except msgspec.DecodeError as error:
            msg = f"spec= of a merge is not as expected: {error}; docs/openapi.json describes it"
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
        return await self._done(request, self.service.merge(tx, table, action, content, length))

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

    async def restore(self, request: web.Request) -> web.Response:
        """Make a table, or one partition, again as it was at a CSN."""
        tx, asked = self._find(request), await body(request, RestoreRequest)
        return answer(await self.service.restore(tx, request.match_info["table"], asked))

    def _find(self, request: web.Request) -> Transaction:
        return self.service.find_for_statement(request.match_info["tid"])

    @staticmethod
    async def _done(request: web.Request, work: Coroutine[Any, Any, ChangeResult]) -> web.Response:
        return answer(await while_waiting(request, work))
