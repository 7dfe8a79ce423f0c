"""Autocommit statements, repeated only while a repetition certainly takes effect once."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypedDict, Unpack

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.repetition import repeat
from tidelock.client.reads.scan import Params
from tidelock.client.values.arguments import Values
from tidelock.client.values.data import Data, repeatable
from tidelock.client.values.results import ChangedRows, CommitResult
from tidelock.client.values.schema_merge import Cast
from tidelock.client.writes.lake_files import Lake
from tidelock.client.writes.transaction import Transaction, Wait
from tidelock.client.writes.whole_writes import ReservedBlocks, WholeWrite, small_streams
from tidelock.errors import (
    FencedError,
    NotCommittedError,
    RefusedError,
    TableChangedError,
    TooLargeError,
    TransactionClosedError,
    UnavailableError,
    UnknownTableError,
    UnknownTransactionError,
)
from tidelock.wire.transactions import BeginRequest
from tidelock.wire.writes import WriteHead

P = ParamSpec("P")

#: Errors after which an autocommit statement begins again: its transaction is certainly not committed.
_BEGIN_AGAIN: Final = (
    UnavailableError,
    FencedError,
    NotCommittedError,
    TransactionClosedError,
    UnknownTransactionError,
)


class CommitOptions(TypedDict, total=False):
    """Options for the commit of an autocommit statement.

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
    _tids: ReservedBlocks

    def _begin(self, request: BeginRequest) -> Transaction:
        """Begin a transaction at a home, now."""
        raise NotImplementedError

    def insert(
        self,
        table: str,
        data: Data,
        *,
        merge_schema: bool = False,
        cast: Cast = "safe",
        label: str | None = None,
        wait: Wait = "home",
        timeout_s: float | None = None,
    ) -> CommitResult:
        """Insert rows in a separate transaction; `merge_schema` and `cast` as in `Transaction.insert`.

        The transaction is begun again, on another replica if need be, for at most `timeout_s` (default: the
        client's). That happens only while the rows are certain to be inserted once, and only if the rows can
        be read again (a reader yields them once). With `merge_schema` it is begun again also after another
        change of the table.

        Raises as `Transaction.insert` and `Transaction.commit`.
        """
        if not merge_schema and cast == "safe":
            return self.write({table: data}, label=label, wait=wait, timeout_s=timeout_s)

        def once() -> CommitResult:
            with self._begin(BeginRequest(label=label)) as tx:
                tx.insert(table, data, merge_schema=merge_schema, cast=cast)
                return tx.commit(wait=wait, timeout_s=timeout_s)

        limit_s = self._connection.transport.timeouts.answer_s if timeout_s is None else timeout_s
        return self._repeat(once, limit_s, again=repeatable(data), also=(TableChangedError,))

    def write(
        self,
        rows: Mapping[str, Data],
        *,
        label: str | None = None,
        batch: int | None = None,
        meta: Mapping[str, Any] | None = None,
        progress: str | None = None,
        wait: Wait = "home",
        timeout_s: float | None = None,
    ) -> CommitResult:
        """Insert rows into several tables in a separate transaction: all become visible together, or none.

        Up to 256 KiB of rows in memory (pyarrow Table or RecordBatch, pandas DataFrame) travel with begin and
        commit as one request. So this is the cheapest way to write little. More rows take a request for each
        step.

        The transaction is begun again, on another replica if need be, for at most `timeout_s` (default: the
        client's). That happens only while the rows are certain to be inserted once, and only if the rows can
        be read again (a reader yields them once).

        Args:
            rows: The new rows of each table: {`name` or `namespace.name`: data, as in `Transaction.insert`}.
            label: As in `Database.begin`.
            batch: As in `Database.begin`.
            meta: As in `Database.begin`.
            progress: As in `Database.begin`.
            wait: As in `Transaction.commit`.
            timeout_s: As in `Transaction.commit`.

        Raises as `Transaction.insert` and `Transaction.commit`.
        """
        own_data = None if meta is None else dict(meta)
        limit_s = self._connection.transport.timeouts.answer_s if timeout_s is None else timeout_s
        streams = small_streams(rows)
        if streams is not None:
            head = WriteHead(
                tid="", rows=(), label=label, batch=batch, meta=own_data, progress=progress, wait=wait
            )
            rows_of = tuple(streams.items())
            once = WholeWrite(self._connection, self._tids, rows_of, head, limit_s).once
            inserted = ChangedRows(inserted=sum(map(len, rows.values())))
            with contextlib.suppress(TooLargeError):  # then the steps say what is too large
                return self._repeat(once, limit_s, again=True).counting(inserted)

        def step_by_step() -> CommitResult:
            request = BeginRequest(label=label, batch=batch, meta=own_data, progress=progress)
            with self._begin(request) as tx:
                for table, data in rows.items():
                    tx.insert(table, data)
                return tx.commit(wait=wait, timeout_s=timeout_s)

        return self._repeat(step_by_step, limit_s, again=all(map(repeatable, rows.values())))

    def import_files(
        self, table: str, paths: str | Path | Sequence[str | Path] | Lake, **options: Unpack[CommitOptions]
    ) -> CommitResult:
        """As `Transaction.import_files`, in a separate transaction, begun again as in `insert`."""
        return self._run(options, True, Transaction.import_files, table, paths)

    def drop_partition(
        self, table: str, partition: Mapping[str, Any], **options: Unpack[CommitOptions]
    ) -> CommitResult:
        """As `Transaction.drop_partition`, in a separate transaction, begun again as in `insert`."""
        return self._run(options, True, Transaction.drop_partition, table, partition)

    def truncate(self, table: str, **options: Unpack[CommitOptions]) -> CommitResult:
        """As `Transaction.truncate`, in a separate transaction, begun again as in `insert`."""
        return self._run(options, True, Transaction.truncate, table)

    def move_partition(
        self, table: str, partition: Mapping[str, Any], into: str, **options: Unpack[CommitOptions]
    ) -> CommitResult:
        """As `Transaction.move_partition`, in a separate transaction, begun again as in `insert`."""
        return self._run(options, True, Transaction.move_partition, table, partition, into)

    def restore_table(
        self,
        table: str,
        to: int | str | None = None,
        *,
        at: datetime | int | str | None = None,
        partition: Mapping[str, Any] | None = None,
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """As `Transaction.restore_table`, in a separate transaction, begun again as in `insert`."""
        restore = functools.partial(Transaction.restore_table, at=at, partition=partition)
        return self._run(options, True, restore, table, to)

    def replace_partition(
        self, table: str, partition: Mapping[str, Any], data: Data, **options: Unpack[CommitOptions]
    ) -> CommitResult:
        """As `Transaction.replace_partition`, in a separate transaction, begun again as in `insert`."""
        return self._run(options, repeatable(data), Transaction.replace_partition, table, partition, data)

    def delete(
        self, table: str, where: str, params: Params = (), **options: Unpack[CommitOptions]
    ) -> CommitResult:
        """As `Transaction.delete`, in a separate transaction, begun again as in `insert`."""
        return self._run(options, True, Transaction.delete, table, where, params)

    def update(
        self,
        table: str,
        values: Values,
        where: str | None = None,
        params: Params = (),
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """As `Transaction.update`, in a separate transaction, begun again as in `insert`."""
        return self._run(options, True, Transaction.update, table, values, where, params)

    def upsert(
        self, table: str, data: Data, *, on: Sequence[str], **options: Unpack[CommitOptions]
    ) -> CommitResult:
        """As `Transaction.upsert`, in a separate transaction, begun again as in `insert`."""
        return self._run(options, repeatable(data), Transaction.upsert, table, data, on=on)

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
        **options: Unpack[CommitOptions],
    ) -> CommitResult:
        """As `Transaction.merge`, in a separate transaction, begun again as in `insert`."""
        return self._run(
            options,
            repeatable(data),
            Transaction.merge,
            table,
            data,
            on=on,
            when_matched_update=when_matched_update,
            when_matched_delete=when_matched_delete,
            when_not_matched_insert=when_not_matched_insert,
            params=params,
        )

    def _run(
        self,
        options: CommitOptions,
        again: bool,
        statement: Callable[Concatenate[Transaction, P], object],
        *args: P.args,
        **named: P.kwargs,
    ) -> CommitResult:
        """Run one statement as a transaction; `again`: repeat it while it certainly takes effect once."""

        def once(
            label: str | None = None, wait: Wait = "home", timeout_s: float | None = None
        ) -> CommitResult:
            with self._begin(BeginRequest(label=label)) as tx:
                statement(tx, *args, **named)
                return tx.commit(wait=wait, timeout_s=timeout_s)

        call = functools.partial(once, **options)  # TypeError for an option that does not exist
        timeout_s = options.get("timeout_s")
        transport = self._connection.transport
        return self._repeat(
            call, transport.timeouts.answer_s if timeout_s is None else timeout_s, again=again
        )

    def _knowing_all_tables(self, once: Callable[[], CommitResult]) -> CommitResult:
        """Run a transaction; one that does not know a table sees next what was committed at any replica.

        Another process may have created the table at a replica that is ahead of the home.
        """
        try:
            return once()
        except UnknownTableError:
            self._begin(BeginRequest(fresh=True)).rollback()  # what this client begins next has its CSN
            return once()

    def _repeat(
        self,
        once: Callable[[], CommitResult],
        limit_s: float,
        *,
        again: bool,
        also: tuple[type[RefusedError], ...] = (),
    ) -> CommitResult:
        """Run a transaction; `again`: repeat it while it certainly takes effect once.

        `also` are further errors of transactions that are not committed, after which it is repeated.
        """
        if not again:
            return once()
        return repeat(
            functools.partial(self._knowing_all_tables, once),
            (*_BEGIN_AGAIN, *also),
            deadline=time.monotonic() + limit_s,
            waits=self._connection.transport.waits,
            what=f"an autocommit statement (timeout_s={limit_s:g})",
        )
