"""One transaction twice, and two transactions over the same rows a thousand times: exactly one counts.

The first test repeats a lost request as a naive program would, to show that doubles would be seen.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Final

import pyarrow as pa
import pytest

from tests.support.aio import until, until_async
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.log_node import R1, R2, LogNode, make_cluster, tids_of
from tests.support.faults.proxy import Action, Proxy, nth_request
from tests.support.histories.evidence import read_log, require_clean_audit
from tests.support.zookeeper.world import ZkWorld
from tidelock.client import Database, Transaction, join
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.results import Ok, Unknown
from tidelock.csnlog.core.store import Create
from tidelock.errors import SerializationConflictError

SCHEMA: Final = pa.schema([pa.field("y", pa.int64(), nullable=False), ("n", pa.int64())])
TWICE, ROUNDS, ROUNDS_MANY = 6, 20, 1000


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Three replicas, two copies."""
    return module_cluster(settings=QUICK)


@pytest.mark.scenario("S04")
async def test_a_naive_retry_makes_two_records(zookeeper: str, zk_root: str, zk_proxy: Proxy) -> None:
    """Without fence and reading, a lost answer means two records of one tid, which every reader sees."""
    async with ZkWorld(zookeeper, zk_root) as world:
        await make_cluster(await world.store(), [R1, R2])
        naive = await world.store(through=zk_proxy.address)
        async with LogNode(await world.store()) as node:
            await node.commit(1)
            found = await node.store.get(tree.record(node.delivered[0].csn))
            assert isinstance(found, Ok)
            create = Create(tree.record_prefix(0), found.value.data, sequential=True)
            zk_proxy.hook(nth_request(1, Action.LOSE_REPLY, containing=b"/csn-"))
            assert isinstance(await naive.multi((create,)), Unknown)

            async def repeated() -> bool:
                return isinstance(await naive.multi((create,)), Ok)

            await until_async(repeated, what="a second try that is answered")
            await until(lambda: len(node.delivered) == 3, what="all records")
            assert zk_proxy.counters.lost_replies == 1
            [csns] = tids_of(node.delivered).values()
            assert len(csns) == 3


def _commit(url: str, token: str) -> int:
    """Commit a transaction of another process; return its CSN."""
    with join(url, token) as joined:
        return joined.commit().csn or 0


@pytest.mark.scenario("S13")
def test_two_processes_commit_one_transaction(local: LocalCluster) -> None:
    """Both ask at the same time, again and again: both hear one CSN, and the log has each tid once."""
    with (
        local.connect("r1") as db,
        ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes,
    ):
        db.create_table("twice", SCHEMA)
        csns: dict[str, int] = {}
        for number in range(TWICE):
            tx = db.begin()
            tx.insert("twice", rows(number))
            token = tx.token(rights=["commit"])
            found = [processes.submit(_commit, tx.url, token) for _ in range(2)]
            first, second = (one.result() for one in found)
            assert first == second == db.outcome(tx.tid).csn
            csns[tx.tid] = first
        assert sorted(db.read("twice")["n"].to_pylist()) == list(range(TWICE))
    places = Counter((tid.tid, record.csn) for record in read_log(local.zk) for tid in record.record.tids)
    assert {place: count for place, count in places.items() if place[0] in csns} == dict.fromkeys(
        csns.items(), 1
    )


@pytest.mark.scenario("S15")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(ROUNDS_MANY, marks=pytest.mark.slow)])
def test_of_two_over_one_partition_exactly_one_wins(local: LocalCluster, rounds: int) -> None:
    """Two replicas replace the same partition at one snapshot, at once: in each round one of them commits."""
    at_once = threading.Barrier(2, timeout=60)
    table = f"conflicts_{rounds}"

    def replace(tx: Transaction, number: int) -> bool:
        at_once.wait()
        try:
            tx.replace_partition(table, {"y": 1}, rows(number))
            tx.commit()
        except SerializationConflictError:
            tx.rollback()
            return False
        return True

    with local.connect("r1") as one, local.connect("r2") as two, ThreadPoolExecutor(2) as threads:
        one.create_table(table, SCHEMA, partition_by=["y"])
        one.insert(table, rows(-1), wait="all")
        wins: Counter[int] = Counter()
        for number in range(rounds):
            begun = [begin(one, two), begin(two, one)]
            found = list(threads.map(replace, begun, (2 * number, 2 * number + 1)))
            assert sorted(found) == [False, True], number
            winner = found.index(True)
            wins[winner] += 1
            assert (one, two)[winner].read(table)["n"].to_pylist() == [2 * number + winner]
    assert wins.total() == rounds
    require_clean_audit(local)


def begin(db: Database, other: Database) -> Transaction:
    """Begin with everything that either client has committed; its home is known from here on."""
    tx = db.begin(min_csn=other.seen_csn)
    assert tx.tid
    return tx


def rows(number: int) -> pa.Table:
    """Return one row of the partition."""
    return pa.table({"y": [1], "n": [number]}, SCHEMA)
