"""The folder through which other processes write to a transaction: tokens, paths, the seal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tidelock.client.connection import Connection
from tidelock.client.members import Member
from tidelock.client.results import InsertResult
from tidelock.client.transport import segment
from tidelock.wire.transactions import SealRequest, TokenAnswer, TokenRequest

T = TypeVar("T")

DEFAULT_NAMESPACE = "default"


class Staging:
    """The methods of a transaction for writers of files, e.g. Spark; part of `Transaction`."""

    tid: str
    snapshot_csn: int
    _connection: Connection
    _home: Member

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
        namespace, _, name = table.rpartition(".")
        namespace = namespace or DEFAULT_NAMESPACE
        made = self._pass(TokenRequest(tuple(rights), [f"{namespace}.{name}"]))
        return f"{made.url}/{namespace}/{name}"

    def token(
        self,
        rights: Iterable[str] = ("append", "replace"),
        tables: Iterable[str] | None = None,
        ttl_s: float | None = None,
    ) -> str:
        """Return a token, with which other processes write to this transaction, or join it.

        Args:
            rights: "append" to add rows, "replace" to remove the existing rows (mode "overwrite"). For a
                process that joins the transaction (`tidelock.join`): "read" to see what the transaction
                sees, "heartbeat" to keep it alive, "commit" to end it.
            tables: Names; None = all.
            ttl_s: Seconds after which the token expires; it is invalid at once when the transaction ends.
                Default: the agents' `token_ttl_s`.

        Raises as `path`, and BadRequestError for a right that does not exist or a time out of range.
        """
        named = None if tables is None else list(tables)
        return self._pass(TokenRequest(tuple(rights), named, ttl_s)).token

    @property
    def url(self) -> str:
        """Address by which this client reaches the home, for `tidelock.join`."""
        return self._connection.transport.url_of(self._home.api)

    @property
    def published_url(self) -> str:
        """Address of the home as it publishes it, for `tidelock.join` in processes on other machines."""
        return self._connection.transport.url_of(self._home.published)

    def seal(self, table: str) -> InsertResult:
        """End a write through `path` whose committer leaves no `_SUCCESS`, after the write has returned.

        Harmless after a committer that leaves `_SUCCESS`: then nothing is left to be sealed (0 rows).

        Raises:
            UnsealedWriteError: Tasks are still running.
            SchemaMismatchError: A file does not fit the table; the transaction accepts rollback() only.
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

    def _seal(self, table: str, request: SealRequest) -> InsertResult:
        path = f"/transactions/{segment(self.tid)}/seal/{segment(table)}"
        transport = self._connection.transport
        return self._statement(
            lambda: transport.call(
                self._home.api,
                "POST",
                path,
                answer=InsertResult,
                body=request,
                timeout_s=transport.timeouts.change_s,
            ),
            reads=False,
        )

    def definition(self, table: str) -> dict[str, Any]:
        """Return a table as this transaction sees it: its columns, `partition_by`, `sort_by`, properties.

        Raises:
            UnknownTableError: The table does not exist at the snapshot of the transaction.
            UnavailableError: The home does not answer; the call may be repeated.
        """
        path, query = f"/tables/{segment(table)}", {"csn": self.snapshot_csn}
        call = self._connection.transport.call
        return self._statement(
            lambda: call(self._home.api, "GET", path, answer=dict[str, Any], query=query), reads=True
        )

    def _pass(self, request: TokenRequest) -> TokenAnswer:
        path = f"/transactions/{segment(self.tid)}/token"
        call = self._connection.transport.call
        return self._statement(
            lambda: call(self._home.api, "POST", path, answer=TokenAnswer, body=request), reads=True
        )

    def _statement(self, run: Callable[[], T], *, reads: bool) -> T:
        """Run a statement of the transaction."""
        raise NotImplementedError
