"""What the other agents ask: pushes, hints, files for this home, outcomes, how far this replica is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelock.csnlog.cluster.bootstrap import OwnSession
from tidelock.csnlog.core.ids import PartId, ReplicaId, TableName, Tid
from tidelock.csnlog.core.results import OwnOutcome
from tidelock.errors import TooLargeError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import Action, Condition
from tidelock.replica_agent.replicas.receiver import PushReceiver
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.transactions.outcomes.resolver import OutcomeResolver
from tidelock.replica_agent.uploads.redirect import UploadRedirector
from tidelock.replication.core.model import Held, PartMeta
from tidelock.replication.core.wire import HEADER_BYTES_MAX
from tidelock.replication.partfs import PartFs
from tidelock.wire.peers import PeerStatus, UploadBegun


def push_bytes_max(settings: AgentSettings) -> int:
    """Return the largest push in bytes: what a peer with the same settings puts into one, and its header."""
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
    spread: UploadRedirector
    outcomes: OutcomeResolver

    def admit_push(self, length: int | None) -> None:
        """Raise unless a push of so many bytes is taken now.

        Raises:
            UnavailableError: A replica that cannot vouch for itself says "not now".
            TooLargeError: It is larger than what a peer with the same settings sends.
        """
        self.condition.require(Action.ACK)
        limit = push_bytes_max(self.settings)
        if (length or 0) > limit:
            msg = (
                f"the push has {length} bytes, expected at most {limit}: "
                "push_bytes_max differs between the replicas"
            )
            raise TooLargeError(msg, limit=limit, found=length)

    async def stage(self, raw: bytes) -> Held:
        """Make pushed parts durable and say so."""
        held = await self.receiver.stage(raw)
        self.condition.require(Action.ACK)  # it may have lost ZooKeeper meanwhile, or been fenced
        return held

    async def forget(self, tids: Sequence[Tid], parts: Sequence[PartId]) -> None:
        """Drop what a home has rolled back, or taken back."""
        if tids:
            await self.receiver.forget(tids)
        if parts:
            await self.receiver.drop(parts)

    def hint(self, tid: Tid, holder: ReplicaId, parts: Sequence[PartMeta]) -> None:
        """Fetch parts early."""
        self.receiver.hint(tid, holder, parts)

    def admit_upload(self) -> None:
        """Raise UnavailableError unless files of this home's transactions are taken now."""
        self.condition.require(Action.INSERT)

    async def begin_upload(self, grant: str, replica: ReplicaId) -> UploadBegun:
        """Let another replica take a file of a transaction of this home."""
        return await self.spread.begin(grant, replica)

    async def end_upload(self, tid: Tid, table: TableName, replica: ReplicaId, meta: PartMeta) -> None:
        """Take note of a file that another replica has taken."""
        await self.spread.end(tid, table, replica, meta)

    async def fail_upload(self, tid: Tid, table: TableName, replica: ReplicaId, part: PartId) -> None:
        """Give up a file that another replica was to take."""
        await self.spread.fail(tid, table, replica, part)

    def own_outcome(self, tid: Tid) -> OwnOutcome:
        """Return what this home knows of its own transaction."""
        return self.outcomes.own(tid)

    def status(self) -> PeerStatus:
        """Return how far this replica is."""
        return PeerStatus(
            id=self.session.replica,
            disk=self.session.disk,
            boot=self.session.boot,
            state=self.condition.state.value,
            snapshot_csn=self.waiters.reached,
            free_bytes=self.files.room(),
        )
