"""Changes of the members: what each writes, when it is refused, and that a lost answer does no harm."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from tests.support.clusters.log_node import LogNode, make_cluster
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId
from tidelock.csnlog.core.model import Progress, ReplicaPhase, Roster, SessionState
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import SetData
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, RequestFault, StoreRequest
from tidelock.errors import ConfigError, FencedError, MembershipError
from tidelock.replication.core.membership_rules import (
    AddReplica,
    DrainReplica,
    MemberChange,
    RemoveReplica,
    ReplaceReplica,
    SetCopies,
    StrikeReplica,
)
from tidelock.replication.membership import MemberChanges

R1, R2, R3, R4 = (ReplicaId(name) for name in ("r1", "r2", "r3", "r4"))


class Shard:
    """Three agents' sessions and logs over one ensemble, and the changes that r1 makes."""

    def __init__(self, ensemble: MemoryEnsemble, nodes: dict[ReplicaId, LogNode]) -> None:
        self.ensemble, self.nodes = ensemble, nodes
        numbers = itertools.count()
        node = nodes[R1]
        self.changes = MemberChanges(
            replica=R1,
            cluster=node.own.cluster,
            store=node.store,
            fenced=node.log.fenced,
            end=node.log.barrier,
            lag_max=10,
            patience_s=0.2,
            nonce=lambda: f"change-{next(numbers)}",
        )

    async def make(self, change: MemberChange) -> bool:
        """Make a change."""
        return await self.changes.make(change)

    async def session(self, replica: ReplicaId) -> SessionState:
        """Return a replica's session."""
        found = await self.ensemble.store().get(tree.session(replica))
        assert isinstance(found, Ok)
        return codec.decode_session(found.value.data)

    async def roster(self) -> tuple[int, Roster | None]:
        """Return version and content of the roster."""
        found = await self.ensemble.store().get(tree.REPLICAS)
        assert isinstance(found, Ok)
        return found.value.version, codec.decode_roster(found.value.data) if found.value.data else None

    async def publish(self, *, phase: ReplicaPhase = ReplicaPhase.FOLLOWING, **snapshots: int) -> None:
        """Publish progress."""
        for replica, snapshot in snapshots.items():
            data = codec.encode_progress(Progress(Csn(snapshot), Csn(snapshot), phase=phase))
            await self.ensemble.store().multi((SetData(tree.progress(ReplicaId(replica)), data),))

    def silence(self, replica: ReplicaId) -> None:
        """End a replica's ZooKeeper session."""
        self.ensemble.end_session(self.nodes[replica].store.session)


@pytest.fixture
async def shard() -> AsyncIterator[Shard]:
    """Three replicas that are well, and `copies` 2."""
    ensemble = MemoryEnsemble()
    await make_cluster(ensemble.store(), (R1, R2, R3))
    async with AsyncExitStack() as stack:
        nodes = {
            name: await stack.enter_async_context(LogNode(ensemble.store(name), replica=name))
            for name in (R1, R2, R3)
        }
        made = Shard(ensemble, nodes)
        end = int(await nodes[R1].log.barrier())
        await made.publish(r1=end, r2=end, r3=end)
        yield made


async def test_a_strike_fences_and_leaves_the_others(shard: Shard) -> None:
    """Boot and fence are raised in one multi, the disk stays; made before, it writes nothing."""
    version, _ = await shard.roster()
    assert await shard.make(StrikeReplica(R3))
    assert await shard.session(R3) == SessionState(2, "disk-r3", "change-0", "struck")
    assert (await shard.roster())[0] == version + 1
    with pytest.raises(FencedError):
        await shard.nodes[R3].log.fenced(())
    assert not await shard.make(StrikeReplica(R3))
    assert (await shard.roster())[0] == version + 1


@pytest.mark.parametrize("change", [StrikeReplica(R3), RemoveReplica(R3), DrainReplica(R3)])
async def test_never_so_that_fewer_than_copies_are_left(shard: Shard, change: MemberChange) -> None:
    """With r2 silent r1 alone would be left (F7, F15): nothing is written."""
    shard.silence(R2)
    before = await shard.roster(), await shard.session(R3)
    with pytest.raises(
        MembershipError, match=r"at least copies=2 replicas that are well without r3, found 1"
    ):
        await shard.make(change)
    assert (await shard.roster(), await shard.session(R3)) == before


async def test_a_replica_that_lags_is_not_among_those_that_are_left(shard: Shard) -> None:
    """A replica that could not give copies soon does not count as well."""
    for number in range(1, 13):
        await shard.nodes[R1].commit(number)
    end = int(await shard.nodes[R1].log.barrier())
    await shard.publish(r1=end, r2=end - 11)
    with pytest.raises(MembershipError, match="found 1"):
        await shard.make(StrikeReplica(R3))
    await shard.publish(r2=end - 10)
    with pytest.raises(MembershipError, match=f"up to CSN {end}, at least 2, found 1 .*: r2 at {end - 10}"):
        await shard.make(StrikeReplica(R3))
    await shard.publish(r2=end)
    assert await shard.make(StrikeReplica(R3))


@pytest.mark.parametrize("change", [StrikeReplica(R3), RemoveReplica(R3), ReplaceReplica(R3, R4)])
async def test_a_replica_leaves_when_others_have_all_that_it_has(shard: Shard, change: MemberChange) -> None:
    """It may hold a copy of a commit that r2 is still to fetch, and the next change takes the other."""
    for number in range(1, 4):
        await shard.nodes[R3].commit(number)
    end = int(await shard.nodes[R1].log.barrier())
    await shard.publish(r1=end, r2=end - 1)
    before = await shard.roster(), await shard.session(R3)
    with pytest.raises(MembershipError, match=r"without r3 that have all commits up to CSN .*, at least 2,"):
        await shard.make(change)
    await shard.publish(r2=end, phase=ReplicaPhase.STARTING)  # a clone that still fetches its parts
    with pytest.raises(MembershipError, match=f"r2 at {end}"):
        await shard.make(change)
    assert (await shard.roster(), await shard.session(R3)) == before
    leaving = asyncio.create_task(shard.make(change))
    await asyncio.sleep(0.06)
    assert not leaving.done()
    await shard.publish(r2=end)
    assert await leaving


@pytest.mark.parametrize("change", [RemoveReplica(R3), ReplaceReplica(R3, R4)])
async def test_a_struck_replica_leaves_when_another_one_has_all(shard: Shard, change: MemberChange) -> None:
    """A rebuild strikes a replica that is behind. The others may still fetch parts that it alone has."""
    assert await shard.make(StrikeReplica(R3))
    shard.silence(R2)
    end = int(await shard.nodes[R1].log.barrier())
    await shard.publish(r1=end, phase=ReplicaPhase.STARTING)
    with pytest.raises(MembershipError, match=f"replicas without r3 .* at least 1, .*: r1 at {end}"):
        await shard.make(change)
    await shard.publish(r1=end)
    assert await shard.make(change)
    assert (await shard.session(R3)).state == "removed"


async def test_a_struck_replica_leaves_while_the_other_one_drains(shard: Shard) -> None:
    """The one that drains has all, and is removed only when others have it."""
    assert await shard.make(StrikeReplica(R3))
    draining = codec.encode_roster(Roster(copies=2, draining=(R2,)))
    assert isinstance(await shard.ensemble.store().multi((SetData(tree.REPLICAS, draining),)), Ok)
    end = int(await shard.nodes[R1].log.barrier())
    await shard.publish(r1=end, phase=ReplicaPhase.STARTING)
    await shard.publish(r2=end)
    assert await shard.make(RemoveReplica(R3))


async def test_two_strikes_at_once_do_not_pass_each_other(shard: Shard) -> None:
    """r2 strikes r3 between the read and the multi of r1, which would leave r1 alone."""
    made: list[StoreRequest] = []
    struck = SessionState(2, "disk-r3", "by r2", "struck")

    def plan(call: StoreRequest) -> None:
        if not made and any(op.path == tree.session(R2) for op in call.ops):
            made.append(call)
            shard.ensemble.tree.apply(
                (SetData(tree.session(R3), codec.encode_session(struck)), SetData(tree.REPLICAS)), 0
            )

    shard.ensemble.plan = plan
    with pytest.raises(MembershipError):
        await shard.make(StrikeReplica(R2))
    assert made
    assert (await shard.session(R2)).state == "serving"


async def test_a_removed_id_is_never_used_again(shard: Shard) -> None:
    """Its session stays, and neither a registration nor a start takes the id."""
    assert await shard.make(RemoveReplica(R3))
    assert not await shard.make(RemoveReplica(R3))
    assert (await shard.session(R3)).state == "removed"
    with pytest.raises(MembershipError, match="never used again"):
        await shard.make(AddReplica(R3))
    with pytest.raises(ConfigError, match="never used again"):
        async with LogNode(shard.ensemble.store(), replica=R3):
            pass


async def test_a_replica_that_is_registered_serves_from_the_end_of_the_log_on(shard: Shard) -> None:
    """Locks of removals that the others have applied are gone, so it must know of all of these (I7)."""
    for number in range(1, 6):
        await shard.nodes[R1].commit(number)
    end = await shard.nodes[R1].log.barrier()
    assert await shard.make(AddReplica(R4, rack="b"))
    assert not await shard.make(AddReplica(R4))
    found = await shard.ensemble.store().get(tree.progress(R4))
    assert isinstance(found, Ok)
    assert codec.decode_progress(found.value.data) == Progress(CSN_NONE, CSN_NONE, (), end)
    assert (await shard.session(R4)).state == "stopped"
    async with LogNode(shard.ensemble.store(), replica=R4) as node:
        assert node.own.published_max == end


async def test_progress_that_moves_during_a_registration_makes_it_read_again(shard: Shard) -> None:
    """Locks may be deleted by progress that is newer than the end that was read: then a newer end counts."""
    moved: list[StoreRequest] = []
    late: list[Csn] = []

    async def end() -> Csn:
        late.append(await shard.nodes[R1].log.barrier())
        return late[-1]

    def plan(call: StoreRequest) -> None:
        if not moved and any(op.path == tree.progress(R4) for op in call.ops):
            moved.append(call)
            data = codec.encode_progress(Progress(Csn(99), Csn(99)))
            shard.ensemble.tree.apply((SetData(tree.progress(R1), data),), 0)

    shard.changes = replace(shard.changes, end=end)
    shard.ensemble.plan = plan
    assert await shard.make(AddReplica(R4))
    found = await shard.ensemble.store().get(tree.progress(R4))
    assert isinstance(found, Ok)
    assert moved
    assert len(late) == 2
    assert codec.decode_progress(found.value.data).published_max == 99


async def test_a_replacement_is_one_step(shard: Shard) -> None:
    """The old id goes and the new one comes in one multi; repeated, it changes nothing."""
    version, _ = await shard.roster()
    shard.silence(R3)
    assert await shard.make(ReplaceReplica(R3, R4))
    assert ((await shard.session(R3)).state, (await shard.session(R4)).state) == ("removed", "stopped")
    assert (await shard.roster())[0] == version + 1
    assert not await shard.make(ReplaceReplica(R3, R4))


async def test_a_drain_is_kept_in_the_roster_and_taken_back(shard: Shard) -> None:
    """Homes count no copies of a draining replica; a removal ends the drain."""
    assert await shard.make(DrainReplica(R3))
    assert (await shard.roster())[1] == Roster(2, draining=(R3,))
    assert not await shard.make(DrainReplica(R3))
    assert await shard.make(DrainReplica(R3, undo=True))
    assert (await shard.roster())[1] == Roster(2)
    await shard.make(DrainReplica(R3))
    await shard.make(RemoveReplica(R3))
    assert (await shard.roster())[1] == Roster(2)


async def test_copies_go_up_only_as_far_as_replicas_are_well(shard: Shard) -> None:
    """More copies than replicas that are well would end all commits; one copy is for a single replica."""
    assert await shard.make(SetCopies(3))
    assert not await shard.make(SetCopies(3))
    assert (await shard.roster())[1] == Roster(3)
    with pytest.raises(MembershipError, match="at least 4 replicas"):
        await shard.make(SetCopies(4))
    with pytest.raises(MembershipError, match="loss of one disk"):
        await shard.make(SetCopies(1))
    with pytest.raises(MembershipError, match="without r3, found 2"):
        await shard.make(StrikeReplica(R3))
    assert await shard.make(SetCopies(2))
    with pytest.raises(MembershipError, match="registered replica, found r9"):
        await shard.make(StrikeReplica(ReplicaId("r9")))
    with pytest.raises(MembershipError, match="cannot take itself out"):
        await shard.make(StrikeReplica(R1))


async def test_copies_of_one_rack_count_once(shard: Shard) -> None:
    """Two replicas of one rack are one copy, so racks are refused where too few racks are well."""
    member = await shard.ensemble.store().get(tree.replica(R1))
    assert isinstance(member, Ok)
    one_rack = codec.encode_member(codec.decode_member(member.value.data).__class__(rack="a"))
    for replica in (R1, R2, R3):
        await shard.ensemble.store().multi((SetData(tree.replica(replica), one_rack),))
    with pytest.raises(MembershipError, match="at least 2 racks that are well, found 1"):
        await shard.make(SetCopies(2, racks=True))
    other = codec.encode_member(codec.decode_member(member.value.data).__class__(rack="b"))
    await shard.ensemble.store().multi((SetData(tree.replica(R3), other),))
    assert await shard.make(SetCopies(2, racks=True))
    with pytest.raises(MembershipError, match="without r3, found 1"):
        await shard.make(StrikeReplica(R3))


_CHANGES = (StrikeReplica(R3), RemoveReplica(R3), AddReplica(R4), ReplaceReplica(R3, R4), DrainReplica(R3))


@pytest.mark.parametrize("change", _CHANGES, ids=lambda change: type(change).__name__)
@pytest.mark.parametrize("fault", list(RequestFault))
async def test_a_lost_answer_does_no_harm(shard: Shard, change: MemberChange, fault: RequestFault) -> None:
    """Whatever happens to its multi, the change is made once and is answered as made."""
    version, _ = await shard.roster()
    faults: list[StoreRequest] = []

    def plan(call: StoreRequest) -> RequestFault | None:
        if not faults and any(op.path == tree.REPLICAS for op in call.ops):
            faults.append(call)
            return fault
        return None

    shard.ensemble.plan = plan
    assert await shard.make(change)
    shard.ensemble.deliver_late()
    assert faults
    assert (await shard.roster())[0] == version + 1
    assert not await shard.make(change)
