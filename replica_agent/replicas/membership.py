"""The other replicas as this agent knows them: peers, disks, snapshot CSNs.

The member list comes from ZooKeeper (hints and periodic re-reads). Snapshot CSNs arrive fresher with every
answer to a push, and by a request where they are needed at once. Only the disks matter for safety: they
decide whose copies count.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidelock.csnlog.cluster.members import Members, MemberView
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId
from tidelock.csnlog.core.model import CLONING, REMOVED, SERVING, ClusterState, ReplicaPhase, Roster
from tidelock.csnlog.core.roster import COUNTED, LEFT_OUT, group_of, roster_of
from tidelock.errors import TidelockError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replication.clocks import Clocks
from tidelock.replication.core.lag import STUCK, LagLimits, LagVerdict, LagWatch, epochs_of
from tidelock.replication.core.model import CopyPlace, CountingRules, Held, Peer
from tidelock.replication.peers import PeerClient

#: States of a replica's session in which its copies do not count and no commit waits for it.
_OUT = LEFT_OUT | {CLONING}
#: Pause before peers are asked again during a wait.
_POLL_S = 0.02
#: A rest of a wait that is over: what rounding leaves of a delay may be too short for a clock to show it.
_OVER_S = 1e-6


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Membership:
    """The other replicas, seen from this one.

    Attributes:
        clock: Monotonic seconds.
        clocks: The wall clocks that are known, with which each answer of a peer is noted.
    """

    replica: ReplicaId
    cluster: ClusterState
    settings: AgentSettings
    members: Members
    client: PeerClient
    waiters: CsnWaiters
    clock: Callable[[], float]
    clocks: Clocks
    _heard: dict[ReplicaId, Csn] = field(default_factory=dict, init=False)
    _asking: asyncio.Task[dict[ReplicaId, Csn]] | None = field(default=None, init=False)
    #: Requests that are not answered yet, by address: nobody waits for one that is late.
    _unanswered: dict[str, asyncio.Task[Csn | None]] = field(default_factory=dict, init=False)
    #: The time since when a replica gives no sign of life, by this agent's clock.
    _silent_since: dict[ReplicaId, float] = field(default_factory=dict, init=False)
    _lags: LagWatch = field(init=False)

    def __post_init__(self) -> None:
        """Begin to watch the lags."""
        settings = self.settings
        self._lags = LagWatch(
            LagLimits(
                max_lag=settings.max_lag,
                delay_max_s=settings.lag_delay_max_s,
                stalled_after_s=settings.blocked_after_s,
                epochs=epochs_of(self.cluster),
            )
        )

    @property
    def view(self) -> Mapping[ReplicaId, MemberView]:
        """Return every registered replica, including this one."""
        return self.members.snapshot()

    @property
    def roster(self) -> Roster:
        """The newest roster that is known."""
        return roster_of(self.members.roster, self.cluster)

    @property
    def copies(self) -> int:
        """Durable copies that a commit needs, as far as this agent has seen."""
        return self.roster.copies

    @property
    def draining(self) -> bool:
        """Whether an operator has this replica drained."""
        return self.replica in self.roster.draining

    def rules(self) -> CountingRules:
        """Return what decides whose copies count, for the version of ``replicas`` that was seen."""
        node = self.members.roster
        return counting_rules(self.replica, -1 if node is None else node.version, self.roster, self.view)

    def changed(self) -> None:
        """Note after a change of the view which replicas are silent, and since when."""
        now, before = self.clock(), self._silent_since
        self._silent_since = {
            replica: before.get(replica, now) for replica, found in self.view.items() if not found.alive
        }

    def silent_s(self, replica: ReplicaId) -> float:
        """Return how long a replica has given no sign of life, as far as this agent has seen; else 0."""
        since = self._silent_since.get(replica)
        return 0.0 if since is None else self.clock() - since

    def peers(self) -> tuple[Peer, ...]:
        """Return the other registered replicas."""
        return tuple(
            self._peer(replica, member) for replica, member in self.view.items() if replica != self.replica
        )

    def _peer(self, replica: ReplicaId, found: MemberView) -> Peer:
        session = found.session
        return Peer(
            replica=replica,
            api=found.member.api,
            data=found.member.data,
            disk=session.disk if session else "",
            alive=found.alive,
            struck=session is not None and session.state in _OUT,
            snapshot=self.snapshot_of(replica, found),
            phase=found.progress.phase if found.progress else ReplicaPhase.STARTING,
        )

    def snapshot_of(self, replica: ReplicaId, found: MemberView) -> Csn:
        """Return the newest known snapshot CSN of a replica."""
        if replica == self.replica:
            return self.waiters.reached
        published = found.progress.snapshot if found.progress else CSN_NONE
        return max(published, self._heard.get(replica, CSN_NONE))

    def removed(self) -> frozenset[ReplicaId]:
        """Return the replicas that were removed from the cluster."""
        return frozenset(
            replica
            for replica, found in self.view.items()
            if found.session is not None and found.session.state == REMOVED
        )

    def ended(self) -> dict[ReplicaId, int]:
        """Return the replicas that were struck or removed, with their boot: it commits nothing any more."""
        return {
            replica: found.session.boot
            for replica, found in self.view.items()
            if found.session is not None and found.session.state in LEFT_OUT
        }

    def serving(self) -> list[ReplicaId]:
        """Return the replicas that show a sign of life, and are not fenced, struck, removed or cloning."""
        return [
            replica
            for replica, found in self.view.items()
            if found.alive and found.session is not None and found.session.state == SERVING
        ]

    def has_well_peer(self) -> bool:
        """Return whether another replica serves and is neither blocked nor full."""
        serving = self.serving()
        return any(peer.replica in serving and peer.phase not in STUCK for peer in self.peers())

    def open_snapshots(self) -> set[Csn]:
        """Return the published CSNs that long transactions of the serving replicas read at."""
        view = self.view
        published = (view[replica].progress for replica in self.serving())
        return {csn for progress in published if progress is not None for csn in progress.open}

    def heard(self, held: Held) -> None:
        """Note the snapshot CSN in a peer's answer."""
        self._heard[held.replica] = held.snapshot_csn  # not max: a peer with a new disk may be further back

    def cluster_csn(self) -> Csn:
        """Return the smallest snapshot CSN over the replicas that are not struck: readable everywhere."""
        view = self.view
        known = [
            self.snapshot_of(peer, view[peer]) for peer in view if not self._peer(peer, view[peer]).struck
        ]
        return min(known, default=self.waiters.reached)

    async def ask(self) -> dict[ReplicaId, Csn]:
        """Request the snapshot CSNs of the live peers; peers that do not answer at once are left out.

        Callers share a running request and its answers: many commits may wait for one peer. A peer that was
        late is left out without a wait until it answers that request, or is seen to fail: while a peer is
        frozen, it delays one caller, and not each of them.
        """
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_all(), name="ask peers")
        return await asyncio.shield(self._asking)

    async def _ask_all(self) -> dict[ReplicaId, Csn]:
        peers = [peer for peer in self.peers() if peer.alive and not peer.struck]
        answers = await asyncio.gather(*(self._ask(peer) for peer in peers))
        return {peer.replica: csn for peer, csn in zip(peers, answers, strict=True) if csn is not None}

    async def _ask(self, peer: Peer) -> Csn | None:
        if peer.api in self._unanswered:
            return None
        asked = asyncio.create_task(self._request(peer), name=f"ask {peer.replica}")
        self._unanswered[peer.api] = asked
        asked.add_done_callback(lambda _: self._unanswered.pop(peer.api))
        answered, _ = await asyncio.wait({asked}, timeout=self.settings.peer_ask_timeout_s)
        return asked.result() if answered else None

    async def _request(self, peer: Peer) -> Csn | None:
        begun_s = self.clocks.begun()
        try:
            status = await self.client.status(peer.api)
        except TidelockError:
            return None
        self.clocks.heard(peer.replica, status.time_ms, begun_s)
        self._heard[peer.replica] = status.snapshot_csn
        return status.snapshot_csn

    def lag(self) -> LagVerdict:
        """Return which replicas lag, and what that means for a commit now."""
        return self._lags.judge(self.peers(), self.waiters.reached, self.clock(), self.copies)

    async def delay_commit(self, timeout_s: float) -> LagVerdict:
        """Delay a commit as the lags of the others demand, as long as they do.

        Returns the last verdict. If it is "refused", that has not changed for ``timeout_s``.
        """
        begun_s = self.clock()
        while True:
            found = self.lag()
            left_s = (timeout_s if found.refused else found.delay_s) - (self.clock() - begun_s)
            if left_s <= _OVER_S:
                return found
            await asyncio.sleep(min(_POLL_S, left_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self.ask()

    async def wait_applied(self, csn: Csn, everywhere: bool, timeout_s: float) -> tuple[ReplicaId, ...]:
        """Wait until ``csn`` is applied on ``copies`` replicas, or on all live ones and as many at least.

        For a moment, this replica may be the only live one, when sessions to ZooKeeper have expired.

        Returns the replicas that lack it after ``timeout_s``: of the live ones, or of all if copies are
        missing.
        """
        until = self.clock() + timeout_s
        while True:
            reached = await self.ask()
            done = {replica for replica, at in reached.items() if at >= csn} | {self.replica}
            others = [peer for peer in self.peers() if not peer.struck]
            enough = len(done) >= self.copies
            wanted = {peer.replica for peer in others if (peer.alive and everywhere) or not enough}
            if enough and (wanted <= done or not everywhere):
                return ()
            if self.clock() > until:
                return tuple(sorted(wanted - done))
            await asyncio.sleep(_POLL_S)


def counting_rules(
    home: ReplicaId, version: int, roster: Roster, view: Mapping[ReplicaId, MemberView]
) -> CountingRules:
    """Return what decides whose copies count, as one view of the members shows it.

    Args:
        home: The replica that counts.
        version: The version of ``replicas``, which is not newer than the view.
        roster: The roster at that version.
        view: The members.
    """
    places = {
        replica: CopyPlace(found.session.disk, group_of(replica, roster, found.member))
        for replica, found in view.items()
        if found.session is not None
        and found.session.disk
        and found.session.state in COUNTED
        and replica not in roster.draining
    }
    own = view.get(home)
    return CountingRules(
        version=version,
        copies=roster.copies,
        home=home if own is None else group_of(home, roster, own.member),
        places=tuple((replica, places[replica]) for replica in sorted(places) if replica != home),
    )
