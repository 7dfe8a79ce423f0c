"""The steps by which an agent joins its cluster: connect, create it if asked to, raise boot and fence."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from tidelock.csnlog.cluster.bootstrap import OwnSession, bootstrap, open_session
from tidelock.csnlog.cluster.start_check import KnownState, is_remade
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Store
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import ConfigError, UnavailableError
from tidelock.replica_agent.lifecycle.local import Local
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog_schema import SERVE_FROM_UNKNOWN


async def connect(local: Local, stack: AsyncExitStack) -> ZkStore:
    """Connect to ZooKeeper; UnavailableError when no server answers."""
    settings = local.settings
    may_make = (
        bool(settings.bootstrap) and not settings.join and local.catalog.reader.meta("cluster_id") is None
    )
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


#: The values that a catalog gets in a tree that was made again out of it. There zxids begin from 0, the last
#: record has other bytes, nothing is below the tail that it needs, and the log ends elsewhere.
_OF_ANOTHER_TREE: Final = {
    "zxid_max": 0,
    "last_digest": "",
    "clone": "",
    "serve_from": SERVE_FROM_UNKNOWN,
}


async def join(local: Local, store: ZkStore) -> OwnSession:
    """Begin this boot: every former boot of the replica is fenced from here on.

    Raises:
        ClusterMismatchError: The directory is another cluster's, or ZooKeeper is older than the directory.
        ConfigError: The replica is not registered, another data folder has its id, or others made the cluster
            at this root.
    """
    settings, catalog = local.settings, local.catalog
    # A replica that belongs to a cluster never creates another one: if its cluster is gone, an operator must
    # check.
    if settings.bootstrap and not settings.join and catalog.reader.meta("cluster_id") is None:
        await bootstrap(
            store,
            replicas=[ReplicaId(replica) for replica in settings.bootstrap],
            copies=settings.copies,
            epoch_limit=settings.epoch_limit,
        )
        await require_own_cluster(store, settings.bootstrap)
    cluster_id = catalog.reader.meta("cluster_id")
    known = KnownState(
        cluster_id=cluster_id,
        boot=catalog.reader.meta("boot"),
        fence=catalog.reader.meta("fence"),
        tail=Csn(catalog.reader.meta("tail")),
        last_csn=catalog.reader.snapshot_csn(),
        horizon=catalog.reader.horizon(),
        disk=catalog.reader.meta("disk"),
        clone=catalog.reader.meta("clone") or "",
        # A catalog of before belongs to a tree of before, whose incarnation is empty.
        incarnation=None if cluster_id is None else catalog.reader.meta("incarnation") or "",
        last=catalog.reader.last_imprint(),
        passed=frozenset(catalog.reader.skipped_records()),
    )
    session = await open_session(
        store,
        replica=ReplicaId(settings.replica),
        member=local.member,
        disk=catalog.reader.meta("disk"),
        known=known,
        nonce=lambda: secrets.token_hex(16),
        suffix=lambda: secrets.token_hex(8),
        replace_disk=settings.replace_disk,
    )
    await catalog.write(
        lambda db: jobs.set_meta(
            db,
            **(_OF_ANOTHER_TREE if is_remade(session.cluster, known) else {}),
            cluster_id=session.cluster.cluster_id,
            incarnation=session.cluster.incarnation,
            boot=session.boot,
            fence=session.fence,
            tail=session.tail,
            horizon=session.horizon,
        )
    )
    return session


async def require_own_cluster(store: Store, made_of: Sequence[str]) -> None:
    """Raise ConfigError if the cluster at this root is not the one that these replicas make.

    A mistyped root may be that of another cluster, which an agent must not join by accident. The list may be
    that with which the cluster was made, which a replica has whose disk was replaced, or that of now.
    """
    names, node = await asyncio.gather(store.children(tree.REPLICAS), store.get(tree.CLUSTER))
    if not isinstance(names, Ok) or not isinstance(node, Ok):
        raise UnavailableError("the members could not be read from ZooKeeper; start again")
    found = sorted(names.value)
    if set(made_of) not in (set(found), set(codec.decode_cluster(node.value.data).founders)):
        raise ConfigError(
            f"expected to make a cluster of {', '.join(made_of)} (bootstrap), found one of "
            f"{', '.join(found)} at this root: check the root in zk, or start with --join if this is the "
            "cluster to join",
            found=found,
        )
