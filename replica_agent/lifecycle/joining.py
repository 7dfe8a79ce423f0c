"""The steps by which an agent joins its cluster: connect, create it if asked to, raise boot and fence."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack

from tidelock.csnlog.cluster.bootstrap import OwnSession, bootstrap, open_session
from tidelock.csnlog.cluster.start_check import KnownState
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.replica_agent.lifecycle.local import Local
from tidelock.replica_agent.storage import catalog_writes as jobs


async def connect(local: Local, stack: AsyncExitStack) -> ZkStore:
    """Connect to ZooKeeper; UnavailableError when no server answers."""
    settings = local.settings
    may_make = bool(settings.bootstrap) and local.catalog.reader.meta("cluster_id") is None
    store = ZkStore(
        settings.zk,
        session_timeout_s=settings.session_timeout_s,
        request_timeout_s=settings.request_timeout_s,
        multi_bytes_max=settings.multi_bytes_max,
        connect_timeout_s=settings.connect_timeout_s,
        make_root=may_make,
    )
    await store.open()
    stack.push_async_callback(store.close)
    return store


async def join(local: Local, store: ZkStore) -> OwnSession:
    """Begin this boot: every former boot of the replica is fenced from here on.

    Raises:
        ClusterMismatchError: The directory is another cluster's, or ZooKeeper is older than the directory.
        ConfigError: The replica is not registered.
    """
    settings, catalog = local.settings, local.catalog
    # A replica that belongs to a cluster never creates another one: if its cluster is gone, an operator must
    # check.
    if settings.bootstrap and catalog.reader.meta("cluster_id") is None:
        await bootstrap(
            store,
            replicas=[ReplicaId(replica) for replica in settings.bootstrap],
            copies=settings.copies,
            epoch_limit=settings.epoch_limit,
        )
    cluster_id = catalog.reader.meta("cluster_id")
    known = KnownState(
        cluster_id=cluster_id,
        boot=catalog.reader.meta("boot"),
        fence=catalog.reader.meta("fence"),
        tail=Csn(catalog.reader.meta("tail")),
        last_csn=catalog.reader.snapshot_csn(),
        horizon=catalog.reader.horizon(),
        # A catalog of before belongs to a tree of before, whose incarnation is empty.
        incarnation=None if cluster_id is None else catalog.reader.meta("incarnation") or "",
        last=catalog.reader.last_imprint(),
    )
    session = await open_session(
        store,
        replica=ReplicaId(settings.replica),
        member=local.member,
        disk=catalog.reader.meta("disk"),
        known=known,
        nonce=lambda: secrets.token_hex(16),
    )
    await catalog.write(
        lambda db: jobs.set_meta(
            db,
            cluster_id=session.cluster.cluster_id,
            incarnation=session.cluster.incarnation,
            boot=session.boot,
            fence=session.fence,
            tail=session.tail,
            horizon=session.horizon,
        )
    )
    return session
