"""A tree that is made again, under every fault at every request."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.support.clusters.boots import R1, R2, any_request, paths
from tidelock.csnlog import tree_maker
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, TableName
from tidelock.csnlog.core.model import (
    STOPPED,
    STRUCK,
    ClusterState,
    LabelState,
    Progress,
    RecordKind,
    SessionState,
)
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Create, Delete, Op
from tidelock.csnlog.testing.memory_store import (
    FaultPlan,
    MemoryEnsemble,
    RequestFault,
    StoreRequest,
    nth,
    random_faults,
)
from tidelock.csnlog.tree_maker import Seat, TreePlan, make_again
from tidelock.errors import ConfigError, UnavailableError

PLAN = TreePlan(
    cluster=ClusterState("c", 1, 2, 100, "new", {"disk 1": Csn(41), "disk 2": Csn(40)}),
    end=Csn(41),
    horizon=Csn(7),
    home=R1,
    time_ms=1_000,
    seats={
        R1: Seat(SessionState(3, "disk 1", "", STOPPED), Progress(Csn(41), Csn(41))),
        R2: Seat(SessionState(4, "disk 2", "", STRUCK), Progress(Csn(40), Csn(40))),
    },
    tables={TableName("t"): ({"v": 1}, {"v": 2}, {"v": 3}), TableName("u"): ({"v": 1},)},
    labels={"job": LabelState("4-r1-1-1", None)},
    skips=(),
)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_maker, "_RETRY_S", 0.0)


async def made(plan: FaultPlan | None = None, patience_s: float = 5.0) -> MemoryEnsemble:
    """Return servers on which the tree was made, over one that was there before."""
    ensemble = MemoryEnsemble()
    store = ensemble.store("before")
    for path in (tree.CLUSTER, tree.REPLICAS, tree.replica(R1), tree.LABELS, tree.label("old")):
        assert isinstance(await store.multi((Create(path, b"old"),)), Ok)
    ensemble.plan = plan
    await make_again(ensemble.store("rebuild"), PLAN, patience_s=patience_s)
    ensemble.plan = None
    return ensemble


async def contents(ensemble: MemoryEnsemble) -> dict[str, tuple[bytes, int]]:
    """Return the data and version of each znode."""
    store = ensemble.store("reader")
    found = {}
    for path in paths(ensemble) - {""}:
        answer = await store.get(path)
        assert isinstance(answer, Ok)
        found[path] = (answer.value.data, answer.value.version)
    return found


async def test_the_tree_is_that_of_the_plan() -> None:
    """The tree that was there is gone; a table has the version of its last definition."""
    found = await contents(await made())
    assert codec.decode_cluster(found[tree.CLUSTER][0]) == PLAN.cluster
    assert found[tree.table(TableName("t"))] == (codec.encode_definition({"v": 3}), 2)
    assert tree.label("old") not in found
    assert PLAN.cluster.closed == Csn(42)
    assert codec.decode_record(found[tree.record(Csn(42))][0]).kind is RecordKind.END


@pytest.mark.parametrize("fault", RequestFault)
async def test_one_fault_at_any_request_changes_nothing(fault: RequestFault) -> None:
    """A lost request, a lost answer or a lost session leads to the same tree."""
    whole = await contents(await made())
    number = 0
    fired = True
    while fired:
        number += 1
        fired = False
        once = nth(number, fault, any_request)

        def plan(call: StoreRequest, once: FaultPlan = once) -> RequestFault | None:
            nonlocal fired
            found = once(call)
            fired = fired or found is not None
            return found

        assert await contents(await made(plan)) == whole
    assert number > 20


@pytest.mark.parametrize("seed", range(20))
async def test_many_faults_change_nothing(seed: int) -> None:
    """A third of the requests fail."""
    faults = random_faults(random.Random(seed), rate=0.3)
    assert await contents(await made(faults)) == await contents(await made())


async def test_servers_that_stay_away_end_the_command() -> None:
    """A request is repeated for a bounded time, whichever it is."""
    whole = 0

    def count(_: object) -> None:
        nonlocal whole
        whole += 1

    await made(count)
    for last in range(0, whole, 3):
        well = iter(range(last))

        def plan(_: StoreRequest, well: Iterator[int] = well) -> RequestFault | None:
            return RequestFault.REQUEST_LOST if next(well, None) is None else None

        with pytest.raises(UnavailableError, match="does not answer"):
            await made(plan, patience_s=0.0)


@pytest.mark.parametrize(
    "meddle",
    [Create(tree.table(TableName("t")), b"foreign"), Delete(tree.TABLES, -1)],
    ids=["a znode that appears", "a folder that goes"],
)
async def test_a_foreign_writer_ends_the_command(meddle: Op) -> None:
    """A foreign write below the root is an error, not a loop."""
    ensemble = MemoryEnsemble()

    def plan(call: StoreRequest) -> None:
        if any(op.path == tree.table(TableName("t")) for op in call.ops):
            assert isinstance(ensemble.write((meddle,), 0), Ok)

    ensemble.plan = plan
    with pytest.raises(ConfigError, match="nothing else writes"):
        await make_again(ensemble.store("rebuild"), PLAN, patience_s=5.0)
