"""Uploads of this home's transactions that other replicas take, so that the home is no bottleneck.

The home decides at each step. It names the replica; that one asks it before it takes the first byte, and gets
the id of the part; and when the file is durable there it tells the home, which has a place for it in its
area, or has none any more: then the file is refused, and given up. Who says "created" to the writer says so
after the home has. The bytes are fetched at once, beside everything else, and the seal waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlencode

from tidelock.csnlog.core.ids import PartId, ReplicaId, TableName, Tid
from tidelock.errors import BadRequestError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.transactions.registry import Transaction
from tidelock.replica_agent.transactions.staged_files import StagedFile, TableWrites
from tidelock.replica_agent.transactions.staging_paths import StagingPath
from tidelock.replica_agent.transactions.statements.inserts import Inserts
from tidelock.replica_agent.uploads.eager_replication import EagerReplication
from tidelock.replica_agent.uploads.grants import UploadGrants
from tidelock.replica_agent.uploads.round_robin import RoundRobin
from tidelock.replica_agent.uploads.targets import UploadTargets
from tidelock.replica_agent.uploads.uploads import Uploads
from tidelock.replication.core.model import PartMeta
from tidelock.wire.peers import UploadBegun

#: Where a replica takes files of others' transactions: ``/webhdfs/v1/transactions/uploads/<grant>``.
UPLOADS = "uploads"


class UploadRedirector:
    """Sends uploads to other replicas.

    Args:
        home: This replica.
        wall_s: Unix time, for grants.
    """

    def __init__(
        self,
        *,
        settings: AgentSettings,
        home: ReplicaId,
        inserts: Inserts,
        writes: Uploads,
        early: EagerReplication,
        grants: UploadGrants,
        targets: UploadTargets,
        wall_s: Callable[[], float],
    ) -> None:
        """Send nothing yet."""
        self._settings, self._home, self._inserts = settings, home, inserts
        self._writes, self._early = writes, early
        self._grants, self._targets, self._wall_s = grants, targets, wall_s
        self._turns = RoundRobin()

    async def location(
        self, tx: Transaction, table: TableName, place: StagingPath, *, overwrite: bool
    ) -> str | None:
        """Return the URL that a file is to be sent to; None: here."""
        if not self._settings.upload_spread:
            return None
        peers = {peer.replica: peer for peer in await self._targets.now()}
        if self._early.behind_bytes() > self._settings.upload_behind_bytes_max:
            return None
        chosen = self._turns.next({self._home, *peers})
        if chosen == self._home:
            return None
        grant = self._grants.give(
            tx.tid, table, place, overwrite=overwrite, replica=chosen, now_s=self._wall_s()
        )
        fields = urlencode({"op": "CREATE", "data": "true"})
        return f"http://{peers[chosen].api}/webhdfs/v1/transactions/{UPLOADS}/{grant}?{fields}"

    async def begin(self, text: str, replica: ReplicaId) -> UploadBegun:
        """Let another replica take a file.

        Raises:
            TokenForgedError, TokenForeignError, TokenExpiredError: As :meth:`UploadGrants.admit`.
            TokenFinishedError: The transaction has ended.
            BadRequestError, TooLargeError: As :meth:`Uploads.upload`.
        """
        grant = self._grants.admit(text, replica, self._wall_s())
        tx = self._writes.passes.find_open(grant.tid)
        writes = self._writes.of(tx, grant.table)
        self._writes.quota.require_file(tx)
        number, dropped = writes.area.create(grant.place, overwrite=grant.overwrite)
        part = self._inserts.numbers.next()
        writes.files[number] = StagedFile(part, self._inserts.files.part_path(part), taken_by=replica)
        writes.elsewhere[part] = number
        await self._early.discard(writes.take(dropped))
        return UploadBegun(part, min(self._settings.insert_bytes_max, self._writes.quota.room(tx)))

    async def end(self, tid: Tid, table: TableName, replica: ReplicaId, meta: PartMeta) -> None:
        """Take note of a file that is durable at another replica, and fetch it; may be repeated.

        Raises:
            TokenFinishedError: The transaction has ended.
            BadRequestError: It was deleted meanwhile.
            TooLargeError: With it too much is staged.
        """
        tx = self._writes.passes.find_open(tid)
        writes = tx.writes.get(table)
        number = None if writes is None else writes.elsewhere.get(meta.part)
        if writes is None or number is None or writes.files[number].taken_by != replica:
            raise BadRequestError(f"the file of part {meta.part} was deleted while it was written")
        file = writes.files[number]
        if file.meta is None:
            self._finish(tx, writes, number, meta)
        elif file.meta != meta:
            raise BadRequestError(f"the file of part {meta.part} came twice, and not the same")

    def _finish(self, tx: Transaction, writes: TableWrites, number: int, meta: PartMeta) -> None:
        writes.length += meta.length
        try:
            self._writes.quota.require_bytes(tx, meta.length)
        except BaseException:
            writes.length -= meta.length
            raise
        writes.area.finish(number, meta.length)
        writes.files[number] = file = replace(writes.files[number], meta=meta, known=True)
        self._early.fetch(tx, [file])

    async def fail(self, tid: Tid, table: TableName, replica: ReplicaId, part: PartId) -> None:
        """A file will not come; harmless when nobody waits for it.

        It may have come for this home, whose answer was lost: then it is on its way here, and is taken back.
        """
        tx = self._writes.passes.find_open(tid)
        writes = tx.writes.get(table)
        number = None if writes is None else writes.elsewhere.get(part)
        if writes is not None and number is not None and writes.files[number].taken_by == replica:
            writes.area.abandon(number)
            await self._early.discard(writes.take([number]))
