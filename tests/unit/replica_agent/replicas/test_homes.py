"""The homes of other replicas' transactions: which ones are asked, and which ones may be fenced."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tidelock.csnlog.cluster.members import MemberView
from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.model import MemberState, SessionState
from tidelock.csnlog.core.results import HomeAnswer, NoAnswer, Running
from tidelock.errors import UnavailableError
from tidelock.replica_agent.replicas.homes import Homes
from tidelock.replication.core.model import Peer

R1, R2, R3 = (ReplicaId(name) for name in ("r1", "r2", "r3"))
FENCE_TIMEOUT_S = 30.0
TID = Tid(Csn(5), R2, 4, 1)


class Cluster:
    """The other replicas: their member list, their answers, and the log that fences them."""

    def __init__(self) -> None:
        self.silent: dict[ReplicaId, float] = {}
        self.fenced: list[tuple[ReplicaId, int]] = []
        self.answer: HomeAnswer | None = Running()
        session = SessionState(4, "d", "n", "serving")
        self.view = {name: MemberView(MemberState(), session, 0, True, None) for name in (R1, R2, R3)}

    def silent_s(self, replica: ReplicaId) -> float:
        """Return for how long a replica has given no sign of life."""
        return self.silent.get(replica, 0.0)

    def peers(self) -> list[Peer]:
        """Return the other replicas."""
        return [Peer(name, f"{name}:1", f"{name}:2", "d") for name in (R2, R3)]

    async def outcome(self, api: str, tid: Tid) -> HomeAnswer:
        """Answer, or fail, at the address of the home."""
        assert (api, tid) == ("r2:1", TID)
        if self.answer is None:
            raise UnavailableError("no answer")
        return self.answer

    async def fence_out(self, replica: ReplicaId, boot: int) -> int:
        """Fence a replica."""
        self.fenced.append((replica, boot))
        return 9


@pytest.fixture
def cluster() -> Cluster:
    """Return the other replicas, which are not silent."""
    return Cluster()


@pytest.fixture
def homes(cluster: Cluster) -> Homes:
    """Return the homes as r1 sees them."""
    given = cast("Any", cluster)
    return Homes(replica=R1, membership=given, client=given, log=given, fence_timeout_s=FENCE_TIMEOUT_S)


async def test_only_a_home_that_has_long_been_silent_is_fenced(cluster: Cluster, homes: Homes) -> None:
    """Below the bound no home is fenced, and a replica never counts itself among the silent ones."""
    cluster.silent = {R1: FENCE_TIMEOUT_S, R2: FENCE_TIMEOUT_S - 0.1}
    assert homes.silent() == frozenset()
    assert await homes.fence(R2, 4) is None
    assert await homes.fence_present(R2) is None
    assert cluster.fenced == []
    cluster.silent = {R2: FENCE_TIMEOUT_S}
    assert homes.silent() == {R2}
    assert await homes.fence(R2, 3) == 9
    assert await homes.fence_present(R2) == 9
    assert cluster.fenced == [(R2, 3), (R2, 4)]


async def test_a_home_that_fails_to_answer_says_nothing(cluster: Cluster, homes: Homes) -> None:
    """An error of the request decides nothing about the transaction, and neither does an unknown home."""
    assert await homes.ask(TID) == Running()
    cluster.answer = None
    assert await homes.ask(TID) == NoAnswer()
    assert await homes.ask(Tid(Csn(5), ReplicaId("r9"), 1, 1)) == NoAnswer()
    assert await homes.fence_present(ReplicaId("r9")) is None
