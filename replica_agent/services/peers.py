"""The service for other agents: pushes, hints, files for this home, outcomes, replica progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.core.ids import Csn, PartId, Tid
from tidelock.errors import TooLargeError
from tidelock.replica_agent.cloning.source import ManifestSource
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.replicas.held_parts import HeldParts
from tidelock.replica_agent.replicas.receiver import PushReceiver
from tidelock.replica_agent.scrubbing.comparison import StateComparison
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.transactions.outcomes.resolver import OutcomeResolver
from tidelock.replica_agent.uploads.redirect import UploadRedirector
from tidelock.replication.clocks import Clocks
from tidelock.replication.core.model import Held
from tidelock.replication.core.room import DiskUse
from tidelock.replication.core.wire import HEADER_BYTES_MAX
from tidelock.replication.partfs import PartFs
from tidelock.wire.peers import CloneManifest, PartWord, PeerStatus, StateDigest


def push_bytes_max(settings: AgentSettings) -> int:
    """Return the largest push in bytes: the parts that a peer with the same settings sends, and a header."""
    return settings.push_bytes_max + settings.inline_part_bytes_max + HEADER_BYTES_MAX


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class PeerService:
    """Answers the other agents of the cluster."""

    settings: AgentSettings
    condition: Condition
    session: OwnSession
    waiters: CsnWaiters
    files: PartFs
    receiver: PushReceiver
    held_parts: HeldParts
    redirector: UploadRedirector
    outcomes: OutcomeResolver
    manifests: ManifestSource
    clocks: Clocks
    comparison: StateComparison

    def admit_push(self, length: int | None) -> None:
        """Raise unless a push of so many bytes is accepted now.

        Raises:
            UnavailableError: This replica cannot vouch for itself and answers "not now".
            TooLargeError: It is larger than any push of a peer with the same settings.
        """
        self.condition.require(AgentAction.ACK)
        limit = push_bytes_max(self.settings)
        if (length or 0) > limit:
            msg = (
                f"the push has {length} bytes, expected at most {limit}: set push_bytes_max to the same "
                "value on all replicas"
            )
            raise TooLargeError(msg, limit=limit, found=length)

    async def stage(self, raw: bytes) -> Held:
        """Make pushed parts durable and return which ones are held."""
        held = await self.receiver.stage(raw)
        self.condition.require(AgentAction.ACK)  # ZooKeeper may be lost, or this replica fenced, meanwhile
        return held

    async def forget(self, tids: Sequence[Tid], parts: Sequence[PartId]) -> None:
        """Delete the parts that a home has rolled back or withdrawn."""
        if tids:
            await self.receiver.forget(tids)
        if parts:
            await self.receiver.drop(parts)

    def admit_upload(self) -> None:
        """Raise UnavailableError unless files of this home's transactions are accepted now."""
        self.condition.require(AgentAction.INSERT)

    async def clone(self, name: str) -> CloneManifest:
        """Write this replica's catalog for another one, and return what is known of it.

        Raises:
            StandbyError: This replica does not know all that it has to know; another one does.
            UnavailableError: Too many catalogs are in use.
        """
        self.condition.require(AgentAction.READ)
        return await self.manifests.manifest(name)

    async def holds(self, part: PartId) -> PartWord:
        """Return whether this replica holds a part, by reading its bytes; a damaged one is fetched again."""
        found = await self.held_parts.holds(part)
        session, reached = self.session, self.waiters.reached
        # A peer of a version that does not know of reads is told that it is held: it changes nothing then.
        return PartWord(session.replica, session.disk, reached, found is not False, reading=found is None)

    async def digest(self, csn: Csn) -> StateDigest:
        """Return the digest of what this replica shows at a CSN.

        Raises:
            SnapshotTooOldError: The CSN is below the horizon here.
            UnavailableError: It is not applied here yet.
        """
        self.condition.require(AgentAction.READ)
        return await self.comparison.digest(csn)

    def status(self) -> PeerStatus:
        """Return the progress of this replica."""
        return PeerStatus(
            id=self.session.replica,
            disk=self.session.disk,
            boot=self.session.boot,
            state=self.condition.state.value,
            snapshot_csn=self.waiters.reached,
            free_bytes=self.files.room.free_for(DiskUse.NEW),
            time_ms=self.clocks.own_ms(),
        )
