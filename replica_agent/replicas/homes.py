"""The homes of other replicas' transactions: requests to them, and the fencing of silent ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from tidelock.csnlog.core.ids import ReplicaId, Tid
from tidelock.csnlog.core.model import FENCED
from tidelock.csnlog.core.results import HomeAnswer, NoAnswer
from tidelock.csnlog.log import CsnLog
from tidelock.errors import TidelockError
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replication.peers import PeerClient

_log = structlog.get_logger("homes")

#: Longest time for a home's answer, in seconds: clients wait for an outcome no longer than `wait_bound_s`.
_ANSWER_S = 1.0
#: Longest time that a question waits until it is certain that a home is gone, in seconds.
_LOOK_S = 2.0
#: Pause between two connections to a home that refuses them, in seconds.
_REFUSED_PAUSE_S = 0.2


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Homes:
    """Asks and fences other replicas.

    Attributes:
        replica: The own id.
        membership: The registered replicas, and the time since when each is silent.
        client: Sends the requests.
        log: Raises the fences.
        fence_timeout_s: How long a home has to be silent before it is fenced.
        refused_timeout_s: How long its API address has to refuse connections before it is fenced; 0: never.
        clock: Monotonic seconds.
    """

    replica: ReplicaId
    membership: Membership
    client: PeerClient
    log: CsnLog
    fence_timeout_s: float
    refused_timeout_s: float
    clock: Callable[[], float]
    #: The running looks at homes that refuse connections.
    _looking: dict[ReplicaId, asyncio.Task[bool]] = field(default_factory=dict, init=False)

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

    async def fence_present(self, home: ReplicaId, boot: int) -> int | None:
        """Fence a home in its present boot if it has long been silent, or if its process is gone.

        Args:
            home: The home.
            boot: The boot of a transaction of that home.

        Returns:
            The data version that this call has written to its session znode; None if nothing was written.

        Raises:
            As :meth:`CsnLog.fence_out`.
        """
        found = self.membership.view.get(home)
        if found is None or found.session is None:
            return None
        # A boot that is starting refuses connections, too. One that had transactions, or that another replica
        # has made by a fence, is not starting.
        present = found.session.boot
        listened = boot == present or found.session.state == FENCED
        return await self._fence(home, present, may_be_gone=listened)

    async def fence(self, home: ReplicaId, boot: int) -> int | None:
        """Fence a home in the boot of one of its transactions; as :meth:`fence_present`."""
        return await self._fence(home, boot, may_be_gone=True)

    async def _fence(self, home: ReplicaId, boot: int, *, may_be_gone: bool) -> int | None:
        silent = self._is_silent(home)
        may_be_gone = may_be_gone and self.refused_timeout_s > 0
        gone = not silent and may_be_gone and await self._is_gone(home)
        if not silent and not gone:
            return None
        version = await self.log.fence_out(home, boot, gone=gone)
        if version is not None:
            silent_s = round(self.membership.silent_s(home), 1)
            _log.warning("fenced_home", home=home, boot=boot, silent_s=silent_s, gone=gone)
        return version

    def _is_silent(self, home: ReplicaId) -> bool:
        return self.membership.silent_s(home) >= self.fence_timeout_s

    async def _is_gone(self, home: ReplicaId) -> bool:
        """Return whether the API address of a home refuses connections all the time; callers share a look.

        Only a machine that runs refuses: it says that no process listens there. A home that is frozen or cut
        off does not, and neither does a machine that is down.
        """
        if home not in self._looking:
            task = asyncio.create_task(self._look(home), name=f"look at {home}")
            self._looking[home] = task
            task.add_done_callback(lambda _: self._looking.pop(home))
        looking = self._looking[home]
        await asyncio.wait({looking}, timeout=_LOOK_S)
        return looking.done() and looking.result()

    async def _look(self, home: ReplicaId) -> bool:
        until = self.clock() + self.refused_timeout_s
        while (found := self.membership.view.get(home)) and await self.client.refuses(found.member.api):
            if self.clock() >= until:
                return True
            await asyncio.sleep(_REFUSED_PAUSE_S)
        return False
