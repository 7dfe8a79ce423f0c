"""The start of an agent's boot in ZooKeeper and its sign of life, under every fault at every request."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from tests.support.aio import until
from tests.support.clusters.boots import (
    MEMBER,
    R1,
    R9,
    SETTINGS,
    any_request,
    begin,
    paths,
    put_session,
    shown,
)
from tests.support.zookeeper.store_suite import done, node
from tidelock.csnlog.cluster import bootstrap as bootstrap_module
from tidelock.csnlog.cluster.bootstrap import KnownState, OwnSession, bootstrap, keep_alive, register
from tidelock.csnlog.cluster.replica_progress import read_progress
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.fence import seize
from tidelock.csnlog.core.ids import CSN_NONE, NO_STAMP, Csn
from tidelock.csnlog.core.imprint import Imprint
from tidelock.csnlog.core.model import (
    CLONING,
    REMOVED,
    SERVING,
    STRUCK,
    ClusterState,
    MemberState,
    Progress,
    ReplicaPhase,
    SessionState,
)
from tidelock.csnlog.core.results import Ok, Reason, Refused
from tidelock.csnlog.core.store import Check, Create, Delete, LinkState, Node, Op, SetData
from tidelock.csnlog.testing.memory_store import (
    MemoryEnsemble,
    MemoryStore,
    RequestFault,
    StoreRequest,
    nth,
    random_faults,
)
from tidelock.errors import ClusterMismatchError, ConfigError


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


# ------------------------------------------------------------------------------------------ beginning a boot


async def test_a_start_raises_boot_and_fence_and_shows_the_replica(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """Boot 1 has fence 1; addresses, disk and nonce are written, and the sign of life is of this session."""
    store = ensemble.store()
    own = await begin(store)
    assert own == OwnSession(R1, 1, "disk1", own.nonce, 1, cluster, CSN_NONE, CSN_NONE)
    assert await shown(store) == (own.state, 1)
    assert codec.decode_member((await node(store, tree.replica(R1))).data) == MEMBER
    alive = await node(store, tree.alive(R1))
    assert (alive.owner_session, alive.data) == (store.session, b"1")


async def test_a_second_start_fences_the_first(ensemble: MemoryEnsemble, cluster: ClusterState) -> None:
    """All further requests of the first boot are refused by its fence, also while its process still runs."""
    first, second = ensemble.store(), ensemble.store()
    former = await begin(first)
    own = await begin(second)
    assert (own.boot, own.fence) == (2, 2)
    late = (Check(tree.session(R1), former.fence), SetData(tree.HEAD))
    assert await first.multi(late) == Refused(Reason.BAD_VERSION, 0)
    assert isinstance(await second.multi((Check(tree.session(R1), own.fence), SetData(tree.HEAD))), Ok)


@pytest.mark.parametrize("fault", list(RequestFault))
@pytest.mark.parametrize("number", range(1, 21))
async def test_a_start_survives_a_fault_at_each_request(
    ensemble: MemoryEnsemble, cluster: ClusterState, fault: RequestFault, number: int
) -> None:
    """The raise is applied once, with any request lost or late, and its fence is the returned one."""
    store = ensemble.store()
    ensemble.plan = nth(number, fault, when=any_request)
    own = await begin(store)
    ensemble.plan = None
    ensemble.deliver_late()
    await until(lambda: store.link is LinkState.CONNECTED)
    assert (own.boot, own.fence) == (1, 1)
    assert await shown(store) == (own.state, own.fence)
    assert (await node(store, tree.alive(R1))).owner_session == store.session


@pytest.mark.parametrize("seed", range(40))
async def test_lives_that_begin_at_once_have_different_boots(
    ensemble: MemoryEnsemble, cluster: ClusterState, seed: int
) -> None:
    """Three processes with one id, and many faults: no boot twice, and the last one holds the fence."""
    ensemble.plan = random_faults(random.Random(seed), rate=0.4)
    lives = await asyncio.gather(*(begin(ensemble.store(f"s{n}")) for n in range(3)))
    ensemble.plan = None
    ensemble.deliver_late()
    assert len({life.boot for life in lives}) == 3
    last = max(lives, key=lambda life: life.boot)
    assert await shown(ensemble.store()) == (last.state, last.fence)


async def test_a_foreign_raise_in_the_middle_of_a_start(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """Another replica fences the silent one just as it comes back: the start goes above its boot."""
    raised: list[StoreRequest] = []

    def plan(call: StoreRequest) -> None:
        if not raised and call.ops and isinstance(call.ops[0], SetData):
            raised.append(call)
            fenced = SessionState(boot=7, disk="disk1", nonce="another", state="fenced")
            ensemble.tree.apply((SetData(tree.session(R1), codec.encode_session(fenced)),), 0)

    ensemble.plan = plan
    own = await begin(ensemble.store())
    assert raised
    assert (own.boot, own.fence) == (8, 2)
    assert (await shown(ensemble.store()))[0].state == "serving"


async def test_a_known_past_is_no_obstacle(ensemble: MemoryEnsemble, cluster: ClusterState) -> None:
    """A restart knows its last CSN; a ZooKeeper that is as new or newer is accepted."""
    own = await begin(ensemble.store())
    known = KnownState(cluster.cluster_id, own.boot, own.fence, CSN_NONE, Csn(1), CSN_NONE)
    assert (await begin(ensemble.store(), known=known)).boot == 2


async def test_a_record_below_the_tail_may_be_gone(ensemble: MemoryEnsemble, cluster: ClusterState) -> None:
    """A record below the tail was deleted by garbage collection: that is no sign of a restored ensemble."""
    store = ensemble.store()
    await done(store, SetData(tree.TAIL, codec.encode_csn(Csn(2))), Delete("csn/0/csn-0000000001", 0))
    own = await begin(store, known=KnownState(cluster.cluster_id, last_csn=Csn(1)))
    assert own.tail == 2


async def test_the_record_at_the_tail_must_be_there(ensemble: MemoryEnsemble, cluster: ClusterState) -> None:
    """Records are deleted below the tail only; a missing record at the tail was never written here."""
    store = ensemble.store()
    await done(store, SetData(tree.TAIL, codec.encode_csn(Csn(2))))
    with pytest.raises(ClusterMismatchError, match="record of CSN 2 does not exist"):
        await begin(store, known=KnownState(cluster.cluster_id, last_csn=Csn(2)))


async def test_a_look_that_spans_two_sessions_is_done_again(cluster: ClusterState) -> None:
    """Reads of a new session may be older than the former session's barrier, so they are repeated."""
    ensemble = MemoryEnsemble()
    await bootstrap(ensemble.store(), **SETTINGS)
    store = ensemble.store("starting")
    barriers: list[int] = []

    def plan(call: StoreRequest) -> None:
        if call.ops == (Check(tree.CLUSTER, 0),):
            barriers.append(call.number)

    async def turn() -> None:
        await asyncio.sleep(0)
        if len(barriers) == 1:
            barriers.append(0)
            store.expire()
            await until(lambda: store.link is LinkState.CONNECTED)

    ensemble.plan, ensemble.turn = plan, turn
    own = await begin(store)
    assert own.boot == 1
    # The first one, the mark of the expiry, and one for each of two complete checks.
    assert len(barriers) == 4


@pytest.mark.parametrize(
    ("known", "named"),
    [
        ({"boot": 2}, "boot is 1 and was 2"),
        ({"fence": 5}, "fence is 1 and was 5"),
        ({"tail": Csn(9)}, "tail is 0 and was 9"),
        ({"horizon": Csn(3)}, "horizon is 0 and was 3"),
        ({"last_csn": Csn(2)}, "record of CSN 2 does not exist"),
    ],
)
async def test_an_ensemble_older_than_the_catalog_is_refused(
    ensemble: MemoryEnsemble, cluster: ClusterState, known: dict[str, Any], named: str
) -> None:
    """One value that went back proves a restored ensemble, to which nothing may be written (S21)."""
    await begin(ensemble.store())
    before = ensemble.tree.copy()
    with pytest.raises(ClusterMismatchError, match=named):
        await begin(ensemble.store(), known=KnownState(cluster.cluster_id, **known))
    assert all(before.get(path) == ensemble.tree.get(path) for path in paths(ensemble))


@pytest.mark.scenario("S21")
async def test_a_restored_backup_is_refused(ensemble: MemoryEnsemble, cluster: ClusterState) -> None:
    """A backup from before two boots and some commits comes back under a running cluster."""
    backup = ensemble.tree.copy()
    await begin(ensemble.store())
    own = await begin(ensemble.store())
    ensemble.tree = backup
    known = KnownState(cluster.cluster_id, own.boot, own.fence)
    with pytest.raises(
        ClusterMismatchError, match="older than what replica r1 has seen: boot is 0 and was 2"
    ):
        await begin(ensemble.store(), known=known)


@pytest.mark.parametrize("known", ["digest", "zxid", "both"])
async def test_another_record_at_the_last_csn_is_refused(
    ensemble: MemoryEnsemble, cluster: ClusterState, known: str
) -> None:
    """Other commits have taken the CSNs since the backup; nothing else shows that (finding 4)."""
    store = ensemble.store()
    await done(store, Create(tree.record_prefix(0), b"another record", sequential=True))
    there = await node(store, tree.record(Csn(2)))
    own = Imprint(
        zxid=there.created.zxid + 7 if known != "digest" else 0,
        digest=codec.digest(b"own record") if known != "zxid" else "",
    )
    past = KnownState(cluster.cluster_id, last_csn=Csn(2), last=own)
    with pytest.raises(ClusterMismatchError, match="holds another history: at CSN 2 it has the record"):
        await begin(store, known=past)
    assert (await shown(store))[1] == 0
    same = Imprint(there.created.zxid, codec.digest(b"another record"))
    known_now = KnownState(cluster.cluster_id, last_csn=Csn(2), last=same)
    assert (await begin(store, known=known_now)).boot == 1


async def test_another_incarnation_is_refused(ensemble: MemoryEnsemble, cluster: ClusterState) -> None:
    """A tree that was made again without a replica may lack what that replica has applied."""
    assert cluster.incarnation
    for mine in ("another", ""):
        with pytest.raises(ClusterMismatchError, match=r"was made again without this replica"):
            await begin(ensemble.store(), known=KnownState(cluster.cluster_id, incarnation=mine))
    known = KnownState(cluster.cluster_id, incarnation=cluster.incarnation)
    assert (await begin(ensemble.store(), known=known)).boot == 1


@pytest.mark.scenario("S22")
async def test_an_emptied_ensemble_is_refused() -> None:
    """No new cluster is made in place of an old one: the data directory would be lost (S22)."""
    ensemble = MemoryEnsemble()
    with pytest.raises(ClusterMismatchError, match="no cluster, and c1 is expected"):
        await begin(ensemble.store(), known=KnownState("c1", 1, 1))
    assert paths(ensemble) == {""}


async def test_a_backup_from_before_the_registration_is_refused(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """A replica with a fence is registered forever, so a ZooKeeper without it is older."""
    with pytest.raises(ClusterMismatchError, match="no session of r9"):
        await begin(ensemble.store(), R9, known=KnownState(cluster.cluster_id, 1, 1))


async def test_the_data_directory_of_another_cluster_is_refused(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """The error names both ids, since either the connect string or the data directory is wrong."""
    with pytest.raises(ClusterMismatchError, match=f"belongs to cluster other.*holds {cluster.cluster_id}"):
        await begin(ensemble.store(), known=KnownState("other"))


async def test_a_start_without_a_cluster_says_how_to_make_one() -> None:
    """The error shows the first start, which names the replicas."""
    with pytest.raises(ConfigError, match="--bootstrap"):
        await begin(MemoryEnsemble().store())


async def test_an_unregistered_replica_is_told_who_is_registered(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """The error lists the registered replicas and the next step; once registered the replica starts."""
    store = ensemble.store()
    with pytest.raises(ConfigError, match=r"r9 is not registered .* r1, r2, r3; .*register it"):
        await begin(store, R9)
    assert await register(store, R9)
    assert (await begin(store, R9)).boot == 1
    assert not await register(store, R9)


async def test_a_replica_that_was_taken_out_does_not_start(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """The znode of a removed replica stays forever, so its numbers never repeat; its id is not reused."""
    store = ensemble.store()
    out = SessionState(boot=3, disk="d", nonce="n", state=REMOVED)
    await done(store, SetData(tree.session(R1), codec.encode_session(out)))
    with pytest.raises(ConfigError, match="never used again"):
        await begin(store)
    with pytest.raises(ConfigError, match="never used again"):
        await register(store, R1)
    assert await shown(store) == (out, 1)


# ------------------------------------------------------------------------------------------ clones


#: The progress that holds tail and horizon, of a replica that was at CSN 9.
HELD = Progress(CSN_NONE, CSN_NONE, published_max=Csn(9), phase=ReplicaPhase.STARTING)


async def _progress(store: MemoryStore) -> Progress:
    return codec.decode_progress((await node(store, tree.progress(R1))).data)


@pytest.mark.parametrize(
    ("state", "moved", "known", "reason"),
    [
        (STRUCK, None, KnownState(last_csn=Csn(1), disk="disk1"), "it was struck"),
        (CLONING, None, KnownState(last_csn=Csn(1), disk="disk0"), "its last clone did not end"),
        (SERVING, None, KnownState(last_csn=Csn(1), disk="disk1", clone="noted"), "noted"),
        (SERVING, tree.TAIL, KnownState(), "its catalog is empty"),
        (SERVING, tree.HORIZON, KnownState(), "its catalog is empty"),
    ],
)
async def test_a_replica_without_a_usable_catalog_clones(
    ensemble: MemoryEnsemble,
    cluster: ClusterState,
    state: str,
    moved: str | None,
    known: KnownState,
    reason: str,
) -> None:
    """Its session says so, with a new disk; its progress holds tail and horizon where they are."""
    store = ensemble.store()
    await put_session(store, state)
    if moved is not None:
        await done(store, SetData(moved, codec.encode_csn(Csn(5))))
    own = await begin(store, known=known, suffix=lambda: "2")
    assert reason in own.clone
    assert own.state == SessionState(4, "disk1.2", own.nonce, CLONING)
    assert await shown(store) == (own.state, own.fence)
    held = {tree.TAIL: {"snapshot": Csn(5)}, tree.HORIZON: {"oldest": Csn(5)}}.get(moved or "", {})
    assert await _progress(store) == msgspec.structs.replace(HELD, **held)


async def test_a_clone_that_is_installed_is_not_made_again(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """The catalog that was replaced has the disk of the session; its progress stays until it has another."""
    store = ensemble.store()
    await put_session(store, STRUCK)
    cloned = await begin(store, known=KnownState(last_csn=Csn(1), disk="disk1"), suffix=lambda: "2")
    known = KnownState(last_csn=Csn(1), disk="disk1.2")
    own = await begin(ensemble.store("next"), disk="disk1.2", known=known)
    assert (own.clone, own.disk, own.boot) == ("", "disk1.2", cloned.boot + 1)
    assert (await shown(store))[0].state == SERVING
    assert await _progress(store) == HELD


async def test_an_empty_catalog_follows_a_whole_log_and_holds_it(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """Nothing was collected, so it needs no clone; what a former disk has published does not count."""
    store = ensemble.store()
    await put_session(store, SERVING)
    own = await begin(store, disk="disk2")
    assert (own.clone, own.published_max) == ("", 9)
    assert await _progress(store) == HELD


@pytest.mark.parametrize("moved", [tree.TAIL, tree.HORIZON])
async def test_a_log_that_is_cut_during_a_start_is_not_followed(
    ensemble: MemoryEnsemble, cluster: ClusterState, moved: str
) -> None:
    """Tail or horizon move between the look and the raise of the fence: the start looks again, and clones."""
    store = ensemble.store()
    cut: list[StoreRequest] = []

    def plan(call: StoreRequest) -> None:
        if not cut and any(op.path == tree.session(R1) for op in call.ops or ()):
            cut.append(call)
            ensemble.tree.apply((SetData(moved, codec.encode_csn(Csn(5))),), 0)

    ensemble.plan = plan
    own = await begin(store)
    assert "its catalog is empty" in own.clone


@pytest.mark.parametrize("state", [STRUCK, CLONING, REMOVED])
def test_a_fence_keeps_what_the_next_start_needs_to_know(state: str) -> None:
    """Another replica that fences a struck or cloning one does not make it look like one with a catalog."""
    found = Node(codec.encode_session(SessionState(3, "d", "n", state)), 7, 0, 0, NO_STAMP)
    change = seize(tree.session(R1), found, 3, "new")
    assert change is not None
    assert codec.decode_session(change.data) == SessionState(4, "d", "new", state)


async def test_a_move_decided_by_the_progress_of_a_former_boot_is_refused(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """The tail was to follow the progress of a disk that is replaced between the look and the move."""
    store = ensemble.store()
    seen = await read_progress(store)
    assert seen is not None
    await begin(store, disk="disk2")
    late: tuple[Op, ...] = (*seen.unchanged, SetData(tree.TAIL, codec.encode_csn(Csn(1))))
    assert isinstance(await store.multi(late), Refused)


async def test_a_new_disk_is_shown_under_the_old_id(ensemble: MemoryEnsemble, cluster: ClusterState) -> None:
    """Acknowledgements name their disk: those of a replaced disk no longer count (F7)."""
    await begin(ensemble.store())
    own = await begin(ensemble.store(), disk="disk2")
    assert (await shown(ensemble.store()))[0].disk == "disk2"
    assert (own.boot, own.disk) == (2, "disk2")


async def test_a_start_raises_the_roster_when_copies_are_gone(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """Commits check the version of `replicas`: a new disk and another rack raise it, a restart does not."""
    store, versions = ensemble.store(), []
    struck = SessionState(boot=9, disk="disk2", nonce="n", state="fenced")
    for disk, rack in (("disk1", ""), ("disk1", ""), ("disk2", ""), ("disk2", "b"), ("disk2", "b")):
        await begin(ensemble.store(), disk=disk, member=MemberState(rack=rack))
        versions.append((await node(store, tree.REPLICAS)).version)
    await done(store, SetData(tree.session(R1), codec.encode_session(struck)))
    await begin(ensemble.store(), disk="disk2", member=MemberState(rack="b"))
    versions.append((await node(store, tree.REPLICAS)).version)
    assert versions == [1, 1, 2, 3, 3, 3]


async def test_a_start_knows_how_far_the_replica_has_been(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """A replica that is behind the published CSNs of its former boots, on any disk, publishes the largest."""
    store = ensemble.store()
    assert (await begin(store)).published_max == CSN_NONE
    for told in (Progress(Csn(9), Csn(9)), Progress(Csn(3), Csn(3), (), Csn(9))):
        await store.multi((SetData(tree.progress(R1), codec.encode_progress(told)),))
        assert (await begin(ensemble.store(), disk="disk2")).published_max == 9


async def test_labels_of_an_operator_survive_a_start(ensemble: MemoryEnsemble, cluster: ClusterState) -> None:
    """A start writes the agent's addresses, and keeps the operator's labels."""
    store = ensemble.store()
    await register(store, R9, member=MemberState(labels={"zone": "b"}))
    await begin(store, R9)
    member = codec.decode_member((await node(store, tree.replica(R9))).data)
    assert (member.labels, member.api) == ({"zone": "b"}, MEMBER.api)


# ------------------------------------------------------------------------------------------ the sign of life


async def test_a_sign_of_life_left_by_a_former_life_is_replaced(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """The session of a killed agent ends later; its end must not delete the new sign of life (S27)."""
    killed = ensemble.store()
    await begin(killed)
    killed.suspend()
    store = ensemble.store()
    await begin(store)
    assert (await node(store, tree.alive(R1))).owner_session == store.session
    ensemble.end_session(killed.session)
    assert (await node(store, tree.alive(R1))).data == b"2"


async def test_a_new_session_gets_a_sign_of_life_of_its_own(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """A new session writes its own sign of life, also if the boot has raised its fence meanwhile."""
    store = ensemble.store()
    own = await begin(store)
    raised = msgspec.structs.replace(own.state, nonce="own raise")
    await done(store, SetData(tree.session(R1), codec.encode_session(raised), own.fence))
    store.expire()
    await until(lambda: store.link is LinkState.CONNECTED)
    assert await store.exists(tree.alive(R1)) == Ok(None)
    assert await keep_alive(store, own)
    assert (await node(store, tree.alive(R1))).owner_session == store.session
    assert await keep_alive(store, own)


async def test_a_fenced_life_leaves_the_sign_of_its_successor_alone(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """A fenced boot gets False, and writes nothing."""
    old, new = ensemble.store(), ensemble.store()
    former = await begin(old)
    await begin(new)
    old.expire()
    await until(lambda: old.link is LinkState.CONNECTED)
    assert not await keep_alive(old, former)
    assert (await node(new, tree.alive(R1))).owner_session == new.session


async def test_a_life_that_is_fenced_in_the_middle_deletes_nothing(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """The successor's sign has version 0, like the own one before: only the fence distinguishes them."""
    store, successor = ensemble.store(), ensemble.store()
    own = await begin(store)
    store.expire()
    await until(lambda: store.link is LinkState.CONNECTED)
    await done(store, Create(tree.alive(R1), b"left over"))

    def plan(call: StoreRequest) -> None:
        if any(isinstance(op, Delete) for op in call.ops):
            ensemble.plan = None
            raised = SessionState(boot=own.boot + 1, disk="disk1", nonce="successor", state="serving")
            ensemble.tree.apply(
                (
                    SetData(tree.session(R1), codec.encode_session(raised)),
                    Delete(tree.alive(R1), 0),
                    Create(tree.alive(R1), b"successor", ephemeral=True),
                ),
                successor.session,
            )

    ensemble.plan = plan
    assert not await keep_alive(store, own)
    assert (await node(store, tree.alive(R1))).data == b"successor"


async def test_without_a_link_there_is_no_sign_of_life(
    ensemble: MemoryEnsemble, cluster: ClusterState
) -> None:
    """Without a link no sign of life is written; the caller waits for the next change of the link."""
    store = ensemble.store()
    own = await begin(store)
    store.suspend()
    assert not await keep_alive(store, own)


@pytest.mark.parametrize("seed", range(20))
async def test_a_sign_of_life_stands_in_the_end_whatever_went_wrong(
    ensemble: MemoryEnsemble, cluster: ClusterState, seed: int
) -> None:
    """Calls after every change, as an agent makes them, end with a sign of the last session."""
    store = ensemble.store()
    own = await begin(store)
    signs: list[asyncio.Task[bool]] = []

    def changed() -> None:
        if store.link is LinkState.CONNECTED:
            signs.append(asyncio.create_task(keep_alive(store, own)))

    store.on_change(changed)
    ensemble.plan = random_faults(random.Random(seed), rate=0.3)
    store.expire()
    for _ in range(200):
        await asyncio.sleep(0)
    ensemble.plan = None
    store.expire()
    await until(lambda: store.link is LinkState.CONNECTED)
    await until(lambda: all(sign.done() for sign in signs))
    assert (await node(store, tree.alive(R1))).owner_session == store.session
