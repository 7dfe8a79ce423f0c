"""The consequences of a failed query for its transaction, and the error when the transaction has ended."""

from __future__ import annotations

import time

import pytest

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.errors import (
    BadRequestError,
    CorruptError,
    LeaseExpiredError,
    StandbyError,
    TidelockError,
    TooLargeError,
)
from tidelock.replica_agent.services.failures import QueryFailures
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState


@pytest.fixture
def transactions() -> Transactions:
    """The registry of a home."""
    return Transactions(ReplicaId("r1"), 1, settings(), time.monotonic)


def query(transactions: Transactions, tx: Transaction, error: Exception, *, spoils: bool = True) -> None:
    """Run a query that ends in an error."""
    failures = QueryFailures(transactions=transactions, damaged=lambda *_: None)
    with failures.noted(str(tx.tid), "the query", spoils=spoils):
        raise error


@pytest.mark.parametrize("spoils", [True, False], ids=["its own process", "another process"])
@pytest.mark.parametrize(
    "error",
    [
        StandbyError("the part is gone"),
        BadRequestError("no such column"),
        CorruptError("the file is gone", part="r1-1-1"),
    ],
    ids=["standby", "bad request", "corrupt"],
)
def test_a_query_whose_transaction_ended_meanwhile_says_why_it_ended(
    transactions: Transactions, error: TidelockError, *, spoils: bool
) -> None:
    """The end of the lease deletes parts under a read: the client is not sent to another replica."""
    tx = transactions.begin(Csn(5))
    why = LeaseExpiredError("no sign of life for 5 s")
    tx.ending.close(TxState.ROLLED_BACK, at=time.monotonic(), totals=(0, 0, 0), outcome=None, error=why)
    with pytest.raises(LeaseExpiredError, match="no sign of life"):
        query(transactions, tx, error, spoils=spoils)


def test_a_failed_query_of_another_process_does_not_spoil_the_transaction(transactions: Transactions) -> None:
    """The process has a token; a damaged part is answered by another replica."""
    tx = transactions.begin(Csn(5))
    for error, seen in (
        (BadRequestError("no such column"), BadRequestError),
        (CorruptError("other bytes", part="r1-1-1"), StandbyError),
    ):
        with pytest.raises(seen):
            query(transactions, tx, error, spoils=False)
    assert tx.state is TxState.OPEN


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (StandbyError("not now"), TxState.OPEN),
        (ConnectionResetError("the client hung up"), TxState.OPEN),
        (BadRequestError("no such column"), TxState.FAILED),
        (KeyError("k"), TxState.FAILED),
    ],
)
def test_only_an_error_other_than_not_now_leaves_the_rollback(
    transactions: Transactions, error: Exception, state: TxState
) -> None:
    """The same query may be repeated when the answer is "not now"."""
    tx = transactions.begin(Csn(5))
    with pytest.raises(type(error)):
        query(transactions, tx, error)
    assert tx.state is state


def test_a_statement_that_needs_too_much_memory_leaves_the_rollback(transactions: Transactions) -> None:
    """Of a change half may be staged when memory ends; it was left open, and could be committed so."""
    tx = transactions.begin(Csn(5))
    with pytest.raises(TooLargeError, match="the query needs more memory"):
        query(transactions, tx, MemoryError("no room"))
    assert tx.state is TxState.FAILED
