"""Statements of a transaction that change rows, and the requests that they send to an agent."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from tidelock.client.connection import Connection
from tidelock.client.data import Data, ipc_stream, open_rows
from tidelock.client.members import Member
from tidelock.client.results import ChangeResult
from tidelock.client.scan import Params
from tidelock.client.transport import json_text, segment
from tidelock.errors import BadRequestError
from tidelock.wire.statements import DeleteRequest, Literal, MergeSpec, UpdateRequest, Value

T = TypeVar("T")

#: New values by column. A string is SQL; None, bool, int, float, Decimal, date, datetime and bytes are
#: values.
Values = Mapping[str, Any]


class Changes:
    """The statements that change rows; part of `Transaction`."""

    tid: str
    _connection: Connection
    _home: Member

    def delete(self, table: str, where: str, params: Params = ()) -> ChangeResult:
        """Delete the rows for which a condition is true; only parts with such rows are rewritten.

        Args:
            table: `name` or `namespace.name`.
            where: A condition in SQL over the columns of the table, with `?` for each of `params`. Rows for
                which it is NULL remain. Subqueries see all tables.
            params: Values of its parameters.

        Raises:
            BadRequestError: The condition is wrong.
            SerializationConflictError: Another transaction removes a part with such rows, or has done so
                since this one's snapshot (`part`, `holder` in its details).
            UnknownTableError: The table does not exist at this transaction's snapshot.
            TooLargeError: The statement needs more memory or time than a replica allows for one statement.
            TransactionClosedError: The transaction accepts no statements.
            UnavailableError: The home did not answer. After each of these errors: rollback() only.
        """
        return self._change("delete", table, lambda: DeleteRequest(where, list(params)))

    def update(
        self, table: str, values: Values, where: str | None = None, params: Params = ()
    ) -> ChangeResult:
        """Give columns new values in the rows for which a condition is true; a partition column may change.

        Args:
            table: `name` or `namespace.name`.
            values: New values by column. A string is SQL over the old row (`{"n": "n + ?"}`); None, bool,
                int, float, Decimal, date, datetime and bytes are values. To store a text pass it as
                a parameter (`{"name": "?"}`) or quote it (`{"name": "'ann'"}`).
            where: As in `delete`; None = all rows.
            params: Parameters of `values` in their order, then those of `where`.

        Raises:
            SchemaMismatchError: A new value does not fit its column (`column` in its details).
            TidelockError: Other errors, as `delete`.
        """
        return self._change("update", table, lambda: UpdateRequest(_literals(values), where, list(params)))

    def upsert(self, table: str, data: Data, *, on: Sequence[str]) -> ChangeResult:
        """Insert rows; each one replaces the row with the same key, if that exists.

        Args:
            table: `name` or `namespace.name`.
            data: Rows with all columns of the table, as in `insert`; no key may occur twice.
            on: Columns of the key. A key with a null equals no other: such rows are inserted.

        Raises:
            SchemaMismatchError: The rows do not fit the table.
            BadRequestError: A key occurs twice among the rows (`key` in its details).
            TidelockError: Other errors, as `delete` and `insert`.
        """
        names = [on] if isinstance(on, str) else list(on)
        return self._merge("upsert", table, data, lambda: f"on={quote(','.join(names), safe='')}")

    def merge(
        self,
        table: str,
        data: Data,
        *,
        on: Sequence[str],
        when_matched_update: Values | bool | None = None,
        when_matched_delete: str | None = None,
        when_not_matched_insert: Values | bool | None = True,
        params: Params = (),
    ) -> ChangeResult:
        """Merge rows into a table by key. In SQL they are `source`, and the rows of the table are `target`.

        Args:
            table: `name` or `namespace.name`.
            data: Rows with at least the columns of `on`, as in `insert`; other columns than those of the
                table may be used in SQL.
            on: Columns of the key. A key with a null equals no other.
            when_matched_update: New values of rows of the table whose key is among the rows, as in `update`;
                True: the values of the given rows.
            when_matched_delete: Such rows are deleted instead where this condition is true.
            when_not_matched_insert: Values of new rows for rows whose key is not in the table, SQL over
                `source` (columns left out become null); True: all columns of the table. None: they are left
                out.
            params: Parameters of the update, of the delete condition, and of the insert, in this order.

        Raises:
            BadRequestError: SQL is wrong, or a row of the table matches several rows (`key` in its details).
            TidelockError: Other errors, as `upsert`.
        """

        def spec() -> str:
            given = MergeSpec(
                on=[on] if isinstance(on, str) else list(on),
                when_matched_update=_values(when_matched_update),
                when_matched_delete=when_matched_delete,
                when_not_matched_insert=_values(when_not_matched_insert),
                params=list(params),
            )
            return f"spec={quote(json_text(given), safe='')}"

        return self._merge("merge", table, data, spec)

    def _change(self, statement: str, table: str, body: Callable[[], msgspec.Struct]) -> ChangeResult:
        transport = self._connection.transport
        path = f"/transactions/{segment(self.tid)}/{statement}/{segment(table)}"

        def send() -> ChangeResult:
            return transport.call(
                self._home.api,
                "POST",
                path,
                answer=ChangeResult,
                body=body(),
                timeout_s=transport.timeouts.change_s,
            )

        return self._statement(send, reads=False)

    def _merge(self, statement: str, table: str, data: Data, query: Callable[[], str]) -> ChangeResult:
        transport = self._connection.transport

        def send() -> ChangeResult:
            path = f"/transactions/{segment(self.tid)}/{statement}/{segment(table)}?{query()}"
            chunks = ipc_stream(open_rows(data))
            change_s = transport.timeouts.change_s
            return transport.upload(self._home.api, path, chunks, answer=ChangeResult, timeout_s=change_s)

        return self._statement(send, reads=False)

    def _statement(self, run: Callable[[], T], *, reads: bool) -> T:
        raise NotImplementedError


def _values(values: Values | bool | None) -> dict[str, Value] | bool:
    return _literals(values) if isinstance(values, Mapping) else bool(values)


def _literals(values: Values) -> dict[str, Value]:
    return {column: _literal(column, value) for column, value in values.items()}


def _literal(column: str, value: Any) -> Value:
    """Return a new value in the agent's form: SQL unchanged, anything else as a literal."""
    match value:
        case str():
            return value
        case float() if not math.isfinite(value):
            return Literal(str(value))
        case None | bool() | int() | float():
            return Literal(value)
        case decimal.Decimal():
            return Literal(f"{value:f}")
        case dt.date():  # a datetime is one too
            return Literal(str(value))
        case bytes() | bytearray():
            return Literal(base64.b64encode(value).decode("ascii"), base64=True)
        case _:
            raise BadRequestError(
                f"the new value of {column} is a {type(value).__name__}; give SQL, or None, bool, int, "
                "float, Decimal, date, datetime or bytes",
                column=column,
            )
