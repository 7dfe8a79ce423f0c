"""The removal locks of one replica for tests, over its log; the test sets open transactions and silence."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

import pytest
from msgspec.structs import replace

from tests.support.clusters.log_node import R1, LogNode
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_IMPORT, Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.results import Aborted, Ok, Outcome, Running
from tidelock.csnlog.core.store import Store
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, MemoryStore
from tidelock.errors import SerializationConflictError
from tidelock.replica_agent.transactions.outcomes.rules import LOCK
from tidelock.replication.core.lock_rules import LockAsk, LockLimits, Wide
from tidelock.replication.locks.removal_locks import Locks

ORDERS = TableId("d.orders")
LIMITS = LockLimits(
    locks_max=5000,
    table_locks_max=8000,
    multi_bytes_max=512 * 1024,
    compaction_lock_wait_s=0.0,
    connect_wait_s=20.0,
    scan_interval_s=0.0,
)


def parts(*numbers: int, path: str = "") -> dict[PartId, str]:
    """Return parts of one partition."""
    return {PartId(f"r9-1-{number}"): path for number in numbers}


def part_ask(*numbers: int, path: str = "") -> LockAsk:
    """Return a request for parts of one partition."""
    return LockAsk(ORDERS, parts(*numbers, path=path))


def wide_ask(*wide: Wide) -> LockAsk:
    """Return a request for more than parts."""
    return LockAsk(ORDERS, wide=wide)


class LockNode(LogNode):
    """A replica that takes locks. Transactions are open from :meth:`tid` until they are put into ``over``."""

    def __init__(
        self,
        store: Store,
        replica: ReplicaId = R1,
        *,
        limits: Mapping[str, Any] | None = None,
        silent: set[ReplicaId] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(store, replica, **more)
        self.lock_limits = replace(LIMITS, **(limits or {}))
        #: Replicas that this one regards as silent for long.
        self.silent: set[ReplicaId] = silent if silent is not None else set()
        #: Own transactions that are rolled back.
        self.over: set[Tid] = set()
        self.asked: list[Tid] = []
        self.locks: Locks

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.locks = Locks(
            replica=self.replica,
            boot=self.own.boot,
            store=self.store,
            fenced=self.log.fenced,
            outcome=self._outcome,
            fence_home=self._fence_home,
            silent=lambda: self.silent,
            clock=asyncio.get_running_loop().time,
            limits=self.lock_limits,
        )
        return self

    async def take(self, counter: int, ask: LockAsk, *, at: Csn = CSN_IMPORT, **more: Any) -> None:
        """Take locks for a transaction of this replica."""
        await self.locks.take(self.tid(counter), ask, at=at, **more)

    async def roll_back(self, counter: int) -> None:
        """End a transaction."""
        self.over.add(self.tid(counter))
        await self.locks.release(self.tid(counter))

    async def commit_removal(self, counter: int) -> Csn:
        """Commit a transaction; its locks then stay."""
        csn = await self.commit(counter)
        self.locks.committed(self.tid(counter), csn)
        return csn

    async def stand(self) -> list[str]:
        """Return the existing locks, by their paths below the table, each with its holder."""
        return [
            f"{lock.znode.removeprefix(tree.lock_dir(ORDERS) + '/')} {lock.tid}"
            for lock in await self.locks.listed()
        ]

    async def _outcome(self, tid: Tid) -> Outcome:
        self.asked.append(tid)
        return await self.outcome(tid, policy=LOCK)

    def registered(self, tid: Tid) -> Aborted | Running | None:
        """Return the registry's answer: rolled back if the transaction is over."""
        return Aborted() if tid in self.over else super().registered(tid)

    async def _fence_home(self, home: ReplicaId, _boot: int) -> int | None:
        if home not in self.silent:
            return None
        node = await self.store.get(tree.session(home))
        if not isinstance(node, Ok):
            return None
        return await self.log.fence_out(home, codec.decode_session(node.value.data).boot)


async def killed(ensemble: MemoryEnsemble, node: LockNode) -> None:
    """End the process of a node; its session expires."""
    assert isinstance(node.store, MemoryStore)
    node.store.abandon()
    ensemble.end_session(node.store.session)
    await node.log.close()


async def refused(node: LockNode, counter: int, ask: LockAsk, **more: Any) -> SerializationConflictError:
    """Return the conflict that ends the request for a lock."""
    with pytest.raises(SerializationConflictError) as raised:
        await node.take(counter, ask, **more)
    return raised.value
