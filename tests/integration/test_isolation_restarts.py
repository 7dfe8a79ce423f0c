"""A killed home leaves nothing of open transactions that remove rows (ClickHouse's test_transactions).

Rows, marks in every catalog, and locks in ZooKeeper are compared one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.lock_reading import LockedPartRow, locks, part_rows
from tests.support.histories.evidence import nothing_left, require_clean_audit
from tests.support.waiting import eventually
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import RefusedError, TidelockError

SCHEMA = pa.schema([("p", pa.int64()), ("n", pa.int64())])
NUMBERS = itertools.count(1)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module; it compacts when it is asked to."""
    return module_cluster(settings={**QUICK, "compaction": False, "lock_sweep_interval_s": 0.5})


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, with all replicas up before and after the test; nothing is left over behind it."""
    shared.up()
    yield shared
    shared.environment_of.clear()
    shared.up()
    require_clean_audit(shared)


@pytest.fixture
def sessions(local: LocalCluster) -> Iterator[list[Database]]:
    """A session at each of three replicas."""
    found = [local.connect(replica) for replica in local.replicas]
    yield found
    for db in found:
        db.close()


@pytest.fixture
def table(sessions: list[Database]) -> str:
    """An empty table, partitioned by n % 2."""
    name = f"t{next(NUMBERS)}"
    csn = sessions[0].create_table(name, SCHEMA, partition_by=["p"])["csn"]
    for db in sessions:
        db.table(name, csn=csn)
    return name


def rows(*numbers: int) -> pa.Table:
    """Rows, in partitions by n % 2."""
    return pa.table([[n % 2 for n in numbers], numbers], SCHEMA)


def seen(reader: Database | Transaction, table: str) -> list[int]:
    """Return the numbers that a reader sees."""
    return sorted(reader.read(table, ["n"])["n"].to_pylist())


def everywhere(local: LocalCluster, table: str, *expected: int) -> list[LockedPartRow]:
    """Require that every replica shows these numbers and has equal catalog rows; return these."""
    with local.connect() as db:
        tx = db.begin(fresh=True)
        tx.rollback()
    for replica in local.replicas:
        with local.connect(replica) as db, db.snapshot(min_csn=tx.snapshot_csn) as snapshot:
            assert sorted(snapshot.read(table, ["n"])["n"].to_pylist()) == list(expected)
        nothing_left(local.data_dir(replica))
    first, *others = (part_rows(local.data_dir(replica), table) for replica in local.replicas)
    assert all(other == first for other in others)
    return first


def test_open_transactions_of_a_killed_home(
    local: LocalCluster, sessions: list[Database], table: str
) -> None:
    """rollback_unfinished_on_restart1: committed rows stay with their marks, open transactions are gone."""
    one, two, _ = sessions
    one.insert(table, rows(1), wait="all")
    one.insert(table, rows(2), wait="all")
    with two.snapshot() as holder:  # keeps the rows that are removed below
        dropped = one.drop_partition(table, {"p": 1})
        one.insert(table, rows(3, 4))
        t4 = one.begin()
        t4.insert(table, rows(9))
        t1 = one.begin()
        t1.insert(table, rows(5))
        t1.update(table, {"n": "n * 100"})
        t3 = one.begin()
        t3.insert(table, rows(6))
        other = two.begin()
        other.insert(table, rows(7))
        committed = t4.commit(wait="all")
        assert t1.tid in locks(local.zk, table).values()
        local.kill("r1")
        local.start("r1")
        found = everywhere(local, table, 2, 3, 4, 9)
        assert {row.creation_tid for row in found}.isdisjoint({t1.tid, t3.tid})
        assert [(row.removal_tid, row.removal_csn) for row in found if row.removal_tid] == [
            (dropped.tid, dropped.csn)
        ]
        assert committed.csn in {row.creation_csn for row in found}
        eventually(lambda: set(locks(local.zk, table).values()) <= {dropped.tid}, what="locks given back")
        for tx in (t1, t3):
            with pytest.raises(RefusedError):
                tx.commit()
            assert two.outcome(tx.tid).decision == "aborted"
        other.commit(wait="all")
        assert sorted(holder.read(table)["n"].to_pylist()) == [1, 2]
    two.update(table, {"n": "n + 1"}, wait="all")
    everywhere(local, table, 3, 4, 5, 8, 10)


def test_removals_by_others_go_on_meanwhile(
    local: LocalCluster, sessions: list[Database], table: str
) -> None:
    """The dead home's lock blocks only the partition that it covers; the next boot deletes it."""
    one, two, three = sessions
    one.insert(table, rows(1, 2), wait="all")
    tx = one.begin()
    tx.drop_partition(table, {"p": 1})
    local.kill("r1")
    two.drop_partition(table, {"p": 0})
    local.start("r1")

    def free() -> bool:
        try:
            three.truncate(table, wait="all")
        except TidelockError:
            return False
        return True

    eventually(free, what="the lock of the former life given back")
    everywhere(local, table)


@pytest.mark.scenario("S59")
def test_a_compaction_that_is_killed_before_its_commit(
    local: LocalCluster, sessions: list[Database], table: str, tmp_path: Path
) -> None:
    """restart2: the merge's inputs stay, its output is gone, and its locks block no other transaction."""
    hold, journal = tmp_path / "hold", tmp_path / "journal"
    local.environment_of["r1"] = {
        "TIDELOCK_FAULTS": f"csnlog.commit.before=pause:{hold}",
        "TIDELOCK_FAULTS_JOURNAL": str(journal),
    }
    local.kill("r1")
    local.start("r1")
    one, two, _ = sessions
    for number in (2, 4, 6):
        one.insert(table, rows(number), wait="all")
    before = everywhere(local, table, 2, 4, 6)
    hold.touch()
    with ThreadPoolExecutor(1) as thread:
        optimizing = thread.submit(lambda: one.optimize(table, timeout_s=30))
        eventually(journal.exists, what="the compaction at its commit")
        assert locks(local.zk, table).keys() == {row.part for row in before}
        local.kill("r1")
        hold.unlink()
        with pytest.raises(TidelockError):
            optimizing.result()
    local.environment_of.clear()
    local.start("r1")
    assert everywhere(local, table, 2, 4, 6) == before
    eventually(lambda: locks(local.zk, table) == {}, what="locks given back")
    assert two.optimize(table)["parts_after"] == 1
    two.delete(table, where="n = 4", wait="all")
    everywhere(local, table, 2, 6)


def test_mutations_and_a_restart_of_all(local: LocalCluster, sessions: list[Database], table: str) -> None:
    """Ten mutations, twenty removals rolled back, then all replicas are killed: the rows are the same."""
    one = sessions[0]
    one.insert(table, rows(*range(1000)), wait="all")
    for number in range(10):
        sessions[number % 3].update(table, {"n": "n + 10"}, wait="all")
    for number in range(20):
        tx = sessions[number % 3].begin()
        tx.truncate(table)
        tx.rollback()
    before = part_rows(local.data_dir("r1"), table)
    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(local.kill, local.replicas))
    local.up()
    found = everywhere(local, table, *range(100, 1100))
    assert found == before
    assert all(row.removal_csn is not None for row in found if row.removal_tid is not None)
