"""A transaction: statements that become visible together, or not at all."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec
import pyarrow as pa

from tidelock.client.agents import begin_order, forks
from tidelock.client.agents.connection import Connection
from tidelock.client.agents.members import KnownMember
from tidelock.client.agents.repetition import repeat
from tidelock.client.agents.transport import WHOLE_BODY_BYTES_MAX, segment
from tidelock.client.reads.scan import RowReader
from tidelock.client.reads.stream import BatchStream
from tidelock.client.values.data import Data
from tidelock.client.values.results import ChangedRows, CommitResult, InsertResult, TransactionState
from tidelock.client.writes.beginning import Later, begin_at_home
from tidelock.client.writes.decide import decide, undecided_csn
from tidelock.client.writes.table_statements import TableStatements
from tidelock.client.writes.whole_writes import WholeWrite, small_streams
from tidelock.errors import (
    AccessDeniedError,
    BadRequestError,
    CommitUnknownError,
    FencedError,
    LabelExistsError,
    LeaseExpiredError,
    NoAnswerError,
    NoConnectionError,
    NotCommittedError,
    PartDamagedError,
    RefusedError,
    TidelockError,
    TooLargeError,
    TransactionAgeError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
    from_wire,
)
from tidelock.wire.cluster import StatusAnswer
from tidelock.wire.failure import Failure
from tidelock.wire.reads import QueryRequest
from tidelock.wire.transactions import BeginRequest, Begun, CommitRequest, EndAnswer, LeaseAnswer
from tidelock.wire.writes import WriteHead

T = TypeVar("T")
Wait = Literal["home", "copies", "all"]

#: Errors after which the home does not hold the transaction open any more.
_GONE = (FencedError, TransactionClosedError, UnknownTransactionError)
#: The beginning of every INSERT that an agent accepts.
_INSERT = re.compile(r"\s*insert\b", re.IGNORECASE)
_ENDED = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK})
#: Errors after which a transaction of one request is sent again: it is certainly not committed.
_SEND_AGAIN = (UnavailableError, FencedError, NotCommittedError, UnknownTransactionError)


class Transaction(RowReader, TableStatements):
    """An open transaction; made by `Database.begin`.

    As a context manager it commits at the end of the block, and rolls back when the block raises. While it is
    open, a background thread renews its lease. When the program dies, the lease ends and the home rolls the
    transaction back. Several threads may insert at the same time. All reads see the snapshot of the
    transaction and its own inserts.

    One that was begun without an argument waits for the first call that needs a home (see `Database.begin`);
    `tid`, `snapshot_csn`, `lease_s`, `holder` and `url` are such calls. If there is none before the commit,
    all travels as one request.

    Args:
        connection: Connection of the client.
        at: Its home, and the answer to its begin.
        later: Given for a transaction that has not begun; then `at` is not.

    Attributes:
        csn: CSN of the commit; None before the commit, and for a transaction that changed nothing.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        at: tuple[KnownMember, Begun] | None = None,
        later: Later | None = None,
    ) -> None:
        self.csn: int | None = None
        self._tid = ""
        self._snapshot_csn = 0
        self._lease_s = 0.0
        self._home: KnownMember | None = None
        self._address = ""
        self._connection = connection
        self._transport = connection.transport
        self._later = later
        self._kept: list[tuple[str, bytes]] = []  # tables and rows that have not left, in their order
        self._leaving = threading.RLock()  # held while the begin, or what was kept, is on its way
        self._lock = threading.Lock()
        self._state = TransactionState.OPEN
        self._why: TidelockError | None = None  # the error that made it fail or end
        self._result: CommitResult | None = None
        self._changed = ChangedRows()
        self._ended_by_caller = False  # commit() or rollback() was called
        if at is not None:
            self._begun(*at)
        else:
            begin_order.wait(self)
            forks.register(self)

    def _begun(self, home: KnownMember, begun: Begun) -> None:
        self._name(home, begun.tid)
        self._snapshot_csn = begun.snapshot_csn
        self._lease_s = begun.lease_s
        self._connection.highest_csn.note(begun.snapshot_csn)
        self._connection.leases.add(self)

    def _name(self, home: KnownMember, tid: str) -> None:
        self._home, self._address, self._tid = home, home.api, tid
        self._snapshot_csn = int(tid.partition("-")[0])

    def __repr__(self) -> str:
        return f"<Transaction {self._tid or 'that has not begun'} {self._state}>"

    @property
    def tid(self) -> str:
        """Its id, unique forever."""
        self._at_home()
        return self._tid

    @property
    def snapshot_csn(self) -> int:
        """The CSN at which it reads; of a transaction that travelled as one request that of its tid."""
        self._at_home()
        return self._snapshot_csn

    @property
    def lease_s(self) -> float:
        """How long its home waits for a sign of life; 0 if it travelled as one request."""
        self._at_home()
        return self._lease_s

    @property
    def state(self) -> TransactionState:
        """The state of the transaction, as far as this client knows."""
        return self._state

    @property
    def holder(self) -> str:
        """Its home: the replica where it was begun, the only one that can commit it."""
        return self._at_home().id

    def status(self) -> StatusAnswer:
        """Return the state of the cluster, as `Database.status`."""
        return self._connection.ask("GET", "/status", answer=StatusAnswer)

    def collect(self, request: dict[str, Any]) -> pa.Table:
        """Run a query inside the transaction and return all its rows."""
        rows = super().collect(request)
        if _inserts(request):
            [done] = rows.to_pylist()
            self._count(InsertResult(done["rows_inserted"], done["parts_added"]))
        return rows

    def stream(self, request: dict[str, Any]) -> BatchStream:
        """Run a query inside the transaction (see `scan.RowReader`)."""

        def run() -> BatchStream:
            body = QueryRequest(**{**request, "tid": self._tid})
            return BatchStream(self._transport.stream(self._address, "/query", body), self._address)

        return self._statement(run, reads=not _inserts(request))

    def commit(
        self,
        *,
        wait: Wait = "home",
        timeout_s: float | None = None,
        label: str | None = None,
        batch: int | None = None,
        progress: str | None = None,
    ) -> CommitResult:
        """Make all changes visible at once. The call may be repeated and returns the same result each time.

        Args:
            wait: Return when the commit is applied (readable) on the "home", on as many replicas as hold
                "copies", or on "all" that are alive. It is durable on `copies` replicas in any case.
            timeout_s: How long to try to learn the outcome; default: the client's `timeout_s`.
            label: As in `Database.begin`, for a transaction that was begun without one.
            batch: As in `Database.begin`.
            progress: As in `Database.begin`, for a transaction that was begun without it.

        Raises:
            RefusedError: Certainly not committed, and rolled back; the class says why.
            CommitUnknownError: Not known in time whether it is committed, or (with `csn` in its details)
                committed but not yet applied where `wait` asks. Repeat commit(), or call `Database.outcome`.
            UnavailableError: The transaction has not begun, and no replica can begin it now. It stays open:
                repeat commit(), or leave it.
        """
        timeouts = self._transport.timeouts
        limit_s = timeouts.answer_s if timeout_s is None else timeout_s
        asked = CommitRequest(wait, None, label, batch, progress)
        self._ended_by_caller = True
        with self._leaving:
            if self._state is TransactionState.OPEN:
                if self._home is None and (done := self._commit_whole(asked, limit_s)):
                    return done
                self._at_home()
        with self._lock:
            if self._result is not None and wait == "home":
                return self._result
            if self._state in {TransactionState.FAILED, TransactionState.ROLLED_BACK}:
                raise self._closed()
            again = self._state is TransactionState.SEALED
            if self._state is TransactionState.OPEN:
                self._state = TransactionState.SEALED
        self._connection.leases.remove(self)  # from here on the lease does not count any more
        home = self._at_home()
        try:
            result = decide(self._connection, home, self._tid, asked, timeout_s=limit_s)
        except CommitUnknownError as error:
            if (csn := undecided_csn(error)) is not None:
                self._end(TransactionState.COMMITTED, csn=csn)
            raise
        except TidelockError as error:
            # The home has not begun the commit; or a write of another process, by a token, has made it fail.
            unseen = isinstance(error, BadRequestError | AccessDeniedError)
            if unseen and again:  # nor does that tell anything of the calls before
                msg = (
                    f"the outcome of {self._tid} is not known, and this call was refused ({error.message}); "
                    "repeat commit() as it was called first, or call outcome(tid)"
                )
                raise CommitUnknownError(msg, tid=self._tid) from error
            if unseen or error.details.get("state") == TransactionState.FAILED:
                with contextlib.suppress(TidelockError):
                    self._roll_back_at_home()
            self._end(TransactionState.ROLLED_BACK, why=error)
            if isinstance(error, LabelExistsError):  # the caller takes the first run for its own
                self._connection.highest_csn.note(error.details.get("csn"))
            raise
        return self._committed(result)

    def _committed(self, result: CommitResult) -> CommitResult:
        result = result.counting(self._changed)
        self._end(TransactionState.COMMITTED, csn=result.csn, result=result)
        return result

    def _commit_whole(self, asked: CommitRequest, limit_s: float) -> CommitResult | None:
        """Send a transaction that has not begun as one request; None: it is too large for the agent."""
        later = self._later
        assert later is not None, "a transaction without a home was made to begin later"
        begin_order.leave(self)
        with self._lock:
            if self._state is not TransactionState.OPEN:
                raise self._closed()
            self._state = TransactionState.SEALED
        head = WriteHead(
            tid="", rows=(), label=asked.label, batch=asked.batch, progress=asked.progress, wait=asked.wait
        )
        whole = WholeWrite(self._connection, later.tids, self._kept, head, limit_s, self._sending)
        try:
            result = repeat(
                whole.once,
                _SEND_AGAIN,
                deadline=time.monotonic() + limit_s,
                waits=self._transport.waits,
                what=f"a transaction of one request (timeout_s={limit_s:g})",
            )
        except TooLargeError:  # the steps say what is too large
            self._not_sent()
            return None
        except CommitUnknownError as error:
            if (csn := undecided_csn(error)) is not None:
                self._end(TransactionState.COMMITTED, csn=csn)
            raise
        except UnavailableError:
            self._not_sent()
            raise
        except TidelockError as error:
            self._end(TransactionState.ROLLED_BACK, why=error)
            raise
        except BaseException:
            if self._home is None:
                self._not_sent()
            raise
        return self._committed(result)

    def _sending(self, home: KnownMember, tid: str) -> None:
        """Note the tid under which the transaction leaves now, unless a rollback was faster."""
        with self._lock:
            if self._state is not TransactionState.SEALED:
                raise self._closed()
            self._name(home, tid)

    def _not_sent(self) -> None:
        """Be open again after a try that has certainly written nothing, and never will."""
        with self._lock:
            self._home, self._address, self._tid = None, "", ""
            if self._state is TransactionState.SEALED:
                self._state = TransactionState.OPEN
                begin_order.wait(self)

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
        if self._never_left():
            self._end(TransactionState.ROLLED_BACK)
            return
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
                    f"the commit of {self._tid} was to be called off, and its home does not answer "
                    f"({error.message}); repeat rollback() or commit(), or call outcome(tid)",
                    tid=self._tid,
                ) from error
            self.fail(error)
            raise
        self._end(TransactionState.ROLLED_BACK)

    def _never_left(self) -> bool:
        """Return whether no home knows the transaction; a begin that is on its way is waited for."""
        if self._state is TransactionState.SEALED:  # a commit runs in another thread, and may take long
            return self._home is None
        with self._leaving:
            return self._home is None

    def heartbeat(self) -> None:
        """Renew the lease now; a background thread renews it regularly as long as the process runs.

        Raises:
            TransactionClosedError: The transaction has ended (LeaseExpiredError: because its lease ran out).
            UnavailableError: The home does not answer.
        """
        self._at_home()
        self.renew(self._connection.members.patience_s)

    def renew(self, timeout_s: float) -> None:
        """Renew the lease (see `leases.RenewableLease`); one that has not begun has none."""
        if self._home is None:
            return
        try:
            answer = self._call("heartbeat", answer=LeaseAnswer, timeout_s=timeout_s)
        except UnavailableError as error:
            self._note(error)
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
            f"{self._tid} is {state}{reason}; begin a new transaction", tid=self._tid, state=state
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
                (error or closed).add_note(f"rollback of {self._tid}: {failure.message}")
        else:
            closed = self._closed()
        # A block that ends well must have committed, unless the caller chose otherwise: a refused statement
        # whose error was swallowed, or a lease that ran out unnoticed, would pass for a commit.
        if error is None and not self._ended_by_caller:
            raise closed

    def _roll_back_at_home(self) -> None:
        self._call("rollback", answer=EndAnswer, timeout_s=self._connection.members.patience_s)

    def _statement(
        self, run: Callable[[], T], *, reads: bool, spared: type[TidelockError] | tuple[()] = ()
    ) -> T:
        """Run a statement; if it is refused (not `spared`), or may be half done, only a rollback is left."""
        self._at_home()
        result = self._run(run, reads=reads, spared=spared)
        self._count(result)
        return result

    def _definition(self, run: Callable[[], T]) -> T:
        self._at_home()
        return self._run(run, reads=False, spared=RefusedError)

    def _count(self, result: object) -> None:
        with self._lock:
            self._changed = self._changed.after(result)

    def _run(self, run: Callable[[], T], *, reads: bool, spared: type[TidelockError] | tuple[()] = ()) -> T:
        """Run a statement; an error of `spared` leaves the transaction as it was."""
        if self._state is not TransactionState.OPEN:
            raise self._closed()
        try:
            return run()
        except _GONE as error:
            self._lose(error)
            raise
        except spared:
            raise
        except UnavailableError as error:
            self._note(error)
            # A read may be repeated. Rows that left unconfirmed may be staged wholly, in part, or not at all.
            # A damaged part fails the transaction at its home.
            if isinstance(error, PartDamagedError) or (isinstance(error, NoAnswerError) and not reads):
                self.fail(error)
            if isinstance(error, NoAnswerError | NoConnectionError) and self._home is not None:
                error.add_note(
                    f"{self._home.id} is the home of transaction {self._tid}, which ends with it: roll back, "
                    "and begin again"
                )
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def _note(self, error: UnavailableError) -> None:
        if self._home is not None:
            self._connection.members.note(self._home, error)

    # -- a begin that waits ----------------------------------------------------------------------------------

    def _keep(self, table: str, data: Data) -> InsertResult | None:
        """Keep small rows that the table certainly takes, until the transaction begins or is committed."""
        if self._state is not TransactionState.OPEN:
            raise self._closed()
        with self._leaving:
            if self._later is None or self._home is not None or self._state is not TransactionState.OPEN:
                return None
            try:
                streams = small_streams({table: data})
            except RefusedError:
                return None  # the statement raises it
            kept_bytes = sum(len(stream) for _, stream in self._kept)
            if streams is None or kept_bytes + len(streams[table]) > WHOLE_BODY_BYTES_MAX:
                return None
            with begin_order.unordered():
                rows = self._later.definitions.rows_taken(table, streams[table])
            if rows is None:
                return None
            self._kept.append((table, streams[table]))
            kept = InsertResult(rows, 0)
            self._count(kept)
            return kept

    def _at_home(self) -> KnownMember:
        """Begin the transaction, unless it has begun, send the rows that were kept, and return its home.

        Errors as `Database.begin` and `insert`.
        """
        with self._leaving:
            if self._home is None:
                if self._state is not TransactionState.OPEN:
                    raise self._closed()
                begin_order.leave(self)
                self._begun(*begin_at_home(self._connection, BeginRequest()))
            while self._kept and self._state is TransactionState.OPEN:
                self._run(lambda: self._send_kept(*self._kept[0]), reads=False)
                del self._kept[0]
            assert self._home is not None, "a transaction that has begun has a home"
            return self._home

    def _send_kept(self, table: str, stream: bytes) -> None:
        path = f"/transactions/{segment(self._tid)}/rows/{segment(table)}"
        self._transport.upload(self._address, path, [stream], answer=InsertResult)

    def begin_first(self) -> None:
        """Begin before this thread sends anything else (see `begin_order`); an error fails it."""
        if self._state is not TransactionState.OPEN or not self._leaving.acquire(blocking=False):
            return  # another thread sends it at this moment
        try:
            self._at_home()
        except TidelockError as error:
            self.fail(error)
        finally:
            self._leaving.release()

    def after_fork(self) -> None:
        """Leave a transaction that has not begun to the parent: else each of the two could commit it."""
        self._leaving, self._lock = threading.RLock(), threading.Lock()
        if self._home is None and self._state in {TransactionState.OPEN, TransactionState.SEALED}:
            self._state = TransactionState.FAILED
            self._why = RefusedError(
                "it had not begun when the process forked, and belongs to the parent; ask for its tid before"
            )

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
            if state in _ENDED:
                self._kept = []
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
        named = {"tid": self._tid} if self._tid else {}
        subject = f"transaction {self._tid}" if self._tid else "the transaction"
        return kind(f"{subject} is {self._state}{reason}; {step}", **named, state=str(self._state))


def _inserts(request: dict[str, Any]) -> bool:
    """Return whether a query is an INSERT."""
    return _INSERT.match(request.get("sql") or "") is not None
