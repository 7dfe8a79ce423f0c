"""Making a cluster and registering replicas, under every fault at every request."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from tests.support.clusters.boots import R1, R2, R9, SETTINGS, any_request, begin, paths
from tests.support.zookeeper.store_suite import done, node
from tidelock.csnlog.cluster import bootstrap as bootstrap_module
from tidelock.csnlog.cluster.bootstrap import bootstrap, register
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.csnlog.core.model import ClusterState, Progress, RecordKind
from tidelock.csnlog.core.store import Create, Delete
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, RequestFault, nth, random_faults
from tidelock.errors import ConfigError, UnavailableError, UpgradeNeededError


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap_module, "_RETRY_S", 0.0)


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    """An empty ensemble without faults."""
    return MemoryEnsemble()


@pytest.fixture
async def cluster(ensemble: MemoryEnsemble) -> ClusterState:
    """A cluster of three replicas on it."""
    return await bootstrap(ensemble.store("bootstrap"), **SETTINGS)


async def test_the_bootstrap_makes_the_whole_tree(ensemble: MemoryEnsemble, cluster: ClusterState) -> None:
    """It makes exactly the znodes of docs/protocol.md#zookeeper-tree; the first commit gets CSN 2."""
    store = ensemble.store()
    members = {
        path
        for replica in SETTINGS["replicas"]
        for path in (tree.replica(replica), tree.session(replica), tree.progress(replica))
    }
    assert paths(ensemble) == members | {
        *("", "cluster", "csn", "csn/epoch", "csn/0", "csn/0/csn-0000000000", "csn/0/csn-0000000001"),
        *("csn/head", "csn/tail", "csn/horizon", "replicas", "tables", "locks", "labels", "pins"),
    }
    assert cluster.copies == 2
    assert cluster.epoch_limit == 1000
    assert codec.decode_cluster((await node(store, tree.CLUSTER)).data) == cluster
    assert codec.decode_epoch((await node(store, tree.EPOCH)).data) == 0
    for path in (tree.TAIL, tree.HORIZON):
        assert codec.decode_csn((await node(store, path)).data) == CSN_NONE
    for csn in (0, 1):
        record = codec.decode_record((await node(store, tree.record(Csn(csn)))).data)
        assert (record.kind, record.tids, record.time_ms) == (RecordKind.GENESIS, (), 5)
    progress = codec.decode_progress((await node(store, tree.progress(R2))).data)
    assert progress == Progress(CSN_NONE, CSN_NONE)
    (first,) = await done(store, Create(tree.record_prefix(0), sequential=True))
    assert tree.csn_of(str(first)) == 2


async def test_a_cluster_that_is_there_is_used_as_it_is(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """Another start with other settings changes nothing."""
    before = ensemble.tree.copy()
    again = await bootstrap(ensemble.store(), replicas=[R9], copies=1, epoch_limit=77)
    assert again == cluster
    assert paths(ensemble) == {
        path for path in paths(ensemble) if before.get(path) == ensemble.tree.get(path)
    }


async def test_of_racing_bootstraps_one_wins(ensemble: MemoryEnsemble) -> None:
    """Replicas that start at once on an empty ensemble agree on one cluster."""
    found = await asyncio.gather(*(bootstrap(ensemble.store(), **SETTINGS) for _ in range(5)))
    assert len({state.cluster_id for state in found}) == 1


@pytest.mark.parametrize("fault", list(RequestFault))
@pytest.mark.parametrize("number", range(1, 5))
async def test_a_bootstrap_survives_a_fault_at_each_request(
    ensemble: MemoryEnsemble, fault: RequestFault, number: int
) -> None:
    """With any request lost or late, one complete cluster is made, and it is the returned one."""
    ensemble.plan = nth(number, fault, when=any_request)
    state = await bootstrap(ensemble.store(), **SETTINGS)
    ensemble.plan = None
    ensemble.deliver_late()
    assert codec.decode_cluster((await node(ensemble.store(), tree.CLUSTER)).data) == state
    assert len([path for path in paths(ensemble) if path.startswith("csn/0/")]) == 2


@pytest.mark.parametrize("seed", range(30))
async def test_racing_bootstraps_agree_under_random_faults(ensemble: MemoryEnsemble, seed: int) -> None:
    """Half of all requests go wrong in some way."""
    ensemble.plan = random_faults(random.Random(seed), rate=0.5)
    found = await asyncio.gather(*(bootstrap(ensemble.store(), **SETTINGS) for _ in range(3)))
    ensemble.deliver_late()
    assert len({state.cluster_id for state in found}) == 1


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"replicas": []}, "0 replicas"),
        ({"replicas": [R1, R1]}, "named twice"),
        ({"replicas": ["R 1", R2]}, "'R 1'"),
        ({"copies": 4}, "4 copies"),
        ({"copies": 0}, "0 copies"),
        ({"copies": 1}, "single replica"),
    ],
)
async def test_settings_that_contradict_each_other_are_refused(
    ensemble: MemoryEnsemble, changed: dict[str, Any], named: str
) -> None:
    """Contradicting settings are refused before a znode is made."""
    with pytest.raises(ConfigError, match=named):
        await bootstrap(ensemble.store(), **(SETTINGS | changed))
    assert paths(ensemble) == {""}


async def test_a_root_with_something_else_in_it_is_refused(ensemble: MemoryEnsemble) -> None:
    """A root of another program is left unchanged, and named."""
    store = ensemble.store()
    await done(store, Create("tables"))
    with pytest.raises(ConfigError, match="'tables'"):
        await bootstrap(store, **SETTINGS)
    assert paths(ensemble) == {"", "tables"}


async def test_a_limit_that_the_tree_does_not_fit_into_is_named() -> None:
    """multi_bytes_max is a setting and may be far too small."""
    with pytest.raises(ConfigError, match="too_large"):
        await bootstrap(MemoryEnsemble(multi_bytes_max=1000).store(), **SETTINGS)


async def test_a_cluster_of_a_newer_format_is_left_alone(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """An old agent says "upgrade", with any flags."""
    newer = msgspec.structs.replace(cluster, format_version=2)
    store = ensemble.store()
    await done(store, Delete(tree.CLUSTER, 0), Create(tree.CLUSTER, codec.encode_cluster(newer)))
    with pytest.raises(UpgradeNeededError, match="upgrade"):
        await bootstrap(store, **SETTINGS)
    with pytest.raises(UpgradeNeededError, match="upgrade"):
        await begin(store)


async def test_without_a_connection_all_of_it_ends_in_time(ensemble: MemoryEnsemble) -> None:
    """The error names the attempt and its time; a repetition is safe."""
    store = ensemble.store()
    store.suspend()
    with pytest.raises(UnavailableError, match=r"make the cluster within 0\.05 s"):
        await bootstrap(store, **SETTINGS, timeout_s=0.05)
    with pytest.raises(UnavailableError, match="begin the session of replica r1"):
        await begin(store, timeout_s=0.05)
    with pytest.raises(UnavailableError, match="register replica r1"):
        await register(store, R1, timeout_s=0.05)


async def test_a_registration_needs_a_cluster(ensemble: MemoryEnsemble) -> None:
    """A registration does not make a cluster."""
    with pytest.raises(ConfigError, match="no cluster"):
        await register(ensemble.store(), R1)


@pytest.mark.parametrize("fault", list(RequestFault))
@pytest.mark.parametrize("number", range(1, 4))
async def test_a_registration_survives_a_fault_at_each_request(
    ensemble: MemoryEnsemble, cluster: ClusterState, fault: RequestFault, number: int
) -> None:
    """The replica is registered once, with all its znodes."""
    ensemble.plan = nth(number, fault, when=any_request)
    assert await register(ensemble.store(), R9)
    assert {tree.replica(R9), tree.session(R9), tree.progress(R9)} <= paths(ensemble)
