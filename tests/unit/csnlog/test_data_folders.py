"""The owner of an id: the data folder that has it, and the starts that take it over or are refused."""

from __future__ import annotations

import pytest

from tests.support.clusters.boots import MEMBER, R1, SETTINGS, begin, put_session, shown
from tests.support.zookeeper.store_suite import done
from tidelock.csnlog.cluster import bootstrap as bootstrap_module
from tidelock.csnlog.cluster.bootstrap import KnownState, bootstrap
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.model import CLONING, SERVING, STRUCK, ClusterState, SessionState
from tidelock.csnlog.core.store import SetData
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, StoreRequest
from tidelock.errors import ConfigError


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


@pytest.mark.parametrize("living", [True, False])
async def test_an_empty_folder_takes_a_known_id_only_by_order(
    ensemble: MemoryEnsemble, cluster: ClusterState, living: bool
) -> None:
    """The error names the former disk, its address, and whether its agent lives (finding 8)."""
    former = ensemble.store()
    own = await begin(former)
    if not living:
        ensemble.end_session(former.session)
    words = "lives" if living else "shows no sign of life"
    with pytest.raises(ConfigError, match=f"disk disk1 at h1:1, .*{words}.* disk2\\. .*--replace-disk"):
        await begin(ensemble.store(), disk="disk2", replace_disk=False)
    assert await shown(ensemble.store()) == (own.state, own.fence)
    assert (await begin(ensemble.store(), replace_disk=False)).boot == 2
    assert (await begin(ensemble.store(), disk="disk2", replace_disk=True)).disk == "disk2"


@pytest.mark.parametrize("living", [True, False])
async def test_a_folder_that_has_lost_its_id_does_not_get_it_back(
    ensemble: MemoryEnsemble, cluster: ClusterState, living: bool
) -> None:
    """Of two folders that take one id by order the last one keeps it, also while it clones (I1)."""
    store = ensemble.store()
    await put_session(store, SERVING)  # on disk1
    await done(store, SetData(tree.TAIL, codec.encode_csn(Csn(5))))
    winner = ensemble.store()
    own = await begin(winner, disk="disk2", suffix=lambda: "x")
    assert own.disk == "disk2.x"
    if not living:  # between the boot that has cloned and the next one
        ensemble.end_session(winner.session)
    former = KnownState(boot=3, last_csn=Csn(1), disk="disk1")
    with pytest.raises(ConfigError, match=r"disk2\.x at h1:1, .*never gets it back") as refused:
        await begin(ensemble.store(), known=former)
    assert refused.value.details["api"] == MEMBER.api
    assert await shown(ensemble.store()) == (own.state, own.fence)
    for disk in ("disk2", "disk2.x"):  # before and after its clone is installed
        known = KnownState(boot=own.boot, last_csn=Csn(1), disk=disk)
        assert (await begin(ensemble.store(), disk=disk, known=known, replace_disk=False)).boot > own.boot


async def test_a_start_takes_over_from_the_owner_that_it_has_met_alone(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """Two empty folders start by order at once: the one that is fenced in its start names the other."""
    await begin(ensemble.store())
    raised: list[StoreRequest] = []

    def plan(call: StoreRequest) -> None:
        if not raised and any(op.path == tree.session(R1) for op in call.ops or ()):
            raised.append(call)
            third = SessionState(2, "disk3", "third", SERVING)
            ensemble.tree.apply((SetData(tree.session(R1), codec.encode_session(third)),), 0)

    ensemble.plan = plan
    with pytest.raises(ConfigError, match="found one on disk disk3 at h1:1"):
        await begin(ensemble.store(), disk="disk2")


@pytest.mark.parametrize("state", [CLONING, STRUCK])
async def test_the_clone_of_an_earlier_version_goes_on(
    ensemble: MemoryEnsemble, cluster: ClusterState, state: str
) -> None:
    """It gave its folder an id that does not tell the folder, so the folder that knows of a boot goes on."""
    await put_session(ensemble.store(), state)
    known = KnownState(boot=3, disk="disk0")
    assert (await begin(ensemble.store(), disk="disk0", known=known, replace_disk=False)).clone
    with pytest.raises(ConfigError, match="--replace-disk"):
        await begin(ensemble.store(), disk="disk9", replace_disk=False)
