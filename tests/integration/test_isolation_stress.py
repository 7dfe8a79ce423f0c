"""Transactions under load never show half of a commit: ClickHouse's 01169 and 01174, on three replicas.

Compaction merges all parts that it can, and removed parts are deleted from the disks a second later. Each
test takes TIDELOCK_STRESS_S seconds (20); on a busy machine it goes on until every thread has done a step.
A long run:

    TIDELOCK_STRESS_S=600 make test-all PYTEST_ARGS="tests/integration/test_isolation_stress.py"
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tidelock.client import Database, Snapshot, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import SerializationConflictError
from workloads.agents import ask

SECONDS = float(os.environ.get("TIDELOCK_STRESS_S", "20"))
#: How much longer a test may take until every thread has done a step, in seconds.
PATIENCE_S = 120.0
SCHEMA = pa.schema([("p", pa.int64()), ("n", pa.int64()), ("kind", pa.int64())])
WHOLE = {"p": 0}
#: A table for each kind of row, as (n, kind).
Found = list[tuple[int, int]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 3 * int(SECONDS))]


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(
        settings={
            **QUICK,
            "compaction_interval_s": 2,
            "compaction_parts_min": 4,
            "compaction_quiet_s": 2,
            "history_retention_s": 1,
            "horizon_interval_s": 0.5,
            "log_keep_records": 100,
        }
    )


class Crowd:
    """Threads that repeat their step until the time is over, or one of them has failed.

    Args:
        enough: Whether the threads have done enough for a useful run. On a busy machine the run goes on until
        then, for `PATIENCE_S` at most.
    """

    def __init__(self, enough: Callable[[Counter[str]], bool]) -> None:
        self.did: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._errors: list[BaseException] = []
        self._enough = enough
        self._until = time.monotonic() + SECONDS
        self._threads: list[threading.Thread] = []

    def add(self, name: str, step: Callable[[int], None]) -> None:
        """Let a thread call `step` with 1, 2, ...; after a conflict it repeats the same number."""

        def run() -> None:
            number = 1
            while self._goes_on() and not self._errors:
                try:
                    step(number)
                except SerializationConflictError:
                    self.refused[name] += 1
                except BaseException as error:
                    self._errors.append(error)
                else:
                    self.did[name] = number
                    number += 1

        self._threads.append(threading.Thread(target=run, name=name))

    def _goes_on(self) -> bool:
        late = time.monotonic() - self._until
        return late < 0 or (late < PATIENCE_S and not self._enough(self.did))

    def run(self) -> Counter[str]:
        """Run to the end; return how often each thread has done its step."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        assert self._enough(self.did), (self.did, self.refused)
        return self.did


def make(sessions: list[Database], name: str) -> str:
    """Make a table that all sessions know."""
    csn = sessions[0].create_table(name, SCHEMA, partition_by=["p"])["csn"]
    for db in sessions:
        db.table(name, csn=csn)
    return name


def rows(*found: tuple[int, int]) -> pa.Table:
    """Rows (n, kind)."""
    return pa.table([[0] * len(found), [n for n, _ in found], [kind for _, kind in found]], SCHEMA)


def seen(reader: Transaction | Snapshot, table: str) -> Found:
    """Return the rows that a reader sees."""
    found = reader.read(table, ["n", "kind"])
    return sorted(zip(found["n"].to_pylist(), found["kind"].to_pylist(), strict=True))


def kinds(found: Found) -> dict[int, list[int]]:
    """Return the numbers of each kind."""
    by_kind: dict[int, list[int]] = {}
    for n, kind in found:
        by_kind.setdefault(kind, []).append(n)
    return by_kind


def newest(db: Database) -> int:
    """A CSN that contains every commit that was acknowledged."""
    tx = db.begin(fresh=True)
    tx.rollback()
    return tx.snapshot_csn


def clean(local: LocalCluster) -> None:
    """Require that no replica holds anything that no commit needs."""
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))


def check_pairs(reader: Transaction, src: str, dst: str) -> None:
    """Require that no row is there twice, and that every pair is there and whole."""
    both = [seen(reader, src), seen(reader, dst)]
    assert max(Counter(both[0] + both[1]).values(), default=1) == 1, "a row is there twice"
    for found in both:
        by_kind = kinds(found)
        assert by_kind.get(1, []) == by_kind.get(2, []), "half of a pair"
    pairs = kinds(sorted(both[0] + both[1])).get(1, [])
    assert pairs == list(range(1, len(pairs) + 1)), "a pair is missing"


@pytest.mark.scenario("S62")
def test_partitions_move_whole_under_stress(local: LocalCluster, sessions: list[Database]) -> None:
    """01169: rows move between two tables all the time, and each row is always seen exactly once.

    Kinds 1 and 2 are inserted in pairs. Three movers add a row of their own with each move: two copy all
    rows from src to dst and drop the partition they came from, one moves the partition back and rolls back
    every second time.
    """
    one, two, three = sessions
    src, dst = make(sessions, "src"), make(sessions, "dst")

    def insert(number: int) -> None:
        with one.begin() as tx:
            tx.insert(src, rows((number, 1)))
            tx.insert(src, rows((number, 2)))

    def copy(db: Database, kind: int) -> Callable[[int], None]:
        def step(number: int) -> None:
            with db.begin() as tx:
                tx.insert(src, rows((number, kind)))
                tx.sql(f"insert into {dst} select * from {src}")
                tx.drop_partition(src, WHOLE)
                assert seen(tx, src) == []
                own = kinds(seen(tx, dst))[kind]
                assert own == list(range(1, number + 1)), "a row of an earlier move is missing, or twice"

        return step

    def move(number: int) -> None:
        tx = one.begin()
        try:
            tx.insert(dst, rows((number, 4)))
            tx.move_partition(dst, WHOLE, src)
            assert seen(tx, dst) == []
            if number % 2:
                tx.commit()
        finally:
            if tx.csn is None:
                tx.rollback()

    def read(db: Database) -> Callable[[int], None]:
        def step(_: int) -> None:
            with db.begin() as tx:
                check_pairs(tx, src, dst)
                first = (seen(tx, src), seen(tx, dst))
                assert first == (seen(tx, src), seen(tx, dst)), "it is not the same when it is read again"

        return step

    def enough(did: Counter[str]) -> bool:
        others = min(did[name] for name in ("pairs", "moves", "reads of r2", "reads of r3"))
        return others > 1 and did["copies by r2"] + did["copies by r3"] > 2

    crowd = Crowd(enough)
    crowd.add("pairs", insert)
    crowd.add("copies by r2", copy(two, 3))
    crowd.add("moves", move)
    crowd.add("copies by r3", copy(three, 5))
    crowd.add("reads of r2", read(two))
    crowd.add("reads of r3", read(three))
    did = crowd.run()
    csn = newest(one)
    for db in sessions:
        with db.snapshot(min_csn=csn) as snapshot:
            everything = kinds(sorted([*seen(snapshot, src), *seen(snapshot, dst)]))
        assert everything[1] == everything[2] == list(range(1, did["pairs"] + 1))
        assert everything.get(3, []) == list(range(1, did["copies by r2"] + 1))
        assert everything.get(4, []) == list(range(1, did["moves"] + 1, 2))
        assert everything.get(5, []) == list(range(1, did["copies by r3"] + 1))
    sys.stdout.write(f"{dict(did)}; refused: {dict(crowd.refused)}\n")
    clean(local)


def test_inserts_and_reads_under_stress(local: LocalCluster, sessions: list[Database]) -> None:
    """01174: rows that are inserted in pairs are read in pairs; a transaction reads the same parts again."""
    one, two, three = sessions
    table = make(sessions, "pairs")

    def insert(db: Database, kind: int) -> Callable[[int], None]:
        def step(number: int) -> None:
            with db.begin() as tx:
                tx.insert(table, rows((number, kind)))
                tx.insert(table, rows((-number, kind)))

        return step

    def give_up(_: int) -> None:
        tx = three.begin()
        tx.insert(table, rows((42, 3)))
        tx.rollback()

    def read(db: Database, replica: str) -> Callable[[int], None]:
        def step(_: int) -> None:
            with db.begin() as tx:
                path = f"/parts?csn={tx.snapshot_csn}&table=default.{table}"
                first, parts = seen(tx, table), ask(local, replica, path)
                assert sum(n for n, _ in first) == 0
                assert len(first) % 2 == 0
                assert all(kind != 3 for _, kind in first)
                assert sum(part["rows"] for part in parts) == len(first)
                assert (seen(tx, table), ask(local, replica, path)) == (first, parts)

        return step

    names = ["w1", "w2", "rollbacks", *(f"reads of r{number}" for number in range(1, len(sessions) + 1))]
    crowd = Crowd(lambda did: min(did[name] for name in names) > 1)
    crowd.add("w1", insert(one, 1))
    crowd.add("w2", insert(two, 2))
    crowd.add("rollbacks", give_up)
    for number, db in enumerate(sessions, 1):
        crowd.add(f"reads of r{number}", read(db, f"r{number}"))
    did = crowd.run()
    csn = newest(one)
    for db in sessions:
        with db.snapshot(min_csn=csn) as snapshot:
            found = seen(snapshot, table)
        assert len(found) == 2 * (did["w1"] + did["w2"])
        assert kinds(found).keys() == {1, 2}
    clean(local)
