"""Early copies: what committed tasks have written is copied while their job goes on.

When a task is committed its files get rows in the catalog, by their bytes alone, so that peers can fetch
them; no reader sees such a row, not even in the own transaction. At the seal it learns what it is a part of.
An early copy is a hint that has come true: it counts for no commit before its replica has been asked about
the sealed transaction and has said that it holds it, and it goes with its transaction (or before, when its
task is done over). What another replica has taken is fetched here, and the seal waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

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

#: How often all that is waited for is looked at; else only what has arrived.
_LOOK_S = 1.0
#: How many parts are looked at in one turn of the loop.
_TURN = 256


@dataclass(slots=True, eq=False, repr=False)
class EagerReplication:
    """Makes early copies of this home's files, and takes them back.

    Attributes:
        patience_s: A seal fails when nothing of what it waits for has come for so long.
    """

    catalog: Catalog
    files: PartFs
    pusher: Pusher
    fetcher: Fetcher
    patience_s: float
    _listeners: list[asyncio.Queue[PartId]] = field(default_factory=list, init=False)

    async def announce(self, tx: Transaction, writes: TableWrites, numbers: Iterable[int]) -> None:
        """A task is committed: have its files copied.

        What cannot be announced now is copied when the transaction is sealed.
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
        """Delete files that are not wanted any more, here and where they were copied to.

        What cannot go now is kept in mind, and goes later, at the latest when the transaction has ended.
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

    # -- what others have taken ----------------------------------------------------------------------------

    def fetch(self, tx: Transaction, files: Iterable[StagedFile]) -> None:
        """Fetch files that other replicas have taken, unless that is under way."""
        for file in files:
            if file.meta is not None and file.taken_by is not None:
                self.fetcher.want(Wanted(file.meta, tx.tid, None, (file.taken_by,)))

    def behind_bytes(self) -> int:
        """Return the bytes that are still to come of undecided transactions, of other homes' too."""
        return self.fetcher.coming_bytes()

    def arrived(self, part: PartId) -> None:
        """A part is durable here now."""
        for news in self._listeners:
            news.put_nowait(part)

    async def gather(self, tx: Transaction, files: Sequence[StagedFile]) -> dict[PartId, Location]:
        """Return where files lie, when all of them are here.

        Raises:
            UnavailableError: Nothing of those that other replicas have taken has come for ``patience_s``.
        """
        loop = asyncio.get_running_loop()
        places = {file.part: file.location for file in files if file.location is not None}
        missing = {file.part: file for file in files if file.location is None}
        seen, until = (-1, -1), 0.0
        with self._listening() as news:
            while True:
                await self._look(missing, list(missing), places)
                if not missing:
                    return places
                self.fetch(tx, missing.values())
                now = (len(places), self.fetcher.came(missing))
                if now != seen:
                    seen, until = now, loop.time() + self.patience_s
                elif loop.time() > until:
                    raise self._not_here(list(missing.values()))
                end = loop.time() + _LOOK_S
                while missing and (some := await _news_until(end, news)):
                    await self._look(missing, [part for part in some if part in missing], places)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[asyncio.Queue[PartId]]:
        news: asyncio.Queue[PartId] = asyncio.Queue()
        self._listeners.append(news)
        try:
            yield news
        finally:
            self._listeners.remove(news)

    async def _look(
        self, missing: dict[PartId, StagedFile], parts: Sequence[PartId], places: dict[PartId, Location]
    ) -> None:
        """Move those that are here from ``missing`` to ``places``; others have their turns between."""
        for number, part in enumerate(parts, 1):
            row = self.catalog.reader.part(part)
            if row is not None and row.state == "held" and row.file is not None:
                places[part] = Location(row.file, row.offset, row.length, row.blocks)
                missing.pop(part, None)
            if number % _TURN == 0:
                await asyncio.sleep(0)

    def _not_here(self, missing: Sequence[StagedFile]) -> UnavailableError:
        holders = sorted({file.taken_by for file in missing if file.taken_by is not None})
        trouble = self.fetcher.trouble(missing[0].part) or "not asked for yet"
        return UnavailableError(
            f"{len(missing)} files that were written to {', '.join(holders)} cannot be fetched from there "
            f"({trouble}); nothing of the job was kept, run it again",
            replicas=holders,
        )


async def _news_until(end: float, news: asyncio.Queue[PartId]) -> list[PartId]:
    """Return what has arrived, when something has; nothing at ``end`` (of the loop's clock)."""
    try:
        async with asyncio.timeout_at(end):
            found = [await news.get()]
    except TimeoutError:
        return []
    while not news.empty():
        found.append(news.get_nowait())
    return found
