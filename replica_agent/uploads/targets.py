"""The replicas that can receive a file now (they serve, keep up, and have room), and whose turn it is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from tidelock.csnlog.core.ids import ReplicaId
from tidelock.errors import TidelockError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentState
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replication.core.lag import STUCK
from tidelock.replication.core.model import Peer
from tidelock.replication.peers import PeerClient

#: Age in seconds at which an answer is requested again.
FRESH_S: Final = 1.0
#: Greatest age in seconds of an answer that is used while a new one is requested, so that no upload waits for
#: a frozen replica. A writer that is sent to a replica which has died since fails: that is the price of
#: asking rarely, and of not waiting.
STALE_S: Final = 3.0


@dataclass(slots=True, eq=False, repr=False)
class RoundRobin:
    """Chooses replicas in turn, also while members change: the one that was chosen longest ago."""

    _last: dict[ReplicaId, int] = field(default_factory=dict, init=False)
    _count: int = field(default=0, init=False)

    def next(self, among: Collection[ReplicaId]) -> ReplicaId:
        """Return one of these replicas; at least one is required."""
        chosen = min(sorted(among), key=lambda replica: self._last.get(replica, 0))
        self._count += 1
        self._last[chosen] = self._count
        return chosen


@dataclass(slots=True, eq=False, repr=False)
class UploadTargets:
    """Asks the peers, at most once in :data:`FRESH_S`; uses answers up to the age :data:`STALE_S`.

    Attributes:
        clock: Monotonic seconds.
    """

    settings: AgentSettings
    membership: Membership
    client: PeerClient
    clock: Callable[[], float]
    _asked_at: float = field(default=-math.inf, init=False)
    _able: tuple[Peer, ...] = field(default=(), init=False)
    _asking: asyncio.Task[None] | None = field(default=None, init=False)

    async def now(self) -> tuple[Peer, ...]:
        """Return the peers that can receive a file."""
        age = self.clock() - self._asked_at
        if age > FRESH_S:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask_all(), name="ask for targets")
            if age > STALE_S:
                await asyncio.shield(self._asking)
        return self._able

    async def _ask_all(self) -> None:
        serving, lag = self.membership.serving(), self.membership.lag()
        peers = [
            peer
            for peer in self.membership.peers()
            if peer.replica in serving
            and peer.replica not in lag.far
            and peer.phase not in STUCK
            and not peer.struck
        ]
        able = await asyncio.gather(*(self._is_able(peer) for peer in peers))
        self._able = tuple(peer for peer, yes in zip(peers, able, strict=True) if yes)
        self._asked_at = self.clock()

    async def _is_able(self, peer: Peer) -> bool:
        try:
            async with asyncio.timeout(self.settings.peer_ask_timeout_s):
                found = await self.client.status(peer.api)
        except (TidelockError, TimeoutError):
            return False
        known = (found.id, found.disk, found.state) == (peer.replica, peer.disk, AgentState.SERVING.value)
        return known and found.free_bytes >= self.settings.part_bytes_max
