"""Pushing sealed transactions to peers over real connections: batches, retries, lost answers, dead peers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from msgspec.structs import replace

from tests.support.aio import until
from tests.support.machines.names import HOME, part, tid
from tests.support.replicas.stage_peer import StagePeer
from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId
from tidelock.errors import TooLargeError
from tidelock.replication.core import wire
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import Held, PartMeta, Peer, SealedTid, bytes_alone
from tidelock.replication.peers import PeerClient
from tidelock.replication.push import Pusher

PUSH_BYTES_MAX = 10_000


class Home:
    """A pusher of r1, with the answers that came."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        self.answers: list[Held] = []
        self.client = PeerClient(secret="s3", connections=4, timeout_s=timeout_s)
        self.pusher = Pusher(
            client=self.client,
            home=HOME,
            boot=1,
            cluster_id="c",
            on_held=self.answers.append,
            push_bytes_max=PUSH_BYTES_MAX,
            push_tids_max=20,
            push_timeout_s=timeout_s,
            retry_wait_max_s=0.05,
            hints_max=3,
        )

    def push(self, *names: str, size: int = 100, parts: int = 1) -> None:
        """Push transactions `t<n>` with some parts of some bytes each."""
        for name in names:
            contents: dict[PartId, bytes] = {}
            metas = []
            for index in range(parts):
                data = bytes([index]) * size
                what = part(f"p{int(name[1:]) * 1000 + index}")
                metas.append(PartMeta(what, TableId("db.t"), "", 1, size, checksum(data)))
                contents[what] = data
            self.pusher.push(SealedTid(tid(name), tuple(metas)), contents)

    def held(self) -> set[tuple[str, str]]:
        """Return (replica, tid) of everything that was confirmed."""
        return {(answer.replica, text) for answer in self.answers for text in answer.held}

    async def close(self) -> None:
        """Stop."""
        await self.pusher.close()
        await self.client.close()


@pytest.fixture
async def home() -> AsyncIterator[Home]:
    """Give a pusher."""
    made = Home()
    yield made
    await made.close()


@pytest.fixture(params=[True, False], ids=["channel", "http"])
async def r2(request: pytest.FixtureRequest) -> AsyncIterator[StagePeer]:
    """Give a peer that opens channels, and one that knows of none."""
    peer = await StagePeer("r2", "d2", opens_channels=request.param).start()
    yield peer
    await peer.stop()


@pytest.fixture
async def r3() -> AsyncIterator[StagePeer]:
    """Give a second peer."""
    peer = await StagePeer("r3", "d3").start()
    yield peer
    await peer.stop()


def names(*tids: str) -> list[str]:
    """Return textual tids."""
    return [str(tid(name)) for name in tids]


def dead(replica: str) -> Peer:
    """Return a peer whose address no process listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return Peer(ReplicaId(replica), f"127.0.0.1:{found.getsockname()[1]}", "", f"d{replica[1:]}")


async def test_what_collects_goes_together(home: Home, r2: StagePeer) -> None:
    """One request is in flight to a peer; what is sealed meanwhile is the next one, with its bytes."""
    home.pusher.members([r2.peer])
    r2.gate.clear()
    home.push("t1")
    await until(lambda: r2.in_flight == 1)
    home.push("t2", "t3", "t4")
    r2.gate.set()
    await until(lambda: len(home.held()) == 4)
    assert r2.tids == [names("t1"), names("t2", "t3", "t4")]
    assert r2.in_flight_max == 1
    assert r2.pushes[1].inline[part("p2000")] == bytes(100)
    assert r2.pushes[1].damaged == {}
    assert r2.authorizations == {"Bearer s3"}


async def test_a_request_has_a_bound(home: Home, r2: StagePeer) -> None:
    """Inline bytes and transactions of a request are bounded; a huge one goes partly by reference."""
    home.pusher.members([r2.peer])
    r2.gate.clear()
    home.push("t1")
    await until(lambda: r2.in_flight == 1)
    home.push("t2", "t3", "t4", size=4000)
    home.push("t5", size=4000, parts=4)
    home.push(*(f"t{number}" for number in range(10, 40)))
    r2.gate.set()
    await until(lambda: len(home.held()) == 35)
    assert all(sum(map(len, push.inline.values())) <= PUSH_BYTES_MAX for push in r2.pushes)
    assert max(map(len, r2.tids)) == 20
    assert r2.tids[1:3] == [names("t2", "t3"), names("t4")]
    huge = next(push for push in r2.pushes if str(tid("t5")) == str(push.tids[0].tid))
    assert (len(huge.tids[0].parts), len(huge.inline)) == (4, 2)


async def test_a_lost_answer_is_asked_for_again(home: Home, r2: StagePeer) -> None:
    """A push whose answer is lost is repeated with all its bytes; the peer got it twice and says so once."""
    home.pusher.members([r2.peer])
    with faults.armed("replication.push.after", "lost-reply"):
        home.push("t1")
        await until(lambda: home.held() == {("r2", str(tid("t1")))})
    assert r2.tids == [names("t1")] * 2
    assert r2.pushes[0] == r2.pushes[1]
    assert len(home.answers) == 1


@pytest.mark.parametrize(
    "broken",
    [
        web.Response(status=503, text="{"),
        web.Response(status=200, text="no agent"),
        web.Response(status=507, text='{"error": "DiskFullError", "message": "full", "details": {}}'),
        Held(ReplicaId("r9"), "d2", 1, tid("t1").snapshot, (str(tid("t1")),)),
    ],
    ids=["unavailable", "no-agent", "disk-full", "another-replica"],
)
async def test_what_is_no_confirmation_counts_for_nothing(
    home: Home, r2: StagePeer, broken: web.Response | Held
) -> None:
    """Errors, answers of something else and of another replica are tried again until the peer confirms."""
    answers = iter([broken])
    r2.answer = lambda push: next(answers, None) or r2.holds_all(push)
    home.pusher.members([r2.peer])
    home.push("t1")
    await until(lambda: home.held() == {("r2", str(tid("t1")))})
    assert len(r2.pushes) == 2


async def test_a_frozen_peer_is_asked_again_after_the_timeout(r2: StagePeer) -> None:
    """A peer that takes a request and never answers holds the pusher no longer than the timeout."""
    home = Home(timeout_s=0.1)
    r2.gate.clear()
    home.pusher.members([r2.peer])
    home.push("t1")
    await until(lambda: len(r2.pushes) >= 2)
    r2.gate.set()
    await until(home.held)
    await home.close()


async def test_a_dead_peer_costs_nothing(home: Home, r2: StagePeer) -> None:
    """While one peer is dead the other gets everything, and what is decided is not kept for the dead one."""
    home.pusher.members([r2.peer, dead("r3")])
    home.push("t1")
    await until(lambda: home.pusher._lanes[ReplicaId("r3")].failures)
    home.push(*(f"t{number}" for number in range(2, 200)))
    await until(lambda: len(home.held()) == 199)
    for number in range(1, 200):
        home.pusher.decided(tid(f"t{number}"))
    assert home.pusher._open == {}
    assert all(not lane.todo for lane in home.pusher._lanes.values())


async def test_a_peer_that_comes_back_gets_what_is_undecided(home: Home, r3: StagePeer) -> None:
    """After a peer returned at another address it gets the transactions that still wait, and no others."""
    home.pusher.members([dead("r3")])
    home.push("t1", "t2")
    await until(lambda: home.pusher._lanes[ReplicaId("r3")].failures)
    home.pusher.decided(tid("t1"))
    home.pusher.members([r3.peer])
    await until(lambda: home.held() == {("r3", str(tid("t2")))})
    assert r3.tids == [names("t2")]


async def test_a_new_disk_gets_everything_again(home: Home, r2: StagePeer) -> None:
    """A copy confirmed on a disk that was replaced is pushed again while it is undecided (F7 c)."""
    home.pusher.members([r2.peer])
    home.push("t1", "t2")
    await until(lambda: len(home.held()) == 2)
    home.pusher.decided(tid("t2"))
    before = len(r2.pushes)
    r2.disk = "d9"
    home.pusher.members([r2.peer])
    await until(lambda: any(answer.disk == "d9" for answer in home.answers))
    assert r2.tids[before:] == [names("t1")]
    assert r2.pushes[-1].inline[part("p1000")] == bytes(100)
    home.pusher.members([r2.peer])
    home.push("t3")
    await until(lambda: ("r2", str(tid("t3"))) in home.held())
    assert r2.tids[before:] == [names("t1"), names("t3")]


async def test_a_transaction_on_its_way_is_asked_about_without_its_bytes(home: Home, r2: StagePeer) -> None:
    """A peer that still fetches large parts keeps the small ones; others are not held up meanwhile."""
    r2.answer = lambda push: r2.held(*(str(item.tid) for item in push.tids if item.tid != tid("t1")))
    home.pusher.members([r2.peer])
    home.push("t1", "t2")
    await until(lambda: len(r2.pushes) > 3)
    home.push("t3")
    await until(lambda: ("r2", str(tid("t3"))) in home.held())
    assert part("p1000") in r2.pushes[0].inline
    assert not any(part("p1000") in push.inline for push in r2.pushes[1:])
    r2.answer = r2.holds_all
    await until(lambda: ("r2", str(tid("t1"))) in home.held())


async def test_a_refused_transaction_is_sent_again_with_its_bytes(home: Home, r2: StagePeer) -> None:
    """A peer that refused one transaction, its disk being full, has kept nothing of it."""
    refusals = iter([{str(tid("t1")): "disk full"}] * 2)

    def answer(push: wire.StageRequest) -> Held:
        refused = next(refusals, {})
        return r2.held(
            *(text for item in push.tids if (text := str(item.tid)) not in refused), refused=refused
        )

    r2.answer = answer
    home.pusher.members([r2.peer])
    home.push("t1", "t2")
    await until(lambda: ("r2", str(tid("t1"))) in home.held())
    assert r2.tids == [names("t1", "t2"), names("t1"), names("t1")]
    assert all(part("p1000") in push.inline for push in r2.pushes)


async def test_a_slow_peer_still_gets_what_is_decided(home: Home, r2: StagePeer, r3: StagePeer) -> None:
    """A peer that follows gets decided transactions here, up to a bound; beyond it the log brings them."""
    home.pusher.members([r2.peer, r3.peer])
    r3.gate.clear()
    home.push("t1")
    await until(lambda: r3.in_flight == 1)
    home.push("t2", "t3", "t4", size=4000)
    await until(lambda: len(home.held()) == 4)
    for name in ("t1", "t2", "t3", "t4"):
        home.pusher.decided(tid(name))
        assert home.pusher._late_bytes <= PUSH_BYTES_MAX
    r3.gate.set()
    await until(lambda: ("r3", str(tid("t4"))) in home.held())
    assert r3.tids == [names("t1"), names("t4")]
    assert home.pusher._open == {}
    assert home.pusher._late_bytes == 0


async def test_what_is_rolled_back_is_pushed_no_more_and_forgotten(home: Home, r2: StagePeer) -> None:
    """Peers are notified of a rollback, after the push that was under way; dead peers are not waited for."""
    home.pusher.members([r2.peer, dead("r3")])
    r2.gate.clear()
    home.push("t1")
    await until(lambda: r2.in_flight == 1)
    home.push("t2")
    home.pusher.forget(tid("t1"))
    home.pusher.forget(tid("t2"))
    r2.gate.set()
    await until(lambda: r2.forgotten == names("t1", "t2"))
    assert r2.tids == [names("t1")]
    assert home.pusher._open == {}


async def test_hints_name_what_is_staged(home: Home, r2: StagePeer) -> None:
    """Parts of a running transaction are announced to the peers."""
    home.pusher.members([r2.peer])
    home.pusher.hint(tid("t1"), [PartMeta(part("p1"), TableId("db.t"), "", 1, 1, "0" * 32)])
    await until(lambda: r2.hinted == names("t1"))


async def test_hints_go_to_those_who_lack_the_parts(home: Home, r2: StagePeer, r3: StagePeer) -> None:
    """Another than the home may have them already; what is taken back is told behind the hints of it."""
    home.pusher.members([r2.peer, r3.peer])
    home.pusher.hint(tid("t1"), [bytes_alone(part("p1"), 1, "0" * 32)], r3.replica)
    home.pusher.drop([part("p1"), part("p2")])
    await until(lambda: r2.dropped == r3.dropped == [part("p1"), part("p2")])
    assert (r2.hinted, r2.holders, r3.hinted) == (names("t1"), ["r3"], [])


async def test_a_rollback_overtakes_its_hints(home: Home, r2: StagePeer) -> None:
    """A rolled-back transaction is not fetched early."""
    home.pusher.members([r2.peer])
    for name in ("t1", "t2"):
        home.pusher.hint(tid(name), [])
    home.pusher.forget(tid("t1"))
    await until(lambda: r2.forgotten == names("t1") and r2.hinted)
    assert r2.hinted == names("t2")


async def test_struck_and_removed_peers_get_nothing(home: Home, r2: StagePeer, r3: StagePeer) -> None:
    """A replica that was struck or taken out gets nothing, and nothing is kept for it."""
    struck = r3.peer
    home.pusher.members([r2.peer, Peer(struck.replica, struck.api, "", struck.disk, struck=True)])
    home.push("t1")
    await until(home.held)
    home.pusher.members([])
    home.push("t2")
    home.pusher.decided(tid("t1"))
    home.pusher.decided(tid("t2"))
    assert home.pusher._open == {}
    assert (r2.tids, r3.tids) == ([names("t1")], [])


async def test_a_transaction_without_parts_is_not_pushed(home: Home, r2: StagePeer) -> None:
    """A definition travels in the log alone."""
    home.pusher.members([r2.peer])
    home.pusher.push(SealedTid(tid("t1"), ()), {})
    home.push("t2")
    await until(home.held)
    assert r2.tids == [names("t2")]


async def test_a_header_that_is_too_large_is_split(
    home: Home, r2: StagePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata that exceeds a request goes in several; what never fits holds up no other."""
    r2.gate.clear()
    home.pusher.members([r2.peer])
    home.push("t1")
    await until(lambda: r2.in_flight == 1)
    monkeypatch.setattr(wire, "HEADER_BYTES_MAX", 400)
    home.push("t2", parts=20)
    home.push("t3", "t4", "t5", "t6")
    r2.gate.set()
    await until(lambda: len(home.held()) == 5)
    assert str(tid("t2")) not in {text for push in r2.tids for text in push}


async def test_a_peer_with_smaller_limits_gets_less_at_a_time(home: Home, r2: StagePeer) -> None:
    """A push that the peer finds too large is split; one that alone is too large goes without bytes."""

    def small(push: wire.StageRequest) -> Held | web.Response:
        if sum(map(len, push.inline.values())) > 250:
            return web.json_response(TooLargeError("the push is too large").to_wire(), status=413)
        return r2.holds_all(push)

    r2.answer = small
    r2.gate.clear()
    home.pusher.members([r2.peer])
    home.push("t1")
    await until(lambda: r2.in_flight == 1)
    home.push("t2", "t3", "t4", "t5")
    home.push("t6", parts=5)
    r2.gate.set()
    await until(lambda: len(home.held()) == 6)


async def test_an_answer_about_a_former_disk_is_no_end(home: Home, r2: StagePeer) -> None:
    """A peer whose disk was replaced while it answered is asked until the disk that counts holds it."""
    home.pusher.members([r2.peer])
    r2.gate.clear()
    home.push("t1")
    await until(lambda: r2.in_flight == 1)
    r2.answer = lambda _: Held(r2.replica, "d-former", 1, Csn(1), (str(tid("t1")),))
    home.pusher.members([replace(r2.peer, disk="d-new")])
    r2.gate.set()
    await until(lambda: len(r2.pushes) > 2)
    r2.answer = lambda _: Held(r2.replica, "d-new", 1, Csn(1), (str(tid("t1")),))
    await until(lambda: home.pusher._lanes[r2.replica].todo == {})
    assert home.answers[-1].disk == "d-new"


async def test_hints_have_a_bound(home: Home, r2: StagePeer) -> None:
    """Hints that a slow peer does not take in time are dropped, oldest first: its parts arrive later."""
    home.pusher.members([r2.peer])
    r2.gate.clear()
    home.push("t9")
    await until(lambda: r2.in_flight == 1)
    for name in ("t1", "t2", "t3", "t4", "t5"):
        home.pusher.hint(tid(name), [])
    r2.gate.set()
    await until(lambda: r2.hinted == names("t3", "t4", "t5"))


@pytest.mark.parametrize("steps", range(6))
async def test_a_lane_ends_although_it_was_just_woken(home: Home, steps: int) -> None:
    """A close that comes some steps of the loop behind a wake-up ends the lane, whatever it waited for."""
    home.pusher.members([dead("r2")])
    home.push("t1")
    await until(lambda: all(lane.failures for lane in home.pusher._lanes.values()))
    [lane] = home.pusher._lanes.values()
    lane.changed.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    assert lane.task is not None
    lane.task.cancel()
    await asyncio.wait([lane.task], timeout=5)
    assert lane.task.cancelled()
