"""A log of a hundred thousand records: replicas read it in bounded memory, and nothing asks for all of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Final

import psutil
import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import require_clean_audit
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import ReplicaId
from tidelock.csnlog.core.log_time import ClockReading
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Create
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from workloads.agents import ask

RECORDS: Final = 100_000
#: Requests on their way at a time.
PIPELINE: Final = 64
#: The log alone takes more than this as objects of Python, were it ever held as a whole.
MORE_BYTES_MAX: Final = 200 << 20
ROWS: Final = pa.table({"n": [1, 2, 3]})


def write_ticks(connect: str, count: int) -> None:
    """Write records without transactions, as replicas do at rest, each with a request of its own."""

    async def write() -> None:
        store = ZkStore(connect, session_timeout_s=30.0, request_timeout_s=60.0, multi_bytes_max=1 << 19)
        await store.open()
        tick = codec.encode_commit(ReplicaId("r1"), ClockReading(time.time_ns() // 10**6), [])
        left = itertools.repeat(Create(tree.record_prefix(0), tick, sequential=True), count)

        async def one_of_many() -> None:
            for create in left:
                assert isinstance(await store.multi((create,)), Ok)

        try:
            await asyncio.gather(*(one_of_many() for _ in range(PIPELINE)))
        finally:
            await store.close()

    asyncio.run(write())


@pytest.mark.scenario("S79")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_replica_starts_behind_a_hundred_thousand_records(cluster: ClusterFactory) -> None:
    """One replica follows them as they come, the other one starts behind them; both serve and commit."""
    kept = {
        **dict.fromkeys(("log_keep_records", "max_records"), 3 * RECORDS),
        **dict.fromkeys(("log_keep_bytes", "max_records_bytes"), 1 << 30),
    }
    local = cluster(replicas=2, epoch_limit=3 * RECORDS, settings=QUICK | kept)
    with local.connect("r1") as db:
        db.create_table("t", ROWS.schema)
        before = db.insert("t", ROWS, wait="all").csn or 0
        memory = resident(local.pid("r2"))
        local.kill("r2")
        write_ticks(local.zk, RECORDS)
        local.start("r2", timeout_s=900)
        last = db.insert("t", ROWS, wait="all", timeout_s=300).csn or 0
    assert last > before + RECORDS
    assert ask(local, "r2", "/log?from_csn=0")[0]["csn"] <= before
    for replica in local.replicas:
        with local.connect(replica) as db, db.snapshot(csn=last) as snap:
            assert snap.read("t").num_rows == 2 * ROWS.num_rows
        assert resident(local.pid(replica)) < memory + MORE_BYTES_MAX
    require_clean_audit(local)


def resident(pid: int | None) -> int:
    """Return the memory of a process."""
    assert pid is not None
    return int(psutil.Process(pid).memory_info().rss)
