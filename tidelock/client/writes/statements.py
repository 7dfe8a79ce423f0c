"""The statements of a transaction, and the requests that they send to its home."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidelock.client.agents.members import KnownMember
from tidelock.client.agents.transport import Transport, json_text, segment
from tidelock.client.agents.webhdfs import StagingFolder
from tidelock.client.reads.scan import Params
from tidelock.client.values.arguments import Values, full_name, literals, past_point, plain, values_or_flag
from tidelock.client.values.data import Data, ipc_stream, open_rows
from tidelock.client.values.results import ChangeResult, InsertResult, RemoveResult
from tidelock.client.writes.file_import import import_files_of, send_files
from tidelock.client.writes.lake_files import Lake, lake_files
from tidelock.column_names import join_list
from tidelock.errors import TidelockError, UnknownTableError
from tidelock.loopback_names import reachable
from tidelock.wire.statements import (
    DeleteRequest,
    MergeSpec,
    MoveRequest,
    PartitionRequest,
    Replacement,
    ReplaceRequest,
    RestoreRequest,
    RestoreResult,
    RowChanges,
    UpdateRequest,
)
from tidelock.wire.tables import TableInfo
from tidelock.wire.transactions import Confirmed, SealRequest, TokenAnswer, TokenRequest

T = TypeVar("T")


class HomeRequests:
    """Requests about one transaction to its home, at `_address`; part of the classes of transactions."""

    _tid: str
    _transport: Transport
    _address: str

    def _call(self, step: str, *, answer: type[T], method: str = "POST", **options: Any) -> T:
        path = f"/transactions/{segment(self._tid)}/{step}"
        return self._transport.call(self._address, method, path, answer=answer, **options)

    def _send_rows(self, step: str, data: Data, answer: type[T], timeout_s: float | None = None) -> T:
        path = f"/transactions/{segment(self._tid)}/{step}"
        chunks = ipc_stream(open_rows(data))
        return self._transport.upload(self._address, path, chunks, answer=answer, timeout_s=timeout_s)


class Statements(HomeRequests):
    """The statements of a transaction; part of `Transaction`."""

    def insert(self, table: str, data: Data) -> InsertResult:
        """Stage rows; no other transaction sees them before the commit.

        Of a transaction that has not begun, up to 256 KiB of rows in memory (pyarrow Table or RecordBatch,
        pandas DataFrame) wait in this process if their table certainly takes them: its definition says so,
        and it has neither a unique key nor derived tables. `parts` of the result is 0 then. All other rows
        make the transaction begin, and are refused here if they are. Rows that have waited may be refused by
        what makes the transaction begin later, or by the commit, for a limit of the agent or a full disk.

        Args:
            table: `name` or `namespace.name`.
            data: pyarrow Table, RecordBatch or RecordBatchReader, pandas DataFrame, any object with
                `__arrow_c_stream__`, or the path (or a list of paths) of Parquet files and of folders with
                them. Files and readers are sent piece by piece and never held in memory as a whole.

        Raises:
            UnknownTableError: The table does not exist at this transaction's snapshot.
            SchemaMismatchError: The rows do not fit the table.
            DuplicateKeyError: The table has a unique key and refuses duplicates; `key` (one, as text) and
                `keys` (their number) are in its details.
            SerializationConflictError: The table has a unique key, and another transaction adds, or has added
                since this one's snapshot, rows whose keys may be among these.
            TooLargeError: A limit of the agent was exceeded.
            DiskFullError: The home's disk is full.
            BadRequestError: `data` holds no rows that can be sent.
            TransactionClosedError: The transaction accepts no statements (LeaseExpiredError: its lease ran
                out).
            UnavailableError: The home did not answer; if rows had left, the transaction accepts rollback()
                only.
        """
        kept = self._keep(table, data)
        return self._upload(f"rows/{segment(table)}", data, InsertResult) if kept is None else kept

    def import_files(self, table: str, paths: str | Path | Sequence[str | Path] | Lake) -> InsertResult:
        """Make Parquet files parts of a table as they are: no row is decoded, and none is written again.

        Each file becomes one part. It needs the columns of the table with exactly their types, but for those
        of the partitions, which are named by its folders: `day=2026-01-01/city=Bern`, as Spark and Hive name
        them. Files that do not fit are taken by `insert`, which converts them.

        Args:
            table: `name` or `namespace.name`.
            paths: Parquet files, and folders whose files `*.parquet` are taken. Or a table of another system:
                `deltalake.DeltaTable`, `pyiceberg.table.Table` or a scan of the latter, of which the files of
                the version that it was opened at are taken.

        Raises:
            BadRequestError: There is no such file, or it cannot be read; its folders name more partitions
                than the table has. Or the rows of the other table are not exactly those of its files.
            SchemaMismatchError: A file does not fit the table; the transaction accepts rollback() only.
            DuplicateKeyError, SerializationConflictError: As of `seal`.
            TooLargeError, DiskFullError: As of `insert`.
            RefusedError: A job of Spark writes into the table in this transaction, it is a landing table, or
                a table that is derived from it cannot follow.
            UnknownTableError, TransactionClosedError, UnavailableError: As of `insert`.
        """
        partition_by = self.definition(table).partition_by
        files = lake_files(paths, partition_by)
        if files is None:
            named = [paths] if isinstance(paths, str | Path) else paths
            files = import_files_of(named, len(partition_by))
        folder, job = StagingFolder(self.path(table, ("append",))), str(uuid.uuid4())
        try:
            places = send_files(folder, job, files)
        except BaseException:
            with contextlib.suppress(TidelockError):  # not as a statement: the transaction goes on if it can
                self._call(f"seal/{segment(table)}", answer=InsertResult, body=SealRequest(job, []))
            raise
        return self.settle(table, job, places)

    def drop_partition(self, table: str, partition: Mapping[str, Any]) -> RemoveResult:
        """Remove the rows of one partition that this transaction sees; no file is read or written.

        Args:
            table: `name` or `namespace.name`.
            partition: Every partition column with its value; None is null.

        Raises:
            SerializationConflictError: Another transaction removes rows of the partition, or has done so
                since this one's snapshot (`part`, `holder` in its details).
            UnknownTableError, BadRequestError: The table does not exist, or `partition` names no partition.
            TransactionClosedError: As in `insert`. After each of these errors: rollback() only.
        """
        return self._remove("drop_partition", table, PartitionRequest(plain(partition)))

    def truncate(self, table: str) -> RemoveResult:
        """Remove all rows of a table that this transaction sees; errors as `drop_partition`."""
        return self._remove("truncate", table, None)

    def move_partition(self, table: str, partition: Mapping[str, Any], into: str) -> RemoveResult:
        """Move the rows of one partition into another table of equal schema, without rewriting them.

        Raises:
            BadRequestError: The tables differ in columns, partitions or sort order, or in what files of
                before have.
            TidelockError: Other errors, as `drop_partition`.
        """
        moved = self._remove("move_partition", table, MoveRequest(plain(partition), into))
        self._count(InsertResult(moved.rows, moved.parts))
        return moved

    def restore_table(
        self,
        table: str,
        to: int | str | None = None,
        *,
        at: datetime | int | str | None = None,
        partition: Mapping[str, Any] | None = None,
    ) -> RestoreResult:
        """Make a table, or one partition, again as it was; no file is read or written.

        A table gets the columns back that it had; a partition is shown with the columns of now.

        Rows that were there then and are not now come back, and rows that have come since leave, as in any
        change: the change feed shows them, and snapshots of before stay as they are. Rows that others insert
        while the transaction is open stay; if the columns are restored, they are a conflict.

        Args:
            table: `name` or `namespace.name`.
            to: As at this CSN or tag.
            at: Instead: as at the newest CSN whose effective time is not after this.
            partition: Every partition column with its value, None is null; default: the whole table.

        Raises:
            BadRequestError: Not one of `to` and `at`; the CSN came after the begin of the transaction;
                `partition` names no partition, or one whose files do not hold the columns of now; or a
                derived table could not follow the columns of then.
            SnapshotTooOldError: The history of the CSN is not kept any more.
            NoSuchCsnError, UnknownTagError: There is no such CSN or tag; `at` has not come yet.
            UnknownTableError: There is no such table, or it did not exist then.
            UnsupportedInTransactionError: The table has a unique key; or it had other columns, and the
                transaction has rows for it with those of now.
            TableModeError: It is a landing table.
            SerializationConflictError, TransactionClosedError: As in `drop_partition`. After each of these
                errors: rollback() only.
        """
        csn, tag, at_ms = past_point(to, at)
        body = RestoreRequest(csn, tag, at_ms, None if partition is None else plain(partition))
        step = f"restore/{segment(table)}"
        return self._statement(lambda: self._call(step, answer=RestoreResult, body=body), reads=False)

    def replace_partition(self, table: str, partition: Mapping[str, Any], data: Data) -> InsertResult:
        """Replace the rows of one partition by other rows, which must all belong to it.

        Raises:
            SchemaMismatchError: The rows do not fit the table, or are of another partition.
            TidelockError: Other errors, as `drop_partition` and `insert`.
        """
        self.drop_partition(table, partition)
        path = f"rows/{segment(table)}?partition={segment(json.dumps(plain(partition)))}"
        return self._upload(path, data, InsertResult)

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
            PartDamagedError: A part of the table is damaged at the home, which fetches it again.
            UnavailableError: The home did not answer. After each of these errors: rollback() only.
        """
        return self._change(f"delete/{segment(table)}", lambda: DeleteRequest(where, list(params)))

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
        return self._change(
            f"update/{segment(table)}", lambda: UpdateRequest(literals(values), where, list(params))
        )

    def upsert(self, table: str, data: Data, *, on: Sequence[str]) -> ChangeResult:
        """Insert rows; each one replaces the row with the same key, if that exists.

        Args:
            table: `name` or `namespace.name`.
            data: Rows of the table, as in `insert`; no key may occur twice.
            on: Columns of the key. A key with a null equals no other: such rows are inserted.

        Raises:
            SchemaMismatchError: The rows do not fit the table.
            BadRequestError: A key occurs twice among the rows (`key` in its details).
            TidelockError: Other errors, as `delete` and `insert`.
        """
        names = [on] if isinstance(on, str) else list(on)
        return self._merge(f"upsert/{segment(table)}?on=", lambda: join_list(names), data)

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
                `source` (columns left out get their default, or null); True: all columns of the table. None:
                they are left out.
            params: Parameters of the update, of the delete condition, and of the insert, in this order.

        Raises:
            BadRequestError: SQL is wrong, or a row of the table matches several rows (`key` in its details).
            TidelockError: Other errors, as `upsert`.
        """

        def spec() -> str:
            clauses = MergeSpec(
                on=[on] if isinstance(on, str) else list(on),
                when_matched_update=values_or_flag(when_matched_update),
                when_matched_delete=when_matched_delete,
                when_not_matched_insert=values_or_flag(when_not_matched_insert),
                params=list(params),
            )
            return json_text(clauses)

        return self._merge(f"merge/{segment(table)}?spec=", spec, data)

    def path(self, table: str, rights: Iterable[str] = ("append", "replace")) -> str:
        """Return the folder through which Spark writes to a table, as a part of this transaction.

        `df.write.mode("append").parquet(tx.path("orders"))`, with `partitionBy` as the table is partitioned.
        The path holds a token with `rights` (see `token`): a process that knows the path may write to that
        table until the transaction ends. It is not for reading. See docs/spark-writes.md, and
        `tidelock.spark.write`, which makes all settings itself.

        Raises:
            BadRequestError: `table` is no name of a table.
            TransactionClosedError: The transaction accepts no statements.
            UnavailableError: The home does not answer; the call may be repeated.
        """
        name = full_name(table)
        made = self._token(TokenRequest(tuple(rights), [name]))
        scheme, slashes, rest = made.url.partition("//")
        address, slash, folder = rest.partition("/")
        url = f"{scheme}{slashes}{reachable(address)}{slash}{folder}"
        return "/".join((url, *name.rsplit(".", 1)))

    def token(
        self,
        rights: Iterable[str] = ("append", "replace"),
        tables: Iterable[str] | None = None,
        ttl_s: float | None = None,
    ) -> str:
        """Return a token, with which other processes write to this transaction, or join it.

        Args:
            rights: "append" to add rows, "replace" to remove the existing rows (mode "overwrite"),
                "by_name" besides for engines that look at a table before they write (`confirm`). For a
                process that joins the transaction (`tidelock.join`): "read" to see what the transaction
                sees, "heartbeat" to keep it alive, "commit" to end it.
            tables: Names; None = all.
            ttl_s: Seconds after which the token expires; it is invalid at once when the transaction ends.
                Default: the agents' `token_ttl_s`.

        Raises as `path`, and BadRequestError for a right that does not exist or a time out of range.
        """
        named = None if tables is None else list(tables)
        return self._token(TokenRequest(tuple(rights), named, ttl_s)).token

    @property
    def url(self) -> str:
        """Address by which this client reaches the home, for `tidelock.join`."""
        self._at_home()
        return self._transport.url_of(self._address)

    @property
    def published_url(self) -> str:
        """Address of the home as it publishes it, for `tidelock.join` in processes on other machines."""
        return self._transport.url_of(self._at_home().published)

    def seal(self, table: str) -> InsertResult:
        """End a write through `path` whose committer leaves no `_SUCCESS`, after the write has returned.

        Harmless after a committer that leaves `_SUCCESS`: then nothing is left to be sealed (0 rows).

        Raises:
            UnsealedWriteError: Tasks are still running.
            SchemaMismatchError: A file does not fit the table; the transaction accepts rollback() only.
            DuplicateKeyError, SerializationConflictError: As of `insert`; likewise. Files have no order, so
                two rows with the same key are an error also in a table that replaces duplicates.
            CheckViolationError, TooManyPartsError, DiskFullError: Likewise.
            RefusedError: A table that is derived from this one cannot follow; likewise.
            TransactionClosedError, UnavailableError: As `path`.
        """
        return self._seal(table, SealRequest())

    def settle(self, table: str, job: str, files: Iterable[str]) -> InsertResult:
        """End a job that writes through `path`: keep the named files and drop all other files of the job.

        It replaces the renames of a committer, for jobs whose tasks report the files that they have written.

        Args:
            table: `name` or `namespace.name`.
            job: UUID of the job, as in the names of its files.
            files: Paths in the folder, each where a task attempt has left the file.

        Raises:
            UnsealedWriteError: A file does not exist, or is still being written.
            TidelockError: Other errors, as `seal`.
        """
        return self._seal(table, SealRequest(job, list(files)))

    def replace_files(self, table: str, files: Iterable[str]) -> Replacement:
        """Take files out of a table, for a job that writes what remains of their rows.

        Their parts are locked, and this transaction does not see their rows any more. The job writes through
        `path`, and `seal_change` ends it; before that the transaction cannot be committed. Spark changes
        rows so (`tidelock.spark.merge`, `update` and `delete`, which make all of these calls).

        Args:
            table: `name` or `namespace.name`. This transaction has not changed it.
            files: Names of files in the folder of the table at `snapshot_csn`, without the folders of
                partitions.

        Returns:
            The files to read, each with a CSN at which the folder of the table has it. If compaction has
            merged parts meanwhile, they have more rows than `files`, which are to be written again, too.

        Raises:
            SerializationConflictError: Another transaction removes the rows of one of the files, or has done
                so since this one's snapshot (`part`, `holder` in its details).
            UnsupportedInTransactionError: This transaction has changed the table, or is read-committed.
            BadRequestError: There is no such file.
            TooLargeError: They have more parts than one transaction may lock (`locks_max`).
            UnknownTableError, TableModeError, TransactionClosedError: As in `insert`. After each of these
                errors: rollback() only.
        """
        body, step = ReplaceRequest(list(files)), f"replace/{segment(table)}"
        change_s = self._transport.timeouts.change_s
        return self._statement(
            lambda: self._call(step, answer=Replacement, body=body, timeout_s=change_s, working=True),
            reads=False,
        )

    def seal_change(
        self, table: str, *, rows_deleted: int = 0, rows_updated: int = 0, rows_inserted: int = 0
    ) -> ChangeResult:
        """End the job that writes what remains of the rows of files (`replace_files`), and count its rows.

        Args:
            table: `name` or `namespace.name`.
            rows_deleted: How many rows of the files it was not to write.
            rows_updated: How many of these rows it was to write with new values.
            rows_inserted: How many rows it was to write besides.

        Raises:
            CorruptError: The job has written more or fewer rows than that.
            BadRequestError: No files were taken.
            DuplicateKeyError: Rows have a key twice, or the key of a row that stays in the table.
            TidelockError: Other errors, as `seal`. After each of them: rollback() only.
        """
        changes = RowChanges(rows_deleted, rows_updated, rows_inserted)
        return self._change(f"replaced/{segment(table)}", lambda: changes)

    def confirm(self, table: str) -> bool:
        """Let a job count that has written through a path with the right "by_name", and has ended well.

        Such a job may have been reported as failed although all of its rows are staged. So the transaction
        cannot be committed before the engine has said how it ended.

        Returns:
            Whether a job has waited for that.

        Raises as `definition`.
        """
        step = f"confirm/{segment(table)}"
        return self._statement(lambda: self._call(step, answer=Confirmed), reads=True).waited

    def definition(self, table: str) -> TableInfo:
        """Return a table as this transaction sees it: its columns, `partition_by`, `sort_by`, properties.

        `rows`, `bytes` and `parts` are those of its snapshot.

        Raises:
            UnknownTableError: The transaction sees no such table. It goes on.
            UnavailableError: The home does not answer; the call may be repeated.
        """
        path = f"tables/{segment(table)}"
        return self._statement(
            lambda: self._call(path, answer=TableInfo, method="GET"), reads=True, spared=UnknownTableError
        )

    def _remove(self, statement: str, table: str, body: msgspec.Struct | None) -> RemoveResult:
        step = f"{statement}/{segment(table)}"
        return self._statement(lambda: self._call(step, answer=RemoveResult, body=body), reads=False)

    def _upload(self, step: str, data: Data, answer: type[T]) -> T:
        return self._statement(lambda: self._send_rows(step, data, answer), reads=False)

    def _change(self, step: str, body: Callable[[], msgspec.Struct]) -> ChangeResult:
        # The body is made inside: a wrong value fails the transaction, as the agent's refusal does.
        change_s = self._transport.timeouts.change_s
        return self._statement(
            lambda: self._call(step, answer=ChangeResult, body=body(), timeout_s=change_s, working=True),
            reads=False,
        )

    def _merge(self, step: str, argument: Callable[[], str], data: Data) -> ChangeResult:
        change_s = self._transport.timeouts.change_s
        return self._statement(
            lambda: self._send_rows(step + segment(argument()), data, ChangeResult, change_s), reads=False
        )

    def _seal(self, table: str, request: SealRequest) -> InsertResult:
        step, change_s = f"seal/{segment(table)}", self._transport.timeouts.change_s
        return self._statement(
            lambda: self._call(step, answer=InsertResult, body=request, timeout_s=change_s, working=True),
            reads=False,
        )

    def _token(self, request: TokenRequest) -> TokenAnswer:
        return self._statement(lambda: self._call("token", answer=TokenAnswer, body=request), reads=True)

    def _count(self, result: object) -> None:
        """Count the rows of a statement's result for that of the commit."""
        raise NotImplementedError

    def _statement(
        self, run: Callable[[], T], *, reads: bool, spared: type[TidelockError] | tuple[()] = ()
    ) -> T:
        """Run a statement; its failure, but for `spared`, may leave the transaction to rollback() only."""
        raise NotImplementedError

    def _keep(self, table: str, data: Data) -> InsertResult | None:
        """Keep rows until the transaction begins; None: they have to be sent now."""
        raise NotImplementedError

    def _at_home(self) -> KnownMember:
        """Begin the transaction, unless it has begun, and return its home."""
        raise NotImplementedError
