"""Long transactions that remove rows while other replicas insert into the table and compact it.

They do not starve: they remove the rows of their snapshot from the merged parts; later rows stay.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left, require_clean_audit
from tests.support.histories.isolation import everywhere, make, refused, rows, seen
from tests.support.waiting import eventually
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import SerializationConflictError
from workloads.agents import ask

OLD: Final = (1, 2, 3, 4, 5, 6)
#: Statements on partition p = 0, each with the old rows that it leaves.
STATEMENTS: Final[dict[str, tuple[Callable[[Transaction, str], object], tuple[int, ...]]]] = {
    "delete": (lambda tx, n: tx.delete(n, where="n % 2 = 0"), (1, 3, 5)),
    "update": (lambda tx, n: tx.update(n, {"n": "n + 50"}), (51, 52, 53, 54, 55, 56)),
    "upsert": (lambda tx, n: tx.upsert(n, rows(6, 7), on=["p", "n"]), (*OLD, 7)),
    "merge": (
        lambda tx, n: tx.merge(n, rows(1, 2), on=["n"], when_matched_delete="source.n = 2"),
        (1, 3, 4, 5, 6),
    ),
    "drop_partition": (lambda tx, n: tx.drop_partition(n, {"p": 0}), ()),
    "replace_partition": (lambda tx, n: tx.replace_partition(n, {"p": 0}, rows(8)), (8,)),
    "truncate": (lambda tx, n: tx.truncate(n), ()),
}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module; it compacts on request, and heeds open transactions."""
    quick = {"compaction": False, "compaction_heeds_after_s": 0.001}
    return module_cluster(settings={**QUICK, "progress_interval_s": 0.05, **quick}, epoch_limit=1000)


def begin(sessions: list[Database], local: LocalCluster, isolation: str = "snapshot") -> Transaction:
    """Begin at the first replica; wait until the others know of the transaction."""
    tx = sessions[0].begin(isolation=isolation)

    def heeded(replica: str) -> bool:
        told = ask(local, replica, "/status")["replicas"]
        return any(tx.snapshot_csn in one["open"] for one in told)

    for replica in local.replicas[1:]:
        eventually(lambda at=replica: heeded(at), what="a transaction that is heeded")  # type: ignore[misc]
    return tx


def churn(sessions: list[Database], numbers: Sequence[int], *tables: str) -> None:
    """Insert at one replica and merge at another, until all replicas have it."""
    _, two, three = sessions
    for number in numbers:
        with three.begin() as tx:
            for table in tables:
                tx.insert(table, rows(number))
            tx.commit(wait="all")
        for table in tables:
            two.optimize(table)
    newest = two.status()["snapshot_csn"]
    for db in sessions:
        db.table(tables[0], csn=newest)


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(["delete", "drop_partition"], id="some"),
        pytest.param([*STATEMENTS], marks=pytest.mark.slow, id="all"),
    ],
)
def test_whatever_it_removes_is_found_in_merged_parts(
    local: LocalCluster, sessions: list[Database], statements: list[str]
) -> None:
    """Each statement finds the rows of its snapshot in merged parts; rows that came later stay."""
    tables = {name: make(sessions, *([n] for n in OLD)) for name in statements}
    source, target = make(sessions, *([n] for n in OLD)), make(sessions)
    tx = begin(sessions, local)
    churn(sessions, [100, 101], *tables.values(), source)
    for name, table in tables.items():
        change, left = STATEMENTS[name]
        assert seen(tx, table) == list(OLD), name
        change(tx, table)
        assert seen(tx, table) == sorted(left), name
    tx.move_partition(source, {"p": 0}, target)
    assert (seen(tx, source), seen(tx, target)) == ([], list(OLD))
    tx.commit(wait="all")
    for name, table in tables.items():
        everywhere(sessions, table, *STATEMENTS[name][1], 100, 101)
    everywhere(sessions, source, 100, 101)
    everywhere(sessions, target, *OLD)


def test_many_statements_of_one_transaction(local: LocalCluster, sessions: list[Database]) -> None:
    """Each statement sees the snapshot and earlier own changes, although others commit between them."""
    n = make(sessions, [1, 2], [3, 4], [5, 6], rows(1, 2, p=1))
    tx = begin(sessions, local)
    churn(sessions, [100, 101], n)
    tx.delete(n, where="n = 1 AND p = 0")
    assert seen(tx, n) == [1, 2, 2, 3, 4, 5, 6]
    churn(sessions, [102], n)
    tx.insert(n, rows(7))
    tx.update(n, {"n": "n + 10"}, where="n = 7 OR n = 3")
    assert seen(tx, n) == [1, 2, 2, 4, 5, 6, 13, 17]
    churn(sessions, [104], n)
    tx.delete(n, where="n < 3 AND p = 1")
    tx.sql(f"INSERT INTO {n} SELECT p, n + 20 FROM {n} WHERE n = 4")
    assert seen(tx, n) == [2, 4, 5, 6, 13, 17, 24]
    tx.commit(wait="all")
    everywhere(sessions, n, 2, 4, 5, 6, 13, 17, 24, 100, 101, 102, 104)


@pytest.mark.parametrize("merged_first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_somebody_else_was_faster(local: LocalCluster, sessions: list[Database], merged_first: bool) -> None:
    """Rows that a later commit has changed are a conflict, whether they were merged before or after it."""
    n = make(sessions, [1, 2], [3])
    tx = begin(sessions, local)
    if merged_first:
        churn(sessions, [100], n)
    sessions[1].delete(n, where="n = 2", wait="all")
    if not merged_first:
        churn(sessions, [100], n)
    with pytest.raises(SerializationConflictError):
        tx.update(n, {"n": "n + 1"}, where="n < 3")
    refused(tx)
    everywhere(sessions, n, 1, 3, 100)


@pytest.mark.slow
def test_a_part_that_it_holds_is_left_out(local: LocalCluster, sessions: list[Database]) -> None:
    """A merge leaves a locked part out and merges the others at once; later it merges all."""
    n = make(sessions, *([number] for number in range(10)))
    tx = begin(sessions, local)
    tx.delete(n, where="n = 3")

    def others_are_merged() -> bool:
        done = sessions[1].optimize(n, timeout_s=0.5)
        assert not done["done"]
        return bool(done["parts_after"] == 2)

    eventually(others_are_merged, what="a merge of all parts but the locked one")
    tx.rollback()
    eventually(lambda: sessions[1].optimize(n)["parts_after"] == 1)
    everywhere(sessions, n, *range(10))


@pytest.mark.slow
def test_a_home_that_dies_leaves_nothing(local: LocalCluster, sessions: list[Database]) -> None:
    """A home that dies leaves neither adopted merges nor removals from them."""
    n = make(sessions, *([number] for number in OLD))
    tx = begin(sessions, local)
    churn(sessions, [100], n)
    tx.delete(n, where="n < 4")
    local.kill(local.replicas[0])
    local.start(local.replicas[0])
    everywhere(sessions, n, *OLD, 100)
    eventually(lambda: sessions[1].optimize(n)["parts_after"] == 1)
    sessions[2].delete(n, where="n = 1", wait="all")
    everywhere(sessions, n, *OLD[1:], 100)
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
    require_clean_audit(local)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_beside_inserts_and_eager_compaction(cluster: ClusterFactory) -> None:
    """Transactions of some seconds succeed while two replicas insert and merge all the time.

    A merge that began before the others know of a transaction may conflict with it: then it begins again.
    """
    eager = {"compaction_interval_s": 0.1, "compaction_parts_min": 2, "compaction_quiet_s": 0.1}
    heeding = {"compaction_heeds_after_s": 0.01, "progress_interval_s": 0.05}
    local = cluster(settings={**QUICK, **eager, **heeding}, epoch_limit=1000)
    sessions = [local.connect(replica) for replica in local.replicas]
    n = make(sessions, *([number] for number in range(20)))
    stop, numbers = threading.Event(), itertools.count(1_000)
    added: list[int] = []

    def insert(db: Database) -> None:
        while not stop.is_set():
            number = next(numbers)
            db.insert(n, rows(number))
            added.append(number)

    removed: list[int] = []
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(insert, db) for db in sessions[1:]]
        try:
            tries = [_until_done(sessions, local, n, removed) for _ in range(5)]
        finally:
            stop.set()
        for one in running:
            one.result()
    assert max(tries) < 10, tries
    left = sorted({*range(20), *added} - set(removed))
    assert len(removed) == len(set(removed)) > 20
    eventually(lambda: all(seen(db, n) == left for db in sessions), what="all rows everywhere")
    require_clean_audit(local)


def _until_done(sessions: list[Database], local: LocalCluster, table: str, removed: list[int]) -> int:
    """Remove a third of the rows, in three statements over two seconds; return the number of tries."""
    for tries in itertools.count(1):
        tx = begin(sessions, local)
        mine = [number for number in seen(tx, table) if number % 3 == 0]
        try:
            for digit in range(3):
                threading.Event().wait(0.7)
                tx.delete(table, where=f"n % 3 = 0 AND (n // 3) % 3 = {digit}")
            tx.commit()
        except SerializationConflictError:
            tx.rollback()
        else:
            removed += mine
            return tries
    raise AssertionError
