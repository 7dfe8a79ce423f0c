"""A start forgets the newest commit that was applied, as if its rows in the catalog had not been durable."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any, Final

from tidelock.replica_agent.storage.catalog import Catalog

_NEWEST: Final = "SELECT max(creation_csn) FROM parts WHERE kind = 'part' AND removal_csn IS NULL"


def plant() -> None:
    """Let this process open its catalog so."""
    prepare = Catalog._prepare

    def forget(self: Catalog, initial: dict[str, Any]) -> None:
        prepare(self, initial)
        with contextlib.closing(self._connect()) as db, contextlib.suppress(sqlite3.IntegrityError):
            db.execute(f"DELETE FROM parts WHERE creation_csn = ({_NEWEST})")  # noqa: S608 - a constant

    Catalog._prepare = forget  # type: ignore[method-assign]
