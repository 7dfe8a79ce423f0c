"""Early copies: what committed tasks have written is copied while their job goes on.

When a task is committed its files get rows in the catalog, by their bytes alone, so that peers can fetch
them; no reader sees such a row, not even in the own transaction. At the seal it learns what it is a part of.
An early copy is a hint that has come true: it counts for no commit before its replica has been asked about
the sealed transaction and has said that it holds it, and it goes with its transaction (or before, when its
task is done over).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidelock.errors import TidelockError
from tidelock.replica_agent import catalog_jobs as jobs
from tidelock.replica_agent.catalog import Catalog
from tidelock.replica_agent.transactions import Transaction
from tidelock.replica_agent.unused_files import remove_files
from tidelock.replica_agent.writes.staged import StagedFile, TableWrites
from tidelock.replication.fetch import Fetcher
from tidelock.replication.partfs import PartFs
from tidelock.replication.push import Pusher


class EarlyCopies:
    """Makes early copies of this home's files, and takes them back."""

    def __init__(self, catalog: Catalog, files: PartFs, pusher: Pusher, fetcher: Fetcher) -> None:
        """Copy nothing yet."""
        self._catalog, self._files, self._pusher, self._fetcher = catalog, files, pusher, fetcher

    async def announce(self, tx: Transaction, writes: TableWrites, numbers: Iterable[int]) -> None:
        """A task is committed: have its files copied.

        What cannot be announced now is copied when the transaction is sealed.
        """
        staged = []
        for number in numbers:
            file = writes.files[number]
            if file.meta is not None and file.location is not None and not file.known:
                writes.files[number] = replace(file, known=True)
                staged.append(jobs.StagedPart(file.meta, file.location, tx.tid))
        if staged:
            with contextlib.suppress(TidelockError):
                await self._catalog.write(lambda db: jobs.add_staged(db, staged, []))
                self._pusher.hint(tx.tid, [part.meta for part in staged])

    async def discard(self, files: Sequence[StagedFile]) -> None:
        """Delete files that are not wanted any more, here and where they were copied to.

        What cannot go now is kept in mind, and goes later, at the latest when the transaction has ended.
        """
        paths = {file.path for file in files if file.location is not None}
        known = [file.part for file in files if file.known]
        self._catalog.late_removals.update(paths)
        with contextlib.suppress(TidelockError):
            if known:
                self._fetcher.drop(known)
                self._pusher.drop(known)
                paths.update(await self._catalog.write(lambda db: jobs.drop_parts(db, known)))
            await remove_files(self._catalog, self._files, sorted(paths))
