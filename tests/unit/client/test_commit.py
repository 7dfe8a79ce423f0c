"""Commits whose answers are lost: the client repeats them, and reports certain outcomes only (I8, I17)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import FakeCluster, token_of
from tests.support.replicas.fake_http import Fault
from tidelock.client import Database, JoinedTransaction, Transaction, TransactionState, connect, join
from tidelock.client.values.results import Decision
from tidelock.errors import (
    AccessDeniedError,
    BadRequestError,
    CommitUnknownError,
    FencedError,
    NotCommittedError,
    NotEnoughReplicasError,
    SchemaMismatchError,
    TidelockError,
    TokenExpiredError,
    TokenFinishedError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
)

ROWS = pa.table({"k": [1, 2, 3]})
COMMIT = "POST /transactions/.*/commit"
ROLLBACK = "POST /transactions/.*/rollback"


def begun(db: Database) -> Transaction:
    """A transaction with three rows."""
    tx = db.begin(fresh=True)
    tx.insert("t", ROWS)
    return tx


def test_commit_returns_csn_tid_and_time(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A commit returns its CSN and its time, and the transaction has them too."""
    tx = begun(fake_db)
    result = tx.commit()
    assert (result.csn, result.tid) == (fake_cluster.csn, tx.tid)
    assert result.time is not None
    assert result.time.isoformat() == "2023-11-14T22:13:20+00:00"
    assert (tx.csn, tx.state) == (result.csn, TransactionState.COMMITTED)


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER])
def test_lost_answer_is_asked_for_again(fake_cluster: FakeCluster, fake_db: Database, fault: Fault) -> None:
    """A commit whose answer is lost is repeated, and the rows are there once."""
    fake_cluster["r1"].plan(COMMIT, fault, fault)
    result = begun(fake_db).commit()
    assert result.csn == fake_cluster.csn
    assert fake_db.read("t").num_rows == 3


@pytest.mark.parametrize("fault", [Fault.PAGE, Fault.OTHER_JSON])
def test_an_answer_that_is_none_is_no_refusal(
    fake_cluster: FakeCluster, fake_db: Database, fault: Fault
) -> None:
    """A commit that the home has made is not reported refused because a proxy replaced its answer (I17)."""
    tx = begun(fake_db)
    fake_cluster["r1"].plan(COMMIT, *[fault] * 100)
    for agent in fake_cluster.agents.values():
        agent.plan("GET /outcomes/.*", *[Fault.LOST_REQUEST] * 100)
    with pytest.raises(CommitUnknownError):
        tx.commit(timeout_s=0.3)
    assert tx.state is TransactionState.SEALED
    for agent in fake_cluster.agents.values():
        agent._plans.clear()
    assert tx.commit().csn == fake_cluster.csn
    assert fake_db.read("t").num_rows == 3


def test_commit_twice_is_the_same_commit(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A second commit() returns the first one's result and sends nothing."""
    tx = begun(fake_db)
    assert tx.commit() == tx.commit()
    assert fake_cluster["r1"].count(COMMIT) == 1


def test_outcome_of_a_dead_home_comes_from_another_replica(
    fake_cluster: FakeCluster, fake_db: Database
) -> None:
    """The home commits and dies before it answers: the client gets the outcome from another replica."""
    home = fake_cluster["r1"]
    tx = begun(fake_db)
    home.plan(COMMIT, Fault.LOST_ANSWER)
    home.plan("(?!.*/commit).*", *[Fault.LOST_REQUEST] * 100)
    assert tx.commit().csn == fake_cluster.csn
    assert tx.state is TransactionState.COMMITTED


def test_home_that_has_forgotten_is_no_refusal(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The home commits, loses the answer and restarts: the forgotten commit is not reported as refused."""
    home = fake_cluster["r1"]
    tx = begun(fake_db)
    home.plan(COMMIT, Fault.LOST_ANSWER)
    home.plan("GET /outcomes/.*", Fault.LOST_REQUEST)
    fake_cluster["r2"].plan("GET /outcomes/.*", UnavailableError("not now"))
    fake_cluster["r3"].plan("GET /outcomes/.*", UnavailableError("not now"))
    original = home.answer

    def restart_after_commit(request: object) -> object:
        answer = original(request)  # type: ignore[arg-type]
        home.restart()
        home.answer = original  # type: ignore[method-assign]
        return answer

    home.answer = restart_after_commit  # type: ignore[method-assign]
    assert tx.commit().csn == fake_cluster.csn


def test_home_started_anew_before_the_commit_is_a_refusal(
    fake_cluster: FakeCluster, fake_db: Database
) -> None:
    """A transaction whose home was restarted before the commit is certainly aborted."""
    tx = begun(fake_db)
    fake_cluster["r1"].restart()
    with pytest.raises(NotCommittedError, match="begin again") as caught:
        tx.commit()
    assert caught.value.retriable
    assert tx.state is TransactionState.ROLLED_BACK


def test_fenced_home_is_told_by_its_class(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A home that was fenced says so; the log makes it certain that nothing was committed."""
    tx = begun(fake_db)
    fake_cluster["r1"].plan(COMMIT, FencedError("fenced by r2"))
    fake_cluster["r1"].transactions[tx.tid].state = "rolled_back"
    with pytest.raises(FencedError):
        tx.commit()
    assert tx.state is TransactionState.ROLLED_BACK


def test_unknown_after_the_time_is_over(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Without an answer in time the error is CommitUnknown, and commit() may be repeated."""
    tx = begun(fake_db)
    for agent in fake_cluster.agents.values():
        agent.plan("(POST|GET) /(transactions/.*/commit|outcomes/.*|status)", *[Fault.LOST_REQUEST] * 10_000)
    with pytest.raises(CommitUnknownError, match=r"repeat commit\(\)") as caught:
        tx.commit(timeout_s=0.3)
    assert caught.value.tid == tx.tid
    assert tx.state is TransactionState.SEALED
    for agent in fake_cluster.agents.values():
        agent._plans.clear()
    assert tx.commit().csn == fake_cluster.csn


def test_silent_home_leaves_time_for_the_others(fake_cluster: FakeCluster) -> None:
    """A home that is frozen after its commit does not use up the time to ask the others."""
    with connect(fake_cluster["r1"].url, timeout_s=20.0, connect_timeout_s=0.1) as db:
        tx = begun(db)
        home = fake_cluster["r1"]
        home.plan(COMMIT, Fault.LOST_ANSWER)
        home.plan("(?!.*/commit).*", *[Fault.SILENCE] * 100)
        home.plan(COMMIT, *[Fault.SILENCE] * 100)
        assert tx.commit(timeout_s=10.0).csn == fake_cluster.csn


@pytest.mark.parametrize("error", [NotEnoughReplicasError("1 of 2 copies"), SchemaMismatchError("no")])
def test_a_refusal_is_certain_and_raised_at_once(
    fake_cluster: FakeCluster, fake_db: Database, error: TidelockError
) -> None:
    """A refused commit is raised as it is, at once, and the transaction is over."""
    tx = begun(fake_db)
    fake_cluster["r1"].plan(COMMIT, error)
    with pytest.raises(type(error), match=error.message):
        tx.commit()
    assert tx.state is TransactionState.ROLLED_BACK
    assert fake_cluster["r1"].count(COMMIT) == 1
    with pytest.raises(TransactionClosedError, match=error.message):
        tx.commit()


def test_malformed_commit_is_rolled_back(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A commit with a malformed request is rolled back at the home, not left to its lease."""
    tx = begun(fake_db)
    fake_cluster["r1"].plan(COMMIT, BadRequestError("wait"))
    with pytest.raises(BadRequestError):
        tx.commit(wait="everywhere")  # type: ignore[arg-type]
    assert fake_cluster["r1"].transactions[tx.tid].state == "rolled_back"


@pytest.mark.parametrize("error", [BadRequestError("it has no label"), AccessDeniedError("no token")])
def test_a_refused_repetition_tells_nothing_of_the_call_before(
    fake_cluster: FakeCluster, fake_db: Database, error: TidelockError
) -> None:
    """A committed transaction is not reported as rolled back after a wrong second call."""
    tx = begun(fake_db)
    fake_cluster["r1"].plan(COMMIT, *[CommitUnknownError("not decided", tid=tx.tid)] * 100)
    for agent in fake_cluster.agents.values():
        agent.plan("GET /outcomes/.*", *[Fault.LOST_REQUEST] * 100)
    with pytest.raises(CommitUnknownError):
        tx.commit(timeout_s=0.3)
    for agent in fake_cluster.agents.values():
        agent._plans.clear()
    fake_cluster["r1"].plan(COMMIT, error)
    with pytest.raises(CommitUnknownError, match=f"refused .{error.message}.; repeat"):
        tx.commit(label="late")
    assert tx.state is TransactionState.SEALED
    assert tx.commit().csn == fake_cluster.csn


def test_internal_error_of_the_home_is_not_taken_for_a_refusal(
    fake_cluster: FakeCluster, fake_db: Database
) -> None:
    """After an error that does not concern the commit the client asks for the outcome."""
    tx = begun(fake_db)
    fake_cluster["r1"].plan(COMMIT, TidelockError("internal error"))
    assert tx.commit().csn == fake_cluster.csn


def test_unavailable_home_that_has_rolled_back(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """An unavailable home may have rolled back already: the log's outcome ends the repetitions."""
    tx = begun(fake_db)
    fake_cluster["r1"].plan(COMMIT, UnavailableError("r3 is 5000 CSNs behind"))
    fake_cluster["r1"].transactions[tx.tid].state = "rolled_back"
    with pytest.raises(NotCommittedError, match="5000 CSNs behind"):
        tx.commit()


def test_home_that_could_not_commit_says_so_at_once(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The refusal "not committed, begin again" is certain: the caller gets it, without a look at the log."""
    tx = begun(fake_db)
    fake_cluster["r1"].plan(COMMIT, NotCommittedError("r3 is 5000 CSNs behind; begin again"))
    with pytest.raises(NotCommittedError, match="5000 CSNs behind") as caught:
        tx.commit()
    assert caught.value.retriable
    assert tx.state is TransactionState.ROLLED_BACK
    assert fake_cluster["r1"].count("GET /outcomes/.*") == 0


def test_statement_that_could_not_be_committed_is_begun_again(
    fake_cluster: FakeCluster, fake_db: Database
) -> None:
    """The client itself repeats a transaction of one statement, and its rows are there once."""
    fake_cluster["r1"].plan(COMMIT, NotCommittedError("the queue is full; begin again"))
    assert fake_db.insert("t", ROWS).csn == fake_cluster.csn
    assert fake_db.read("t").num_rows == 3


def test_committed_but_not_applied_everywhere(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A commit that is not applied yet on all replicas raises an error with its CSN."""
    tx = begun(fake_db)
    behind = CommitUnknownError("committed at CSN 9, but r3 did not apply it", tid=tx.tid, csn=9)
    fake_cluster["r1"].plan(COMMIT, *[behind] * 10_000)
    with pytest.raises(CommitUnknownError, match="r3 did not apply"):
        tx.commit(wait="all", timeout_s=0.2)
    assert (tx.state, tx.csn) == (TransactionState.COMMITTED, 9)
    assert fake_db.seen_csn == 9


def test_empty_transaction_has_no_csn(fake_db: Database) -> None:
    """A transaction that changed nothing commits without a CSN."""
    with fake_db.begin(fresh=True) as tx:
        pass
    assert (tx.state, tx.csn) == (TransactionState.COMMITTED, None)


def test_outcomes_are_told_by_the_home_first(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The client asks the home for an outcome first, and the others if the home has ended."""
    tx = begun(fake_db)
    assert fake_db.outcome(tx.tid).decision is Decision.RUNNING
    result = tx.commit()
    fake_cluster["r1"].plan("GET /outcomes/.*", Fault.LOST_REQUEST)
    outcome = fake_db.outcome(tx.tid)
    assert (outcome.decision, outcome.csn, outcome.time) == (Decision.COMMITTED, result.csn, result.time)
    assert fake_db.outcome("5-r1-1-99").decision is Decision.ABORTED
    with pytest.raises(BadRequestError, match="expected a tid"):
        fake_db.outcome("nonsense")


def test_an_option_that_does_not_exist_is_refused(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A misspelled label must not pass for none: the statement would take effect without it."""
    with pytest.raises(TypeError, match="labl"):
        fake_db.truncate("t", labl="a load")  # type: ignore[call-arg]
    assert fake_cluster["r1"].count("POST /transactions") == 0


# -- by a token ----------------------------------------------------------------------------------------------


def joined(cluster: FakeCluster, tx: Transaction) -> JoinedTransaction:
    """The transaction, joined by a token."""
    return join(cluster["r1"].url, token_of(tx.tid), timeout_s=5.0)


@pytest.mark.parametrize(
    "error",
    [
        TokenExpiredError("its time is over"),
        TokenFinishedError("the home has forgotten it"),
        BadRequestError("wait"),
        FencedError("fenced by r2"),
    ],
)
def test_refused_repetition_by_a_token_denies_no_commit(
    fake_cluster: FakeCluster, fake_db: Database, error: TidelockError
) -> None:
    """After a lost answer a refusal of the request itself does not decide the transaction."""
    tx = begun(fake_db)
    fake_cluster["r1"].plan(COMMIT, Fault.LOST_ANSWER, error)
    with joined(fake_cluster, tx) as other, pytest.raises(CommitUnknownError, match=error.message) as caught:
        other.commit()
    assert caught.value.tid == tx.tid
    assert fake_db.outcome(tx.tid).decision is Decision.COMMITTED


@pytest.mark.parametrize("fault", [Fault.PAGE, Fault.OTHER_JSON])
def test_an_answer_by_a_token_that_is_none_is_no_refusal(
    fake_cluster: FakeCluster, fake_db: Database, fault: Fault
) -> None:
    """A process that joined a transaction reports the outcome as unknown, too."""
    tx = begun(fake_db)
    fake_cluster["r1"].plan(COMMIT, *[fault] * 100)
    with joined(fake_cluster, tx) as other, pytest.raises(CommitUnknownError) as caught:
        other.commit(timeout_s=0.3)
    assert caught.value.tid == tx.tid


@pytest.mark.parametrize(
    "error", [FencedError("fenced"), UnknownTransactionError("forgotten"), TidelockError("internal error")]
)
def test_home_that_cannot_tell_denies_no_commit(
    fake_cluster: FakeCluster, fake_db: Database, error: TidelockError
) -> None:
    """A home that cannot tell the outcome decides nothing, since the log may have the commit."""
    tx = begun(fake_db)
    fake_cluster["r1"].plan(COMMIT, error)
    with joined(fake_cluster, tx) as other, pytest.raises(CommitUnknownError, match=error.message):
        other.commit()


@pytest.mark.parametrize("faults", [[], [Fault.LOST_REQUEST]])
@pytest.mark.parametrize(
    "error", [NotEnoughReplicasError("1 of 2 copies"), TokenFinishedError("it is over", state="rolled_back")]
)
def test_refusal_by_a_token_is_certain(
    fake_cluster: FakeCluster, fake_db: Database, faults: list[Fault], error: TidelockError
) -> None:
    """An error about the transaction itself is raised unchanged, also after a lost answer."""
    tx = begun(fake_db)
    fake_cluster["r1"].plan(COMMIT, *faults, error)
    with joined(fake_cluster, tx) as other, pytest.raises(type(error), match=error.message):
        other.commit()
