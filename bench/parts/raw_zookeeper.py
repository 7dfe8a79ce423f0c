"""Synchronous sequential creates through the project's own store: what one ZooKeeper write costs here.

It is the most that a log without batches could do: one create for each commit.
"""

from __future__ import annotations

import asyncio
import functools
import time
from dataclasses import asdict
from typing import Any

from bench.parts.commits import within
from bench.tools.workload import BenchClients, ClientPace, Commit
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Create
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from workloads.stats import Latencies


def open_creates(number: int, connect: str) -> Commit:
    """Return a client's creates, of 100 bytes each, in a directory of its own."""
    loop = asyncio.new_event_loop()
    root = f"{connect}_bench{number}"
    store = ZkStore(root, session_timeout_s=10, request_timeout_s=5, multi_bytes_max=1 << 19)
    loop.run_until_complete(store.open())

    def create(_: int) -> tuple[int, int]:
        result = loop.run_until_complete(store.multi((Create("n-", b"x" * 100, sequential=True),)))
        if not isinstance(result, Ok):
            raise RuntimeError(f"ZooKeeper did not take a create: {result}")  # noqa: TRY004 - no wrong type
        return 0, 0

    return create


def run(cluster: LocalCluster, counts: tuple[int, ...], pace: ClientPace) -> list[dict[str, Any]]:
    """Measure one number of clients after the other; each makes one create at a time."""
    return [_measure(cluster, count, pace) for count in counts]


def _measure(cluster: LocalCluster, count: int, pace: ClientPace) -> dict[str, Any]:
    opener = functools.partial(open_creates, connect=cluster.zk)
    running = BenchClients(opener, count, pace, preload=["tidelock.csnlog.zookeeper.kazoo_store"])
    zero = running.begin()
    time.sleep(max(0.0, zero + pace.run_s - time.monotonic()))
    inside = within(running.results().done, zero, pace.run_s)
    return {
        "clients": count,
        "per_s": round(len(inside) / pace.run_s, 1),
        "latency": asdict(Latencies.of([item.took_s for item in inside])),
    }
