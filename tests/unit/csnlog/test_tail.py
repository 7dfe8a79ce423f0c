"""The tail: how far it may move, which replicas hold it, and the rest of an interrupted deletion."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.support.clusters.log_node import R1, R2, R3, LogNode, make_cluster
from tidelock.csnlog import tail
from tidelock.csnlog.cluster.replica_progress import locks_needed_from
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.batch import LogLimits
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, csn
from tidelock.csnlog.core.model import Progress
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Create, Delete, SetData
from tidelock.csnlog.reading import read_tail
from tidelock.csnlog.tail import delete_below, move_tail, tail_after
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, MemoryStore, RequestFault, StoreRequest


@pytest.mark.parametrize(
    ("applied", "keep", "present", "last_of", "expected"),
    [
        pytest.param(Csn(9), 1, Csn(0), {}, Csn(9), id="the last record stays"),
        pytest.param(Csn(9), 4, Csn(0), {}, Csn(6), id="four stay"),
        pytest.param(Csn(9), 10, Csn(0), {}, Csn(0), id="all stay"),
        pytest.param(Csn(9), 11, Csn(0), {}, Csn(0), id="there are no more"),
        pytest.param(Csn(9), 4, Csn(7), {}, Csn(7), id="never back"),
        pytest.param(csn(1, 2), 3, csn(0, 5), {}, csn(1, 0), id="exactly this epoch"),
        pytest.param(csn(1, 2), 5, csn(0, 5), {0: 20}, csn(0, 19), id="into the epoch before"),
        pytest.param(csn(2, 0), 5, csn(0, 5), {1: 2, 0: 20}, csn(0, 20), id="over an epoch"),
        pytest.param(csn(1, 2), 5, csn(1, 0), {}, csn(1, 0), id="not behind the epoch of the tail"),
        pytest.param(csn(1, 2), 5, csn(0, 5), {}, csn(0, 5), id="an epoch of which nothing is left"),
        pytest.param(Csn(0), 1, Csn(0), {}, Csn(0), id="a replica that has nothing"),
    ],
)
def test_how_far_the_tail_may_go(
    applied: Csn, keep: int, present: Csn, last_of: dict[int, int], expected: Csn
) -> None:
    """The set number of records stays below the CSN of the slowest replica, across epochs."""
    assert tail_after(applied, keep, present, last_of) == expected


class World:
    """Three replicas, of which the first moves the tail."""

    def __init__(self, ensemble: MemoryEnsemble, store: MemoryStore, node: LogNode) -> None:
        self.ensemble, self.store, self.node = ensemble, store, node

    async def publish(self, **applied: int) -> None:
        """Let replicas publish their progress."""
        for replica, at in applied.items():
            data = codec.encode_progress(Progress(Csn(at), Csn(at)))
            assert isinstance(await self.store.multi((SetData(tree.progress(ReplicaId(replica)), data),)), Ok)

    async def move(self, keep: int) -> Csn | None:
        """Move the tail."""
        return await move_tail(self.store, self.node.log.fenced, keep)

    async def delete(self, at: Csn) -> bool:
        """Delete the records below the tail."""
        return await delete_below(self.store, self.node.log.fenced, at)

    async def records(self, epoch: int = 0) -> list[int]:
        """Return the numbers of the records that are left in an epoch."""
        names = await self.ensemble.store().children(tree.epoch_dir(epoch))
        return sorted(map(tree.sequence_of_name, names.value)) if isinstance(names, Ok) else []


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Twelve commits in epochs of six records and an END."""
    ensemble = MemoryEnsemble()
    store = ensemble.store("r1")
    await make_cluster(store, (R1, R2, R3))
    async with LogNode(store, limits=LogLimits(epoch_limit=6, read_ahead=4)) as node:
        for number in range(1, 13):
            await node.commit(number)
        yield World(ensemble, store, node)


async def test_the_slowest_replica_holds_the_tail(world: World) -> None:
    """A replica that never started holds the tail too; a struck one does not."""
    await world.publish(r1=csn(1, 3), r2=csn(1, 1))
    assert await world.move(1) == 0
    await world.publish(r3=4)
    assert await world.move(1) == 4
    assert await world.move(3) == 4
    session = await world.store.get(tree.session(R3))
    assert isinstance(session, Ok)
    struck = codec.encode_session(
        codec.decode_session(session.value.data).__class__(boot=1, disk="", nonce="", state="struck")
    )
    await world.store.multi((SetData(tree.session(R3), struck),))
    assert await world.move(1) == csn(1, 1)


async def test_a_replica_that_comes_back_is_not_left_out(world: World) -> None:
    """A replica that is struck at the check and back before the move makes the multi fail."""
    await world.publish(r1=5, r2=5)
    session = await world.store.get(tree.session(R3))
    assert isinstance(session, Ok)
    state = codec.decode_session(session.value.data)
    struck = codec.encode_session(state.__class__(boot=0, disk="", nonce="", state="struck"))
    await world.store.multi((SetData(tree.session(R3), struck),))

    async def comes_back(ops: tuple[object, ...]) -> object:
        await world.ensemble.store().multi((SetData(tree.session(R3), session.value.data),))
        return await world.node.log.fenced(ops)  # type: ignore[arg-type]

    assert await move_tail(world.store, comes_back, 1) is None  # type: ignore[arg-type]
    assert await read_tail(world.store) == CSN_NONE


async def _set_state(world: World, state: str) -> None:
    session = await world.store.get(tree.session(R3))
    assert isinstance(session, Ok)
    changed = msgspec.structs.replace(codec.decode_session(session.value.data), state=state)
    await world.ensemble.store().multi((SetData(tree.session(R3), codec.encode_session(changed)),))


@pytest.mark.parametrize("state", ["struck", "removed"])
async def test_a_replica_that_is_left_out_keeps_no_lock(world: World, state: str) -> None:
    """Once all others have applied a removal its lock may go, however many records the tail leaves."""
    await world.publish(r1=9, r2=7)
    assert await locks_needed_from(world.store, Csn(3)) == 3
    await _set_state(world, state)
    assert await locks_needed_from(world.store, Csn(3)) == 8


async def test_a_replaced_disk_needs_no_lock_that_went_before(world: World) -> None:
    """It takes no transaction before it is where it was, so the audit misses no lock that went then."""
    await world.publish(r1=9, r2=7, r3=8)
    assert await locks_needed_from(world.store, Csn(3)) == 8
    data = codec.encode_progress(Progress(CSN_NONE, CSN_NONE, published_max=Csn(8)))
    await world.ensemble.store().multi((SetData(tree.progress(R3), data),))
    assert await locks_needed_from(world.store, Csn(3)) == 8


@pytest.mark.parametrize("comes", ["back", "new"])
async def test_a_replica_that_comes_while_progress_is_read_keeps_the_locks(world: World, comes: str) -> None:
    """It serves from the end of the log at its registration on, which the progress read last may exceed."""
    await world.publish(r1=9, r2=7)
    await _set_state(world, "struck")
    registered: list[StoreRequest] = []

    def registers(call: StoreRequest) -> None:
        if not registered and call.path == tree.progress(R1):
            registered.append(call)
            if comes == "back":
                session = world.ensemble.tree.get(tree.session(R3))
                assert session is not None
                data = msgspec.structs.replace(codec.decode_session(session.node.data), state="cloning")
                world.ensemble.tree.apply((SetData(tree.session(R3), codec.encode_session(data)),), 0)
            else:
                world.ensemble.tree.apply((Create(f"{tree.REPLICAS}/r4"),), 0)

    world.ensemble.plan = registers
    assert await locks_needed_from(world.store, Csn(3)) is None
    assert registered


async def test_records_and_empty_epochs_go(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records below the tail and empty epochs are deleted in bounded requests; others stay."""
    monkeypatch.setattr(tail, "DELETES_MAX", 2)
    await world.publish(r1=csn(2, 1), r2=csn(2, 1), r3=csn(2, 1))
    moved = await world.move(4)
    assert moved == csn(1, 5)
    assert await world.delete(moved)
    assert (await world.records(0), await world.records(1)) == ([], [5, 6])
    names = await world.store.children(tree.CSN)
    assert isinstance(names, Ok)
    assert "0" not in names.value
    assert {"1", "2"} <= set(names.value)
    assert await world.delete(moved)  # again: nothing is left to delete


async def test_half_a_deletion_is_finished(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a half-done deletion the next agent lists the remaining records and deletes them."""
    monkeypatch.setattr(tail, "DELETES_MAX", 1)
    await world.publish(r1=5, r2=5, r3=5)
    moved = await world.move(1)
    assert moved == 5
    for number in (3, 1):
        await world.store.multi((Delete(tree.record(Csn(number)), 0),))
    assert await world.records() == [0, 2, 4, 5, 6]
    assert await world.delete(moved)
    assert await world.records() == [5, 6]


async def test_a_deletion_that_another_overtakes_ends(world: World) -> None:
    """A deletion that meets another one is refused as a whole; the next run goes on."""
    await world.publish(r1=5, r2=5, r3=5)
    assert await world.move(1) == 5
    overtaken = False

    def plan(call: StoreRequest) -> RequestFault | None:
        nonlocal overtaken
        if not overtaken and any(isinstance(op, Delete) for op in call.ops):
            overtaken = True
            world.ensemble.write((Delete(tree.record(Csn(2)), 0),), 0)
        return None

    world.ensemble.plan = plan
    assert not await world.delete(Csn(5))
    assert await world.records() == [0, 1, 3, 4, 5, 6]
    assert await world.delete(Csn(5))
    assert await world.records() == [5, 6]


async def test_a_quiet_log_is_left_alone(world: World) -> None:
    """The tail moves in steps of a hundredth of the kept records."""
    await world.publish(r1=5, r2=5, r3=5)
    assert await world.move(1) == 5
    await world.store.multi((Create("csn/0/other", b""),))
    await world.publish(r1=csn(1, 0), r2=csn(1, 0), r3=csn(1, 0))
    before = await read_tail(world.store)
    assert await world.move(200) == before
