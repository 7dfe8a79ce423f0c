"""The receiving side of replication: makes pushed parts durable and reports the transactions that it holds.

An answer describes the present: "held" means that files, rows and the prepared mark are fsynced on this disk.
A push may be repeated or arrive after its transaction was decided; neither does harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import PartId, ReplicaId, Tid
from tidelock.errors import ClusterMismatchError, DiskFullError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.pack_writer import StagedBytes, Stager
from tidelock.replica_agent.storage.shared_bytes import Sharer, share
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replication.core.model import Held, PartMeta, SealedTid, Wanted
from tidelock.replication.core.room import DiskUse
from tidelock.replication.core.wire import decode
from tidelock.replication.fetch import Fetcher
from tidelock.replication.partfs import PartFs

ACCEPT = faults.step("replication.accept")
_log = structlog.get_logger("acceptor")


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class PushReceiver:
    """Accepts the pushes of peers.

    Attributes:
        disk: Id of this data directory; named in every answer.
        cut: Ends the uploads that this replica receives for these transactions.
        arrived: Called with each part that is durable here now.
    """

    replica: ReplicaId
    disk: str
    boot: int
    cluster_id: str
    catalog: Catalog
    files: PartFs
    stager: Stager
    fetcher: Fetcher
    cut: Callable[[Collection[str]], None]
    waiters: CsnWaiters
    arrived: Callable[[PartId], None]
    #: Bytes of undecided transactions that are being written.
    _storing: int = field(default=0, init=False)

    async def stage(self, raw: bytes) -> Held:
        """Accept one push (docs/protocol.md#stage).

        A transaction for which too little room is left is refused by itself; its home counts other copies,
        and tries again.

        Raises:
            BadRequestError, ClusterMismatchError: Nothing was accepted.
            UnavailableError: Nothing new is confirmed; the home tries again.
        """
        await ACCEPT.before()
        push = decode(raw)
        if push.cluster_id != self.cluster_id:
            msg = (
                f"the push is for cluster {push.cluster_id}, this replica belongs to "
                f"{self.cluster_id}; check the addresses"
            )
            raise ClusterMismatchError(msg)
        fresh: list[StagedBytes] = []
        prepared: list[Tid] = []
        ready: list[str] = []
        named: list[PartMeta] = []
        wanted: list[Wanted] = []
        refused = dict(push.damaged)
        arrived: dict[str, int] = {}
        coming = 0
        reader = self.catalog.reader
        held = reader.held(meta.part for sealed in push.tids for meta in sealed.parts)
        nameless = reader.nameless(held)
        committed = reader.committed(str(sealed.tid) for sealed in push.tids)
        held |= await self._share(push.tids, held, committed)
        for sealed in push.tids:
            if str(sealed.tid) in refused:
                continue
            undecided = str(sealed.tid) not in committed
            lacking = [meta for meta in sealed.parts if meta.part not in held]
            if not undecided:  # a late push, as in `hint`
                lacking = [meta for meta in lacking if reader.part(meta.part) is not None]
            if undecided and (asked := self._new_bytes(lacking)):
                try:
                    self.files.room.admit(DiskUse.COPY, self._under_way() + coming + asked)
                except DiskFullError as error:
                    refused[str(sealed.tid)] = error.message
                    continue
                coming += asked
            named += [meta for meta in sealed.parts if meta.part in nameless]
            absent = [meta for meta in lacking if meta.part not in push.inline]
            fresh += [
                StagedBytes(meta, push.inline[meta.part], sealed.tid)
                for meta in lacking
                if meta.part in push.inline
            ]
            wanted += [Wanted(meta, sealed.tid, None, (push.home,)) for meta in absent]
            if absent:  # neither held nor refused: it is on its way
                arrived[str(sealed.tid)] = self._arrived_bytes(sealed, absent)
            else:
                ready.append(str(sealed.tid))
                if undecided:
                    prepared.append(sealed.tid)
        for part in wanted:
            self.fetcher.want(part)
        if named:
            await self.catalog.write(lambda db: jobs.describe(db, named))
        if fresh or prepared:
            await self._store(fresh, prepared)
        await ACCEPT.after()
        return Held(self.replica, self.disk, self.boot, self.waiters.reached, tuple(ready), refused, arrived)

    async def _store(self, fresh: Sequence[StagedBytes], prepared: Sequence[Tid]) -> None:
        size = sum(staged.meta.length for staged in fresh)
        self._storing += size
        try:
            await self.stager.store(fresh, prepared)
        finally:
            self._storing -= size
        for staged in fresh:
            self.arrived(staged.meta.part)

    async def _share(
        self, tids: Sequence[SealedTid], held: Collection[PartId], committed: Collection[str]
    ) -> frozenset[PartId]:
        """Give parts that share the bytes of parts which are here those bytes; return these parts."""
        asked = [
            Sharer(meta, sealed.tid, known=str(sealed.tid) in committed)
            for sealed in tids
            for meta in sealed.parts
            if meta.source is not None and meta.part not in held
        ]
        if not asked:
            return frozenset()
        done = await self.catalog.write(lambda db: share(db, asked))
        self.catalog.late_removals.update(done.unused)
        for part in done.parts:
            self.arrived(part)
        return done.parts

    def hint(self, tid: Tid, holder: ReplicaId, parts: Sequence[PartMeta]) -> None:
        """Fetch parts while their transaction is still being written; ``holder`` certainly has them.

        A hint may arrive when the record is applied already. Then it is ignored: the record has requested the
        parts that are needed, and others may be deleted since. Parts for which there is no room are left to
        the commit of their transaction.
        """
        if self.catalog.reader.outcome(str(tid)) is not None:
            return
        held = self.catalog.reader.held(part.part for part in parts)
        left = self.files.room.free_for(DiskUse.COPY) - self._under_way()
        for meta in parts:
            if meta.part not in held and (asked := self._new_bytes([meta])) <= left:
                left -= asked
                self.fetcher.want(Wanted(meta, tid, None, (holder, tid.home)))

    def _new_bytes(self, parts: Iterable[PartMeta]) -> int:
        """Return the bytes of those of these parts that are not on their way."""
        return sum(meta.length for meta in parts if not self.fetcher.is_wanted(meta.part))

    def _arrived_bytes(self, sealed: SealedTid, absent: Sequence[PartMeta]) -> int:
        """Return the bytes of a transaction that have arrived, those of parts on their way included."""
        missing = sum(meta.length for meta in absent)
        return sum(meta.length for meta in sealed.parts) - missing + self.fetcher.came(m.part for m in absent)

    def _under_way(self) -> int:
        """Return the bytes of undecided transactions that were admitted, and are not on the disk yet."""
        return self.fetcher.coming_bytes() + self._storing

    async def forget(self, tids: Sequence[Tid]) -> None:
        """Drop parts that were rolled back. Applied transactions stay: only undecided rows are touched."""
        self.fetcher.cancel([str(tid) for tid in tids])
        self.cut([str(tid) for tid in tids])
        unused = await self.catalog.write(lambda db: jobs.drop_undecided(db, [str(tid) for tid in tids]))
        await remove_files(self.catalog, self.files, unused)

    async def drop(self, parts: Sequence[PartId]) -> None:
        """Drop early copies that their transaction, which continues, does not need any more."""
        self.fetcher.drop(parts)
        unused = await self.catalog.write(lambda db: jobs.drop_parts(db, parts))
        await remove_files(self.catalog, self.files, unused)
