"""Uploads of this home's transactions that other replicas receive, so that the home is no bottleneck.

The home decides at each step. It names the replica. That replica asks the home before it receives the first
byte, and gets the id of the part. When the file is durable there, the replica notifies the home. If the path
has been deleted from the home's area meanwhile, the home refuses the file, and the replica gives it up. The
replica reports "created" to the writer only after the home has accepted the file. The bytes are fetched at
once, concurrently, and the seal waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode

from msgspec.structs import replace

from tidelock.csnlog.core.ids import PartId, ReplicaId, TableId, Tid
from tidelock.errors import BadRequestError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.pack_writer import PartNumbers
from tidelock.replica_agent.transactions.staged_files import StagedFile, TableWrites
from tidelock.replica_agent.transactions.staging_paths import StagingPath
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replica_agent.uploads.eager_replication import EagerReplication
from tidelock.replica_agent.uploads.grants import UploadGrants
from tidelock.replica_agent.uploads.targets import RoundRobin, UploadTargets
from tidelock.replica_agent.uploads.uploads import Uploads
from tidelock.replication.core.model import PartMeta
from tidelock.replication.partfs import PartFs
from tidelock.wire.peers import UploadBegun

#: Path of a replica for files of others' transactions: ``/webhdfs/v1/transactions/uploads/<grant>``.
UPLOADS = "uploads"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class UploadRedirector:
    """Sends uploads to other replicas.

    Attributes:
        home: This replica.
        monotonic: Seconds: when grants expire.
    """

    settings: AgentSettings
    home: ReplicaId
    numbers: PartNumbers
    files: PartFs
    uploads: Uploads
    eager: EagerReplication
    grants: UploadGrants
    targets: UploadTargets
    monotonic: Callable[[], float]
    _turns: RoundRobin = field(default_factory=RoundRobin, init=False)

    async def location(
        self, tx: Transaction, table: TableId, place: StagingPath, *, overwrite: bool
    ) -> str | None:
        """Return the URL to send a file to; None: this replica."""
        if not self.settings.upload_spread:
            return None
        peers = {peer.replica: peer for peer in await self.targets.now()}
        if self.eager.behind_bytes() > self.settings.upload_behind_bytes_max:
            return None
        chosen = self._turns.next({self.home, *peers})
        if chosen == self.home:
            return None
        grant = self.grants.give(
            tx.tid, table, place, overwrite=overwrite, replica=chosen, now_s=self.monotonic()
        )
        fields = urlencode({"op": "CREATE", "data": "true"})
        return f"http://{peers[chosen].api}/webhdfs/v1/transactions/{UPLOADS}/{grant}?{fields}"

    async def begin(self, text: str, replica: ReplicaId) -> UploadBegun:
        """Let another replica receive a file.

        Raises:
            TokenForgedError, TokenForeignError, TokenExpiredError: As :meth:`UploadGrants.admit`.
            TokenFinishedError: The transaction has ended.
            BadRequestError, TooLargeError: As :meth:`Uploads.upload`.
        """
        grant = self.grants.admit(text, replica, self.monotonic())
        tx = self.uploads.tokens.find_open(grant.tid)
        writes = self.uploads.of(tx, grant.table)
        self.uploads.quota.require_file(tx)
        number, dropped = writes.area.create(grant.place, overwrite=grant.overwrite)
        part = self.numbers.next()
        writes.files[number] = StagedFile(part, self.files.part_path(part), taken_by=replica)
        writes.elsewhere[part] = number
        await self.eager.discard(writes.take(dropped))
        return UploadBegun(part, min(self.settings.insert_bytes_max, self.uploads.quota.room(tx)))

    async def end(self, tid: Tid, table: TableId, replica: ReplicaId, meta: PartMeta) -> None:
        """Record a file that is durable at another replica, and fetch it; may be repeated.

        Raises:
            TokenFinishedError: The transaction has ended.
            BadRequestError: The file was deleted meanwhile.
            TooLargeError: The transaction stages too much with this file.
        """
        tx = self.uploads.tokens.find_open(tid)
        writes = tx.staged.writes.get(table)
        number = None if writes is None else writes.elsewhere.get(meta.part)
        if writes is None or number is None or writes.files[number].taken_by != replica:
            raise BadRequestError(f"the file of part {meta.part} was deleted while it was written")
        file = writes.files[number]
        if file.meta is None:
            self._finish(tx, writes, number, meta)
        elif file.meta != meta:
            raise BadRequestError(
                f"the file of part {meta.part} was sent twice with different content; create the file again"
            )

    def _finish(self, tx: Transaction, writes: TableWrites, number: int, meta: PartMeta) -> None:
        writes.length += meta.length
        try:
            self.uploads.quota.require_bytes(tx, meta.length)
        except BaseException:
            writes.length -= meta.length
            raise
        writes.area.finish(number, meta.length)
        writes.files[number] = file = replace(writes.files[number], meta=meta, known=True)
        self.eager.fetch(tx, [file])

    async def fail(self, tid: Tid, table: TableId, replica: ReplicaId, part: PartId) -> None:
        """Give up a file that another replica could not receive; harmless when no seal waits for it.

        The home may have recorded the file although its answer was lost. Then the fetch is under way, and is
        undone.
        """
        tx = self.uploads.tokens.find_open(tid)
        writes = tx.staged.writes.get(table)
        number = None if writes is None else writes.elsewhere.get(part)
        if writes is not None and number is not None and writes.files[number].taken_by == replica:
            writes.area.abandon(number)
            await self.eager.discard(writes.take([number]))
