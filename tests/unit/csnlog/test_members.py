"""The member list: complete at the start, fresh by hints, and right in the end without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.aio import until
from tests.support.zookeeper.store_suite import Counter, done
from tidelock.csnlog.cluster import members as module
from tidelock.csnlog.cluster.bootstrap import KnownState, OwnSession, bootstrap, open_session, register
from tidelock.csnlog.cluster.members import Members, MemberView
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId
from tidelock.csnlog.core.model import MemberState, Progress, SessionState
from tidelock.csnlog.core.store import Check, LinkState, SetData
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, MemoryStore, RequestFault, nth

R1, R2, R3 = (ReplicaId(name) for name in ("r1", "r2", "r3"))
NEVER_STARTED = MemberView(
    member=MemberState(),
    session=SessionState(boot=0, disk="", nonce="", state="stopped"),
    fence=0,
    alive=False,
    progress=Progress(CSN_NONE, CSN_NONE),
)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    """A cluster of r1 and r2."""
    ensemble = MemoryEnsemble()
    await bootstrap(ensemble.store(), replicas=[R1, R2], copies=2, epoch_limit=100)
    return ensemble


@pytest.fixture
async def store(ensemble: MemoryEnsemble) -> MemoryStore:
    """The store of the observer."""
    return ensemble.store("observer")


@pytest.fixture
async def members(store: MemoryStore) -> AsyncIterator[Members]:
    """The member list of an observer that is never refreshed: it learns by hints only."""
    members = Members(store, refresh_s=10_000)
    await members.start()
    yield members
    await members.close()


async def start(store: MemoryStore, replica: ReplicaId, disk: str) -> OwnSession:
    """Begin a boot of a replica."""
    return await open_session(
        store,
        replica=replica,
        member=MemberState(api=f"{replica}:1", data=f"{replica}:2"),
        disk=disk,
        known=KnownState(),
        nonce=lambda: f"nonce-{replica}-{disk}",
        replace_disk=True,
    )


async def test_all_registered_replicas_are_there_after_the_start(members: Members) -> None:
    """The list has replicas that never started, too; they have no valid disk."""
    assert dict(members.snapshot()) == {R1: NEVER_STARTED, R2: NEVER_STARTED}
    assert members.disk_of(R1) is None
    assert members.disk_of(R3) is None


async def test_a_start_a_change_of_progress_and_a_death_are_seen(
    ensemble: MemoryEnsemble, members: Members
) -> None:
    """Starts, progress and deaths arrive by hints alone, and listeners are notified of each."""
    told = Counter()
    members.on_change(told)
    replica = ensemble.store()
    own = await start(replica, R2, "disk7")
    await until(lambda: members.snapshot()[R2].alive)
    view = members.snapshot()[R2]
    assert (view.member.api, view.session, view.fence) == ("r2:1", own.state, own.fence)
    assert members.disk_of(R2) == "disk7"
    progress = Progress(Csn(5), Csn(3))
    fenced = Check(tree.session(R2), own.fence)
    await done(replica, fenced, SetData(tree.progress(R2), codec.encode_progress(progress)))
    await until(lambda: members.snapshot()[R2].progress == progress)
    ensemble.end_session(replica.session)
    await until(lambda: not members.snapshot()[R2].alive)
    assert members.disk_of(R2) == "disk7"
    assert members.snapshot()[R1] == NEVER_STARTED
    assert told.fired >= 3


async def test_a_snapshot_does_not_change(ensemble: MemoryEnsemble, members: Members) -> None:
    """A snapshot that was taken stays unchanged, and it cannot be written to."""
    taken = members.snapshot()
    await start(ensemble.store(), R1, "disk1")
    await until(lambda: members.snapshot() is not taken)
    assert taken[R1] == NEVER_STARTED
    with pytest.raises(TypeError):
        taken[R1] = NEVER_STARTED  # type: ignore[index]


async def test_a_replica_that_is_registered_later_appears(ensemble: MemoryEnsemble, members: Members) -> None:
    """A new replica appears at once, with the operator's addresses."""
    await register(ensemble.store(), R3, member=MemberState(api="r3:1"))
    await until(lambda: R3 in members.snapshot())
    assert members.snapshot()[R3].member.api == "r3:1"


@pytest.mark.scenario("S34")
async def test_lost_hints_are_made_up_for(ensemble: MemoryEnsemble, store: MemoryStore) -> None:
    """The list is read again every refresh_s, without hints (S34)."""
    members = Members(store, refresh_s=0.02)
    await members.start()
    ensemble.servers[0].disarm(store)
    await start(ensemble.store(), R1, "disk1")
    await until(lambda: members.disk_of(R1) == "disk1")
    await members.close()


async def test_a_broken_connection_hides_nothing(
    ensemble: MemoryEnsemble, store: MemoryStore, members: Members
) -> None:
    """Changes made meanwhile are visible when the link is back; until then the old view stays."""
    store.suspend()
    await start(ensemble.store(), R1, "disk1")
    assert members.disk_of(R1) is None
    store.resume()
    await until(lambda: members.disk_of(R1) == "disk1")
    store.expire()
    await until(lambda: store.link is LinkState.CONNECTED)
    await start(ensemble.store(), R1, "disk2")
    await until(lambda: members.disk_of(R1) == "disk2")


async def test_the_start_waits_for_a_whole_view(ensemble: MemoryEnsemble, store: MemoryStore) -> None:
    """The start waits for the link and repeats a lost request, until all znodes were read."""
    store.suspend()
    members = Members(store, refresh_s=10_000)
    starting = asyncio.create_task(members.start())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not starting.done()
    ensemble.plan = nth(3, RequestFault.REQUEST_LOST, when=lambda call: call.store == "observer")
    store.resume()
    await starting
    assert set(members.snapshot()) == {R1, R2}
    await members.close()


async def test_a_znode_that_cannot_be_read_hides_no_other(ensemble: MemoryEnsemble, members: Members) -> None:
    """A replica of a newer version is listed, without a valid disk."""
    await start(ensemble.store(), R1, "disk1")
    await until(lambda: members.disk_of(R1) == "disk1")
    await done(ensemble.store(), SetData(tree.session(R1), b'{"v":99,"what":1}'))
    await until(lambda: members.snapshot()[R1].session is None)
    assert members.disk_of(R1) is None
    assert members.snapshot()[R1].fence == -1
    assert members.snapshot()[R1].member.api == "r1:1"
    await start(ensemble.store(), R2, "disk2")
    await until(lambda: members.disk_of(R2) == "disk2")


async def test_a_server_that_lags_behind_takes_nothing_back(
    ensemble: MemoryEnsemble, store: MemoryStore, members: Members
) -> None:
    """After a reconnect a read may show an older state; the newer one that was seen before stays."""
    behind = ensemble.tree.copy()
    await start(ensemble.store(), R1, "disk1")
    await until(lambda: members.snapshot()[R1].alive)
    newest, ensemble.tree = ensemble.tree, behind
    store.cut()
    await until(lambda: not members.snapshot()[R1].alive)
    assert members.disk_of(R1) == "disk1"
    ensemble.tree = newest
    store.cut()
    await until(lambda: members.snapshot()[R1].alive)


async def test_a_roster_is_shown_when_all_that_it_covers_was_read_behind_it(
    ensemble: MemoryEnsemble, members: Members
) -> None:
    """A home that counts at a version of `replicas` must know the disks of that version (rule copies)."""
    seen: list[tuple[int, str | None]] = []
    members.on_change(lambda: seen.append((_version(members), members.disk_of(R1))))
    assert _version(members) == 0
    for version, disk in ((1, "disk1"), (2, "disk2"), (3, "disk3")):
        await start(ensemble.store(), R1, disk)
        await until(lambda version=version: _version(members) == version)  # type: ignore[misc]
    disks = {0: 0, 1: 1, 2: 2, 3: 3}
    assert all(disk is None or int(disk[-1]) >= disks[version] for version, disk in seen)


async def test_a_roster_that_a_lagging_server_showed_is_not_used(
    ensemble: MemoryEnsemble, store: MemoryStore, members: Members
) -> None:
    """A session that ends between the two reads may go on at a server that lags behind: both are repeated."""
    get = store.get
    ended: list[str] = []

    async def ends_behind_the_roster(path: str, **more: object) -> object:
        answer = await get(path, **more)  # type: ignore[arg-type]
        if path == tree.REPLICAS and not ended and answer.value.version == 1:  # type: ignore[union-attr]
            ended.append(path)
            ensemble.end_session(store.session)
        return answer

    store.get = ends_behind_the_roster  # type: ignore[method-assign, assignment]
    await start(ensemble.store(), R1, "disk1")
    await until(lambda: _version(members) == 1)
    assert ended
    assert members.disk_of(R1) == "disk1"


def _version(members: Members) -> int:
    return -1 if members.roster is None else members.roster.version


@pytest.mark.scenario("S35")
async def test_a_reading_that_fails_is_told(store: MemoryStore) -> None:
    """A list that fails to read on must not go on naming valid disks."""
    members = Members(store, refresh_s=10_000)
    await members.start()

    def fail() -> None:
        raise ZeroDivisionError

    members.on_change(fail)
    await start(store, R1, "d1")
    with pytest.raises(ZeroDivisionError):
        await members.watch()
    await members.close()
