"""A replica shows half of its tables as they were some CSNs before the snapshot that is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from unittest import mock

from chaos.plants import VARIABLE
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replica_agent.tables.layouts import NO_LAYOUTS, Layouts
from tidelock.replica_agent.workers import process
from tidelock.wire.ids import TableName

#: So many CSNs.
BEHIND: Final = 10


def plant() -> None:
    """Let this process list the parts of half of the tables so, for lists and for queries."""
    as_json, listed = CatalogReader.parts_json, CatalogReader.parts

    def shown(table: TableId, at: Csn) -> Csn:
        return Csn(at - BEHIND) if ord(table[-1]) % 2 else at

    def parts_json(
        self: CatalogReader, table: TableId, name: TableName, at: Csn, layouts: Layouts = NO_LAYOUTS
    ) -> bytes:
        return as_json(self, table, name, shown(table, at), layouts)

    def parts(
        self: CatalogReader, table: TableId, at: Csn, own: str | None = None, adopted: Iterable[str] = ()
    ) -> list[PartRow]:
        return listed(self, table, shown(table, at) if own is None else at, own, adopted)

    # So that the processes of its SQL do so too.
    mock.patch.object(process, "_KEPT", (*process._KEPT, VARIABLE)).start()
    CatalogReader.parts_json = parts_json  # type: ignore[method-assign]
    CatalogReader.parts = parts  # type: ignore[method-assign]
