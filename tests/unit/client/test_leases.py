"""The heartbeat: one thread that renews open transactions and snapshots only."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import FakeCluster
from tests.support.replicas.fake_http import Fault
from tidelock.client import Database, TransactionState, connect
from tidelock.client.agents import leases as leases_module
from tidelock.client.agents.leases import Leases
from tidelock.errors import LeaseExpiredError, UnavailableError

ROWS = pa.table({"k": [1, 2, 3]})
DEADLINE_S = 20.0


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread ends soon after the last lease."""
    monkeypatch.setattr(leases_module, "LINGER_S", 0.05)


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


class FakeLease:
    """A lease that records its renewals."""

    def __init__(self, lease_s: float, holder: str = "r1", error: Exception | None = None) -> None:
        self.lease_s, self.holder, self.error = lease_s, holder, error
        self.renewals: list[float] = []

    def renew(self, timeout_s: float) -> None:
        """Record the renewal; raise the planned error."""
        self.renewals.append(timeout_s)
        if self.error is not None:
            raise self.error


def test_open_transactions_and_snapshots_are_renewed(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """One thread renews all open transactions and snapshots; it ends with the last of them."""
    before = threading.enumerate()
    tx, other = fake_db.begin(lease=0.1), fake_db.begin(lease=0.1)
    renewed = fake_cluster["r1"].transactions
    wait_for(lambda: renewed[tx.tid].heartbeats > 2 and renewed[other.tid].heartbeats > 2)

    def ours() -> list[threading.Thread]:
        begun = [thread for thread in threading.enumerate() if thread not in before]
        return [thread for thread in begun if thread.name == "tidelock-heartbeat"]

    [beating] = ours()
    tx.rollback()
    other.rollback()
    wait_for(lambda: not fake_db._connection.leases.running)
    beating.join()
    assert ours() == []


def test_short_transactions_share_a_thread(fake_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction after the other starts one thread in all, which a closed client ends at once."""
    monkeypatch.setattr(leases_module, "LINGER_S", 3600.0)
    started: list[str] = []
    start = threading.Thread.start

    def counting(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", counting)
    for _ in range(5):
        with fake_db.begin(fresh=True) as tx:
            tx.insert("t", ROWS)
    assert started.count("tidelock-heartbeat") == 1
    fake_db.close()
    wait_for(lambda: not fake_db._connection.leases.running)


@pytest.mark.parametrize("before_s", [None, 3600.0])
def test_a_short_lease_wakes_a_thread_that_sleeps(
    monkeypatch: pytest.MonkeyPatch, before_s: float | None
) -> None:
    """It is renewed in time although the thread sleeps for a longer one, or until it may end."""
    monkeypatch.setattr(leases_module, "LINGER_S", 3600.0)
    leases = Leases()
    first, short = FakeLease(before_s or 0.05), FakeLease(0.05)
    leases.add(first)
    if before_s is None:
        leases.remove(first)
    wait_for(lambda: leases._sleeps_until_s > time.monotonic() + 1000)
    leases.add(short)
    wait_for(lambda: len(short.renewals) > 1)
    leases.clear()
    wait_for(lambda: not leases.running)


def test_forgotten_transaction_is_not_kept_alive(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A transaction that the program has dropped is not renewed any more, so its home rolls it back."""
    tid = fake_db.begin(lease=0.05).tid
    gc.collect()
    wait_for(lambda: not fake_db._connection.leases.running)
    assert fake_cluster["r1"].transactions[tid].state == "open"


def test_lease_that_was_renewed_and_then_forgotten_is_not_kept_alive() -> None:
    """A renewal leaves no reference behind: the thread ends once the program has dropped its last lease."""
    leases = Leases()
    lease = FakeLease(0.05)
    renewals = lease.renewals
    leases.add(lease)
    wait_for(lambda: len(renewals) > 1)
    del lease
    gc.collect()
    wait_for(lambda: not leases.running)


def test_lease_lost_at_the_home_is_not_renewed(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A transaction that its home has ended is not renewed any more; the next call raises the reason."""
    tx = fake_db.begin(lease=0.1)
    fake_cluster["r1"].transactions[tx.tid].state = "expired"
    wait_for(lambda: tx.state is TransactionState.ROLLED_BACK)
    wait_for(lambda: not fake_db._connection.leases.running)
    with pytest.raises(LeaseExpiredError, match="ran out"):
        tx.commit()


def test_heartbeat_survives_lost_answers(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A renewal that fails is tried again."""
    fake_cluster["r1"].plan("POST /transactions/.*/heartbeat", *[Fault.LOST_ANSWER, Fault.LOST_REQUEST] * 2)
    tx = fake_db.begin(lease=0.2)
    wait_for(lambda: fake_cluster["r1"].transactions[tx.tid].heartbeats > 3)
    assert tx.state is TransactionState.OPEN


def test_silent_replica_does_not_starve_the_others() -> None:
    """In one round a silent replica is asked once, however many leases it holds."""
    leases = Leases()
    silent = [FakeLease(0.3, "r1", UnavailableError("silent")) for _ in range(20)]
    well = FakeLease(0.3, "r2")
    for lease in (*silent, well):
        leases.add(lease)
    wait_for(lambda: len(well.renewals) > 3)
    leases.clear()
    wait_for(lambda: not leases.running)
    asked = sum(len(lease.renewals) for lease in silent)
    assert asked < len(silent) * len(well.renewals)


def test_patience_follows_the_shortest_lease() -> None:
    """No renewal may take longer than a third of the shortest lease of all."""
    leases = Leases()
    long, short = FakeLease(0.3), FakeLease(0.03)
    leases.add(short)
    leases.add(long)
    wait_for(lambda: bool(long.renewals))
    leases.clear()
    assert max(long.renewals) <= 0.03
    wait_for(lambda: not leases.running)


def test_lease_that_cannot_be_renewed_is_dropped() -> None:
    """A refusal ends the renewals of that lease alone."""
    leases = Leases()
    refused, well = FakeLease(0.05, error=LeaseExpiredError("ran out")), FakeLease(0.05)
    leases.add(refused)
    leases.add(well)
    wait_for(lambda: len(well.renewals) > 3)
    assert len(refused.renewals) == 1
    leases.clear()
    wait_for(lambda: not leases.running)


def test_fault_of_one_renewal_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """After any error of a renewal the thread goes on and tries that lease again; the error is logged."""
    leases = Leases()
    faulty, well = FakeLease(0.05, error=KeyError("no such thing")), FakeLease(0.05)
    leases.add(faulty)
    leases.add(well)
    wait_for(lambda: len(well.renewals) > 3 and len(faulty.renewals) > 3)
    leases.clear()
    wait_for(lambda: not leases.running)
    assert "could not be renewed" in caplog.text
    assert "no such thing" in caplog.text


def test_lease_that_began_some_time_ago_is_renewed_at_once() -> None:
    """An old lease is renewed at once, since a third of it may be more than its remaining time."""
    leases = Leases()
    old, new = FakeLease(3600), FakeLease(3600)
    leases.add(new)
    leases.add(old, at_once=True)
    wait_for(lambda: bool(old.renewals))
    assert not new.renewals
    leases.clear()
    wait_for(lambda: not leases.running)


def test_closed_client_renews_nothing(fake_cluster: FakeCluster) -> None:
    """Closing the client ends the thread although a transaction is open."""
    with connect(fake_cluster["r1"].url) as db:
        db.begin(lease=0.1)
        tx = db.begin(lease=0.1)
    wait_for(lambda: not db._connection.leases.running)
    assert tx.state is TransactionState.OPEN


def insert_in_child(db: Database, pipe: object) -> None:
    """Use a client that the parent process has made, and send the results to the parent."""
    with db.begin() as tx:
        tx.insert("t", ROWS)
    pipe.send((tx.csn, len(db._connection.leases._due_s)))  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_child_process_starts_anew(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """After a fork the child has connections of its own and renews no lease of the parent."""
    tx = fake_db.begin(lease=0.2)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=insert_in_child, args=(fake_db, there))
    child.start()
    assert here.poll(DEADLINE_S)
    assert here.recv() == (fake_cluster.csn, 0)
    child.join()
    assert child.exitcode == 0
    beats = fake_cluster["r1"].transactions[tx.tid].heartbeats
    wait_for(lambda: fake_cluster["r1"].transactions[tx.tid].heartbeats > beats)
    tx.rollback()
