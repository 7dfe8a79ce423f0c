"""Visible rows, refused transactions, leftovers: ClickHouse's tests of mutations.

* 01168_mutations_isolation, A to G: statements of concurrent transactions on one small table.
* 01172: the record of each part: the transactions that made and removed it, their CSNs, and the lock.
* 02345: an insert whose derived table fails.

Serializable transactions, and compaction beside long ones, are in test_isolation_serializable.py. Sessions
are clients of different replicas. If ClickHouse's result is a different one, the test says so.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.lock_reading import LockedPartRow, locks, part_rows
from tests.support.histories.evidence import nothing_left
from tests.support.histories.isolation import SCHEMA, add, everywhere, make, refused, rows, seen, times
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import RefusedError, SerializationConflictError, TransactionClosedError
from tidelock.wire.transactions import TransactionInfo


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module; it compacts when it is asked to."""
    return module_cluster(settings={**QUICK, "lock_wait_s": 0.0, "compaction": False}, epoch_limit=1000)


class TestMutations:
    """01168_mutations_isolation, over three replicas."""

    def test_a_second_change_of_the_same_rows_is_refused(self, sessions: list[Database]) -> None:
        """The second change of the same rows is refused; own rows are seen by their transaction alone."""
        one, two, _ = sessions
        n = make(sessions, [1])
        t1, t2 = one.begin(), two.begin()
        t1.insert(n, rows(2))
        t2.insert(n, rows(3))
        times(t2, n, 10)
        assert seen(t2, n) == [10, 30]
        assert seen(t1, n) == [1, 2]
        with pytest.raises(SerializationConflictError):
            add(t1, n, 1)
        refused(t1)
        t2.rollback()
        everywhere(sessions, n, 1)

    @pytest.mark.slow
    def test_b_only_the_refused_transaction_is_over(self, sessions: list[Database]) -> None:
        """The refused transaction takes no more statements, the other one goes on."""
        one, two, _ = sessions
        n = make(sessions, [1])
        t3, t4 = one.begin(), two.begin()
        assert seen(t3, n) == [1]
        t3.insert(n, rows(2))
        t4.insert(n, rows(3))
        times(t4, n, 2)
        with pytest.raises(SerializationConflictError):
            add(t3, n, 42)
        with pytest.raises(TransactionClosedError):
            t3.insert(n, rows(4))
        t3.rollback()
        t4.insert(n, rows(5))
        t4.commit(wait="all")
        everywhere(sessions, n, 2, 5, 6)

    @pytest.mark.slow
    def test_c_rows_deleted_by_others_stay_visible(self, sessions: list[Database]) -> None:
        """Rows that others delete stay visible; a truncation meets their lock. Own new rows change too."""
        one, two, _ = sessions
        n = make(sessions, [2, 6], [5])
        t5, t6 = one.begin(), two.begin()
        assert seen(t5, n) == [2, 5, 6]
        t6.delete(n, where="n % 2 = 1")
        assert seen(t5, n) == [2, 5, 6]
        with pytest.raises(SerializationConflictError):
            t5.truncate(n)
        assert seen(t6, n) == [2, 6]
        t5.rollback()
        t6.insert(n, rows(8))
        times(t6, n, 10)
        t6.insert(n, rows(40))
        t6.commit(wait="all")
        everywhere(sessions, n, 20, 40, 60, 80)

    def test_d_the_first_wins_beside_kills_and_compaction(self, sessions: list[Database]) -> None:
        """A mutation is killed by another client, the table is compacted; then the first of two wins.

        ClickHouse's OPTIMIZE is part of a transaction and locks the merged parts until that ends. Compaction
        here is a transaction of its own, and both older transactions go on with its output.
        """
        one, two, three = sessions
        n = make(sessions, [20, 40], [60], [80])
        t7, t8, t10 = one.begin(), two.begin(), three.begin()
        assert seen(t7, n) == [20, 40, 60, 80]
        t8.update(n, {"n": 0})
        one.kill(t8.tid)
        refused(t8)
        assert two.optimize(n)["parts_after"] == 1
        assert seen(t7, n) == [20, 40, 60, 80]
        add(t7, n, 1)
        with pytest.raises(SerializationConflictError):
            t10.update(n, {"n": 0})
        refused(t10)
        t7.commit(wait="all")
        everywhere(sessions, n, 21, 41, 61, 81)

    @pytest.mark.scenario("S15")
    def test_e_of_two_at_once_exactly_one_wins(self, sessions: list[Database]) -> None:
        """Of two equal mutations at the same moment exactly one wins."""
        n = make(sessions, [21, 41], [61], [81])
        begun = [db.begin() for db in sessions[:2]]
        at_once = threading.Barrier(2, timeout=60)

        def run(tx: Transaction) -> bool:
            at_once.wait()
            try:
                add(tx, n, 1)
            except SerializationConflictError:
                tx.rollback()
                return False
            return tx.commit(wait="all").csn is not None

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(run, begun)) == [False, True]
        everywhere(sessions, n, 22, 42, 62, 82)

    @pytest.mark.slow
    def test_f_a_killed_mutation_leaves_nothing(self, sessions: list[Database]) -> None:
        """An open transaction is listed; if it is killed during a mutation, it leaves nothing."""
        one, two, _ = sessions
        n = make(sessions, [22, 42], [62])
        t13 = one.begin()
        assert seen(t13, n) == [22, 42, 62]
        (listed,) = [row for row in one.transactions() if row["tid"] == t13.tid]
        assert (listed["state"], listed["home"], listed["rows"], listed["removed_parts"]) == (
            "open",
            "r1",
            0,
            0,
        )
        with ThreadPoolExecutor(1) as thread:
            mutation = thread.submit(lambda: t13.update(n, {"n": 0}))
            two.kill(t13.tid)  # during the mutation, before it or after it
            mutation.exception()
        refused(t13)
        t14 = two.begin()
        assert seen(t14, n) == [22, 42, 62]
        t14.truncate(n)  # the table has no locks
        t14.commit(wait="all")
        everywhere(sessions, n)

    def test_g_a_mutation_touches_only_its_snapshot(self, sessions: list[Database]) -> None:
        """A mutation changes only rows of its snapshot, not rows that were committed later."""
        one, two, _ = sessions
        n = make(sessions, [1])
        t15, t16 = one.begin(), two.begin()
        t16.insert(n, rows(2))
        times(t15, n, 10)
        t15.commit(wait="all")
        t16.commit(wait="all")
        everywhere(sessions, n, 2, 10)


class TestWhatPartsCarry:
    """01172: the transactions that made and removed a part, their CSNs, and the locks."""

    def test_the_life_of_two_parts(self, local: LocalCluster, sessions: list[Database]) -> None:
        """Committed, removed and rolled back, removed and committed: equal on all replicas, except marks."""
        one = sessions[0]
        n = make(sessions, [1])
        one.insert(n, rows(2), wait="all")
        made = self._on(local, n)
        assert [row.removal_tid for row in made] == [None, None]
        first, second = made
        assert first.creation_csn is not None
        assert second.creation_csn == first.creation_csn + 1

        tx = one.begin()
        tx.insert(n, rows(3))
        tx.delete(n, where="n = 1")
        assert seen(tx, n) == [2, 3]
        home = part_rows(local.data_dir("r1"), n)
        assert LockedPartRow(*first[:3], tx.tid, None) in home
        assert second in home
        (own,) = [row for row in home if row.creation_tid == tx.tid]
        assert own.creation_csn is None
        assert [row for row in part_rows(local.data_dir("r2"), n) if row.creation_csn] == made
        assert locks(local.zk, n) == {first.part: tx.tid}
        tx.rollback()
        assert locks(local.zk, n) == {}
        assert self._on(local, n) == made

        with one.begin() as tx:
            tx.delete(n, where="n = 1")
            tx.insert(n, rows(3))
            csn = tx.commit(wait="all").csn
        after = self._on(local, n)
        assert after[:2] == [first._replace(removal_tid=tx.tid, removal_csn=csn), second]
        assert [(row.creation_tid, row.creation_csn, row.removal_tid) for row in after[2:]] == [
            (tx.tid, csn, None)
        ]
        everywhere(sessions, n, 2, 3)

    @staticmethod
    def _on(local: LocalCluster, table: str) -> list[LockedPartRow]:
        """Return the rows of the catalogs, which must be equal."""
        first, *others = (part_rows(local.data_dir(replica), table) for replica in local.replicas)
        assert all(other == first for other in others)
        return first

    def test_nothing_removed_nothing_held(self, local: LocalCluster, sessions: list[Database]) -> None:
        """A transaction that found no rows to remove commits without a CSN, and its lock is deleted."""
        one, two, _ = sessions
        n = make(sessions, [1])
        late = two.begin()
        tx = one.begin()
        assert tx.drop_partition(n, {"p": 7}).rows == 0
        assert locks(local.zk, n) == {"OnePartition": tx.tid}
        assert tx.commit().csn is None
        assert locks(local.zk, n) == {}
        late.truncate(n)
        late.commit(wait="all")
        everywhere(sessions, n)

    @pytest.mark.slow
    def test_many_rounds_leave_nothing(self, local: LocalCluster, sessions: list[Database]) -> None:
        """Removals that are rolled back, by one replica after the other, leave nothing."""
        n = make(sessions, [1], [2], [3])
        made = self._on(local, n)
        for number in range(6):
            tx = sessions[number % 3].begin()
            tx.drop_partition(n, {"p": 0})
            tx.rollback()
        assert self._on(local, n) == made
        assert locks(local.zk, n) == {}
        for replica in local.replicas:
            nothing_left(local.data_dir(replica))


class TestImplicitTransactions:
    """02345: an insert into a table with a derived table, whose SQL fails for the last rows.

    ClickHouse keeps the rows of the first table unless it is told to use transactions; here every statement
    is a transaction.
    """

    def test_a_derived_query_that_fails(self, sessions: list[Database]) -> None:
        """An insert of 10,000 rows leaves no row, alone or in a transaction, and nothing is open."""
        one, two, _ = sessions
        n = make(sessions)
        overflows = "select p, n + 9223372036854765817 as n from inserted"  # for n > 9990
        csn = one.create_table(f"{n}_mv", SCHEMA, derived_from=n, derived_sql=overflows)["csn"]
        two.table(n, csn=csn)
        with pytest.raises(RefusedError, match=f"{n}_mv"):
            one.insert(n, rows(*range(10_000)))
        tx = two.begin()
        with pytest.raises(RefusedError, match=f"{n}_mv"):
            tx.insert(n, rows(*range(10_000)))
        refused(tx)
        assert seen(one, n) == seen(one, f"{n}_mv") == []
        for db in sessions:
            assert all(n not in table for row in _undecided(db) for table in row["tables"])
        one.insert(n, rows(1, 2), wait="all")
        everywhere(sessions, n, 1, 2)
        everywhere(sessions, f"{n}_mv", 9223372036854765818, 9223372036854765819)


def _undecided(db: Database) -> list[TransactionInfo]:
    return [row for row in db.transactions() if row["state"] in {"open", "failed", "sealed"}]
