"""The requests of an agent to its peers: one for all callers, and a missing copy never counts as applied."""

from __future__ import annotations

import asyncio
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.aio import until
from tests.support.rows import settings
from tests.support.wall_clocks import own_clock
from tidelock.csnlog.cluster.members import MemberView
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.model import ClusterState, MemberState, Progress, Roster, SessionState
from tidelock.errors import UnavailableError
from tidelock.replica_agent.replicas.membership import Membership, counting_rules
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replication.core.model import CopyPlace

R1, R2, R3 = (ReplicaId(name) for name in ("r1", "r2", "r3"))


class Peers:
    """The peers as a client reaches them: the snapshot CSN of each, None if it does not answer."""

    def __init__(self) -> None:
        self.reached: dict[str, Csn | None] = {"r2": Csn(5), "r3": Csn(5)}
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def status(self, api: str) -> Any:
        """Answer GET /peer/v1/status."""
        self.asked.append(api)
        await self.gate.wait()
        if (csn := self.reached[api]) is None:
            raise UnavailableError(f"{api} does not answer")
        return SimpleNamespace(snapshot_csn=csn, time_ms=0)


def view(alive: dict[ReplicaId, bool]) -> Any:
    """Return the member list."""
    shown = {
        replica: MemberView(
            MemberState(api=replica, data=replica), SessionState(1, f"d-{replica}", "n", "serving"), 1, lives,
            Progress(Csn(1), Csn(1), (Csn(4),) if replica == R3 else (Csn(3), Csn(7))),
        )
        for replica, lives in alive.items()
    }  # fmt: skip
    return SimpleNamespace(snapshot=lambda: MappingProxyType(shown), roster=None)


class Clock:
    """Advances by a second with each read."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        self.now += 1
        return self.now


def membership(peers: Peers, alive: dict[ReplicaId, bool], **limits: float) -> Membership:
    """Return the membership as r1 knows it."""
    return Membership(
        replica=R1, cluster=ClusterState("c", 1, 2, 1000), settings=settings(**limits), members=view(alive),
        client=cast("Any", peers), waiters=CsnWaiters(Csn(5)), clock=Clock(), clocks=own_clock(),
    )  # fmt: skip


async def test_a_question_under_way_serves_all_who_ask() -> None:
    """A thousand commits that wait for one peer ask it once at a time."""
    peers = Peers()
    peers.gate.clear()
    asked = membership(peers, {R1: True, R2: True, R3: True})
    waiting = [asyncio.create_task(asked.ask()) for _ in range(100)]
    await until(lambda: len(peers.asked) == 2)
    waiting[0].cancel()
    await asyncio.sleep(0)
    peers.gate.set()
    assert await asyncio.gather(*waiting[1:]) == [{R2: 5, R3: 5}] * 99
    assert sorted(peers.asked) == ["r2", "r3"]
    await asked.ask()
    assert len(peers.asked) == 4


@pytest.mark.parametrize(("third", "told"), [(True, {3, 4, 7}), (False, {3, 7})])
def test_what_long_transactions_read(third: bool, told: set[int]) -> None:
    """All that live replicas publish: transactions of a home that has disappeared are over, or nearly."""
    assert membership(Peers(), {R1: True, R2: True, R3: third}).open_snapshots() == told


@pytest.mark.parametrize(
    ("alive", "reached", "everywhere", "missing"),
    [
        ((True, True), (5, 4), False, ()),
        ((True, True), (5, 4), True, (R3,)),
        ((True, True), (4, 4), False, (R2, R3)),
        ((True, False), (5, None), True, ()),  # of the live ones
        ((False, False), (None, None), True, (R2, R3)),  # `all` is never less than `copies`
        ((False, False), (None, None), False, (R2, R3)),  # one copy is not two, whichever replica is dead
    ],
)
async def test_who_has_not_applied_it(
    alive: tuple[bool, bool],
    reached: tuple[int | None, ...],
    everywhere: bool,
    missing: tuple[ReplicaId, ...],
) -> None:
    """`copies` needs so many replicas that have it; `all` needs all live ones, and so many at least."""
    peers = Peers()
    peers.reached = {
        name: None if at is None else Csn(at) for name, at in zip(("r2", "r3"), reached, strict=True)
    }
    asked = membership(peers, dict(zip((R1, R2, R3), (True, *alive), strict=True)))
    assert await asked.wait_applied(Csn(5), everywhere, 0.0) == missing


async def test_a_peer_that_does_not_answer_counts_as_silent() -> None:
    """It is left out after `peer_ask_timeout_s`, and counted again when it answers."""
    peers = Peers()
    asked = membership(peers, {R1: True, R2: True}, peer_ask_timeout_s=0.05)
    peers.gate.clear()
    assert await asked.ask() == {}
    peers.gate.set()
    await until(lambda: not asked._unanswered)
    assert await asked.ask() == {R2: 5}


async def test_a_frozen_peer_delays_one_caller() -> None:
    """The others do not wait for it, and ask it nothing more, until it answers the first request."""
    peers = Peers()
    asked = membership(peers, {R1: True, R2: True}, peer_ask_timeout_s=0.05)
    peers.gate.clear()
    await asked.ask()
    asked.settings = settings(peer_ask_timeout_s=1000.0)
    for _ in range(10):
        assert await asked.ask() == {}
    assert peers.asked == ["r2"]


async def test_a_peer_with_a_new_address_is_asked_there() -> None:
    """A replica that moved is not held for silent because nobody answers at its former place."""
    peers = Peers()
    peers.gate.clear()
    asked = membership(peers, {R1: True, R2: True}, peer_ask_timeout_s=0.05)
    await asked.ask()
    shown = dict(asked.view)
    shown[R2] = MemberView(MemberState(api="r3"), shown[R2].session, 1, True, None)
    asked.members = cast("Any", SimpleNamespace(snapshot=lambda: MappingProxyType(shown), roster=None))
    peers.gate.set()
    assert await asked.ask() == {R2: 5}
    assert peers.asked == ["r2", "r3"]


async def test_a_commit_is_delayed_until_the_others_have_caught_up() -> None:
    """The delay ends as soon as nobody lags, and at the latest after the longest delay."""
    peers = Peers()
    peers.reached = {"r2": Csn(5), "r3": Csn(2)}
    around = membership(
        peers, {R1: True, R2: True, R3: True}, max_lag=1, lag_delay_max_s=1000, blocked_after_s=1000
    )
    waiting = asyncio.create_task(around.delay_commit(10_000.0))
    await until(lambda: len(peers.asked) > 4)
    assert not waiting.done()
    peers.reached["r3"] = Csn(5)
    assert not (await waiting).behind
    peers.reached["r3"] = Csn(2)
    around = membership(peers, {R1: True, R2: True, R3: True}, max_lag=1, lag_delay_max_s=5)
    assert (await around.delay_commit(10_000.0)).behind == (R3,)


def seen(disk: str = "d", state: str = "serving", rack: str = "") -> MemberView:
    """Return one member."""
    return MemberView(MemberState(rack=rack), SessionState(1, disk, "n", state), 1, True, None)


@pytest.mark.parametrize(
    ("third", "counted"),
    [
        (seen(), True),
        (seen(state="fenced"), True),
        (seen(state="struck"), False),
        (seen(state="removed"), False),
        (seen(state="cloning"), False),
        (seen(disk=""), False),
    ],
)
def test_the_members_whose_copies_count(third: MemberView, counted: bool) -> None:
    """Copies count on the disk of a member that may serve; a fenced one keeps its disk."""
    rules = counting_rules(R1, 7, Roster(2), {R1: seen(), R2: seen(), R3: third})
    assert (rules.version, rules.copies, rules.home) == (7, 2, R1)
    assert dict(rules.places).get(R3) == (CopyPlace("d", R3) if counted else None)
    assert R1 not in dict(rules.places)


def test_a_draining_replica_and_a_rack_count_otherwise() -> None:
    """The copies of a replica that will leave do not count; those of one rack are one group."""
    view = {R1: seen(rack="a"), R2: seen(rack="a"), R3: seen(rack="b"), ReplicaId("r4"): seen()}
    rules = counting_rules(R1, 7, Roster(2, racks=True, draining=(R3,)), view)
    assert rules.home == "rack a"
    assert {name: place.group for name, place in rules.places} == {R2: "rack a", "r4": "r4"}
