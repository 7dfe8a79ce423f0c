"""Receives files of transactions whose home is another replica, which is asked before and notified after.

A received file is an early copy: a row of ``parts`` by its bytes alone, of an undecided transaction. It is
durable before its home is notified, since the home will then report that the file exists. If the upload ends
otherwise, the file is deleted at once; after a crash the undo row deletes it, or the undecided check.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import ReplicaId
from tidelock.errors import TidelockError, TokenFinishedError, TooLargeError, UnavailableError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replica_agent.uploads.grants import UploadGrant, UploadGrants
from tidelock.replica_agent.uploads.receiving import UploadReceiver
from tidelock.replication.backoff import wait_s
from tidelock.replication.core.model import PartMeta, Peer, bytes_alone
from tidelock.replication.core.room import DiskUse
from tidelock.replication.partfs import PartFs
from tidelock.replication.peers import PeerClient
from tidelock.wire.peers import UploadBegun

UPLOAD = faults.step("agent.upload")

#: Number of attempts to notify a home that a file is durable here, before the upload fails.
_TRIES = 3


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class PeerUploads:
    """Receives files.

    Attributes:
        replica: This replica.
        peers: The present other replicas.
        retry_wait_max_s: Longest pause before a home is notified again.
        taken: Called with each file that was received.
    """

    replica: ReplicaId
    catalog: Catalog
    files: PartFs
    client: PeerClient
    grants: UploadGrants
    peers: Callable[[], Collection[Peer]]
    retry_wait_max_s: float
    receiver: UploadReceiver
    taken: Callable[[], None]
    _running: dict[asyncio.Task[object], str] = field(default_factory=dict, init=False)

    def tids(self) -> frozenset[str]:
        """Return the transactions whose files are arriving now."""
        return frozenset(self._running.values())

    def cut(self, tids: Collection[str]) -> None:
        """End the uploads of these transactions, which have ended."""
        gone = frozenset(tids)
        for task in [task for task, tid in self._running.items() if tid in gone]:
            del self._running[task]
            task.cancel()

    async def take(self, text: str, content: AsyncIterator[bytes]) -> None:
        """Receive the file of a grant; on return it is durable here, and its home relies on it.

        Raises:
            TokenForgedError, TokenForeignError, TokenExpiredError: As :class:`UploadGrants`.
            TokenFinishedError: The transaction has ended, before or meanwhile.
            BadRequestError: The file was cut, or deleted meanwhile; or as :meth:`Writes.upload`.
            TooLargeError: The home refuses its size.
            DiskFullError, UnavailableError: No byte of the file was kept.
        """
        grant = self.grants.accept(text)
        home = next((peer for peer in self.peers() if peer.replica == grant.tid.home), None)
        if home is None:
            raise UnavailableError(
                f"replica {grant.tid.home}, the home of the transaction, is unknown here; create the file "
                "again"
            )
        task = asyncio.current_task()
        assert task is not None
        begun = await self.client.begin_upload(home.api, text, self.replica)
        self._running[task] = str(grant.tid)
        try:
            await self._write(home.api, grant, begun, content)
            self.taken()
        except BaseException as error:
            await asyncio.shield(self._give_up(home.api, grant, begun))
            if isinstance(error, asyncio.CancelledError) and task not in self._running:
                raise TokenFinishedError(
                    f"transaction {grant.tid} has ended while a file was written", tid=str(grant.tid)
                ) from error
            raise
        finally:
            self._running.pop(task, None)

    async def _write(
        self, home: str, grant: UploadGrant, begun: UploadBegun, content: AsyncIterator[bytes]
    ) -> None:
        def grown(length: int) -> None:
            if length > begun.bytes_max:
                raise TooLargeError(
                    f"a file of {grant.tid} has more than {begun.bytes_max} bytes, the limit of its home "
                    "(insert_bytes_max, staged_bytes_max): write smaller ones",
                    limit=begun.bytes_max,
                )

        path = self.files.part_path(begun.part)
        await self.catalog.write(lambda db: jobs.note_undo(db, [path]))
        # It only opens a file; in a thread the file might be lost.
        sink = self.files.begin(begun.part, use=DiskUse.NEW)
        location = await self.receiver.receive(content, sink, grown)
        meta = bytes_alone(begun.part, location.length, sink.checksum)
        staged = jobs.StagedPart(meta, location, grant.tid)
        await self.catalog.write(lambda db: jobs.add_staged(db, [staged], []))
        await UPLOAD.before()
        await self._notify(home, grant, meta)
        await UPLOAD.after()

    async def _notify(self, home: str, grant: UploadGrant, meta: PartMeta) -> None:
        for failures in range(1, _TRIES + 1):
            try:
                await self.client.end_upload(home, grant.tid, grant.table, self.replica, meta)
            except UnavailableError:
                if failures == _TRIES:
                    raise
                await asyncio.sleep(wait_s(failures, self.retry_wait_max_s))
            else:
                return

    async def _give_up(self, home: str, grant: UploadGrant, begun: UploadBegun) -> None:
        """Delete all of a file; the home learns this at once, or when the writer's attempt is deleted."""
        path = self.files.part_path(begun.part)
        self.catalog.late_removals.add(path)
        with contextlib.suppress(TidelockError):
            unused = await self.catalog.write(lambda db: jobs.drop_parts(db, [begun.part]))
            await remove_files(self.catalog, self.files, sorted({path, *unused}))
        with contextlib.suppress(TidelockError):
            await self.client.fail_upload(home, grant.tid, grant.table, self.replica, begun.part)
