"""The replicas that can receive a file: those that answer, serve, keep up, and have room; and their turns."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.errors import UnavailableError
from tidelock.replica_agent.uploads.targets import FRESH_S, STALE_S, RoundRobin, UploadTargets
from tidelock.replication.core.lag import LagVerdict
from tidelock.replication.core.model import Peer
from tidelock.wire.peers import PeerStatus

R2, R3 = ReplicaId("r2"), ReplicaId("r3")


class Around:
    """The members, the connections to them, and a clock (`Membership`, `PeerClient`)."""

    def __init__(self) -> None:
        self.known = {replica: Peer(replica, f"{replica}:1", "", f"d-{replica}") for replica in (R2, R3)}
        self.answers = {
            f"{replica}:1": PeerStatus(replica, f"d-{replica}", 1, "serving", Csn(1), 1 << 40)
            for replica in (R2, R3)
        }
        self.behind: tuple[ReplicaId, ...] = ()
        self.silent: tuple[ReplicaId, ...] = ()
        self.frozen = False
        self.asked = 0
        self.now_s = 100.0
        limits = settings(peer_ask_timeout_s=0.05)
        self.targets = UploadTargets(limits, cast("Any", self), cast("Any", self), lambda: self.now_s)

    def serving(self) -> list[ReplicaId]:
        """Return the replicas that show a sign of life."""
        return [replica for replica in self.known if replica not in self.silent]

    def lag(self) -> LagVerdict:
        """Return the replicas that are behind."""
        return LagVerdict(far=frozenset(self.behind))

    def peers(self) -> tuple[Peer, ...]:
        """Return all other replicas."""
        return tuple(self.known.values())

    async def status(self, api: str) -> PeerStatus:
        """Answer for a peer."""
        self.asked += 1
        if self.frozen and api == "r2:1":
            await asyncio.sleep(3600)
        if api not in self.answers:
            raise UnavailableError("no answer")
        return self.answers[api]

    async def able(self) -> set[str]:
        """Return the replicas that can receive a file, by new requests."""
        self.now_s += STALE_S * 2
        return {peer.replica for peer in await self.targets.now()}


@pytest.fixture
def around() -> Around:
    """Return two healthy peers."""
    return Around()


async def test_answers_are_kept_for_a_while(around: Around) -> None:
    """Many files cost two requests; callers meanwhile wait for the same answers."""
    found = await asyncio.gather(*(around.targets.now() for _ in range(5)))
    assert around.asked == 2
    assert all({peer.replica for peer in peers} == {R2, R3} for peers in found)
    del around.answers["r2:1"]
    assert len(await around.targets.now()) == 2
    assert await around.able() == {R3}


async def test_who_cannot_take_a_file(around: Around) -> None:
    """Each replica is excluded for another reason."""
    healthy = around.answers["r2:1"]
    for wrong in (
        PeerStatus(R2, "d-r2", 1, "suspended", Csn(1), 1 << 40),
        PeerStatus(R2, "d-r2", 1, "serving", Csn(1), 1 << 20),
        PeerStatus(R2, "d-r2", 1, "serving", Csn(1)),
        PeerStatus(R2, "another disk", 1, "serving", Csn(1), 1 << 40),
        PeerStatus(R3, "d-r2", 1, "serving", Csn(1), 1 << 40),
    ):
        around.answers["r2:1"] = wrong
        assert await around.able() == {R3}
    around.answers["r2:1"] = healthy
    assert await around.able() == {R2, R3}
    around.behind = (R2,)
    assert await around.able() == {R3}
    around.behind, around.silent = (), (R2, R3)
    assert await around.able() == set()


async def test_a_frozen_peer_is_waited_for_once(around: Around) -> None:
    """A frozen peer delays one caller for `peer_ask_timeout_s`, and no caller while that result is fresh."""
    around.frozen = True
    assert await around.able() == {R3}
    asked = around.asked
    await around.targets.now()
    assert around.asked == asked


async def test_a_frozen_peer_holds_nobody_up(around: Around) -> None:
    """The earlier answer is used during a request; afterwards the new result."""
    assert await around.able() == {R2, R3}
    around.frozen = True
    around.now_s += FRESH_S * 2
    async with asyncio.timeout(0):  # no iteration of the loop is needed
        assert len(await around.targets.now()) == 2
    asking = around.targets._asking
    assert asking is not None
    await asking
    assert [peer.replica for peer in await around.targets.now()] == [R3]


@given(st.integers(1, 5), st.randoms())
def test_turns_name_everybody_equally_often(others: int, chosen: random.Random) -> None:
    """Every lasting member is chosen equally often, whatever members join and leave."""
    turns = RoundRobin()
    staying = [ReplicaId(f"r{number}") for number in range(others)]
    named: Counter[ReplicaId] = Counter()
    for _ in range(60):
        guests = [ReplicaId("x")] if chosen.random() < 0.5 else []
        named[turns.next([*staying, *guests])] += 1
    counts = [named[replica] for replica in staying]
    assert max(counts) - min(counts) <= 1
