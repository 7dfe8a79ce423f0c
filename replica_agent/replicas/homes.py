"""The homes of other replicas' transactions: requests to them, and the fencing of silent ones."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from tidelock.csnlog.core.ids import ReplicaId, Tid
from tidelock.csnlog.core.results import HomeAnswer, NoAnswer
from tidelock.csnlog.log import CsnLog
from tidelock.errors import TidelockError
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replication.peers import PeerClient

_log = structlog.get_logger("homes")

#: Longest time for a home's answer, in seconds: clients wait for an outcome no longer than `wait_bound_s`.
_ANSWER_S = 1.0


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Homes:
    """Asks and fences other replicas.

    Attributes:
        replica: The own id.
        membership: The registered replicas, and the time since when each is silent.
        client: Sends the requests.
        log: Raises the fences.
        fence_timeout_s: How long a home has to be silent before it is fenced.
    """

    replica: ReplicaId
    membership: Membership
    client: PeerClient
    log: CsnLog
    fence_timeout_s: float

    async def ask(self, tid: Tid) -> HomeAnswer | NoAnswer:
        """Return the answer of the home of another replica's transaction, if it arrives in time."""
        for peer in self.membership.peers():
            if peer.replica == tid.home:
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        return await self.client.outcome(peer.api, tid)
                except (TidelockError, TimeoutError):
                    break
        return NoAnswer()

    def silent(self) -> frozenset[ReplicaId]:
        """Return the other replicas that have given no sign of life for `fence_timeout_s`."""
        return frozenset(home for home in self.membership.view if self._is_silent(home)) - {self.replica}

    async def fence_present(self, home: ReplicaId) -> int | None:
        """Fence a home that has long been silent, in its present boot; errors as :meth:`CsnLog.fence_out`.

        Returns:
            The data version that this call has written to its session znode; None if nothing was written.
        """
        found = self.membership.view.get(home)
        if found is None or found.session is None:
            return None
        return await self.fence(home, found.session.boot)

    async def fence(self, home: ReplicaId, boot: int) -> int | None:
        """Fence a home in one boot if it has long been silent; as :meth:`fence_present`."""
        if not self._is_silent(home):
            return None
        version = await self.log.fence_out(home, boot)
        if version is not None:
            silent_s = round(self.membership.silent_s(home), 1)
            _log.warning("fenced_home", home=home, boot=boot, silent_s=silent_s)
        return version

    def _is_silent(self, home: ReplicaId) -> bool:
        return self.membership.silent_s(home) >= self.fence_timeout_s
