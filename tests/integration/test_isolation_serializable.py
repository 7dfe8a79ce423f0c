"""Serializable transactions, and compaction beside long ones; see test_isolation_rules.py for the rest."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.histories.isolation import add, everywhere, make, rows, seen
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import SerializationConflictError

LEVELS = ["serializable", pytest.param("snapshot", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module; it compacts when it is asked to."""
    unheeded = {"compaction_heeds_after_s": 3600}  # see test_long_transactions.py for less
    return module_cluster(
        settings={**QUICK, "lock_wait_s": 0.0, "compaction": False} | unheeded,
        epoch_limit=1000,
    )


class TestSerializable:
    """Cases beyond Hermitage, over several tables and partitions."""

    @pytest.mark.parametrize("level", LEVELS)
    def test_write_skew_over_two_tables(self, sessions: list[Database], level: str) -> None:
        """Each transaction reads one table and writes the other: no serial order gives both results."""
        one, two, _ = sessions
        a, b = make(sessions, [1]), make(sessions, [1])
        x, y = one.begin(isolation=level), two.begin(isolation=level)
        assert seen(x, a) == seen(y, b) == [1]
        x.insert(b, rows(2))
        y.insert(a, rows(2))
        x.commit(wait="all")
        if level == "serializable":
            with pytest.raises(SerializationConflictError) as conflict:
                y.commit()
            assert conflict.value.details["table"] == f"default.{b}"
            everywhere(sessions, a, 1)
        else:
            y.commit(wait="all")
            everywhere(sessions, a, 1, 2)

    def test_a_phantom_partition_counts_as_read(self, sessions: list[Database]) -> None:
        """A partition that is newer than the snapshot counts as read, unless the condition excludes it."""
        one, two, _ = sessions
        a, b = make(sessions, rows(1, p=1), rows(1, p=2)), make(sessions)
        for p, ends_well in ((2, True), (3, False)):
            x = one.begin(isolation="serializable")
            assert seen(x, a, "p <> 2") == [1]
            x.insert(b, rows(p))
            two.insert(a, rows(9, p=p), wait="all")
            if ends_well:
                x.commit(wait="all")
            else:
                with pytest.raises(SerializationConflictError):
                    x.commit()
        everywhere(sessions, b, 2)

    @pytest.mark.parametrize("level", LEVELS)
    def test_the_read_only_anomaly(self, sessions: list[Database], level: str) -> None:
        """Fekete, O'Neil, O'Neil: the reader makes the order impossible, and the writer is refused.

        Checking and savings are 0. T2 reads both and takes 10 out of checking, with a fee of 1 since the sum
        falls below 0. T1 puts 20 into savings. T3 reads 0 and 20, so T1 comes before T2 and there must be no
        fee; but T2 has not seen the 20.
        """
        one, two, three = sessions
        a = make(sessions, rows(0, p=1), rows(0, p=2))
        t2 = one.begin(isolation=level)
        assert seen(t2, a) == [0, 0]
        t1 = two.begin(isolation=level)
        assert seen(t1, a, "p = 2") == [0]
        t1.update(a, {"n": 20}, where="p = 2")
        t1.commit(wait="all")
        t3 = three.begin(isolation=level)
        assert seen(t3, a) == [0, 20]
        t3.commit()
        t2.update(a, {"n": -11}, where="p = 1")
        if level == "serializable":
            with pytest.raises(SerializationConflictError):
                t2.commit()
            everywhere(sessions, a, 0, 20)
        else:
            t2.commit(wait="all")
            everywhere(sessions, a, -11, 20)

    @pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_a_removal_has_read_what_it_removes(self, sessions: list[Database], whole: bool) -> None:
        """X empties the table that Y adds to, and Y has read the one that X adds to: one must be refused."""
        one, two, _ = sessions
        a, b = make(sessions, rows(1, p=1), rows(2, p=2)), make(sessions)
        x, y = one.begin(isolation="serializable"), two.begin(isolation="serializable")
        if whole:
            x.truncate(a)
        else:
            x.drop_partition(a, {"p": 1})
        x.insert(b, rows(1))
        assert seen(y, b) == []
        y.insert(a, rows(9, p=1))
        y.commit(wait="all")
        with pytest.raises(SerializationConflictError):
            x.commit()
        everywhere(sessions, a, 1, 2, 9)

    def test_a_removal_has_not_read_other_partitions(self, sessions: list[Database]) -> None:
        """A removal does not conflict with rows that are added to another partition."""
        one, two, _ = sessions
        a = make(sessions, rows(1, p=1), rows(2, p=2))
        x = one.begin(isolation="serializable")
        x.drop_partition(a, {"p": 1})
        two.insert(a, rows(3, p=2), wait="all")
        x.commit(wait="all")
        everywhere(sessions, a, 2, 3)

    def test_rows_that_were_not_read_to_their_end(self, sessions: list[Database]) -> None:
        """A query counts as read even if the client has read only some of its rows."""
        one, two, _ = sessions
        a, b = make(sessions, [1, 2, 3]), make(sessions)
        x = one.begin(isolation="serializable")
        big = "select n from range(5000000) r(n) union all select n from " + a
        stream = x.stream({"sql": big, "params": []})
        next(iter(stream))
        stream.close()
        x.insert(b, rows(1))
        two.insert(a, rows(9), wait="all")
        with pytest.raises(SerializationConflictError):
            x.commit()

    @pytest.mark.slow
    def test_everybody_gets_through_with_a_bounded_number_of_tries(self, sessions: list[Database]) -> None:
        """All replicas raise a counter while the log grows: the tries are bounded, the sum is right."""
        one = sessions[0]
        a, noise = make(sessions, [0]), make(sessions, [0])
        stop = threading.Event()

        def disturb(db: Database) -> None:
            while not stop.is_set():
                db.insert(noise, rows(1))

        def count(db: Database) -> int:
            tries = 0
            for _ in range(3):
                while True:
                    tries += 1
                    tx = db.begin(isolation="serializable", fresh=True)
                    try:
                        (number,) = seen(tx, a)
                        tx.update(a, {"n": number + 1})
                        tx.commit()
                    except SerializationConflictError:
                        tx.rollback()
                    else:
                        break
            return tries

        with ThreadPoolExecutor(6) as threads:
            disturbing = [threads.submit(disturb, db) for db in sessions]
            try:
                tries = [future.result() for future in [threads.submit(count, db) for db in sessions]]
            finally:
                stop.set()
            for future in disturbing:
                future.result()
        assert seen(one, a) == [9]
        assert max(tries) < 100


class TestCompaction:
    """Compaction changes no row, and blocks no transaction."""

    @pytest.mark.parametrize("level", [*LEVELS, pytest.param("read_committed", marks=pytest.mark.slow)])
    def test_a_long_transaction_goes_on(self, sessions: list[Database], level: str) -> None:
        """A transaction whose parts are compacted can still delete rows of them, and sees its deletes."""
        one, two, _ = sessions
        n = make(sessions, [1], [2], [3], [4])
        tx = one.begin(isolation=level)
        assert seen(tx, n) == [1, 2, 3, 4]
        assert two.optimize(n)["parts_after"] == 1
        tx.delete(n, where="n = 2")
        assert seen(tx, n) == [1, 3, 4]
        add(tx, n, 10)
        assert seen(tx, n) == [11, 13, 14]
        tx.commit(wait="all")
        everywhere(sessions, n, 11, 13, 14)

    def test_compaction_between_two_statements_keeps_own_rows(self, sessions: list[Database]) -> None:
        """Own rows and own removals stay as they are when the other parts are compacted."""
        one, two, _ = sessions
        n = make(sessions, [1], [2], [3], [4])
        tx = one.begin()
        tx.delete(n, where="n = 1")
        tx.insert(n, rows(5))
        two.optimize(n, timeout_s=0.5)  # it meets a lock of tx
        assert seen(tx, n) == [2, 3, 4, 5]
        tx.delete(n, where="n = 3")
        assert seen(tx, n) == [2, 4, 5]
        tx.truncate(n)
        tx.insert(n, rows(6))
        tx.commit(wait="all")
        everywhere(sessions, n, 6)

    def test_rows_that_come_meanwhile(self, sessions: list[Database]) -> None:
        """New rows were merged with rows that the transaction sees, before other replicas knew of it."""
        one, two, _ = sessions
        n = make(sessions, [1], [2])
        tx = one.begin()
        two.insert(n, rows(3), wait="all")
        two.optimize(n)
        with pytest.raises(SerializationConflictError):
            tx.delete(n, where="n = 1")
        tx.rollback()
        everywhere(sessions, n, 1, 2, 3)

    @pytest.mark.slow
    def test_compaction_gives_way_to_open_transactions(self, sessions: list[Database]) -> None:
        """Compaction does not merge parts that an open transaction has locked before."""
        one, two, _ = sessions
        n = make(sessions, [1], [2], [3])
        tx = one.begin()
        tx.update(n, {"n": "n + 1"}, where="n < 3")
        done = two.optimize(n, timeout_s=0.5)
        assert (done["done"], done["parts_after"]) == (False, 3)
        tx.commit(wait="all")
        eventually(lambda: two.optimize(n)["parts_after"] == 1)
        everywhere(sessions, n, 2, 3, 3)

    @pytest.mark.slow
    def test_the_past_is_unchanged(self, local: LocalCluster, sessions: list[Database]) -> None:
        """Every CSN has the same rows before and after the compaction."""
        one, two, three = sessions
        n = make(sessions, [4], [3], [2])
        csn = one.insert(n, rows(1), wait="all").csn
        assert csn is not None
        two.optimize(n)
        one.delete(n, where="n > 2", wait="all")
        for db in (one, three):
            for at, expected in ((csn - 1, [2, 3, 4]), (csn, [1, 2, 3, 4]), (csn + 1, [1, 2, 3, 4])):
                with db.snapshot(at) as snapshot:
                    assert sorted(snapshot.read(n)["n"].to_pylist()) == expected
        everywhere(sessions, n, 1, 2)
        for replica in local.replicas:
            nothing_left(local.data_dir(replica))
