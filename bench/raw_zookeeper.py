"""Synchronous sequential creates through the project's own store: what one ZooKeeper write costs here."""

from __future__ import annotations

import asyncio
import statistics
import time

from tidelock.csnlog.results import Ok
from tidelock.csnlog.store import Create
from tidelock.csnlog.zk import ZkStore


def creates(connect: str, run_s: float) -> dict[str, float]:
    """Create 100-byte znodes one after the other for ``run_s``.

    Returns creates per second and their median in ms.
    """
    return asyncio.run(_creates(connect, run_s))


async def _creates(connect: str, run_s: float) -> dict[str, float]:
    store = ZkStore(connect + "_bench", session_timeout_s=10, request_timeout_s=5, multi_bytes_max=1 << 19)
    await store.open()
    taken: list[float] = []
    end = time.monotonic() + run_s
    while (begun := time.monotonic()) < end:
        result = await store.multi((Create("n-", b"x" * 100, sequential=True),))
        if not isinstance(result, Ok):
            raise RuntimeError(f"ZooKeeper did not take a create: {result}")  # noqa: TRY004 - no wrong type
        taken.append((time.monotonic() - begun) * 1000)
    await store.close()
    return {"per_s": round(len(taken) / run_s, 1), "p50_ms": round(statistics.median(taken), 2)}
