"""The replicas that can receive a file now: they serve, keep up, and have room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidelock.errors import TidelockError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentState
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replication.core.model import Peer
from tidelock.replication.peers import PeerClient

#: Age in seconds at which an answer is requested again.
FRESH_S: Final = 1.0
#: Greatest age in seconds of an answer that is used while a new one is requested, so that no upload waits for
#: a frozen replica. A writer that is sent to a replica which has died since fails: that is the price of
#: asking rarely, and of not waiting.
STALE_S: Final = 3.0


class UploadTargets:
    """Asks the peers, at most once in :data:`FRESH_S`; uses answers up to the age :data:`STALE_S`.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(
        self, settings: AgentSettings, membership: Membership, client: PeerClient, clock: Callable[[], float]
    ) -> None:
        """Begin without any answer."""
        self._settings, self._membership, self._client, self._clock = settings, membership, client, clock
        self._asked_at = float("-inf")
        self._found: tuple[Peer, ...] = ()
        self._asking: asyncio.Task[None] | None = None

    async def now(self) -> tuple[Peer, ...]:
        """Return the peers that can receive a file."""
        age = self._clock() - self._asked_at
        if age > FRESH_S:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask_all(), name="ask for targets")
            if age > STALE_S:
                await asyncio.shield(self._asking)
        return self._found

    async def _ask_all(self) -> None:
        serving, lagging = self._membership.serving(), self._membership.lagging()
        peers = [
            peer
            for peer in self._membership.peers()
            if peer.replica in serving and peer.replica not in lagging and not peer.struck
        ]
        able = await asyncio.gather(*(self._is_able(peer) for peer in peers))
        self._found = tuple(peer for peer, yes in zip(peers, able, strict=True) if yes)
        self._asked_at = self._clock()

    async def _is_able(self, peer: Peer) -> bool:
        try:
            async with asyncio.timeout(self._settings.peer_ask_timeout_s):
                found = await self._client.status(peer.api)
        except (TidelockError, TimeoutError):
            return False
        known = (found.id, found.disk, found.state) == (peer.replica, peer.disk, AgentState.SERVING.value)
        return known and found.free_bytes >= self._settings.part_bytes_max
