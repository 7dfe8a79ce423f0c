"""The boot that replaces the catalog by a peer's: wired from a session alone, without the log."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from tidelock.csnlog.cluster.bootstrap import OwnSession, keep_alive
from tidelock.csnlog.cluster.members import Members
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.disks import folder_of
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import LinkState
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.replica_agent.cloning.joiner import Joiner
from tidelock.replica_agent.lifecycle.local import Local
from tidelock.replication.peers import PeerClient


async def replace_catalog(local: Local, store: ZkStore, session: OwnSession) -> None:
    """Replace the catalog by that of a peer, however long that takes; end when another folder takes the id.

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
        alive = asyncio.create_task(_stay_alive(store, session, settings.member_refresh_s), name="alive")
        stack.callback(alive.cancel)
        cloning = asyncio.create_task(joiner.run(), name="clone")
        stack.callback(cloning.cancel)
        done, _ = await asyncio.wait({alive, cloning}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _stay_alive(store: ZkStore, session: OwnSession, every_s: float) -> None:
    """Keep the sign of life, so that a long clone is not taken for a silent replica, while it has its id."""
    while not await _is_lost(store, session):
        if store.link is LinkState.CONNECTED:
            await keep_alive(store, session)
        await asyncio.sleep(every_s)


async def _is_lost(store: ZkStore, session: OwnSession) -> bool:
    """Return whether another data folder has the id; the start that follows this boot says which one."""
    found = await store.get(tree.session(session.replica))
    disk = codec.decode_session(found.value.data).disk if isinstance(found, Ok) else ""
    return disk != "" and folder_of(disk) != folder_of(session.disk)
