"""A replica that is asked right after a commit shows some of its tables as they were before it."""

from __future__ import annotations

from collections.abc import Iterable
from unittest import mock

from chaos.plants import VARIABLE
from tidelock.csnlog.core.ids import Csn, TableName
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replica_agent.workers import process


def plant() -> None:
    """Let this process list the parts of half of the tables so, for lists and for queries."""
    as_json, listed = CatalogReader.parts_json, CatalogReader.parts

    def shown(reader: CatalogReader, table: TableName, at: Csn) -> Csn:
        behind = ord(table[-1]) % 2 and at == reader.snapshot_csn()
        return Csn(at - 1) if behind else at

    def parts_json(self: CatalogReader, table: TableName, at: Csn) -> bytes:
        return as_json(self, table, shown(self, table, at))

    def parts(
        self: CatalogReader, table: TableName, at: Csn, own: str | None = None, adopted: Iterable[str] = ()
    ) -> list[PartRow]:
        return listed(self, table, shown(self, table, at) if own is None else at, own, adopted)

    # So that the processes of its SQL do so too.
    mock.patch.object(process, "_KEPT", (*process._KEPT, VARIABLE)).start()
    CatalogReader.parts_json = parts_json  # type: ignore[method-assign]
    CatalogReader.parts = parts  # type: ignore[method-assign]
