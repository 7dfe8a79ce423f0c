"""The commits that invalidate the reads of a serializable transaction."""

from __future__ import annotations

import pytest

from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId, Tid
from tidelock.replica_agent.transactions.ending.validation import first_conflict
from tidelock.replica_agent.transactions.transaction import Excluded, Isolation, Transaction, TransactionLease

A, B = TableId("default.a"), TableId("default.b")


def tx(isolation: Isolation = Isolation.SERIALIZABLE) -> Transaction:
    """Return a transaction at CSN 7."""
    return Transaction(
        tid=Tid(Csn(7), ReplicaId("r1"), 1, 1),
        reads_from=Csn(7),
        begun_at=0.0,
        lease=TransactionLease(seconds=60.0, until=0.0),
        isolation=isolation,
    )


@pytest.mark.parametrize(
    ("excluded", "changed", "conflict"),
    [
        (None, {"y=1"}, True),
        (None, set(), False),
        (frozenset({"y=1"}), {"y=1"}, False),
        (frozenset({"y=1"}), {"y=2"}, True),  # read, or a phantom: both count
        (frozenset({"y=1"}), {"y=1", "y=2"}, True),
        (frozenset(), {""}, True),
    ],
)
def test_conflict_with_a_partition_unless_every_read_excluded_it(
    excluded: Excluded, changed: set[str], conflict: bool
) -> None:
    """A changed partition counts unless it was excluded by every read."""
    found = first_conflict({B: None, A: excluded}, {A: changed, B: set()})
    assert found == (A if conflict else None)


def test_reads_of_several_statements_add_up() -> None:
    """A partition that one statement has excluded may be read by another; a whole read includes all."""
    one = tx()
    one.note_reads({A: frozenset({"y=1", "y=2"})})
    one.note_reads({A: frozenset({"y=2", "y=3"}), B: frozenset()})
    assert one.statements.reads == {A: frozenset({"y=2"}), B: frozenset()}
    one.note_reads({A: None})
    one.note_reads({A: frozenset({"y=2"})})
    assert one.statements.reads[A] is None


@pytest.mark.parametrize("isolation", [Isolation.SNAPSHOT, Isolation.READ_COMMITTED])
def test_only_serializable_transactions_note_reads(isolation: Isolation) -> None:
    """Only a serializable transaction records its reads."""
    one = tx(isolation)
    one.note_reads({A: None})
    assert not one.statements.reads


def test_statements_of_read_committed_move_on() -> None:
    """Each sees what is applied when it begins, and never less than the one before."""
    one, other = tx(Isolation.READ_COMMITTED), tx(Isolation.SNAPSHOT)
    assert [one.begin_statement(Csn(csn)) for csn in (7, 9, 8, 12)] == [7, 9, 9, 12]
    assert [other.begin_statement(Csn(csn)) for csn in (7, 9)] == [7, 7]
