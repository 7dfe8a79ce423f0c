"""Transactions of the client: statements, the with-block, refusals and lost leases."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import FakeCluster
from tests.support.replicas.fake_http import Fault
from tidelock.client import Database, TransactionState, connect
from tidelock.errors import (
    BadRequestError,
    LeaseExpiredError,
    PartDamagedError,
    StandbyError,
    TransactionClosedError,
    UnavailableError,
    UnknownTableError,
)

ROWS = pa.table({"k": [1, 2, 3]})
COMMIT = "POST /transactions/.*/commit"
ROLLBACK = "POST /transactions/.*/rollback"


def test_block_commits_all_tables_at_once(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Rows of two tables become visible at one CSN when the block ends, and not before."""
    fake_cluster.add_table("u")
    with fake_db.begin() as tx:
        assert tx.insert("t", ROWS).rows == 3
        tx.insert("u", ROWS)
        assert fake_db.read("t").num_rows == 0
        assert tx.state is TransactionState.OPEN
    assert tx.csn == fake_cluster.csn
    with fake_db.snapshot() as snap:
        assert (snap.read("t").num_rows, snap.read("u").num_rows) == (3, 3)


def test_own_writes_are_read(fake_db: Database) -> None:
    """A transaction sees its own inserts, with columns, conditions and parameters."""
    with fake_db.begin() as tx:
        tx.insert("t", ROWS)
        assert tx.read("t", columns=["k"], where="k > ?", params=[1]).column("k").to_pylist() == [2, 3]
        assert tx.scan("t").count() == 3
        tx.rollback()
    assert fake_db.read("t").num_rows == 0


def test_exception_rolls_back_and_is_raised_as_it_is(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """An exception in the block rolls back at the home and reaches the caller unchanged."""
    error = KeyError("of the caller")
    with pytest.raises(KeyError) as caught, fake_db.begin(fresh=True) as tx:  # noqa: PT012
        tx.insert("t", ROWS)
        raise error
    assert caught.value is error
    assert tx.state is TransactionState.ROLLED_BACK
    assert fake_cluster["r1"].transactions[tx.tid].state == "rolled_back"
    assert fake_cluster["r1"].count(COMMIT) == 0


def test_exception_is_raised_even_if_the_rollback_fails(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A home that cannot be reached for the rollback does not hide the caller's exception."""
    fake_cluster["r1"].plan(ROLLBACK, Fault.LOST_REQUEST)
    with pytest.raises(KeyError) as caught, fake_db.begin(fresh=True) as tx:
        raise KeyError("of the caller")
    assert any("rollback of" in note for note in caught.value.__notes__)
    assert tx.state is not TransactionState.COMMITTED
    assert not fake_db._connection.leases._due_s


def test_refused_statement_leaves_rollback_only(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """After a refusal every statement and the commit are refused by the client itself; rollback works."""
    tx = fake_db.begin()
    with pytest.raises(UnknownTableError):
        tx.insert("nowhere", ROWS)
    assert tx.state is TransactionState.FAILED
    asked = len(fake_cluster["r1"].requests)
    for call in (lambda: tx.insert("t", ROWS), lambda: tx.read("t"), tx.commit):
        with pytest.raises(TransactionClosedError, match="roll it back"):
            call()
    assert len(fake_cluster["r1"].requests) == asked
    tx.rollback()
    assert fake_cluster["r1"].transactions[tx.tid].state == "rolled_back"


def test_swallowed_refusal_does_not_pass_for_a_commit(fake_db: Database) -> None:
    """A block that swallows the error of a refused statement ends with an error, not as if committed."""
    with pytest.raises(TransactionClosedError, match="nowhere"), fake_db.begin() as tx:  # noqa: PT012
        tx.insert("t", ROWS)
        with pytest.raises(UnknownTableError):
            tx.insert("nowhere", ROWS)
    assert tx.state is TransactionState.ROLLED_BACK
    assert fake_db.read("t").num_rows == 0


def test_lost_lease_does_not_pass_for_a_commit(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A lease that ran out while the block did other things makes the block fail."""
    with pytest.raises(TransactionClosedError, match="begin a new"), fake_db.begin() as tx:  # noqa: PT012
        tx.insert("t", ROWS)
        fake_cluster["r1"].transactions[tx.tid].state = "expired"
        with pytest.raises(TransactionClosedError):
            tx.heartbeat()


def test_expired_lease_is_told_by_its_class(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The statement that meets an expired lease raises LeaseExpired, and nothing is left to roll back."""
    tx = fake_db.begin()
    fake_cluster["r1"].transactions[tx.tid].state = "expired"
    with pytest.raises(LeaseExpiredError):
        tx.insert("t", ROWS)
    assert tx.state is TransactionState.ROLLED_BACK
    tx.rollback()
    assert fake_cluster["r1"].count(ROLLBACK) == 0


def test_explicit_rollback_ends_the_block_quietly(fake_db: Database) -> None:
    """A block whose transaction was rolled back on purpose ends without an error."""
    with fake_db.begin() as tx:
        tx.rollback()
    tx.rollback()
    assert tx.state is TransactionState.ROLLED_BACK


def test_explicit_commit_inside_the_block(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """commit() inside the block is not repeated at its end, and nothing can be added after it."""
    with fake_db.begin(fresh=True) as tx:
        tx.insert("t", ROWS)
        tx.commit()
        with pytest.raises(TransactionClosedError, match="committed"):
            tx.insert("t", ROWS)
        with pytest.raises(TransactionClosedError, match="committed"):
            tx.rollback()
    assert fake_cluster["r1"].count(COMMIT) == 1


def test_lost_answer_of_an_insert_spoils_the_transaction(
    fake_cluster: FakeCluster, fake_db: Database
) -> None:
    """After a lost answer the rows may be staged or not, so the transaction takes a rollback only."""
    fake_cluster["r1"].plan("POST /transactions/.*/rows/t", Fault.LOST_ANSWER)
    tx = fake_db.begin(fresh=True)
    with pytest.raises(UnavailableError, match="may have carried out"):
        tx.insert("t", ROWS)
    assert tx.state is TransactionState.FAILED
    tx.rollback()


def test_insert_that_did_not_leave_may_be_repeated(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """An agent that refuses inserts for now has changed nothing: the transaction stays open."""
    fake_cluster["r1"].plan("POST /transactions/.*/rows/t", UnavailableError("suspended"))
    with fake_db.begin(fresh=True) as tx:
        with pytest.raises(UnavailableError, match="suspended"):
            tx.insert("t", ROWS)
        tx.insert("t", ROWS)
    assert fake_db.read("t").num_rows == 3


def test_a_damaged_part_at_the_home_leaves_the_rollback(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The home has failed the transaction; another one works, and so does a loop that asks `retriable`."""
    damaged = PartDamagedError("part r1-1-1 is damaged", part="r1-1-1", replica="r1")
    fake_cluster["r1"].plan("POST /query", damaged)
    with pytest.raises(PartDamagedError) as told, fake_db.begin() as tx:
        tx.read("t")
    assert told.value.retriable
    assert tx.state is TransactionState.ROLLED_BACK
    with fake_db.begin() as tx:
        assert tx.read("t").num_rows == 0


def test_a_damaged_part_is_read_at_another_replica(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Outside of transactions the client asks the next replica by itself."""
    with fake_db.snapshot() as snap:
        fake_cluster[snap.holder].plan("POST /query", PartDamagedError("part r1-1-1 is damaged"))
        assert snap.read("t").num_rows == 0


def test_lost_answer_of_a_read_spoils_nothing(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A read changes nothing, so it may be repeated after a lost answer."""
    fake_cluster["r1"].plan("POST /query", Fault.LOST_ANSWER, Fault.CUT)
    with fake_db.begin() as tx:
        tx.insert("t", ROWS)
        for _ in range(2):
            with pytest.raises(UnavailableError):
                tx.read("t")
        assert tx.read("t").num_rows == 3


def test_rows_that_raise_while_they_are_sent(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """An error of the caller's own rows is raised unchanged, and the cut upload adds no rows."""

    def rows() -> object:
        yield ROWS.to_batches()[0]
        raise KeyError("of the rows")

    reader = pa.RecordBatchReader.from_batches(ROWS.schema, rows())
    with pytest.raises(KeyError, match="of the rows"), fake_db.begin() as tx:
        tx.insert("t", reader)
    assert tx.state is TransactionState.ROLLED_BACK
    assert fake_cluster["r1"].transactions[tx.tid].staged == []


def test_begin_goes_to_the_next_replica(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A replica that does not answer is skipped, and asked last for a while."""
    fake_cluster["r1"].plan("POST /transactions", Fault.LOST_REQUEST, StandbyError("starting"))
    assert fake_db.begin().holder == "r2"
    assert fake_db.begin().holder == "r2"
    assert fake_cluster["r1"].count("POST /transactions") == 1


def test_pinned_client_stays_with_its_replica(fake_cluster: FakeCluster) -> None:
    """A client with a pinned replica never goes on to another one."""
    with connect(fake_cluster["r1"].url, replica="r2") as db:
        assert db.begin().holder == "r2"
        fake_cluster["r2"].plan("POST /transactions", StandbyError("behind"))
        with pytest.raises(StandbyError):
            db.begin(fresh=True)
        fake_cluster["r2"].stop()
        with pytest.raises(UnavailableError, match="no connection"):
            db.begin(fresh=True)


def test_begin_sends_its_arguments(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Label, lease, freshness and metadata reach the agent; arguments that are not given are left out."""
    assert fake_db.begin().snapshot_csn == 2
    assert fake_cluster["r1"].requests[-1].json == {"isolation": "snapshot"}
    fake_db.begin("load 7", lease="1.5s", fresh=True, meta={"job": 7})
    body = fake_cluster["r1"].requests[-1].json
    expected = {"label": "load 7", "lease_s": 1.5, "fresh": True, "meta": {"job": 7}}
    assert {name: body[name] for name in expected} == expected
    with pytest.raises(BadRequestError, match="expected a duration"):
        fake_db.begin(lease="a while")
