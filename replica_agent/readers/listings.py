"""Listings of this process: built in a separate thread once per (CSN, table), kept while space is left.

A table's folders are built together, since they come from one pass over its parts: building each alone would
read all parts once per folder. A listing never changes, because its snapshot does not.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.replica_agent.footers import combined
from tidelock.replica_agent.readers import tree
from tidelock.replica_agent.readers.catalog import SnapshotCatalog
from tidelock.replica_agent.readers.lru import LruCache
from tidelock.replica_agent.readers.paths import CombinedName, NoSuchPathError
from tidelock.replica_agent.readers.tree import FolderTree
from tidelock.replica_agent.tables.layouts import layouts_of
from tidelock.type_text import leaves

_Key = tuple[Csn, TableId]


class Listings:
    """Cache of trees, least recently used out first; its bound counts listings, not trees.

    Args:
        data_dir: Where the catalog is.
        entries_max: Number of listings that are kept; the newest tree stays even if it alone has more.
        small_bytes: Parts below this length are listed several as one file; 0: none are.
    """

    def __init__(self, data_dir: Path, entries_max: int, small_bytes: int) -> None:
        """Prepare the cache; the first listing opens the catalog."""
        self._data_dir = data_dir
        self._small_bytes = small_bytes
        self._trees: LruCache[_Key, FolderTree] = LruCache(entries_max)
        self._building: dict[_Key, asyncio.Future[FolderTree]] = {}
        # One thread: SQLite connections belong to a thread, and more threads would only share one interpreter
        # lock.
        self._thread = ThreadPoolExecutor(1, "listings")
        self._catalog: SnapshotCatalog | None = None

    async def tree(self, csn: Csn, table: TableId) -> FolderTree:
        """Return the folders of a table at a CSN.

        Raises:
            NoSuchPathError: The table does not exist at this CSN.
            StandbyError, SnapshotTooOldError: The CSN cannot be served.
        """
        key = (csn, table)
        if (found := self._trees.get(key)) is not None:
            return found
        if key not in self._building:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._thread, self._build, csn, table)
            self._building[key] = future
            future.add_done_callback(lambda done: self._keep(key, done))
        # A request that is given up must not end the listing for the others that wait for it.
        return await asyncio.shield(self._building[key])

    async def combined(self, name: CombinedName, table: TableId, path: str, csn: Csn) -> tuple[PartId, ...]:
        """Return the parts of a combined file by its name, whatever is listed here; errors as `tree`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._combined, name, table, path, csn)

    def _combined(self, name: CombinedName, table: TableId, path: str, csn: Csn) -> tuple[PartId, ...]:
        catalog = self._opened()
        with catalog.serving(csn, table):
            return catalog.combined_parts(name, table, path, csn)

    def _opened(self) -> SnapshotCatalog:
        """Return the catalog of the thread."""
        if self._catalog is None:
            self._catalog = SnapshotCatalog(self._data_dir)
        return self._catalog

    def _build(self, csn: Csn, table: TableId) -> FolderTree:
        catalog = self._opened()
        with catalog.serving(csn, table):
            row = catalog.table(table, csn)
            if row is None:
                raise NoSuchPathError(f"table {table} does not exist at CSN {csn}")
            most = combined.parts_max(sum(leaves(column["type"]) for column in row.definition["columns"]))
            files = catalog.listed(table, csn, self._small_bytes, most, layouts_of(row.definition))
        return tree.build(files, len(row.common_metadata))

    def _keep(self, key: _Key, done: asyncio.Future[FolderTree]) -> None:
        del self._building[key]
        if done.cancelled() or done.exception() is not None:
            return
        built = done.result()
        self._trees.put(key, built, built.weight)
