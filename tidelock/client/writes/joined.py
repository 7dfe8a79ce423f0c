"""A transaction of another process, joined by a token: the token limits what is allowed.

    token = tx.token(rights=["append", "heartbeat"], tables=["orders"])     # where it was begun
    part = tidelock.join(tx.url, token)                                     # anywhere
    part.insert("orders", rows)

Nothing here keeps the transaction alive by itself, and nothing ends it without a call: both are the job of
the program that has begun it.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.repetition import repeat
from tidelock.client.agents.transport import Timeouts, Transport, segment
from tidelock.client.reads.scan import RowReader
from tidelock.client.reads.stream import BatchStream
from tidelock.client.values.data import Data
from tidelock.client.values.results import CommitResult, InsertResult, TransactionState, commit_result
from tidelock.client.writes.decide import FORGOTTEN, OF_THE_REQUEST, home_of
from tidelock.client.writes.statements import HomeRequests
from tidelock.client.writes.transaction import Transaction
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    NoConnectionError,
    RefusedError,
    TidelockError,
    TokenForgedError,
    TransactionClosedError,
    UnavailableError,
)
from tidelock.token_text import PREFIX
from tidelock.wire.reads import QueryRequest
from tidelock.wire.tables import TableInfo
from tidelock.wire.transactions import Begun, CommitAnswer, CommitRequest, EndAnswer, LeaseAnswer

T = TypeVar("T")

#: A commit is requested again within this part of the whole time.
_ATTEMPTS_MIN: Final = 3


def tid_of(token: str) -> str:
    """Return the tid that is written in a token; only the home of the transaction can verify it.

    Raises:
        TokenForgedError: It is no token.
    """
    try:
        prefix, claims, _ = token.split(".")
        fields = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        if prefix == PREFIX:
            return str(fields["t"])
    except (ValueError, KeyError, TypeError, binascii.Error):
        pass
    raise TokenForgedError("the text is not a token of a transaction; expected the result of tx.token()")


def join(
    url: str, token: str, *, timeout_s: float = 60.0, connect_timeout_s: float = 2.0
) -> JoinedTransaction:
    """Join a transaction by its token.

    Args:
        url: Address of its home, as `Transaction.url` returns it: `http://host:port`.
        token: From `Transaction.token`.
        timeout_s: How long to wait for an answer, and for the outcome of a commit.
        connect_timeout_s: How long to wait for a connection.

    Raises:
        BadRequestError: `url` has another form.
        TokenForgedError: The text is no token. Only the first request shows whether a token is valid.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise BadRequestError(f"expected the address of an agent, http://host:port; found {url!r}")
    timeouts = Timeouts(connect_s=connect_timeout_s, answer_s=timeout_s)
    return JoinedTransaction(
        Transport(scheme=parts.scheme, token=token, timeouts=timeouts), parts.netloc, token
    )


class Joining:
    """Access to transactions that other processes have begun; part of `Database`."""

    _connection: Connection

    def join(self, token: str) -> JoinedTransaction:
        """Join a transaction by its token (`Transaction.token`), which limits what is allowed.

        Raises:
            TokenForgedError: The text is no token.
            BadRequestError: The home of the transaction is no replica of this cluster.
        """
        home = self._connection.members.find(home_of(tid_of(token)))
        return JoinedTransaction(self._connection.transport.with_token(token), home.api, token)

    def resume(self, tid: str) -> Transaction:
        """Return an open transaction that was begun by another client, of the same program or its successor.

        From here on this client keeps it alive; the other one should not use it any more.

        Raises:
            TransactionClosedError: The transaction accepts no statements (`state`).
            UnknownTransactionError: The transaction ended long ago, or with an earlier boot of its home: see
                `outcome`.
            UnavailableError: Its home does not answer.
            BadRequestError: `tid` is no transaction id, or no such replica exists.
        """
        home = self._connection.members.find(home_of(tid))
        path = f"/transactions/{segment(tid)}/heartbeat"
        answer = self._connection.small("POST", path, answer=LeaseAnswer)(home)
        if answer.state != TransactionState.OPEN:
            raise TransactionClosedError(
                f"transaction {tid} is {answer.state} and cannot be resumed; call outcome(tid)",
                tid=tid,
                state=answer.state,
            )
        begun = Begun(tid, int(tid.partition("-")[0]), answer.lease_s)
        return Transaction(self._connection, at=(home, begun))


class JoinedTransaction(RowReader, HomeRequests):
    """A transaction of another process; made by `join` and `Database.join`. Any number of threads may use it.

    Reading (`read`, `scan`, `sql`) requires the right "read".

    Every method raises, besides its own errors:
        TokenForgedError, TokenForeignError, TokenExpiredError: The token is not valid here.
        TokenFinishedError: The transaction accepts no more requests.
        TokenRightError: The token does not allow this, or not in this table.
        UnavailableError: The home does not answer.
    """

    def __init__(self, transport: Transport, home: str, token: str) -> None:
        self._tid = tid_of(token)
        self._transport = transport
        self._address = home

    def __repr__(self) -> str:
        return f"<JoinedTransaction {self.tid}>"

    @property
    def tid(self) -> str:
        """The transaction."""
        return self._tid

    def insert(self, table: str, data: Data) -> InsertResult:
        """Stage rows; right "append". Arguments and errors as in `Transaction.insert`.

        If the answer is lost, the rows may be staged nevertheless. The transaction must then be rolled back,
        since a repetition would add the rows twice.
        """
        return self._send_rows(f"rows/{segment(table)}", data, InsertResult)

    def definition(self, table: str) -> TableInfo:
        """Return a table as the transaction sees it: columns, `partition_by`, `sort_by`; any right.

        Raises:
            UnknownTableError: The table does not exist at the snapshot of the transaction.
        """
        return self._call(f"tables/{segment(table)}", answer=TableInfo, method="GET")

    def stream(self, request: dict[str, Any]) -> BatchStream:
        """Run a query inside the transaction (see `scan.RowReader`)."""
        path = f"/transactions/{segment(self.tid)}/query"
        return BatchStream(
            self._transport.stream(self._address, path, QueryRequest(**request)), self._address
        )

    def heartbeat(self, timeout_s: float | None = None) -> float:
        """Renew the lease and return its length in seconds; right "heartbeat"."""
        return self._call("heartbeat", answer=LeaseAnswer, timeout_s=timeout_s).lease_s

    def commit(self, *, wait: str = "home", timeout_s: float | None = None) -> CommitResult:
        """Commit the transaction; right "commit". May be repeated, and then returns the same.

        Args:
            wait: As in `Transaction.commit`.
            timeout_s: How long to try to learn the outcome.

        Raises:
            RefusedError: Certainly not committed, and rolled back.
            CommitUnknownError: Not known in time; repeat the call, or request `Database.outcome` of `tid`.
        """
        limit_s = self._transport.timeouts.answer_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        lost = False

        def attempt() -> CommitResult:
            nonlocal lost
            left_s = max(0.1, min(limit_s / _ATTEMPTS_MIN, deadline - time.monotonic()))
            try:
                limit = left_s + self._transport.timeouts.connect_s
                body = CommitRequest(wait, left_s)
                done = self._call("commit", answer=CommitAnswer, body=body, timeout_s=limit)
                return commit_result(done)
            except NoConnectionError:
                raise
            except (UnavailableError, CommitUnknownError):
                lost = True
                raise

        try:
            return repeat(
                attempt,
                (UnavailableError, CommitUnknownError),
                deadline=deadline,
                waits=self._transport.waits,
                what=f"the commit of {self.tid}",
            )
        except CommitUnknownError:
            raise
        except TidelockError as error:
            if _certain(error, lost=lost):
                raise
            raise self._unknown(error) from error

    def _unknown(self, error: TidelockError) -> CommitUnknownError:
        return CommitUnknownError(
            f"the outcome of {self.tid} is not known ({error.message}); call Database.outcome(tid)",
            tid=self.tid,
        )

    def rollback(self) -> None:
        """Roll the transaction back; right "commit"."""
        self._call("rollback", answer=EndAnswer)

    def close(self) -> None:
        """Close the connections; the transaction goes on without this process."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _certain(error: TidelockError, *, lost: bool) -> bool:
    """Return whether an error of a commit implies that the transaction is not committed.

    Args:
        error: The last error.
        lost: An earlier request may have run.
    """
    if isinstance(error, FORGOTTEN) or not isinstance(error, RefusedError | UnavailableError):
        return False
    # "state" is present only if the error concerns the transaction, and not a token alone.
    of_the_request = isinstance(error, OF_THE_REQUEST) and "state" not in error.details
    return not (lost and (of_the_request or isinstance(error, UnavailableError)))
