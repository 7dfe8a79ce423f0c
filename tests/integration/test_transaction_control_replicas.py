"""The promises of commit and begin about other replicas, checked by killing and delaying replicas.

`commit(wait=...)`: "home" = durable on `copies` replicas and applied at home; "copies" = applied on `copies`
replicas; "all" = applied on all live replicas. So after "all" any two of three may be lost, otherwise one.

`begin(min_csn=...)`, `begin(fresh=True)` and the CSN that a client carries: the snapshot is never older than
requested. The client waits, goes on to another replica, or gets an error (I11). A fault before the apply of
r3 delays that replica.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.clusters.client_process import ROWS
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates
from tests.support.faults.refusals import Addresses, check_state, http
from tests.support.histories.evidence import require_clean_audit
from tests.support.waiting import eventually
from tidelock.client import Database, Decision, TransactionState, connect
from tidelock.client.writes.transaction import Wait
from tidelock.cluster import LocalCluster
from tidelock.errors import CommitUnknownError, NoSuchCsnError, StandbyError, TransactionClosedError
from workloads.agents import ask

REPLICAS = ("r1", "r2", "r3")
SLOW = "r3"
APPLY, COMMIT = "replication.apply.before", "csnlog.commit.before"
ACCEPT = "replication.accept.before"
NAMES = itertools.count(1)
#: Levels, each with the replicas that are killed right after the commit; the home is r1. For "copies" see
#: also test_a_level_that_is_not_reached_in_time.
FAST_KILLS: list[tuple[Wait, tuple[str, ...]]] = [("all", ("r1", "r2"))]
SLOW_KILLS: list[tuple[Wait, tuple[str, ...]]] = [
    ("home", ("r1",)),
    ("home", ("r2",)),
    ("home", ("r3",)),
    ("copies", ("r1",)),
    ("copies", ("r2",)),
    ("copies", ("r3",)),
    ("all", ("r1", "r3")),
    ("all", ("r2", "r3")),
]


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """Gates that delay the apply of r3, the commit of r1, and the copies at both peers."""
    return Gates(
        tmp_path_factory.mktemp("gates"),
        {SLOW: {APPLY: "pause", ACCEPT: "pause"}, "r2": {ACCEPT: "pause"}, "r1": {COMMIT: "pause"}},
    )


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory, gates: Gates) -> Iterator[LocalCluster]:
    """One cluster for the module; nothing is left over at its end."""
    made = module_cluster(
        settings={**QUICK, "session_timeout_s": 3, "wait_bound_s": 1},
        environment_of={replica: gates.environment(replica) for replica in REPLICAS},
    )
    yield made
    require_clean_audit(made)


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster with all replicas up and at the end of the log, before and after the test."""
    shared.up()
    yield shared
    shared.up()


@pytest.fixture
def table(local: LocalCluster) -> str:
    """A table of this test alone, which all replicas know."""
    name = f"t{next(NAMES)}"
    with local.connect("r1") as db:
        db.create_table(name, ROWS.schema)
        db.insert(name, ROWS, wait="all")
    return name


def count(db: Database, table: str, csn: int | None = None) -> int:
    """Return the number of rows of a table, at a CSN or at the client's newest."""
    with db.snapshot(csn) as snap:
        return snap.scan(table).count()


def reached(local: LocalCluster, replica: str) -> int:
    """Return the CSN up to which a replica has applied the log."""
    return int(ask(local, replica, "/status")["snapshot_csn"])


@pytest.mark.parametrize(
    ("wait", "killed"),
    [*FAST_KILLS, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_KILLS)],
)
def test_replicas_killed_right_after_the_commit(
    local: LocalCluster, table: str, wait: Wait, killed: tuple[str, ...]
) -> None:
    """The remaining replicas serve the rows at the commit's CSN."""
    with local.connect("r1") as db:
        csn = db.insert(table, ROWS, wait=wait).csn
        for replica in killed:
            local.kill(replica)
    (left, *_) = (replica for replica in REPLICAS if replica not in killed)
    with local.connect(left) as db:
        if wait == "home":  # the other replicas may apply it later
            eventually(lambda: reached(local, left) >= (csn or 0), what=f"CSN {csn} on {left}")
        else:
            with db.snapshot(csn) as snap:
                assert snap.csn == csn
        assert count(db, table, csn) == 2 * ROWS.num_rows


@pytest.mark.slow
def test_a_level_that_is_not_reached_in_time(local: LocalCluster, gates: Gates, table: str) -> None:
    """The error says that it is committed, with the CSN; "copies" does not wait for the slow replica."""
    with local.connect("r1") as db:
        with gates.open(SLOW, APPLY):
            tx = db.begin()
            tx.insert(table, ROWS)
            with pytest.raises(
                CommitUnknownError, match=r"committed at CSN \d+, but r3 did not apply it"
            ) as caught:
                tx.commit(wait="all", timeout_s=5)
            csn = caught.value.details["csn"]
            assert (tx.state, tx.csn) == (TransactionState.COMMITTED, csn)
            assert tx.commit(wait="copies").csn == csn
            local.kill("r1")  # one of two; the other one serves it at once
            with local.connect("r2") as other:
                assert count(other, table, csn) == 2 * ROWS.num_rows
            assert reached(local, SLOW) < csn
        local.start("r1")
        assert tx.commit(wait="all").csn == csn
        assert min(reached(local, replica) for replica in REPLICAS) >= csn


@pytest.mark.slow
def test_a_level_outlives_the_home(local: LocalCluster, gates: Gates, table: str) -> None:
    """A home that is killed or started again while a commit waits for others does not end the wait."""
    with connect(local.url("r1"), timeout_s=20.0) as db:
        with gates.open(SLOW, APPLY):
            tx = db.begin()
            tx.insert(table, ROWS)
            assert tx.tid.split("-")[1] == "r1"
            csn = tx.commit().csn
            assert csn is not None
            local.kill("r1")
            with pytest.raises(CommitUnknownError, match=f"committed at CSN {csn}"):
                tx.commit(wait="all", timeout_s=5)
            local.start("r1")
            again = http(
                *("POST", f"{Addresses.of(local, 'r1').api}/transactions/{tx.tid}/commit"),
                {"wait": "all", "timeout_s": 0.5},
            )
            assert (again.json["error"], again.json["details"]["csn"]) == ("CommitUnknownError", csn)
        assert tx.commit(wait="all").csn == csn
        assert reached(local, SLOW) >= csn


def test_a_commit_under_way(local: LocalCluster, gates: Gates, table: str) -> None:
    """A commit under way is `sealed` for its client and `running` for all; only the log decides it."""
    with local.connect("r1") as db:
        tx = db.begin()
        tx.insert(table, ROWS)
        with gates.open("r1", COMMIT):
            with pytest.raises(CommitUnknownError):
                tx.commit(timeout_s=0.6)
            gates.await_hit("r1", COMMIT)
            check_state(tx, TransactionState.SEALED)
            for replica in REPLICAS:
                with local.connect(replica) as other:
                    assert other.outcome(tx.tid).decision is Decision.RUNNING
            with pytest.raises(CommitUnknownError, match="was sent before and is not decided yet"):
                db.kill(tx.tid)
            with pytest.raises(CommitUnknownError, match="was sent before and is not decided yet"):
                tx.rollback()
            check_state(tx, TransactionState.SEALED)
            with pytest.raises(TransactionClosedError, match="is sealed"):
                tx.insert(table, ROWS)
        csn = tx.commit().csn
        with pytest.raises(TransactionClosedError, match=f"is committed at CSN {csn}"):
            db.kill(tx.tid)
        check_state(tx, TransactionState.COMMITTED)
        assert count(db, table, csn) == 2 * ROWS.num_rows


def test_a_commit_that_waits_for_copies_is_called_off(local: LocalCluster, gates: Gates, table: str) -> None:
    """No peer takes copies, so the commit waits; the rollback of another thread ends both, with the truth."""
    with local.connect("r1") as db, ThreadPoolExecutor() as pool, contextlib.ExitStack() as stopped:
        for peer in ("r2", "r3"):
            stopped.enter_context(gates.open(peer, ACCEPT))
        tx = db.begin()
        tx.insert(table, ROWS)
        commit = pool.submit(tx.commit)
        gates.await_hit("r2", ACCEPT)
        tx.rollback()
        with pytest.raises(TransactionClosedError, match="called off before it had a CSN"):
            commit.result()
        check_state(tx, TransactionState.ROLLED_BACK)
        assert db.outcome(tx.tid).decision is Decision.ABORTED
        assert count(db, table) == ROWS.num_rows


@pytest.mark.scenario("S36", "S67")
def test_what_a_begin_may_not_miss(local: LocalCluster, gates: Gates, table: str) -> None:
    """`min_csn` and `fresh` wait for a replica that is behind, and give up rather than read older rows."""
    with local.connect("r1") as writer, local.connect(SLOW) as slow, local.connect() as anywhere:
        with gates.open(SLOW, APPLY):
            csn = writer.insert(table, ROWS).csn
            assert csn is not None
            plain = slow.begin()
            assert plain.snapshot_csn < csn  # consistent, and as old as the replica
            assert plain.scan(table).count() == ROWS.num_rows
            for newer in ({"min_csn": csn}, {"fresh": True}):
                with pytest.raises(StandbyError, match=f"did not reach {csn} within"):
                    slow.begin(**newer)
            with pytest.raises(StandbyError):
                slow.snapshot(min_csn=csn)
            with anywhere.begin(fresh=True) as tx:  # an unpinned client finds a replica that has it
                assert tx.scan(table).count() == 2 * ROWS.num_rows
        eventually(lambda: reached(local, SLOW) >= csn, what=f"CSN {csn} on {SLOW}")
        for tx in (slow.begin(min_csn=csn), slow.begin(fresh=True)):
            assert tx.snapshot_csn >= csn
            assert tx.scan(table).count() == 2 * ROWS.num_rows
            tx.rollback()
        with pytest.raises(NoSuchCsnError, match="the log ends at"):
            slow.begin(min_csn=csn + 1000)
        assert plain.scan(table).count() == ROWS.num_rows  # still the snapshot of its begin
        plain.rollback()


@pytest.mark.scenario("S67")
def test_a_session_never_goes_back(local: LocalCluster, gates: Gates, table: str) -> None:
    """A client that goes on to another replica sees its own commits there, or gets no answer (I11)."""
    with gates.open(SLOW, APPLY), connect([local.url("r1")], timeout_s=20.0) as session:
        csn = session.insert(table, ROWS).csn
        assert csn is not None
        assert session.seen_csn == csn
        local.kill("r1")
        with session.begin() as tx:
            assert (tx.holder, tx.snapshot_csn >= csn) == ("r2", True)  # r3 is behind
            assert tx.scan(table).count() == 2 * ROWS.num_rows
        assert count(session, table) == 2 * ROWS.num_rows
        assert session.table(table)["rows"] == 2 * ROWS.num_rows
        with connect(local.url(SLOW), replica=SLOW) as slow:
            assert count(slow, table) == ROWS.num_rows  # another session: it has seen nothing
            with pytest.raises(StandbyError):  # the position of the first session, handed over
                slow.snapshot(min_csn=session.seen_csn)
            with session.snapshot() as snap, pytest.raises(StandbyError):
                slow.snapshot(snap.csn)
    eventually(lambda: reached(local, SLOW) >= csn, what=f"CSN {csn} on {SLOW}")
    with connect(local.url(SLOW), replica=SLOW) as caught_up, caught_up.snapshot(min_csn=csn) as snap:
        assert snap.scan(table).count() == 2 * ROWS.num_rows
