"""Takes files away that no part lies in any more.

Their undo rows are durable before, so a crash leaves nothing that the next start does not find. A disk that
is full or fails lets neither files nor rows go; nobody else would come back to them while the agent lives, so
they are kept in mind, and a chore does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replication.partfs import PartFs


async def remove_files(catalog: Catalog, files: PartFs, paths: Sequence[str]) -> None:
    """Delete files that the catalog has noted as undo, then the notes.

    Raises:
        DiskFullError, UnavailableError: Some are still there; :func:`remove_late` tries again.
    """
    if paths:
        catalog.late_removals.update(paths)
        await asyncio.to_thread(files.delete, paths)
        await catalog.write(lambda db: jobs.forget_undo(db, paths))
        catalog.late_removals.difference_update(paths)


async def remove_late(catalog: Catalog, files: PartFs) -> None:
    """Remove what could not go before; errors as above.

    A file whose row could not be dropped either waits for that: the janitor drops it with its transaction.
    """
    if catalog.late_removals:
        named, _ = catalog.reader.files()
        await remove_files(catalog, files, sorted(catalog.late_removals - named))
