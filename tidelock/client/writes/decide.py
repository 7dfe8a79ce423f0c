"""Requesting a commit until its outcome is known: the one call of the client whose lost answer matters.

commit() is idempotent by tid, so it is repeated at the transaction's home. When the home does not answer, or
has forgotten the transaction because it was restarted, any replica can read the outcome from the log. Only
a certain outcome is returned or raised; when the time is over, CommitUnknownError is raised, never a guess.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.members import KnownMember
from tidelock.client.agents.repetition import repeat
from tidelock.client.agents.transport import JSON, json_text, segment
from tidelock.client.values.results import CommitResult, Decision, Outcome, commit_result
from tidelock.errors import (
    AccessDeniedError,
    BadRequestError,
    CommitUnknownError,
    FencedError,
    NoConnectionError,
    NotCommittedError,
    RefusedError,
    TidelockError,
    UnavailableError,
    UnknownTransactionError,
)
from tidelock.wire.rows import instant
from tidelock.wire.transactions import CommitAnswer, CommitRequest, OutcomeAnswer

#: One attempt may take this part of the whole time, so that a silent home leaves time to try the others.
ATTEMPTS_MIN = 3

#: Refusals of this very request: they imply nothing about an earlier request whose answer was lost.
OF_THE_REQUEST = (AccessDeniedError, BadRequestError)
#: Errors of a home that does not hold the transaction any more: the outcome is in the log.
FORGOTTEN = (UnknownTransactionError, FencedError)


def home_of(tid: str) -> str:
    """Return the replica where a transaction was begun; BadRequestError if the text is no tid."""
    fields = tid.split("-")
    if len(fields) != 4:  # noqa: PLR2004 - see the message
        raise BadRequestError(
            f"expected a tid, <snapshot csn>-<replica>-<boot>-<counter>; found {tid!r}", tid=tid
        )
    return fields[1]


def ask_outcome(connection: Connection, tid: str, *, applied_on: str | None = None) -> Outcome:
    """Return the outcome of a transaction, from its home if that answers, otherwise from any other replica.

    Args:
        connection: Connection of the client.
        tid: The transaction.
        applied_on: "copies" or "all": the replicas on which a commit must be applied. The replica that
            answers waits for that within its own bound.

    Raises:
        CommitUnknownError: The transaction is committed (`csn`), but was not applied there in time.
    """
    query = None
    if applied_on is not None:
        query = {"wait": applied_on, "timeout_s": connection.members.wait_bound_s or None}
    path = f"/outcomes/{segment(tid)}"
    answer = connection.ask("GET", path, answer=OutcomeAnswer, first=home_of(tid), query=query)
    return Outcome(tid, Decision(answer.outcome), answer.csn, instant(answer.time_ms))


def decide(
    connection: Connection,
    home: KnownMember,
    tid: str,
    asked: CommitRequest,
    *,
    timeout_s: float,
    lost: TidelockError | None = None,
) -> CommitResult:
    """Commit a transaction; errors as in `Transaction.commit`.

    Args:
        connection: Connection of the client.
        home: The transaction's home.
        tid: The transaction.
        asked: The request to its home.
        timeout_s: How long to try.
        lost: The error of a request for this commit whose answer is lost. Replicas are asked for the outcome
            first then: a home that was silent for a whole attempt may be so for another one.
    """
    decider = _Decider(connection, home, asked, tid, timeout_s, lost)
    try:
        return repeat(
            decider.attempt,
            _UndecidedError,
            deadline=decider.deadline,
            waits=connection.transport.waits,
            what=f"the commit of {tid} at {home.id}",
        )
    except _UndecidedError as undecided:
        raise undecided.final(tid, timeout_s) from undecided.__cause__


class _UndecidedError(Exception):
    """An attempt that did not learn the outcome; the cause of the error says why."""

    def final(self, tid: str, timeout_s: float) -> CommitUnknownError:
        """Return the error for the caller when no attempt is left."""
        cause = self.__cause__
        if isinstance(cause, CommitUnknownError):
            return cause
        return CommitUnknownError(
            f"the outcome of {tid} is not known after {timeout_s:.0f} s ({cause}); "
            "repeat commit(), or call outcome(tid)",
            tid=tid,
        )


class _Decider:
    """The attempts to learn the outcome of one transaction."""

    def __init__(
        self,
        connection: Connection,
        home: KnownMember,
        request: CommitRequest,
        tid: str,
        timeout_s: float,
        lost: TidelockError | None,
    ) -> None:
        self._connection = connection
        self._home = home
        self._tid = tid
        self._request = request
        self._attempt_s = timeout_s / ATTEMPTS_MIN
        self._lost = lost is not None  # whether an earlier request may have run
        self._first_cause = lost
        self.deadline = time.monotonic() + timeout_s

    def attempt(self) -> CommitResult:
        """Try the home once, then the log if the home does not answer; _UndecidedError if neither knows."""
        cause, self._first_cause = self._first_cause, None
        if cause is not None:
            return self._by_outcome(cause)
        transport = self._connection.transport
        left_s = max(0.1, min(self._attempt_s, self.deadline - time.monotonic()))
        body = msgspec.structs.replace(self._request, timeout_s=left_s)
        margin_s = transport.timeouts.connect_s
        try:
            home = self._connection.members.find(self._home.id)  # it may have restarted at another address
            answer = transport.write(
                home.api,
                f"/transactions/{segment(self._tid)}/commit",
                json_text(body).encode(),
                answer=CommitAnswer,
                timeout_s=left_s + margin_s,
                content_type=JSON,
            )
        except CommitUnknownError as error:
            self._lost = True
            raise _UndecidedError from error
        except RefusedError as error:
            if isinstance(error, FORGOTTEN) or (self._lost and isinstance(error, OF_THE_REQUEST)):
                return self._by_outcome(error)
            raise
        except TidelockError as error:
            self._lost = self._lost or not isinstance(error, NoConnectionError)
            if isinstance(error, UnavailableError):
                self._connection.members.note(self._home, error)
            return self._by_outcome(error)
        return commit_result(answer)

    def _by_outcome(self, cause: TidelockError) -> CommitResult:
        # "home" asks that the home has applied the commit. Without the home, the highest CSN of this client
        # makes sure that the client reads its own commit.
        applied_on = None if self._request.wait == "home" else self._request.wait
        try:
            outcome = ask_outcome(self._connection, self._tid, applied_on=applied_on)
        except CommitUnknownError as error:
            raise _UndecidedError from error
        except (UnavailableError, RefusedError):
            raise _UndecidedError from cause
        match outcome.decision:
            case Decision.COMMITTED:
                return CommitResult(outcome.csn, self._tid, outcome.time)
            case Decision.ABORTED if isinstance(cause, FencedError):
                raise cause
            case Decision.ABORTED:
                raise NotCommittedError(
                    f"{self._tid} is not committed, and rolled back ({cause.message}); begin again",
                    tid=self._tid,
                ) from cause
            case Decision.TOO_OLD:
                raise CommitUnknownError(
                    f"{self._tid} is older than the outcomes that replicas keep; read the rows instead",
                    tid=self._tid,
                ) from cause
            case Decision.RUNNING:
                raise _UndecidedError from cause


def undecided_csn(error: CommitUnknownError) -> int | None:
    """Return the CSN of a transaction that is committed, but not yet applied where the caller wanted it."""
    csn: Any = error.details.get("csn")
    return csn if isinstance(csn, int) else None
