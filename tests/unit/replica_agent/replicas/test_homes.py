"""The homes of other replicas' transactions: which ones are asked, and which ones may be fenced."""

from __future__ import annotations

import asyncio
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
        self.gone: list[bool] = []
        self.time = 0.0
        #: The answers of the addresses to connections, one after the other; then they accept them.
        self.refusals: list[bool] = []
        self.state = "serving"
        self.answer: HomeAnswer | None = Running()

    @property
    def view(self) -> dict[ReplicaId, MemberView]:
        """Return all replicas, which show a sign of life in ZooKeeper."""
        session = SessionState(4, "d", "n", self.state)
        return {name: MemberView(MemberState(), session, 0, True, None) for name in (R1, R2, R3)}

    async def refuses(self, api: str) -> bool:
        """Refuse a connection as planned; some time passes."""
        assert api == MemberState().api
        self.time += 0.4
        return bool(self.refusals) and self.refusals.pop(0)

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

    async def fence_out(self, replica: ReplicaId, boot: int, *, gone: bool) -> int:
        """Fence a replica."""
        self.fenced.append((replica, boot))
        self.gone.append(gone)
        return 9


@pytest.fixture
def cluster() -> Cluster:
    """Return the other replicas, which are not silent."""
    return Cluster()


@pytest.fixture
def homes(cluster: Cluster) -> Homes:
    """Return the homes as r1 sees them."""
    given = cast("Any", cluster)
    return Homes(
        replica=R1,
        membership=given,
        client=given,
        log=given,
        fence_timeout_s=FENCE_TIMEOUT_S,
        refused_timeout_s=1.0,
        clock=lambda: cluster.time,
    )


async def test_only_a_home_that_has_long_been_silent_is_fenced(cluster: Cluster, homes: Homes) -> None:
    """Below the bound no home is fenced, and a replica never counts itself among the silent ones."""
    cluster.silent = {R1: FENCE_TIMEOUT_S, R2: FENCE_TIMEOUT_S - 0.1}
    assert homes.silent() == frozenset()
    assert await homes.fence(R2, 4) is None
    assert await homes.fence_present(R2, 3) is None
    assert cluster.fenced == []
    cluster.silent = {R2: FENCE_TIMEOUT_S}
    assert homes.silent() == {R2}
    assert await homes.fence(R2, 3) == 9
    assert await homes.fence_present(R2, 3) == 9
    assert cluster.fenced == [(R2, 3), (R2, 4)]


async def test_a_home_that_fails_to_answer_says_nothing(cluster: Cluster, homes: Homes) -> None:
    """An error of the request decides nothing about the transaction, and neither does an unknown home."""
    assert await homes.ask(TID) == Running()
    cluster.answer = None
    assert await homes.ask(TID) == NoAnswer()
    assert await homes.ask(Tid(Csn(5), ReplicaId("r9"), 1, 1)) == NoAnswer()
    assert await homes.fence_present(ReplicaId("r9"), 3) is None


async def test_a_home_whose_process_is_gone_is_fenced_at_once(cluster: Cluster, homes: Homes) -> None:
    """Its address refuses connections for a while, so the end of its ZooKeeper session is not waited for."""
    cluster.refusals = [True] * 9
    assert await homes.fence(R2, 4) == 9
    assert (cluster.fenced, cluster.gone) == ([(R2, 4)], [True])


async def test_a_home_that_accepts_a_connection_is_not_gone(cluster: Cluster, homes: Homes) -> None:
    """One accepted connection is enough: the process runs, or another one does by now."""
    cluster.refusals = [True, True, False]
    assert await homes.fence(R2, 4) is None
    assert cluster.fenced == []


async def test_a_boot_that_may_be_starting_is_not_gone(cluster: Cluster, homes: Homes) -> None:
    """A boot refuses connections before it listens, so locks of the boot before do not end it."""
    cluster.refusals = [True] * 9
    assert await homes.fence_present(R2, 3) is None
    assert await homes.fence_present(R2, 4) == 9
    cluster.refusals, cluster.state = [True] * 9, "fenced"
    assert await homes.fence_present(R2, 3) == 9
    assert cluster.fenced == [(R2, 4), (R2, 4)]


async def test_callers_share_one_look_at_a_home(cluster: Cluster, homes: Homes) -> None:
    """Many transactions of a dead home cost it no more connections than one."""
    cluster.refusals = [True] * 9
    assert await asyncio.gather(*(homes.fence(R2, 4) for _ in range(20))) == [9] * 20
    assert len(cluster.refusals) > 4


async def test_a_home_is_never_judged_by_refused_connections_if_that_is_off(
    cluster: Cluster, homes: Homes
) -> None:
    """Then no connection is made, and only its silence counts."""
    homes.refused_timeout_s, cluster.refusals = 0.0, [True] * 9
    assert await homes.fence(R2, 4) is None
    assert len(cluster.refusals) == 9


async def test_a_question_does_not_wait_for_a_long_look(
    cluster: Cluster, homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where refusals have to last for long, the question is answered before, and may be asked again."""
    monkeypatch.setattr("tidelock.replica_agent.replicas.homes._LOOK_S", 0.0)
    homes.refused_timeout_s, cluster.refusals = 3600.0, [True]
    assert await homes.fence(R2, 4) is None
    assert cluster.fenced == []
