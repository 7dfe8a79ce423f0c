"""Autocommit statements, repeated only while a repetition certainly takes effect once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypedDict, TypeVar, Unpack

import tenacity

from tidelock.client.changes import Values
from tidelock.client.connection import Connection
from tidelock.client.data import Data, repeatable
from tidelock.client.decide import PAUSE_FIRST_S, PAUSE_MAX_S
from tidelock.client.results import CommitResult
from tidelock.client.scan import Params
from tidelock.client.transaction import Transaction, Wait
from tidelock.errors import (
    FencedError,
    NotCommittedError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
)

T = TypeVar("T")

#: Errors after which an autocommit statement begins again: its transaction is certainly not committed.
_BEGIN_AGAIN: Final = (
    UnavailableError,
    FencedError,
    NotCommittedError,
    TransactionClosedError,
    UnknownTransactionError,
)


class End(TypedDict, total=False):
    """Options for the end of an autocommit statement.

    Attributes:
        label: Unique name of this piece of work, see `Database.begin`.
        wait: See `Transaction.commit`.
        timeout_s: How long to repeat the statement and to request its outcome; default: the client's.
    """

    label: str | None
    wait: Wait
    timeout_s: float | None


class AutocommitStatements:
    """The autocommit statements; part of `Database`."""

    _connection: Connection

    def begin(self, label: str | None = None) -> Transaction:
        """See `Database.begin`."""
        raise NotImplementedError

    def insert(
        self,
        table: str,
        data: Data,
        *,
        label: str | None = None,
        wait: Wait = "home",
        timeout_s: float | None = None,
    ) -> CommitResult:
        """Insert rows in a separate transaction.

        The transaction is begun again, on another replica if need be, for at most `timeout_s` (default: the
        client's). That happens only while the rows are certain to be inserted once, and only if the rows can
        be read again (a reader yields them once).

        Raises as `Transaction.insert` and `Transaction.commit`.
        """
        return self._alone(
            lambda tx: tx.insert(table, data),
            again=repeatable(data),
            label=label,
            wait=wait,
            timeout_s=timeout_s,
        )

    def drop_partition(self, table: str, partition: Mapping[str, Any], **end: Unpack[End]) -> CommitResult:
        """As `Transaction.drop_partition`, in a separate transaction, begun again as in `insert`."""
        return self._alone(lambda tx: tx.drop_partition(table, partition), again=True, **end)

    def truncate(self, table: str, **end: Unpack[End]) -> CommitResult:
        """As `Transaction.truncate`, in a separate transaction, begun again as in `insert`."""
        return self._alone(lambda tx: tx.truncate(table), again=True, **end)

    def move_partition(
        self, table: str, partition: Mapping[str, Any], into: str, **end: Unpack[End]
    ) -> CommitResult:
        """As `Transaction.move_partition`, in a separate transaction, begun again as in `insert`."""
        return self._alone(lambda tx: tx.move_partition(table, partition, into), again=True, **end)

    def replace_partition(
        self, table: str, partition: Mapping[str, Any], data: Data, **end: Unpack[End]
    ) -> CommitResult:
        """As `Transaction.replace_partition`, in a separate transaction, begun again as in `insert`."""
        return self._alone(
            lambda tx: tx.replace_partition(table, partition, data), again=repeatable(data), **end
        )

    def delete(self, table: str, where: str, params: Params = (), **end: Unpack[End]) -> CommitResult:
        """As `Transaction.delete`, in a separate transaction, begun again as in `insert`."""
        return self._alone(lambda tx: tx.delete(table, where, params), again=True, **end)

    def update(
        self, table: str, values: Values, where: str | None = None, params: Params = (), **end: Unpack[End]
    ) -> CommitResult:
        """As `Transaction.update`, in a separate transaction, begun again as in `insert`."""
        return self._alone(lambda tx: tx.update(table, values, where, params), again=True, **end)

    def upsert(self, table: str, data: Data, *, on: Sequence[str], **end: Unpack[End]) -> CommitResult:
        """As `Transaction.upsert`, in a separate transaction, begun again as in `insert`."""
        return self._alone(lambda tx: tx.upsert(table, data, on=on), again=repeatable(data), **end)

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
        **end: Unpack[End],
    ) -> CommitResult:
        """As `Transaction.merge`, in a separate transaction, begun again as in `insert`."""
        return self._alone(
            lambda tx: tx.merge(
                table,
                data,
                on=on,
                when_matched_update=when_matched_update,
                when_matched_delete=when_matched_delete,
                when_not_matched_insert=when_not_matched_insert,
                params=params,
            ),
            again=repeatable(data),
            **end,
        )

    def _alone(
        self,
        statement: Callable[[Transaction], object],
        *,
        again: bool,
        label: str | None = None,
        wait: Wait = "home",
        timeout_s: float | None = None,
    ) -> CommitResult:
        """Run one statement as a transaction; `again`: repeat it while it certainly takes effect once."""
        limit_s = self._connection.transport.timeouts.answer_s if timeout_s is None else timeout_s

        def once() -> CommitResult:
            with self.begin(label) as tx:
                statement(tx)
                return tx.commit(wait=wait, timeout_s=timeout_s)

        return _again(once, limit_s) if again else once()


def _again(call: Callable[[], T], limit_s: float) -> T:
    """Repeat a call until it succeeds, fails for good, or the time is over."""
    deadline = time.monotonic() + limit_s
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(_BEGIN_AGAIN),
        wait=tenacity.wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S),
        stop=lambda _: time.monotonic() >= deadline,
        reraise=True,
    )
    return retrying(call)
