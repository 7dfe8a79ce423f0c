"""Discovery of the agents of a cluster by a client that knows only its ZooKeeper.

A client does this once, when it connects, and closes its session before it goes on: it learns everything else
from the agents. It writes nothing, so that a search below a mistyped root does not create that root.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from concurrent.futures import ThreadPoolExecutor

from tidelock.csnlog.cluster.refusals import refusal
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.codec import decode_member
from tidelock.csnlog.core.ids import replica_id
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.zookeeper.connect import ConnectString
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import ConfigError, UnavailableError

#: ZooKeeper is given up when all its servers have refused connections so many times in a row.
_REFUSED_MAX = 3
#: Pause between these tries, in seconds.
_REFUSED_PAUSE_S = 0.3
#: The session is open for a moment; its timeout matters only when the client dies in that moment.
_SESSION_TIMEOUT_S = 10.0


def agents(connect: str, *, timeout_s: float) -> list[str]:
    """Return the API addresses (``host:port``) of all registered replicas, the living replicas first.

    The order is otherwise random, so that clients spread over the replicas.

    Raises:
        ConfigError: The connect string cannot be used, or there is no cluster below its root.
        UnavailableError: ZooKeeper did not answer within ``timeout_s``, or all its servers have refused
            connections three times; or no replica has an address yet.
    """
    # In a separate thread: the caller may run inside an event loop, as in a notebook.
    with ThreadPoolExecutor(1, thread_name_prefix="tidelock-discovery") as executor:
        return executor.submit(asyncio.run, _agents(connect, timeout_s)).result()


async def _agents(connect: str, timeout_s: float) -> list[str]:
    store = ZkStore(
        connect,
        session_timeout_s=_SESSION_TIMEOUT_S,
        request_timeout_s=timeout_s,
        multi_bytes_max=1,
        connect_timeout_s=timeout_s,
        make_root=False,
    )
    await _require_listening(ConnectString.parse(connect), timeout_s)
    await store.open()
    try:
        replicas = await store.children(tree.REPLICAS)
        if isinstance(replicas, Refused) and replicas.reason is Reason.NO_NODE:
            raise ConfigError(
                f"there is no cluster in ZooKeeper at {connect}; check the root, or start its first agent"
            )
        if not isinstance(replicas, Ok):
            raise UnavailableError(
                f"ZooKeeper at {connect} did not list the replicas ({replicas}); try again"
            )
        found = [await _member(store, name) for name in sorted(replicas.value)]
    finally:
        await store.close()
    random.shuffle(found)
    alive = [address for address, alive in found if address and alive]
    others = [address for address, alive in found if address and not alive]
    if not alive and not others:
        raise UnavailableError(f"no replica of the cluster at {connect} has ever been started; start one")
    return alive + others


async def _require_listening(address: ConnectString, timeout_s: float) -> None:
    """Return when a server accepts a connection, or one may yet.

    Raises:
        UnavailableError: All servers refuse connections, or their names are unknown, time after time.
    """
    found: list[OSError | None] = []
    for attempt in range(_REFUSED_MAX):
        if attempt:
            await asyncio.sleep(_REFUSED_PAUSE_S)
        found = [await refusal(server, timeout_s=timeout_s) for server in address.servers]
        if not all(found):
            return
    reasons = dict.fromkeys(_reason(error) for error in found if error is not None)
    raise UnavailableError(
        f"no ZooKeeper listens at {', '.join(address.servers)} ({'; '.join(reasons)}; tried "
        f"{_REFUSED_MAX} times); start it, or check the address"
    )


def _reason(error: OSError) -> str:
    """Return why a server does not listen, without its address."""
    if isinstance(error, ConnectionRefusedError):
        return os.strerror(errno.ECONNREFUSED)
    return error.strerror or str(error)


async def _member(store: ZkStore, name: str) -> tuple[str, bool]:
    """Return the API address of a replica, or "", and whether the replica is alive."""
    replica = replica_id(name)
    node = await store.get(tree.replica(replica))
    alive = await store.exists(tree.alive(replica))
    address = decode_member(node.value.data).api if isinstance(node, Ok) else ""
    return address, isinstance(alive, Ok) and alive.value is not None
