"""A start forgets the newest commit: no list and no query shows its parts until the next start.

That is what a catalog does whose last rows were acknowledged before they were durable. They are only hidden
here: a replica that really misses them notices, and stops, when they are removed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from typing import Any, Final
from unittest import mock

from chaos.plants import VARIABLE
from tidelock.csnlog.core.ids import Csn, TableName
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow
from tidelock.replica_agent.workers import process

#: The variable that has the forgotten parts, for the processes of SQL.
_FORGOTTEN: Final = "TIDELOCK_CHAOS_FORGOTTEN"
_NEWEST: Final = "SELECT part FROM parts WHERE creation_csn = (SELECT max(creation_csn) FROM parts)"


def plant() -> None:
    """Let this process open its catalog, and list parts, so."""
    prepare, as_json, listed = Catalog._prepare, CatalogReader.parts_json, CatalogReader.parts

    def forget(self: Catalog, initial: dict[str, Any]) -> None:
        prepare(self, initial)
        with contextlib.closing(self._connect()) as db:
            os.environ[_FORGOTTEN] = ",".join(part for (part,) in db.execute(_NEWEST))

    def parts_json(self: CatalogReader, table: TableName, at: Csn) -> bytes:
        rows = json.loads(as_json(self, table, at))
        return json.dumps([row for row in rows if row["part"] not in _forgotten()]).encode()

    def parts(
        self: CatalogReader, table: TableName, at: Csn, own: str | None = None, adopted: Iterable[str] = ()
    ) -> list[PartRow]:
        return [row for row in listed(self, table, at, own, adopted) if row.part not in _forgotten()]

    mock.patch.object(Catalog, "_prepare", forget).start()
    mock.patch.object(CatalogReader, "parts_json", parts_json).start()
    mock.patch.object(CatalogReader, "parts", parts).start()
    mock.patch.object(process, "_KEPT", (*process._KEPT, VARIABLE, _FORGOTTEN)).start()


def _forgotten() -> set[str]:
    return {*os.environ.get(_FORGOTTEN, "").split(",")}
