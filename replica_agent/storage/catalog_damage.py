"""Errors of SQLite that say that the file of the catalog is no whole database."""

from __future__ import annotations

import sqlite3

from tidelock.errors import CatalogDamagedError


def catalog_damage(error: BaseException | None) -> CatalogDamagedError | None:
    """Return what an error says about the catalog, if it says that its file is no whole database.

    None: it is another error. SQLite says so by a primary result code.
    """
    if isinstance(error, CatalogDamagedError):
        return error
    code = getattr(error, "sqlite_errorcode", None)
    if code is None or code & 0xFF not in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return None
    return CatalogDamagedError(
        f"the catalog of this replica is damaged ({error}); restore the data directory, or empty it to clone"
    )
