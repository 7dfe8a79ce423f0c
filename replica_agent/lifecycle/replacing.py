"""The boot that replaces the catalog by a peer's: wired from a session alone, without the log."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from tidelock.csnlog.cluster.bootstrap import OwnSession, keep_alive
from tidelock.csnlog.cluster.members import Members
from tidelock.csnlog.core.store import LinkState
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.replica_agent.cloning.joiner import Joiner
from tidelock.replica_agent.lifecycle.local import Local
from tidelock.replication.peers import PeerClient


async def replace_catalog(local: Local, store: ZkStore, session: OwnSession) -> None:
    """Replace the catalog by that of a peer, however long that takes.

    Raises:
        UpgradeNeededError: The peers have a newer version than this replica.
    """
    settings = local.settings
    async with AsyncExitStack() as stack:
        client = PeerClient(
            secret=settings.secret,
            connections=settings.peer_connections,
            timeout_s=settings.push_timeout_s,
        )
        stack.push_async_callback(client.close)
        members = Members(store, refresh_s=settings.member_refresh_s)
        stack.push_async_callback(members.close)
        await members.start()
        alive = asyncio.create_task(_stay_alive(store, session, settings.member_refresh_s), name="alive")
        stack.callback(alive.cancel)
        joiner = Joiner(
            replica=session.replica,
            disk=session.disk,
            settings=settings,
            store=store,
            catalog=local.catalog,
            files=local.files,
            client=client,
            members=members.snapshot,
            skips=session.skips,
        )
        await joiner.run()


async def _stay_alive(store: ZkStore, session: OwnSession, every_s: float) -> None:
    """Keep the sign of life, so that a long clone is not taken for a silent replica."""
    while True:
        if store.link is LinkState.CONNECTED:
            await keep_alive(store, session)
        await asyncio.sleep(every_s)
