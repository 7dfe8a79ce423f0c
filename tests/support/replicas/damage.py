"""Errors of SQLite about a file that is no database, as a damaged catalog gives them."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from pathlib import Path


def malformed() -> sqlite3.DatabaseError:
    """Return the error of a real read of such a file, with SQLite's own code."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalog.db"
        path.write_bytes(b"no database" * 100)
        with contextlib.closing(sqlite3.connect(path)) as db:
            try:
                db.execute("SELECT count(*) FROM sqlite_master")
            except sqlite3.DatabaseError as error:
                return error
    raise AssertionError("SQLite has read a file that is no database")


def no_damage(error: Exception) -> None:
    """Find nothing, in place of the agent that would stop."""
    del error
