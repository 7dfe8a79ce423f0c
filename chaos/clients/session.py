"""A client as users write one: a connection, and the loop of docs/transactions.md around each transaction.

Nothing else is caught: an error for which docs/transactions.md names no way on ends the run. Each attempt of
the loop is an operation of its own in the history, and each call is a line of the journal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from chaos.record.history import TXN, History, Operation
from chaos.world import World
from tidelock.client import Database, Snapshot, Transaction, connect
from tidelock.client.values.results import Decision
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    DiskFullError,
    LeaseExpiredError,
    SnapshotTooOldError,
    TidelockError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
)

#: "Begin again" in the table of errors, although not simply to be repeated.
BEGIN_AGAIN: Final = (LeaseExpiredError, UnknownTransactionError, TransactionClosedError)
#: "Free space, or begin on another replica": this client goes on to its next piece of work.
GIVE_UP: Final = (DiskFullError,)
#: Attempts of one piece of work, and the pause behind the first one in seconds; each later one is twice as
#: long: the loop of docs/transactions.md.
TRIES: Final = 5
_FIRST_PAUSE_S: Final = 0.1
#: How long a client waits for an answer, and for the outcome of a commit, in seconds.
TIMEOUT_S: Final = 20.0


class RolledBack(Exception):  # noqa: N818 - nothing went wrong
    """Raised by the work of an attempt that wants to be rolled back."""


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to one operation.

    Attributes:
        value: Its micro-operations, with the reads filled.
        facts: What its judge needs besides.
    """

    value: Sequence[Operation]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a piece of work.

    Attributes:
        value: Its micro-operations, reads with None.
        work: Does it in a transaction; None as the result means that `value` is what was done.
        begin: Arguments of `Database.begin`.
        f: The kind of the operation in the history.
        expected: Refusals that are an answer to this work: written down as such, and raised.
    """

    value: Sequence[Operation]
    work: Callable[[Transaction], Found | None]
    begin: dict[str, Any] = field(default_factory=dict)
    f: str = TXN
    expected: tuple[type[TidelockError], ...] = ()

    @property
    def promised(self) -> dict[str, Any]:
        """Facts of the history: what the product owes this transaction more than any other one."""
        serializable = self.begin.get("isolation") == "serializable"
        return {"fresh": self.begin.get("fresh", False), "serializable": serializable or None}


@dataclass(frozen=True, slots=True)
class Done:
    """An acknowledged transaction."""

    tid: str
    csn: int | None


class Session:
    """One client of a workload; used by one thread.

    Args:
        world: The run.
        workload: The name of its workload.
        history: Where its operations go.
        replica: The only replica that it works with; None = any, going on to another by itself.
        first: Without `replica`: the address that is tried first.
        learns: It is given that address alone, and learns the others from it; else it is given all.
    """

    def __init__(
        self,
        world: World,
        workload: str,
        history: History,
        *,
        replica: str | None = None,
        first: str | None = None,
        learns: bool = False,
    ) -> None:
        self.world = world
        self.workload = workload
        self.history = history
        self.process = history.process()
        self.replica = replica
        self._first, self._learns = first, learns
        self._db: Database | None = None

    @property
    def database(self) -> Database:
        """The connection.

        Raises:
            UnavailableError: No agent answers.
        """
        if self.replica is not None and self.replica not in self.world.cluster.replicas:
            self.close()  # it has left the cluster
            self.replica = min(self.world.cluster.replicas)
        if self._db is None:
            cluster = self.world.cluster
            if self.replica is not None:
                self._db = cluster.connect(self.replica, timeout_s=TIMEOUT_S)
            else:
                there = sorted(cluster.replicas, key=lambda one: one != self._first)
                urls = [cluster.url(one) for one in there[: 1 if self._learns else None]]
                self._db = connect(urls, token=cluster.secret, timeout_s=TIMEOUT_S)
        return self._db

    def write(self, attempt_of: Callable[[], Attempt], *, tries: int = TRIES) -> Done | None:
        """Do a piece of work in a transaction, as the documented loop does it.

        Args:
            attempt_of: Makes each attempt, with elements that no other attempt has.
            tries: Attempts at most.

        Returns:
            None if it was given up, or nobody knows.

        Raises:
            TidelockError: One that is expected, or that a user need not bear.
        """
        for number in range(tries):
            attempt = attempt_of()
            done, again = self._once(attempt)
            if not again:
                return done
            if self.world.stopping.wait(_FIRST_PAUSE_S * 2**number):
                return None
        return None

    def _once(self, attempt: Attempt) -> tuple[Done | None, bool]:
        """Run an attempt; return what was acknowledged, and whether the loop goes on."""
        began_ns = self.process.invoke(attempt.value, attempt.f)
        tx: Transaction | None = None
        found = Found(attempt.value)
        try:
            with self.database.begin(**attempt.begin) as tx:
                found = attempt.work(tx) or found
            done = Done(tx.tid, tx.csn)
        except RolledBack:
            self.process.fail(attempt.value, error="rolled back")
            self.note("rollback", "ok", began_ns)
            return None, False
        except CommitUnknownError as error:
            return self._resolve(error, attempt, found, began_ns)
        except TidelockError as error:
            again = error.retriable or isinstance(error, BEGIN_AGAIN)
            expected = isinstance(error, attempt.expected)
            told = {"told": error.details.get("csn"), "batch": error.details.get("batch")} if expected else {}
            self.process.fail(attempt.value, error=type(error).__name__, **told)
            tid, home = self._begun(tx)
            self.note("write", "fail", began_ns, error=error, tid=tid, home=home, expected=expected)
            if expected or not (again or isinstance(error, GIVE_UP) or self._left(error)):
                raise
            return None, again
        self.process.ok(
            found.value,
            tid=done.tid,
            # A transaction that was sent as one request has read nothing; the CSN in its tid is older.
            snapshot=tx.snapshot_csn if tx.lease_s else None,
            csn=done.csn,
            replica=tx.holder,
            **attempt.promised,
            **found.facts,
        )
        self.note("write", "ok", began_ns, tid=done.tid, csn=done.csn, home=tx.holder)
        return done, False

    def _begun(self, tx: Transaction | None) -> tuple[str | None, str | None]:
        """Return tid and home of a transaction that has ended; if it had no home, the one that was asked."""
        if tx is not None:
            with contextlib.suppress(TidelockError):
                return tx.tid, tx.holder
        return None, self.replica

    def _resolve(
        self, error: CommitUnknownError, attempt: Attempt, found: Found, began_ns: int
    ) -> tuple[Done | None, bool]:
        """Ask for the outcome of a commit whose answer was lost, once, as docs/transactions.md does it."""
        tid = error.tid
        reads = any(name == "r" for name, *_ in attempt.value)
        facts = {"tid": tid, "snapshot": int(tid.partition("-")[0]) if reads else None, **attempt.promised}
        try:
            outcome = self.database.outcome(tid)
        except UnavailableError:
            outcome = None
        if outcome is not None and outcome.decision is Decision.COMMITTED:
            self.process.ok(found.value, csn=outcome.csn, **facts, **found.facts)
            self.note("write", "ok", began_ns, tid=tid, csn=outcome.csn, error=error)
            return Done(tid, outcome.csn), False
        if outcome is not None and outcome.decision is Decision.ABORTED:
            self.process.fail(attempt.value, tid=tid, error=type(error).__name__)
            self.note("write", "fail", began_ns, tid=tid, error=error)
            return None, True
        self.note("write", "info", began_ns, tid=tid, error=error)
        self.process.info(found.value, error=type(error).__name__, **facts)
        return None, False

    def read(
        self,
        value: Sequence[Operation],
        look: Callable[[Snapshot], Found],
        *,
        csn: int | None = None,
        f: str = TXN,
        last: bool = False,
    ) -> int | None:
        """Read all tables at one CSN.

        Args:
            value: The reads, with None.
            look: Reads, and returns them filled.
            csn: The CSN, which may be an old one; None = the newest, which contains what was seen before.
            f: The kind of the operation in the history.
            last: Whether all is well again, so that everything that was acknowledged must be there.

        Returns:
            The CSN; None if there was no answer.

        Raises:
            TidelockError: One that a user need not bear.
        """
        if csn is not None:
            self.process.anew()
        began_ns = self.process.invoke(value, f)
        try:
            with self.database.snapshot(csn) as snap:
                found, holder = look(snap), snap.holder
        except TidelockError as error:
            gone = csn is not None and isinstance(error, SnapshotTooOldError)
            self.process.fail(value, error=type(error).__name__)
            self.note("read", "fail", began_ns, error=error, csn=csn, expected=gone)
            if not (error.retriable or gone or self._left(error)):
                raise
            return None
        facts = {**found.facts, "last": last or None}
        self.process.ok(found.value, snapshot=snap.csn, replica=holder, fresh=False, **facts)
        self.note("read", "ok", began_ns, csn=snap.csn)
        if csn is not None:
            self.process.anew()
        return snap.csn

    def land(self, table: str, rows: pa.Table, value: Sequence[Operation]) -> bool:
        """Land rows, once; return whether that was acknowledged.

        Raises:
            TidelockError: One that a user need not bear.
        """
        return self._call("land", value, lambda: self.database.land(table, rows).csn)

    def define(
        self,
        change: Callable[[Database], int | None],
        value: Sequence[Operation],
        *,
        expected: tuple[type[TidelockError], ...],
    ) -> bool:
        """Create, change or drop a table, once; return whether that was acknowledged.

        Args:
            change: Does it, and returns the CSN.
            value: It, as an operation.
            expected: Refusals that are an answer.

        Raises:
            TidelockError: One that a user need not bear.
        """
        return self._call("define", value, lambda: change(self.database), expected)

    def _call(
        self,
        f: str,
        value: Sequence[Operation],
        call: Callable[[], int | None],
        expected: tuple[type[TidelockError], ...] = (),
    ) -> bool:
        began_ns = self.process.invoke(value, f)
        try:
            csn = call()
        except CommitUnknownError as error:
            self.note(f, "info", began_ns, error=error)
            self.process.info(value, error=type(error).__name__)
            return False
        except TidelockError as error:
            answer = isinstance(error, expected)
            self.process.fail(value, error=type(error).__name__)
            self.note(f, "fail", began_ns, error=error, expected=answer)
            if not (answer or error.retriable or isinstance(error, GIVE_UP) or self._left(error)):
                raise
            return False
        self.process.ok(value, csn=csn)
        self.note(f, "ok", began_ns, csn=csn)
        return True

    def ask(self, question: Callable[[Database], Any]) -> None:
        """Ask for something that neither reads nor writes rows; that it cannot be had now is borne.

        Raises:
            TidelockError: One that a user need not bear.
        """
        try:
            question(self.database)
        except TidelockError as error:
            if not (error.retriable or self._left(error)):
                raise

    def must_read(
        self,
        value: Sequence[Operation],
        look: Callable[[Snapshot], Found],
        *,
        csn: int | None = None,
        f: str = TXN,
    ) -> int:
        """Read as `read`, where there must be an answer: all is well.

        Raises:
            UnavailableError: There was none in `TRIES` tries.
            TidelockError: One that a user need not bear.
        """
        for _ in range(TRIES):
            at = self.read(value, look, csn=csn, f=f, last=True)
            if at is not None:
                return at
        raise UnavailableError(f"expected an answer of {self.replica or 'any replica'}: all is well")

    def note(
        self,
        f: str,
        end: str,
        began_ns: int,
        *,
        error: Exception | None = None,
        tid: str | None = None,
        csn: int | None = None,
        home: str | None = None,
        expected: bool = False,
    ) -> None:
        """Write a call into the journal.

        The checks of refusals and outcomes see only what has a home and a tid.
        """
        self.world.journal.note(
            "call",
            workload=self.workload,
            process=self.process.number,
            f=f,
            end=end,
            began_ns=began_ns,
            tid=tid,
            csn=csn,
            replica=self.replica,
            home=home or (tid.split("-")[1] if tid else None),
            error=None if error is None else type(error).__name__,
            message=None if error is None else str(error),
            expected=expected or None,
        )

    def rest(self, pause_s: float) -> None:
        """Pause, or return at once when clients have to end."""
        self.world.stopping.wait(pause_s)

    def _left(self, error: TidelockError) -> bool:
        """Whether an error says that the one replica of this client is no member any more."""
        gone = self.replica is not None and self.replica not in self.world.cluster.replicas
        return gone and isinstance(error, BadRequestError)

    def close(self) -> None:
        """Give the connection back."""
        if self._db is not None:
            self._db.close()
            self._db = None
