"""Deletes files that contain no part any more.

Their undo rows are durable before, so the next start finds every file that a crash leaves. If the disk is
full or fails, neither files nor rows can be deleted. Nothing else would try again while the agent runs, so
these files are remembered, and a background task deletes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replication.partfs import PartFs


async def remove_files(catalog: Catalog, files: PartFs, paths: Sequence[str]) -> None:
    """Delete files that the catalog has noted as undo, then the notes.

    Raises:
        DiskFullError, UnavailableError: Some files remain; :func:`remove_late` tries again.
    """
    if paths:
        catalog.late_removals.update(paths)
        await asyncio.to_thread(files.delete, paths)
        await catalog.write(lambda db: jobs.forget_undo(db, paths))
        catalog.late_removals.difference_update(paths)


async def remove_late(catalog: Catalog, files: PartFs) -> None:
    """Remove what could not be deleted before; errors as above.

    A file that a row still names waits until the undecided check drops that row with its transaction.
    """
    if late := set(catalog.late_removals):  # before the names are read: what is added meanwhile may be named
        await catalog.force()  # some of the notes are those of records that were applied (rule write-behind)
        named, _ = await catalog.read(CatalogReader.files)
        await remove_files(catalog, files, sorted(late - named))
