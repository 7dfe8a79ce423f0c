"""A transaction: statements that become visible together, or not at all."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

import msgspec
import pyarrow as pa

from tidelock.client.arguments import plain
from tidelock.client.changes import Changes
from tidelock.client.connection import Connection
from tidelock.client.data import Data, ipc_stream, open_rows
from tidelock.client.decide import decide, undecided_csn
from tidelock.client.members import Member
from tidelock.client.results import CommitResult, InsertResult, RemoveResult, TransactionState
from tidelock.client.scan import Params, Reader
from tidelock.client.staging import Staging
from tidelock.client.stream import BatchStream
from tidelock.client.transport import NoAnswerError, segment
from tidelock.errors import (
    AccessDeniedError,
    BadRequestError,
    CommitUnknownError,
    FencedError,
    LabelExistsError,
    LeaseExpiredError,
    RefusedError,
    TidelockError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
    from_wire,
)
from tidelock.wire.failure import Failure
from tidelock.wire.reads import QueryRequest
from tidelock.wire.statements import MoveRequest, PartitionRequest
from tidelock.wire.transactions import Begun, EndAnswer, LeaseAnswer

T = TypeVar("T")
Wait = Literal["home", "copies", "all"]

#: Errors after which the home does not hold the transaction open any more.
_GONE = (FencedError, TransactionClosedError, UnknownTransactionError)
#: The beginning of every INSERT that an agent accepts.
_INSERT = re.compile(r"\s*insert\b", re.IGNORECASE)
_ENDED = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK})


class Transaction(Reader, Staging, Changes):
    """An open transaction; made by `Database.begin`.

    As a context manager it commits at the end of the block, and rolls back when the block raises. While it is
    open, a background thread renews its lease. When the program dies, the lease ends and the home rolls the
    transaction back. Several threads may insert at the same time. All reads see the snapshot of the
    transaction and its own inserts.

    Attributes:
        tid: Its id, unique forever.
        snapshot_csn: The CSN at which it reads.
        lease_s: How long its home waits for a sign of life.
        csn: CSN of the commit; None before the commit, and for a transaction that changed nothing.
    """

    def __init__(self, connection: Connection, home: Member, begun: Begun) -> None:
        self.tid = begun.tid
        self.snapshot_csn = begun.snapshot_csn
        self.lease_s = begun.lease_s
        self.csn: int | None = None
        self._connection = connection
        self._home = home
        self._lock = threading.Lock()
        self._state = TransactionState.OPEN
        self._why: TidelockError | None = None  # the error that made it fail or end
        self._result: CommitResult | None = None
        self._ended_by_caller = False  # commit() or rollback() was called
        connection.highest_csn.note(self.snapshot_csn)
        connection.leases.add(self)

    def __repr__(self) -> str:
        return f"<Transaction {self.tid} {self._state}>"

    @property
    def state(self) -> TransactionState:
        """The state of the transaction, as far as this client knows."""
        return self._state

    @property
    def holder(self) -> str:
        """Its home: the replica where it was begun, the only one that can commit it."""
        return self._home.id

    def insert(self, table: str, data: Data) -> InsertResult:
        """Stage rows; no other transaction sees them before the commit.

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
        return self._insert(table, data, None)

    def _insert(self, table: str, data: Data, partition: str | None) -> InsertResult:
        path = f"/transactions/{segment(self.tid)}/rows/{segment(table)}"
        if partition is not None:
            path += f"?partition={quote(partition, safe='')}"

        def send() -> InsertResult:
            chunks = ipc_stream(open_rows(data))
            return self._connection.transport.upload(self._home.api, path, chunks, answer=InsertResult)

        return self._statement(send, reads=False)

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
            BadRequestError: The tables differ in columns, partitions or sort order.
            TidelockError: Other errors, as `drop_partition`.
        """
        return self._remove("move_partition", table, MoveRequest(plain(partition), into))

    def replace_partition(self, table: str, partition: Mapping[str, Any], data: Data) -> InsertResult:
        """Replace the rows of one partition by other rows, which must all belong to it.

        Raises:
            SchemaMismatchError: The rows do not fit the table, or are of another partition.
            TidelockError: Other errors, as `drop_partition` and `insert`.
        """
        self.drop_partition(table, partition)
        return self._insert(table, data, json.dumps(plain(partition)))

    def _remove(self, statement: str, table: str, body: msgspec.Struct | None) -> RemoveResult:
        path = f"/transactions/{segment(self.tid)}/{statement}/{segment(table)}"
        call = self._connection.transport.call
        return self._statement(
            lambda: call(self._home.api, "POST", path, answer=RemoveResult, body=body), reads=False
        )

    def sql(self, sql: str, params: Params = ()) -> pa.Table:
        """Run one SELECT (DuckDB's SQL) over all tables at this transaction's snapshot, with its own changes.

        INSERT INTO table [(columns)] SELECT ... is accepted too: the rows are staged for the table and never
        leave the home; the result is one row with `rows_inserted` and `parts_added`.

        Raises:
            UnsupportedInTransactionError: The statement is neither; the transaction can only be rolled back.
            BadRequestError, UnknownTableError: The statement is wrong; the transaction can only be rolled
                back.
            TooLargeError: It needs more memory or time than a replica allows for one statement.
            UnavailableError: The home does not answer; a SELECT may be repeated.
        """
        return self.collect({"sql": sql, "params": list(params)})

    def stream(self, request: dict[str, Any]) -> BatchStream:
        """Run a query inside the transaction (see `scan.Reader`)."""
        transport = self._connection.transport
        body = QueryRequest(**{**request, "tid": self.tid})
        return self._statement(
            lambda: BatchStream(transport.stream(self._home.api, "/query", body), self._home.api),
            reads=_INSERT.match(body.sql or "") is None,
        )

    def collect(self, request: dict[str, Any]) -> pa.Table:
        """Run a query inside the transaction and return all rows (see `scan.Reader`)."""
        return self.stream(request).read_all()

    def commit(
        self,
        *,
        wait: Wait = "home",
        timeout_s: float | None = None,
        label: str | None = None,
        batch: int | None = None,
    ) -> CommitResult:
        """Make all changes visible at once. The call may be repeated and returns the same result each time.

        Args:
            wait: Return when the commit is applied (readable) on the "home", on as many replicas as hold
                "copies", or on "all" that are alive. It is durable on `copies` replicas in any case.
            timeout_s: How long to try to learn the outcome; default: the client's `timeout_s`.
            label: As in `Database.begin`, for a transaction that was begun without one.
            batch: As in `Database.begin`.

        Raises:
            RefusedError: Certainly not committed, and rolled back; the class says why.
            CommitUnknownError: Not known in time whether it is committed, or (with `csn` in its details)
                committed but not yet applied where `wait` asks. Repeat commit(), or call `Database.outcome`.
        """
        with self._lock:
            self._ended_by_caller = True
            if self._result is not None and wait == "home":
                return self._result
            if self._state in {TransactionState.FAILED, TransactionState.ROLLED_BACK}:
                raise self._closed()
            again = self._state is TransactionState.SEALED
            if self._state is TransactionState.OPEN:
                self._state = TransactionState.SEALED
        self._connection.leases.remove(self)  # from here on the lease does not count any more
        timeouts = self._connection.transport.timeouts
        try:
            result = decide(
                self._connection,
                self._home,
                self.tid,
                wait=wait,
                timeout_s=timeouts.answer_s if timeout_s is None else timeout_s,
                label=label,
                batch=batch,
            )
        except CommitUnknownError as error:
            if (csn := undecided_csn(error)) is not None:
                self._end(TransactionState.COMMITTED, csn=csn)
            raise
        except TidelockError as error:
            # The home has not begun the commit; or a write of another process, by a token, has made it fail.
            unseen = isinstance(error, BadRequestError | AccessDeniedError)
            if unseen and again:  # nor does that tell anything of the calls before
                msg = (
                    f"the outcome of {self.tid} is not known, and this call was refused ({error.message}); "
                    "repeat commit() as it was called first, or ask outcome(tid)"
                )
                raise CommitUnknownError(msg, tid=self.tid) from error
            if unseen or error.details.get("state") == TransactionState.FAILED:
                with contextlib.suppress(TidelockError):
                    self._roll_back_at_home()
            self._end(TransactionState.ROLLED_BACK, why=error)
            if isinstance(error, LabelExistsError):  # the caller takes the first run for its own
                self._connection.highest_csn.note(error.details.get("csn"))
            raise
        self._end(TransactionState.COMMITTED, csn=result.csn, result=result)
        return result

    def rollback(self) -> None:
        """Drop all changes of the transaction; harmless when it is rolled back already.

        Raises:
            TransactionClosedError: It is committed, or its commit was requested and may still succeed.
            UnavailableError: The home does not answer. Nothing becomes visible in any case: the lease is not
                renewed any more, and the home rolls back when the lease ends.
        """
        self._ended_by_caller = True
        self._roll_back()

    def _roll_back(self) -> None:
        if self._state is TransactionState.ROLLED_BACK:
            return
        if self._state is TransactionState.COMMITTED:
            raise self._closed()
        self._connection.leases.remove(self)
        try:
            self._roll_back_at_home()
        except UnknownTransactionError:  # the home was restarted: nothing is left
            if self._state is TransactionState.SEALED:
                raise
        except TidelockError as error:
            self.fail(error)
            raise
        self._end(TransactionState.ROLLED_BACK)

    def heartbeat(self) -> None:
        """Renew the lease now; a background thread renews it regularly as long as the process runs.

        Raises:
            TransactionClosedError: The transaction has ended (LeaseExpiredError: because its lease ran out).
            UnavailableError: The home does not answer.
        """
        self.renew(self._connection.members.patience_s)

    def renew(self, timeout_s: float) -> None:
        """Renew the lease (see `leases.Lease`)."""
        path = f"/transactions/{segment(self.tid)}/heartbeat"
        try:
            answer = self._connection.transport.call(
                self._home.api, "POST", path, answer=LeaseAnswer, timeout_s=timeout_s
            )
        except UnavailableError as error:
            self._connection.members.note(self._home, error)
            raise
        except _GONE as error:
            self._lose(error)
            raise
        if TransactionState(answer.state) in _ENDED:
            ended = self._ended(answer.state, answer.why)
            self._lose(ended)
            raise ended

    def fail(self, error: BaseException) -> None:
        """Accept rollback() only from now on, because of an error elsewhere: of a job that writes to `path`.

        Errors of the methods of this object do that by themselves. Nothing happens once it has ended.
        """
        with self._lock:
            if self._state is TransactionState.OPEN:
                self._state = TransactionState.FAILED
                self._why = error if isinstance(error, TidelockError) else RefusedError(repr(error))

    def _ended(self, state: str, why: Failure | None) -> TransactionClosedError:
        """Return the error for a transaction that its home has ended meanwhile."""
        told = why and from_wire(TransactionClosedError.http_status, msgspec.structs.asdict(why))
        if isinstance(told, TransactionClosedError):
            return told
        reason = f" ({told.message})" if told else ""
        return TransactionClosedError(
            f"{self.tid} is {state}{reason}; begin a new transaction", tid=self.tid, state=state
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._state in {TransactionState.OPEN, TransactionState.SEALED}:
            self.commit()
            return
        if self._state in {TransactionState.OPEN, TransactionState.FAILED}:
            closed = self._closed()
            try:
                self._roll_back()
            except TidelockError as failure:
                (error or closed).add_note(f"rollback of {self.tid}: {failure.message}")
        else:
            closed = self._closed()
        # A block that ends well must have committed, unless the caller chose otherwise: a refused statement
        # whose error was swallowed, or a lease that ran out unnoticed, would pass for a commit.
        if error is None and not self._ended_by_caller:
            raise closed

    def _roll_back_at_home(self) -> None:
        path = f"/transactions/{segment(self.tid)}/rollback"
        self._connection.small("POST", path, answer=EndAnswer)(self._home)

    def _statement(self, run: Callable[[], T], *, reads: bool) -> T:
        """Run a statement; if it is refused or may be half done, only a rollback is left."""
        if self._state is not TransactionState.OPEN:
            raise self._closed()
        try:
            return run()
        except _GONE as error:
            self._lose(error)
            raise
        except UnavailableError as error:
            self._connection.members.note(self._home, error)
            # A read may be repeated. Rows that left unconfirmed may be staged wholly, in part, or not at all.
            if isinstance(error, NoAnswerError) and not reads:
                self.fail(error)
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def _lose(self, error: TidelockError) -> None:
        """Record that the home does not hold the transaction open any more."""
        failed = error.details.get("state") == TransactionState.FAILED
        if failed:
            self.fail(error)
        else:
            self._end(TransactionState.ROLLED_BACK, why=error, unless=TransactionState.SEALED)

    def _end(
        self,
        state: TransactionState,
        *,
        csn: int | None = None,
        result: CommitResult | None = None,
        why: TidelockError | None = None,
        unless: TransactionState | None = None,
    ) -> None:
        self._connection.leases.remove(self)
        self._connection.highest_csn.note(csn)
        with self._lock:
            if self._state in {TransactionState.COMMITTED, unless}:
                self._result = result or self._result
                return
            self._state, self.csn, self._result, self._why = state, csn, result, why or self._why

    def _closed(self) -> TransactionClosedError:
        reason = f" ({self._why.message})" if self._why else ""
        step = "roll it back" if self._state is TransactionState.FAILED else "begin a new one"
        kind = LeaseExpiredError if isinstance(self._why, LeaseExpiredError) else TransactionClosedError
        return kind(
            f"transaction {self.tid} is {self._state}{reason}; {step}", tid=self.tid, state=str(self._state)
        )
