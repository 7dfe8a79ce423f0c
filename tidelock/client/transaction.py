"""A transaction: statements that become visible together, or not at all."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec

from tidelock.client.connection import Connection
from tidelock.client.decide import decide, undecided_csn
from tidelock.client.members import KnownMember
from tidelock.client.results import CommitResult, TransactionState
from tidelock.client.scan import RowReader
from tidelock.client.statements import Statements
from tidelock.client.stream import BatchStream
from tidelock.errors import (
    AccessDeniedError,
    BadRequestError,
    CommitUnknownError,
    FencedError,
    LabelExistsError,
    LeaseExpiredError,
    NoAnswerError,
    NoConnectionError,
    RefusedError,
    TidelockError,
    TransactionAgeError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
    from_wire,
)
from tidelock.wire.failure import Failure
from tidelock.wire.reads import QueryRequest
from tidelock.wire.transactions import Begun, EndAnswer, LeaseAnswer

T = TypeVar("T")
Wait = Literal["home", "copies", "all"]

#: Errors after which the home does not hold the transaction open any more.
_GONE = (FencedError, TransactionClosedError, UnknownTransactionError)
#: The beginning of every INSERT that an agent accepts.
_INSERT = re.compile(r"\s*insert\b", re.IGNORECASE)
_ENDED = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK})


class Transaction(RowReader, Statements):
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

    def __init__(self, connection: Connection, home: KnownMember, begun: Begun) -> None:
        self.tid = begun.tid
        self.snapshot_csn = begun.snapshot_csn
        self.lease_s = begun.lease_s
        self.csn: int | None = None
        self._connection = connection
        self._transport = connection.transport
        self._home = home
        self._address = home.api
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

    def stream(self, request: dict[str, Any]) -> BatchStream:
        """Run a query inside the transaction (see `scan.RowReader`)."""
        body = QueryRequest(**{**request, "tid": self.tid})
        return self._statement(
            lambda: BatchStream(self._transport.stream(self._address, "/query", body), self._address),
            reads=_INSERT.match(body.sql or "") is None,
        )

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
        timeouts = self._transport.timeouts
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
                    "repeat commit() as it was called first, or call outcome(tid)"
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

        A commit that was requested, here or by another thread, is called off if it has no CSN yet.

        Raises:
            TransactionClosedError: It is committed (`csn` in its details): the call came too late.
            CommitUnknownError: Its commit was sent, and it is not known in time whether it is committed.
                Repeat rollback() or commit(), or call `Database.outcome`.
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
            if error.details.get("state") == TransactionState.COMMITTED:
                self._end(TransactionState.COMMITTED, csn=error.details.get("csn"))
            if self._state is TransactionState.SEALED and isinstance(error, UnavailableError):
                raise CommitUnknownError(
                    f"the commit of {self.tid} was to be called off, and its home does not answer "
                    f"({error.message}); repeat rollback() or commit(), or call outcome(tid)",
                    tid=self.tid,
                ) from error
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
        """Renew the lease (see `leases.RenewableLease`)."""
        try:
            answer = self._call("heartbeat", answer=LeaseAnswer, timeout_s=timeout_s)
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
        error = why and from_wire(TransactionClosedError.http_status, msgspec.structs.asdict(why))
        if isinstance(error, TransactionClosedError):
            return error
        reason = f" ({error.message})" if error else ""
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
        self._call("rollback", answer=EndAnswer, timeout_s=self._connection.members.patience_s)

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
            if isinstance(error, NoAnswerError | NoConnectionError):
                error.add_note(
                    f"{self._home.id} is the home of transaction {self.tid}, which ends with it: roll back, "
                    "and begin again"
                )
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
        kind: type[TransactionClosedError] = TransactionClosedError
        if isinstance(self._why, LeaseExpiredError | TransactionAgeError):
            kind = type(self._why)
        return kind(
            f"transaction {self.tid} is {self._state}{reason}; {step}", tid=self.tid, state=str(self._state)
        )
