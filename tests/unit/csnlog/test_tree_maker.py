"""A tree that is made again, under every fault at every request."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.support.clusters.boots import R1, R2, any_request, begin, paths
from tidelock.csnlog import patience, tree_maker
from tidelock.csnlog.cluster.bootstrap import KnownState
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.model import (
    CLONING,
    SERVING,
    STOPPED,
    STRUCK,
    ClusterState,
    LabelState,
    Progress,
    RecordKind,
    SessionState,
)
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Create, Delete, Op, multi_bytes
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

MULTI_BYTES = 512 * 1024
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
    tables={TableId("t"): ({"v": 1}, {"v": 2}, {"v": 3}), TableId("u"): ({"v": 1},)},
    labels={"job": LabelState("4-r1-1-1", None)},
    skips=(),
    skipped=(),
    tags={"2026Q3": Csn(9)},
)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_maker, "RETRY_S", 0.0)
    monkeypatch.setattr(patience, "RETRY_S", 0.0)


async def made(plan: FaultPlan | None = None, patience_s: float = 5.0) -> MemoryEnsemble:
    """Return servers on which the tree was made, over one that was there before."""
    ensemble = MemoryEnsemble()
    store = ensemble.store("before")
    for path in (tree.CLUSTER, tree.REPLICAS, tree.replica(R1), tree.LABELS, tree.label("old")):
        assert isinstance(await store.multi((Create(path, b"old"),)), Ok)
    ensemble.plan = plan
    await make_again(ensemble.store("rebuild"), PLAN, patience_s=patience_s, multi_bytes_max=MULTI_BYTES)
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
    assert found[tree.table(TableId("t"))] == (codec.encode_definition({"v": 3}), 2)
    assert tree.label("old") not in found
    assert codec.decode_tags(found[tree.TAGS][0]) == {"2026Q3": 9}
    assert PLAN.cluster.closed == Csn(42)
    assert codec.decode_record(found[tree.record(Csn(42))][0]).kind is RecordKind.END


async def test_a_source_starts_on_it_whatever_it_has_noted_before() -> None:
    """It had noted tail, horizon and a clone of the tree before, and what is gone with that tree."""
    ensemble = await made()
    known = KnownState(
        cluster_id="c",
        boot=3,
        fence=7,
        tail=Csn(50),
        last_csn=Csn(41),
        horizon=Csn(45),
        disk="disk 1",
        clone="the log begins behind it",
        incarnation="old",
    )
    own = await begin(ensemble.store("r1"), R1, known=known, disk="disk 1")
    assert (own.state.state, own.clone, own.tail, own.horizon) == (SERVING, "", Csn(42), Csn(7))
    behind = replace(known, last_csn=Csn(40), boot=4, disk="disk 2")
    other = await begin(ensemble.store("r2"), R2, known=behind, disk="disk 2")
    assert (other.state.state, other.clone) == (CLONING, "it was struck")


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
    [Create(tree.table(TableId("t")), b"foreign"), Delete(tree.TABLES, -1)],
    ids=["a znode that appears", "a folder that goes"],
)
async def test_a_foreign_writer_ends_the_command(meddle: Op) -> None:
    """A foreign write below the root is an error, not a loop."""
    ensemble = MemoryEnsemble()

    def plan(call: StoreRequest) -> None:
        if any(op.path == tree.table(TableId("t")) for op in call.ops):
            assert isinstance(ensemble.write((meddle,), 0), Ok)

    ensemble.plan = plan
    with pytest.raises(ConfigError, match="nothing else writes"):
        await make_again(ensemble.store("rebuild"), PLAN, patience_s=5.0, multi_bytes_max=MULTI_BYTES)


async def test_a_large_tree_needs_few_requests_and_no_task_of_its_own() -> None:
    """Thousands of labels, over thousands that were there: hundreds in a request, one after the other."""
    ensemble = MemoryEnsemble()
    store = ensemble.store("before")
    await store.multi((Create(tree.LABELS),))
    for begin_at in range(0, 3000, 1000):
        old = (Create(f"{tree.LABELS}/old{number}") for number in range(begin_at, begin_at + 1000))
        assert isinstance(await store.multi(tuple(old)), Ok)
    tasks = requests = 0

    def plan(_: StoreRequest) -> None:
        nonlocal tasks, requests
        tasks, requests = max(tasks, len(asyncio.all_tasks())), requests + 1

    ensemble.plan = plan
    labels = {f"job {number}": LabelState("4-r1-1-1", None) for number in range(3000)}
    large = replace(PLAN, labels=labels)
    await make_again(ensemble.store("rebuild"), large, patience_s=5.0, multi_bytes_max=MULTI_BYTES)
    assert tasks == 1
    assert requests < 100
    names = await ensemble.store("reader").children(tree.LABELS)
    assert isinstance(names, Ok)
    assert len(names.value) == 3000


async def test_a_folder_that_is_filled_again_and_again_ends_the_command() -> None:
    """The deletion has the same patience as every request."""
    ensemble = MemoryEnsemble()
    assert isinstance(await ensemble.store("before").multi((Create(tree.LABELS),)), Ok)
    numbers = itertools.count()

    def plan(call: StoreRequest) -> None:
        if Delete(tree.LABELS, -1) in call.ops:
            assert isinstance(ensemble.write((Create(f"{tree.LABELS}/{next(numbers)}"),), 0), Ok)

    ensemble.plan = plan
    with pytest.raises(ConfigError, match="nothing else writes"):
        async with asyncio.timeout(5.0):
            await make_again(ensemble.store("rebuild"), PLAN, patience_s=0.0, multi_bytes_max=MULTI_BYTES)


@pytest.mark.parametrize("size", [1, 700, MULTI_BYTES])
async def test_a_request_is_never_too_large(size: int) -> None:
    """Each request has at most so many bytes, unless a single znode needs more."""
    ensemble = MemoryEnsemble()
    sizes: list[int] = []

    def plan(call: StoreRequest) -> None:
        if len(call.ops) > 1 and any(op.path.startswith(tree.LABELS + "/") for op in call.ops):
            sizes.append(multi_bytes(call.ops))

    ensemble.plan = plan
    large = replace(PLAN, labels={f"job {number}": LabelState("4-r1-1-1", None) for number in range(20)})
    await make_again(ensemble.store("rebuild"), large, patience_s=5.0, multi_bytes_max=size)
    assert all(one <= size for one in sizes)
    assert bool(sizes) is (size > 1)
