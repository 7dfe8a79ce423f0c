"""Transactions of other clients, and levels of a commit that its home cannot report."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import FakeCluster
from tests.support.replicas.fake_http import Fault
from tidelock.client import Database, TransactionState
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
)

ROWS = pa.table({"k": [1, 2, 3]})
COMMIT = "POST /transactions/.*/commit"
KILL = "POST /transactions/.*/kill"
OUTCOME = "GET /outcomes/.*"


def test_kill_is_the_homes_to_do(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A kill is sent to the home only, and its refusal is raised."""
    tx = fake_db.begin()
    fake_db.kill(tx.tid)
    fake_db.kill(tx.tid)
    assert [agent.count(KILL) for agent in fake_cluster.agents.values()] == [2, 0, 0]
    with pytest.raises(TransactionClosedError):
        tx.insert("t", ROWS)
    committed = fake_db.insert("t", ROWS)
    with pytest.raises(TransactionClosedError, match="is committed"):
        fake_db.kill(committed.tid)
    with pytest.raises(UnknownTransactionError):
        fake_db.kill("1-r2-1-1")
    for tid in ("nonsense", "1-r9-1-1"):
        with pytest.raises(BadRequestError):
            fake_db.kill(tid)


def test_kill_of_a_home_that_is_gone(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Only the home can kill: the call reports the failure, and the home is tried last for a while."""
    tx = fake_db.begin(fresh=True)
    fake_cluster["r1"].stop()
    with pytest.raises(UnavailableError):
        fake_db.kill(tx.tid)
    assert fake_db.begin().holder == "r2"


@pytest.mark.parametrize(
    ("wait", "asked"), [("home", {}), ("copies", {"wait": "copies"}), ("all", {"wait": "all"})]
)
def test_another_replica_waits_for_the_level(
    fake_cluster: FakeCluster, fake_db: Database, wait: str, asked: dict[str, str]
) -> None:
    """A replica that reports an outcome instead of the home waits for the level that the caller wants."""
    tx = fake_db.begin(fresh=True)
    tx.insert("t", ROWS)
    fake_cluster["r1"].plan(COMMIT, Fault.LOST_ANSWER)
    assert tx.commit(wait=wait).csn == fake_cluster.csn  # type: ignore[arg-type]
    (outcome,) = (
        request
        for agent in fake_cluster.agents.values()
        for request in agent.requests
        if request.path.startswith("/outcomes/")
    )
    assert {name: value for name, value in outcome.query.items() if name == "wait"} == asked


def test_a_level_that_is_not_reached(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The error has the CSN of the commit, whose level is not reached yet; the call may be repeated."""
    tx = fake_db.begin(fresh=True)
    tx.insert("t", ROWS)
    not_there = CommitUnknownError("committed at CSN 3, but r3 did not apply it in time", csn=3)
    for agent in fake_cluster.agents.values():
        agent.plan(OUTCOME, *[not_there] * 1000)
    fake_cluster["r1"].plan(COMMIT, *[Fault.LOST_ANSWER] * 1000)
    with pytest.raises(CommitUnknownError, match="r3 did not apply it"):
        tx.commit(wait="all", timeout_s=0.3)
    assert (tx.state, tx.csn) == (TransactionState.COMMITTED, 3)
    assert fake_db.seen_csn == 3


def test_sql_in_a_transaction(fake_db: Database) -> None:
    """A SELECT sees all tables and the transaction's own rows; a failed one leaves a rollback only."""
    with fake_db.begin() as tx:
        tx.insert("t", ROWS)
        assert tx.sql("select sum(k) as n from t where k > ?", [1]).to_pydict() == {"n": [5]}
    tx = fake_db.begin()
    with pytest.raises(BadRequestError):
        tx.sql("select nowhere from t")
    assert tx.state is TransactionState.FAILED
