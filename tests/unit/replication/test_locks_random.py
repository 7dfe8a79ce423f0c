"""Removal locks under random faults: replicas take and give back all kinds of locks while servers lag.

Requests, answers, connections and sessions are lost, multis land late, readers see old states. At no moment
two transactions hold locks that overlap, and in the end no lock is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from tests.support.aio import until_async
from tests.support.clusters.lock_node import ORDERS as TABLE
from tests.support.clusters.lock_node import LockNode, parts
from tests.support.clusters.log_node import R1, R2, R3, make_cluster
from tidelock.csnlog.core.ids import Csn, Tid
from tidelock.csnlog.testing.memory_servers import MemoryServer
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, random_faults
from tidelock.errors import SerializationConflictError, UnavailableError
from tidelock.replication.core.lock_rules import (
    KeyRange,
    LockAsk,
    OnePart,
    OnePartition,
    Scope,
    WholeTable,
    Wide,
    overlap,
)

ROUNDS = 40


class Held:
    """The locks of each transaction, as their takers report them."""

    def __init__(self) -> None:
        self._scopes: dict[Tid, tuple[Scope, ...]] = {}
        self.taken = 0

    def takes(self, tid: Tid, scopes: tuple[Scope, ...]) -> None:
        """Note that a take has returned, and require that no overlapping lock has another holder."""
        for other, held in self._scopes.items():
            met = [(one, two) for one in held for two in scopes if overlap(one, two)]
            assert other == tid or not met, f"{other} and {tid} both hold {met}"
        self._scopes[tid] = (*self._scopes.get(tid, ()), *scopes)
        self.taken += 1

    def ends(self, tid: Tid) -> None:
        """Note that a transaction is about to give back its locks."""
        self._scopes.pop(tid, None)


def any_ask(source: random.Random) -> tuple[LockAsk, tuple[Scope, ...]]:
    """Return a request for locks, mostly of parts."""
    if source.random() < 0.7:
        path = source.choice(["y=1", "y=2"])
        base = 10 if path == "y=2" else 0
        chosen = parts(*(base + n for n in source.sample(range(6), 2)), path=path)
        return LockAsk(TABLE, chosen), tuple(OnePart(part, path) for part, path in chosen.items())
    low = source.randrange(9)
    scopes: list[Wide] = [WholeTable(), OnePartition("y=1"), OnePartition("y=2"), KeyRange(low, low + 2)]
    wide = source.choice(scopes)
    return LockAsk(TABLE, {}, (wide,)), (wide,)


async def use(node: LockNode, held: Held, seed: int) -> None:
    """Take locks for one transaction after the other."""
    source = random.Random(f"{seed} {node.replica}")
    for counter in range(1, ROUNDS):
        tid = node.tid(counter)
        with contextlib.suppress(SerializationConflictError, UnavailableError):
            for _ in range(source.choice([1, 1, 2])):
                ask, scopes = any_ask(source)
                await node.locks.take(tid, ask, at=Csn(1), wait_s=source.choice([0.0, 0.0, 0.1]))
                held.takes(tid, scopes)
                for _ in range(source.randrange(8)):
                    await asyncio.sleep(0)
        held.ends(tid)
        await node.roll_back(counter)
        if source.random() < 0.2:
            await node.locks.sweep(Csn(0))


async def lag(servers: Sequence[MemoryServer], source: random.Random, enough: asyncio.Event) -> None:
    """Let servers fall behind and catch up; the first never lags."""
    while not enough.is_set():
        server = source.choice(servers[1:])
        server.lag() if source.random() < 0.5 else server.catch_up(source.choice([1, 3, None]))
        for _ in range(source.randrange(20)):
            await asyncio.sleep(0)


async def swept(node: LockNode) -> bool:
    """Return whether nothing is held after a sweep."""
    await node.locks.sweep(Csn(0))
    return node.locks.held == 0


@pytest.mark.parametrize("seed", range(4))
async def test_no_two_hold_what_overlaps(seed: int) -> None:
    """Every take that returns is checked against all others at that moment."""
    source = random.Random(seed)
    ensemble = MemoryEnsemble(servers=3)
    await make_cluster(ensemble.store("setup"))
    ensemble.choose = lambda servers: source.choice(list(servers))
    held, enough = Held(), asyncio.Event()
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(LockNode(ensemble.store(name), name)) for name in (R1, R2, R3)
        ]
        lagging = asyncio.create_task(lag(ensemble.servers, source, enough))
        ensemble.plan = random_faults(source, rate=0.1)
        await asyncio.gather(*(use(node, held, seed) for node in nodes))
        ensemble.plan = None
        enough.set()
        await lagging
        for server in ensemble.servers:
            server.catch_up()
        ensemble.deliver_late()
        for node in nodes:
            await until_async(lambda node=node: swept(node), what=f"nothing held by {node.replica}")  # type: ignore[misc]
        assert not await nodes[0].stand()
        assert held.taken > ROUNDS // 2
