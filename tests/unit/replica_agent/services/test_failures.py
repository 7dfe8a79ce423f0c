"""The consequences of a failed query for its transaction, and the error when the transaction has ended."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.errors import (
    BadRequestError,
    CorruptError,
    LeaseExpiredError,
    PartDamagedError,
    StandbyError,
    TidelockError,
    TooLargeError,
    UnavailableError,
    from_wire,
)
from tidelock.replica_agent.services.failures import QueryFailures
from tidelock.replica_agent.storage.damaged_parts import DamagedParts
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState


class Rows:
    """A catalog of one part."""

    def part(self, part: str) -> Any:
        """Return the row of a part (`CatalogReader`)."""
        return SimpleNamespace(part=part, table="default.t") if part == "r1-1-1" else None


@pytest.fixture
def transactions() -> Transactions:
    """The registry of a home."""
    return Transactions(ReplicaId("r1"), 1, settings(), time.monotonic)


def query(transactions: Transactions, tx: Transaction, error: Exception, *, spoils: bool = True) -> None:
    """Run a query that ends in an error."""
    damage = DamagedParts(replica=ReplicaId("r1"), reader=cast("Any", Rows()), report=lambda *_: None)
    failures = QueryFailures(transactions=transactions, damage=damage)
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
        (CorruptError("other bytes", part="r1-1-1"), PartDamagedError),
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


def test_a_damaged_part_leaves_the_rollback_and_may_be_retried(transactions: Transactions) -> None:
    """Half of the statement may be done, so the transaction begins again; nobody has to look."""
    tx = transactions.begin(Csn(5))
    with pytest.raises(PartDamagedError, match="other bytes") as damaged:
        query(transactions, tx, CorruptError("other bytes", part="r1-1-1"))
    assert (tx.state, damaged.value.retriable) == (TxState.FAILED, True)
    assert damaged.value.details == {"part": "r1-1-1", "table": "default.t", "replica": "r1"}


@pytest.mark.parametrize(
    "error",
    [CorruptError("rows were lost", table="default.t"), CorruptError("unknown here", part="r1-1-9")],
    ids=["no part", "no part of the catalog"],
)
def test_what_is_not_fetched_again_stays_corrupt(transactions: Transactions, error: CorruptError) -> None:
    """An operator must look where no replica can give anything back."""
    with pytest.raises(CorruptError, match=error.message):
        query(transactions, transactions.begin(Csn(5)), error)


def test_a_client_that_does_not_know_the_class_may_retry() -> None:
    """Clients of before take an unknown error with this status for an UnavailableError."""
    error = PartDamagedError("damaged", part="r1-1-1")
    seen = from_wire(error.http_status, {**error.to_wire(), "error": "NotKnownHereError"})
    assert (type(seen), seen.retriable, seen.details) == (UnavailableError, True, {"part": "r1-1-1"})


def test_a_statement_that_needs_too_much_memory_leaves_the_rollback(transactions: Transactions) -> None:
    """Of a change half may be staged when memory ends; it was left open, and could be committed so."""
    tx = transactions.begin(Csn(5))
    with pytest.raises(TooLargeError, match="the query needs more memory"):
        query(transactions, tx, MemoryError("no room"))
    assert tx.state is TxState.FAILED
