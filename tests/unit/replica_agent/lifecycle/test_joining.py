"""The cluster that an agent may join without a word: the one that the replicas of its settings have made."""

from __future__ import annotations

import msgspec
import pytest

from tidelock.csnlog.cluster.bootstrap import bootstrap
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import ReplicaId
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Create, Delete, SetData
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, MemoryStore
from tidelock.errors import ConfigError
from tidelock.replica_agent.lifecycle.joining import require_own_cluster

THREE = ["r1", "r2", "r3"]


async def made_of_three() -> MemoryStore:
    """Return a store with a cluster that three replicas have made, which then had a fourth one."""
    store = MemoryEnsemble().store()
    await bootstrap(store, replicas=[ReplicaId(name) for name in THREE], copies=2, epoch_limit=1000)
    assert isinstance(await store.multi((Create(f"{tree.REPLICAS}/r4"),)), Ok)
    return store


async def test_members_that_came_later_make_no_other_cluster() -> None:
    """A replica whose disk was replaced has the list with which the cluster was made."""
    store = await made_of_three()
    await require_own_cluster(store, THREE)
    await require_own_cluster(store, ["r3", "r1", "r2"])
    await require_own_cluster(store, [*THREE, "r4"])


@pytest.mark.parametrize("made_of", [["r1"], ["r1", "r2"], ["r1", "r2", "r9"], [*THREE, "r5"]], ids=" ".join)
async def test_a_cluster_of_others_is_not_joined_by_accident(made_of: list[str]) -> None:
    """A mistyped root may be that of another cluster."""
    store = await made_of_three()
    with pytest.raises(ConfigError, match="found one of r1, r2, r3, r4 at this root: check the root in zk"):
        await require_own_cluster(store, made_of)


async def test_a_tree_of_before_names_its_members() -> None:
    """It does not name its founders, so all replicas that were ever registered count."""
    store = await made_of_three()
    found = await store.get(tree.CLUSTER)
    assert isinstance(found, Ok)
    before = msgspec.structs.replace(codec.decode_cluster(found.value.data), founders=())
    assert b"founders" not in codec.encode_cluster(before)
    await store.multi((SetData(tree.CLUSTER, codec.encode_cluster(before)),))
    with pytest.raises(ConfigError, match="found one of r1, r2, r3, r4 at this root"):
        await require_own_cluster(store, THREE)
    await store.multi((Delete(f"{tree.REPLICAS}/r4", 0),))
    await require_own_cluster(store, THREE)
