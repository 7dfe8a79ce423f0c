"""Eager replication: the files of committed tasks are copied while their job still runs.

When a task is committed its files get rows in the catalog, by their bytes alone, so that peers can fetch
them. No reader sees such a row, not even a reader in the same transaction. The seal completes the row with
the part's table and content. A peer's copy is the result of a hint: it counts for no commit until its replica
has been asked about the sealed transaction and has confirmed that it holds the part. The copy is deleted with
its transaction, or earlier, when its task is repeated. Files that another replica has received are fetched
here, and the seal waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from tidelock.csnlog.core.ids import PartId, ReplicaId
from tidelock.errors import TidelockError, UnavailableError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.unused_files import remove_files
from tidelock.replica_agent.transactions.staged_files import StagedFile, TableWrites
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replication.core.model import Location, PartMeta, Wanted
from tidelock.replication.fetch import Fetcher
from tidelock.replication.partfs import PartFs
from tidelock.replication.push import Pusher

#: Seconds between two checks of all missing files; in between only arrived parts are checked.
_CHECK_S = 1.0
#: Number of parts that are checked in one iteration of the event loop.
_TURN = 256


@dataclass(slots=True, eq=False, repr=False)
class EagerReplication:
    """Copies this home's files early, and withdraws the copies.

    Attributes:
        patience_s: A seal fails when no missing file has arrived for so long.
    """

    catalog: Catalog
    files: PartFs
    pusher: Pusher
    fetcher: Fetcher
    patience_s: float
    _listeners: list[asyncio.Queue[PartId]] = field(default_factory=list, init=False)

    async def announce(self, tx: Transaction, writes: TableWrites, numbers: Iterable[int]) -> None:
        """Have the files of a committed task copied.

        Files that cannot be announced now are copied when the transaction is sealed.
        """
        staged: list[jobs.StagedPart] = []
        others: dict[ReplicaId, list[PartMeta]] = {}
        for number in numbers:
            file = writes.files[number]
            assert file.meta is not None, file
            if file.taken_by is not None:
                others.setdefault(file.taken_by, []).append(file.meta)
            elif file.location is not None and not file.known:
                writes.files[number] = replace(file, known=True)
                staged.append(jobs.StagedPart(file.meta, file.location, tx.tid))
        for holder, metas in others.items():
            self.pusher.hint(tx.tid, metas, holder)
        if staged:
            with contextlib.suppress(TidelockError):
                await self.catalog.write(lambda db: jobs.add_staged(db, staged, []))
                self.pusher.hint(tx.tid, [part.meta for part in staged])

    async def discard(self, files: Sequence[StagedFile]) -> None:
        """Delete files that are not needed any more, here and where they were copied to.

        Files that cannot be deleted now are remembered and deleted later, at the latest after the
        transaction's end.
        """
        paths = {file.path for file in files if file.location is not None}
        known = [file.part for file in files if file.known]
        self.catalog.late_removals.update(paths)
        with contextlib.suppress(TidelockError):
            if known:
                self.fetcher.drop(known)
                self.pusher.drop(known)
                paths.update(await self.catalog.write(lambda db: jobs.drop_parts(db, known)))
            await remove_files(self.catalog, self.files, sorted(paths))

    # -- files that others have received ---------------------------------------------------------------------

    def fetch(self, tx: Transaction, files: Iterable[StagedFile]) -> None:
        """Fetch files that other replicas have taken, unless that is under way."""
        for file in files:
            if file.meta is not None and file.taken_by is not None:
                self.fetcher.want(Wanted(file.meta, tx.tid, None, (file.taken_by,)))

    def behind_bytes(self) -> int:
        """Return the missing bytes of undecided transactions, also of other homes' transactions."""
        return self.fetcher.coming_bytes()

    def arrived(self, part: PartId) -> None:
        """Notify the waiting seals that a part is durable here now."""
        for news in self._listeners:
            news.put_nowait(part)

    async def gather(self, tx: Transaction, files: Sequence[StagedFile]) -> dict[PartId, Location]:
        """Return the locations of files once all of them are here.

        Raises:
            UnavailableError: No missing file has arrived from another replica for ``patience_s``.
        """
        loop = asyncio.get_running_loop()
        places = {file.part: file.location for file in files if file.location is not None}
        missing = {file.part: file for file in files if file.location is None}
        seen, until = (-1, -1), 0.0
        with self._listening() as news:
            while True:
                await self._move_arrived(missing, list(missing), places)
                if not missing:
                    return places
                self.fetch(tx, missing.values())
                now = (len(places), self.fetcher.came(missing))
                if now != seen:
                    seen, until = now, loop.time() + self.patience_s
                elif loop.time() > until:
                    raise self._not_here(list(missing.values()))
                end = loop.time() + _CHECK_S
                while missing and (some := await _news_until(end, news)):
                    await self._move_arrived(missing, [part for part in some if part in missing], places)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[asyncio.Queue[PartId]]:
        news: asyncio.Queue[PartId] = asyncio.Queue()
        self._listeners.append(news)
        try:
            yield news
        finally:
            self._listeners.remove(news)

    async def _move_arrived(
        self, missing: dict[PartId, StagedFile], parts: Sequence[PartId], places: dict[PartId, Location]
    ) -> None:
        """Move the parts that are here from ``missing`` to ``places``; yields to other tasks in between."""
        for number, part in enumerate(parts, 1):
            row = self.catalog.reader.part(part)
            if row is not None and (place := row.held) is not None:
                places[part] = place
                missing.pop(part, None)
            if number % _TURN == 0:
                await asyncio.sleep(0)

    def _not_here(self, missing: Sequence[StagedFile]) -> UnavailableError:
        holders = sorted({file.taken_by for file in missing if file.taken_by is not None})
        trouble = self.fetcher.trouble(missing[0].part) or "not requested yet"
        return UnavailableError(
            f"{len(missing)} files that were written to {', '.join(holders)} cannot be fetched from there "
            f"({trouble}); nothing of the job was kept, run it again",
            replicas=holders,
        )


async def _news_until(end: float, news: asyncio.Queue[PartId]) -> list[PartId]:
    """Return the arrived parts as soon as there are some; nothing at ``end`` (of the loop's clock)."""
    try:
        async with asyncio.timeout_at(end):
            found = [await news.get()]
    except TimeoutError:
        return []
    while not news.empty():
        found.append(news.get_nowait())
    return found
