"""Cluster, boots and member list on a real ZooKeeper; the unit tests go through the faults one by one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.support.aio import until
from tests.support.faults.proxy import MULTI, Action, Proxy, nth_request
from tests.support.zookeeper.store_suite import done, node
from tidelock.csnlog.cluster.bootstrap import KnownState, OwnSession, bootstrap, keep_alive, open_session
from tidelock.csnlog.cluster.members import Members
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import ReplicaId
from tidelock.csnlog.core.model import ClusterState, MemberState
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.store import Check, Create, LinkState, SetData, Store
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore

R1, R2 = ReplicaId("r1"), ReplicaId("r2")
NONCES = itertools.count()

Open = Callable[[str], Awaitable[ZkStore]]


@pytest.fixture
async def opened(zk_root: str) -> AsyncIterator[Open]:
    """Opens stores on an address, below the root of this test, and closes them in the end."""
    stores: list[ZkStore] = []

    async def open_store(address: str) -> ZkStore:
        store = ZkStore(
            f"{address}{zk_root}", session_timeout_s=4.0, request_timeout_s=20.0, multi_bytes_max=512 * 1024
        )
        stores.append(store)
        await store.open()
        return store

    yield open_store
    for store in stores:
        await store.close()


def make(store: Store) -> Awaitable[ClusterState]:
    """Bootstrap a cluster of two."""
    return bootstrap(store, replicas=[R1, R2], copies=2, epoch_limit=1000)


def begin(store: Store, replica: ReplicaId) -> Awaitable[OwnSession]:
    """Begin a boot."""
    return open_session(
        store,
        replica=replica,
        member=MemberState(api=f"{replica}:1"),
        disk=f"disk-{replica}",
        known=KnownState(),
        nonce=lambda: f"nonce{next(NONCES)}",
    )


async def test_several_agents_start_on_an_empty_ensemble(opened: Open, zookeeper: str) -> None:
    """They agree on one cluster; each gets its boot; each sees the other; the first commit has CSN 2."""
    stores = [await opened(zookeeper) for _ in range(4)]
    clusters = await asyncio.gather(*(make(store) for store in stores))
    assert len({cluster.cluster_id for cluster in clusters}) == 1
    one, two = await asyncio.gather(begin(stores[0], R1), begin(stores[1], R2))
    assert (one.boot, two.boot) == (1, 1)
    members = Members(stores[2], refresh_s=60.0)
    await members.start()
    await until(lambda: all(view.alive for view in members.snapshot().values()))
    assert [members.disk_of(replica) for replica in (R1, R2)] == ["disk-r1", "disk-r2"]
    (first,) = await done(stores[3], Create(tree.record_prefix(0), sequential=True))
    assert tree.csn_of(str(first)) == 2
    await stores[1].close()
    await until(lambda: not members.snapshot()[R2].alive)
    await members.close()


@pytest.mark.parametrize("action", [Action.LOSE_REPLY, Action.LOSE_REQUEST])
@pytest.mark.parametrize("number", range(1, 5))
async def test_a_start_through_a_network_that_loses_a_multi(
    opened: Open, zookeeper: str, zk_proxy: Proxy, action: Action, number: int
) -> None:
    """Whether the barrier, the raise or the sign of life is lost: the boot begins exactly once."""
    await make(await opened(zookeeper))
    store = await opened(zk_proxy.address)
    zk_proxy.hook(nth_request(number, action, opcode=MULTI))
    own = await begin(store, R1)
    assert zk_proxy.counters.lost_replies + zk_proxy.counters.lost_requests == 1
    found = await node(store, tree.session(R1))
    assert (codec.decode_session(found.data), found.version) == (own.state, 1)
    assert (await node(store, tree.alive(R1))).owner_session == store.session


@pytest.mark.scenario("S07", "S27")
async def test_a_restart_takes_over_while_the_former_session_still_lives(
    opened: Open, zookeeper: str, zk_proxy: Proxy
) -> None:
    """The killed agent's session is still open: its sign of life is replaced, its writes are refused."""
    await make(await opened(zookeeper))
    killed = await opened(zk_proxy.address)
    former = await begin(killed, R1)
    zk_proxy.refuse()
    zk_proxy.cut()
    store = await opened(zookeeper)
    own = await begin(store, R1)
    assert own.boot == former.boot + 1
    assert (await node(store, tree.alive(R1))).owner_session == store.session
    zk_proxy.heal()
    await until(lambda: killed.link is LinkState.CONNECTED)
    late = (Check(tree.session(R1), former.fence), SetData(tree.HEAD))
    assert await killed.multi(late) == Refused(Reason.BAD_VERSION, 0)
    assert not await keep_alive(killed, former)
    await killed.close()
    assert isinstance(await store.get(tree.alive(R1)), Ok)
