"""A replica that is asked right after a commit shows some of its tables as they were before it."""

from __future__ import annotations

import zlib

from tidelock.csnlog.core.ids import Csn, TableName
from tidelock.replica_agent.storage.catalog_reads import CatalogReader


def plant() -> None:
    """Let this process list the parts of half of the tables so."""
    listed = CatalogReader.parts_json

    def parts_json(self: CatalogReader, table: TableName, at: Csn) -> bytes:
        behind = zlib.crc32(table.encode()) % 2 and at == self.snapshot_csn()
        return listed(self, table, Csn(at - 1) if behind else at)

    CatalogReader.parts_json = parts_json  # type: ignore[method-assign]
