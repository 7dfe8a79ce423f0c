"""A transaction that is ended while one of its statements changes rows: it leaves nothing behind.

The statement is held while it searches rows, while it has its locks, and while it writes. The transaction is
ended by its own client, by another client, by the end of its lease, or by the death of its home. Each end has
the result that docs/transactions.md promises, and the next transaction can remove the same rows.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import psutil
import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.lock_reading import LockedPartRow, locks, part_rows
from tests.support.faults.lab import Gates
from tests.support.histories.evidence import nothing_left, require_clean_audit
from tests.support.waiting import eventually
from tidelock.client import Transaction
from tidelock.client.values.results import ChangeResult
from tidelock.cluster import LocalCluster
from tidelock.errors import SerializationConflictError, TidelockError, TransactionClosedError

HOME: Final = "r1"
SCHEMA: Final = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
ROWS: Final = 12_000
LOCKED, WRITING = "replication.lock.after", "partfs.write.after"
#: An expression that is never computed to its end.
ENDLESS: Final = "(SELECT count(*) FROM range(10000000000) a, range(100) b)"
LEASE_S: Final = 2.0
NUMBERS = itertools.count(1)

Statement = Callable[[Transaction, str], ChangeResult]


def numbers(first: int, count: int) -> pa.Table:
    """Return rows with consecutive keys, and with values that cannot be compressed."""
    chosen = random.Random(first)
    values = [chosen.getrandbits(60) for _ in range(count)]
    return pa.table({"k": range(first, first + count), "v": values}, SCHEMA)


def merged(tx: Transaction, table: str, delete: str) -> ChangeResult:
    """Merge rows, half of which the table has already."""
    return tx.merge(
        table,
        numbers(ROWS // 2, ROWS),
        on=["k"],
        when_matched_update=True,
        when_matched_delete=delete,
        when_not_matched_insert=True,
    )


#: The running statements: of each kind one that ends by itself, and one that searches its rows forever.
STATEMENTS: Final[dict[str, Statement]] = {
    "delete": lambda tx, table: tx.delete(table, "k % 2 = 0"),
    "update": lambda tx, table: tx.update(table, {"v": "v + 1"}),
    "upsert": lambda tx, table: tx.upsert(table, numbers(ROWS // 2, ROWS), on=["k"]),
    "merge": lambda tx, table: merged(tx, table, "source.k % 3 = 0"),
}
ENDLESS_STATEMENTS: Final[dict[str, Statement]] = {
    "delete": lambda tx, table: tx.delete(table, f"k > {ENDLESS}"),
    "update": lambda tx, table: tx.update(table, {"v": "v + 1"}, f"k > {ENDLESS}"),
    "merge": lambda tx, table: merged(tx, table, f"target.k > {ENDLESS}"),
}
ENDS: Final = ("commit", "rollback", "kill", "lease", "death")
#: Each end, phase and kind of statement is here at least once; the other cases are among the slow tests.
FAST: Final = {
    ("commit", WRITING, "update"),
    ("rollback", LOCKED, "delete"),
    ("kill", "looking", "merge"),
    ("lease", WRITING, "upsert"),
    ("death", LOCKED, "merge"),
}
CASES: Final = [
    pytest.param(*case, marks=() if case in FAST else pytest.mark.slow, id="-".join(case))
    for case in itertools.product(ENDS, ("looking", LOCKED, WRITING), STATEMENTS)
    if case[1] != "looking" or case[2] in ENDLESS_STATEMENTS
]


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """Where a statement of the home can be held."""
    return Gates(tmp_path_factory.mktemp("gates"), {HOME: dict.fromkeys((LOCKED, WRITING), "pause")})


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory, gates: Gates) -> Iterator[LocalCluster]:
    """One cluster for the module; nothing is left over at its end."""
    made = module_cluster(
        replicas=2,
        executed=True,
        settings={
            **QUICK,
            "sql_workers": 1,
            "lock_wait_s": 0.0,
            "lock_sweep_interval_s": 0.3,
            "clean_interval_s": 0.5,
            "inline_part_bytes_max": 16 * 1024,  # a part of these rows is a file of its own
            "row_group_rows": ROWS // 8,  # and an upsert copies row groups of it
            "cut_part_bytes_min": 1,
        },
        environment_of={HOME: gates.environment(HOME)},
    )
    yield made
    require_clean_audit(made, deep=True)


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, with all replicas up before and after the test."""
    shared.up()
    yield shared
    shared.up()


@contextlib.contextmanager
def caught(
    local: LocalCluster, gates: Gates, phase: str, kind: str, tx: Transaction, table: str
) -> Iterator[Future[ChangeResult]]:
    """Run a statement that is held in a phase inside the block; yield the future of its client's answer."""
    with ThreadPoolExecutor(1) as thread:
        if phase == "looking":
            told = thread.submit(ENDLESS_STATEMENTS[kind], tx, table)
            eventually(lambda: looks(local), what="a statement that looks for rows")
            yield told
            return
        hits = gates.hits(HOME, phase)
        with gates.open(HOME, phase):
            told = thread.submit(STATEMENTS[kind], tx, table)
            gates.await_hit(HOME, phase, after=hits)
            assert set(locks(local.zk, table).values()) == {tx.tid}
            yield told


def looks(local: LocalCluster) -> bool:
    """Return whether a SQL process of the home computes."""
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(local.pid(HOME)).children()
        sql = [child for child in children if "tidelock.replica_agent.sql.worker" in child.cmdline()]
        return any(child.cpu_percent(0.2) > 20 for child in sql)
    return False


def ended(local: LocalCluster, tx: Transaction) -> bool:
    """Return whether the home has noted that a transaction is to end."""
    with local.connect(HOME) as db:
        (state,) = (row["state"] for row in db.transactions() if row["tid"] == tx.tid)
    return state in {"sealed", "rolled_back"}


@pytest.mark.parametrize(("end", "phase", "kind"), CASES)
@pytest.mark.few(2)
def test_ended_in_the_middle(local: LocalCluster, gates: Gates, end: str, phase: str, kind: str) -> None:
    """The statement fails, all replicas report the transaction as aborted, rows and parts are as before."""
    table = f"t{next(NUMBERS)}"
    with local.connect(HOME) as db, local.connect("r2") as other, ThreadPoolExecutor(1) as thread:
        db.create_table(table, SCHEMA, properties={"compaction": "off"})
        db.insert(table, numbers(0, ROWS // 2), wait="all")
        csn = db.insert(table, numbers(ROWS // 2, ROWS // 2), wait="all").csn
        before = parts(local, table)
        first = db.begin()
        first.truncate(table)  # makes the directories: the next request for a lock makes locks
        first.rollback()
        eventually(lambda: parts(local, table) == before and not locks(local.zk, table))
        tx = db.begin(lease=LEASE_S if end == "lease" else None)
        with caught(local, gates, phase, kind, tx, table) as told:
            ending = thread.submit(END[end], local, tx)
            if end == "death":
                ending.result()
            else:
                eventually(lambda: ended(local, tx), what=f"the end of {tx.tid}")
        with pytest.raises(TidelockError):
            told.result()
        ending.result()
        local.up()
        assert {db.outcome(tx.tid).decision, other.outcome(tx.tid).decision} == {"aborted"}
        for replica in local.replicas:
            nothing_left(local.data_dir(replica))
        assert parts(local, table) == before
        for session in (db, other):
            with session.snapshot(min_csn=csn) as snapshot:
                assert snapshot.read(table).num_rows == ROWS
        eventually(lambda: removes(local, table), what="somebody else who removes the rows")


def parts(local: LocalCluster, table: str) -> dict[str, list[LockedPartRow]]:
    """Return the rows of a table's parts in each catalog."""
    return {replica: part_rows(local.data_dir(replica), table) for replica in local.replicas}


def removes(local: LocalCluster, table: str) -> bool:
    """Return whether the other replica can remove all rows; a dead home deletes its locks when it is back."""
    with local.connect("r2") as db, contextlib.suppress(SerializationConflictError), db.begin() as tx:
        assert tx.delete(table, "k >= 0").rows_deleted == ROWS
    return tx.state == "committed"


def commit(_: LocalCluster, tx: Transaction) -> None:
    """Commit a transaction whose statement still runs: refused, since half a change must not be committed."""
    with pytest.raises(TransactionClosedError, match="while a statement that removes rows was running"):
        tx.commit()


def rollback(_: LocalCluster, tx: Transaction) -> None:
    """Roll back, without waiting for the statement."""
    tx.rollback()


def kill(local: LocalCluster, tx: Transaction) -> None:
    """Kill the transaction through another client; its owner gets an error."""
    with local.connect() as db:
        db.kill(tx.tid)
    with pytest.raises(TransactionClosedError, match="was killed by a client"):
        tx.commit()


def lease(local: LocalCluster, tx: Transaction) -> None:
    """Stop the client's heartbeats, until the lease has ended."""
    tx._connection.leases.remove(tx)
    eventually(lambda: ended(local, tx), what="the end of the lease")
    with pytest.raises(TransactionClosedError):
        tx.commit()


def death(local: LocalCluster, _: Transaction) -> None:
    """Kill the home."""
    local.kill(HOME)


END: Final = {"commit": commit, "rollback": rollback, "kill": kill, "lease": lease, "death": death}
