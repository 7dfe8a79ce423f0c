"""The receiving side of replication: makes pushed parts durable and says which transactions it holds.

An answer is a statement about the present: "held" means that files, rows and the prepared mark are fsynced on
this disk. A push may be repeated or arrive after its transaction was decided; neither does harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import structlog

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import PartId, ReplicaId, Tid
from tidelock.errors import ClusterMismatchError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.pack_writer import StagedBytes, Stager
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replication.core.model import Held, PartMeta, Wanted
from tidelock.replication.core.wire import decode
from tidelock.replication.fetch import Fetcher
from tidelock.replication.partfs import PartFs

ACCEPT = faults.step("replication.accept")
_log = structlog.get_logger("acceptor")


class PushReceiver:
    """Takes what peers push.

    Args:
        disk: Id of this data directory; named in every answer.
        cut: Ends uploads that come in for these transactions.
        arrived: Called with each part that is durable here now.
    """

    def __init__(
        self,
        *,
        replica: ReplicaId,
        disk: str,
        boot: int,
        cluster_id: str,
        catalog: Catalog,
        files: PartFs,
        stager: Stager,
        fetcher: Fetcher,
        cut: Callable[[Collection[str]], None],
        waiters: CsnWaiters,
        arrived: Callable[[PartId], None],
    ) -> None:
        """Hold nothing yet."""
        self._replica, self._disk, self._boot, self._cluster_id = replica, disk, boot, cluster_id
        self._catalog, self._files, self._stager, self._fetcher, self._waiters = (
            catalog,
            files,
            stager,
            fetcher,
            waiters,
        )
        self._cut, self._arrived = cut, arrived

    async def stage(self, raw: bytes) -> Held:
        """Take one push (docs/protocol.md#stage).

        Raises:
            BadRequestError, ClusterMismatchError: Nothing was taken.
            DiskFullError, UnavailableError: Nothing new is claimed; the home tries again.
        """
        await ACCEPT.before()
        push = decode(raw)
        if push.cluster_id != self._cluster_id:
            msg = (
                f"the push is for cluster {push.cluster_id}, this replica belongs to "
                f"{self._cluster_id}; check the addresses"
            )
            raise ClusterMismatchError(msg)
        fresh: list[StagedBytes] = []
        prepared: list[Tid] = []
        ready: list[str] = []
        named: list[PartMeta] = []
        for sealed in push.tids:
            if str(sealed.tid) in push.damaged:
                continue
            held = self._catalog.reader.held(meta.part for meta in sealed.parts)
            nameless = self._catalog.reader.nameless(held)
            named += [meta for meta in sealed.parts if meta.part in nameless]
            lacking = [meta for meta in sealed.parts if meta.part not in held]
            absent = [meta for meta in lacking if meta.part not in push.inline]
            fresh += [
                StagedBytes(meta, push.inline[meta.part], sealed.tid)
                for meta in lacking
                if meta.part in push.inline
            ]
            for meta in absent:
                self._fetcher.want(Wanted(meta, sealed.tid, None, (push.home,)))
            if not absent:  # a tid with absent parts is neither held nor refused: it is on its way
                ready.append(str(sealed.tid))
                if self._catalog.reader.outcome(str(sealed.tid)) is None:
                    prepared.append(sealed.tid)
        if named:
            await self._catalog.write(lambda db: jobs.describe(db, named))
        if fresh or prepared:
            await self._stager.store(fresh, prepared)
        for staged in fresh:
            self._arrived(staged.meta.part)
        await ACCEPT.after()
        return Held(self._replica, self._disk, self._boot, self._waiters.reached, tuple(ready), push.damaged)

    def hint(self, tid: Tid, holder: ReplicaId, parts: Sequence[PartMeta]) -> None:
        """Fetch parts while their transaction is still being written; ``holder`` has them for certain.

        A hint may come when the record is applied already; what that has wanted, and what has gone since, is
        not this one's business.
        """
        if self._catalog.reader.outcome(str(tid)) is not None:
            return
        held = self._catalog.reader.held(part.part for part in parts)
        for meta in parts:
            if meta.part not in held:
                self._fetcher.want(Wanted(meta, tid, None, (holder, tid.home)))

    async def forget(self, tids: Sequence[Tid]) -> None:
        """Drop what was rolled back. Applied transactions stay: only undecided rows are touched."""
        self._fetcher.cancel([str(tid) for tid in tids])
        self._cut([str(tid) for tid in tids])
        unused = await self._catalog.write(lambda db: jobs.drop_undecided(db, [str(tid) for tid in tids]))
        await remove_files(self._catalog, self._files, unused)

    async def drop(self, parts: Sequence[PartId]) -> None:
        """Drop early copies that their transaction, which goes on, needs no more."""
        self._fetcher.drop(parts)
        unused = await self._catalog.write(lambda db: jobs.drop_parts(db, parts))
        await remove_files(self._catalog, self._files, unused)
