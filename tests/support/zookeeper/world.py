"""Stores on a real ZooKeeper, below a root that no other test uses."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from tests.support.zookeeper.store_suite import MULTI_BYTES_MAX
from tests.support.zookeeper.wire import end_session
from tidelock.csnlog.core.store import Store
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore

#: Short enough for tests that wait for an expiry, long enough for a busy machine.
SESSION_TIMEOUT_S = 3.0


class ZkWorld:
    """A separate root on a real ensemble, and the stores that were opened on it."""

    def __init__(self, address: str, root: str) -> None:
        self.address = address
        self.root = root
        self.stores: list[ZkStore] = []

    async def store(self, *, through: str | None = None, **settings: Any) -> ZkStore:
        """Return an open store, by default without a proxy."""
        defaults = {
            "session_timeout_s": SESSION_TIMEOUT_S,
            "request_timeout_s": 20.0,
            "multi_bytes_max": MULTI_BYTES_MAX,
            "connect_timeout_s": 30.0,
        }
        store = ZkStore(f"{through or self.address}{self.root}", **(defaults | settings))
        self.stores.append(store)
        await store.open()
        return store

    async def expire(self, store: Store) -> None:
        """Let its session end on the server."""
        assert isinstance(store, ZkStore)
        session, password = store._client.client_id
        await asyncio.to_thread(end_session, self.address, session, password)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for store in self.stores:
            await store.close()
