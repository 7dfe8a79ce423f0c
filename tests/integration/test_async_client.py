"""The client with await on real agents: docs/async.md runs, and its loop holds under conflicts."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa

from tests.support.aio import until_async
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.project import pages
from tidelock.aio import AsyncDatabase, connect
from tidelock.client import Decision

PAGE = "docs/async.md"
TASKS = 12


def test_tasks_of_one_loop_repeat_their_transactions(module_cluster: ClusterFactory) -> None:
    """The page runs; then many tasks change one row, each once, while others are cancelled."""
    local = module_cluster(replicas=2, settings=QUICK)
    names: dict[str, Any] = {"url": local.url("r1")}
    pages.run(PAGE, names)

    async def compete() -> None:
        async with connect(local.url("r1"), threads_max=4) as db:
            assert (await db.outcome(names["tid"])).decision is Decision.COMMITTED
            await db.create_table("log", {"k": "bigint"})

            async def interrupted(key: int) -> str:
                async with db.begin() as tx:
                    await tx.insert("log", pa.table({"k": [key]}))
                    await asyncio.Event().wait()
                return tx.tid

            left = [asyncio.ensure_future(interrupted(key)) for key in range(TASKS)]
            csns = await asyncio.gather(*(names["take"](db, "nut", tries=100) for _ in range(TASKS)))
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            assert len(set(csns)) == TASKS
            async with db.snapshot(min_csn=max(csns)) as snap:
                nuts = await snap.read("stock", ["pieces"], where="item = 'nut'")
                assert nuts["pieces"].to_pylist() == [100 - TASKS]
                assert await snap.scan("log").count() == 0
            await until_async(lambda: _all_ended(db), what="the end of all transactions")

    asyncio.run(compete())


async def _all_ended(db: AsyncDatabase) -> bool:
    return {row["state"] for row in await db.transactions()} <= {"committed", "rolled_back"}
