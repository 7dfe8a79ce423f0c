"""Discovery of the agents of a cluster by a client that knows only its ZooKeeper.

A client does this once, when it connects, and closes its session before it goes on: it learns everything else
from the agents. It writes nothing, so that a search below a mistyped root does not create that root.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from tidelock.csnlog.cluster.refusals import refusal
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.codec import decode_member
from tidelock.csnlog.core.ids import replica_id
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.zookeeper.connect import ConnectString
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import ConfigError, UnavailableError

T = TypeVar("T")

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
    found = _run(_agents(connect, timeout_s))
    if found is None:
        raise ConfigError(
            f"there is no cluster in ZooKeeper at {connect}; check the root, or start its first agent"
        )
    random.shuffle(found)
    reachable = [one for one in found if one.address]
    if not reachable:
        raise UnavailableError(f"no replica of the cluster at {connect} has ever been started; start one")
    return [one.address for one in sorted(reachable, key=lambda one: not one.alive)]


def members(connect: str, *, timeout_s: float) -> list[str]:
    """Return the ids of all registered replicas; none if there is no cluster below the root.

    Raises:
        ConfigError: The connect string cannot be used.
        UnavailableError: ZooKeeper did not answer, as for :func:`agents`.
    """
    return [one.id for one in _run(_agents(connect, timeout_s)) or ()]


class _Agent(msgspec.Struct, frozen=True):
    """A registered replica; its API address is empty if it was never started."""

    id: str
    address: str
    alive: bool


def _run(call: Coroutine[Any, Any, T]) -> T:
    # In a separate thread: the caller may run inside an event loop, as in a notebook.
    with ThreadPoolExecutor(1, thread_name_prefix="tidelock-discovery") as executor:
        return executor.submit(asyncio.run, call).result()


async def _agents(connect: str, timeout_s: float) -> list[_Agent] | None:
    """Return all registered replicas by id, or None if there is no cluster below the root."""
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
            return None
        if not isinstance(replicas, Ok):
            raise UnavailableError(
                f"ZooKeeper at {connect} did not list the replicas ({replicas}); try again"
            )
        return [await _member(store, name) for name in sorted(replicas.value)]
    finally:
        await store.close()


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


async def _member(store: ZkStore, name: str) -> _Agent:
    replica = replica_id(name)
    node = await store.get(tree.replica(replica))
    alive = await store.exists(tree.alive(replica))
    address = decode_member(node.value.data).api if isinstance(node, Ok) else ""
    return _Agent(name, address, isinstance(alive, Ok) and alive.value is not None)
