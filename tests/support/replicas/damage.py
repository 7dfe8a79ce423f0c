"""Errors of SQLite about a file that is no database, as a damaged catalog gives them."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from pathlib import Path

from tidelock.errors import UnavailableError
from tidelock.replica_agent.config.states import stopped
from tidelock.replica_agent.storage.catalog_damage import catalog_damage


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


def stopped_for_damage(error: Exception) -> UnavailableError | None:
    """Tell a client what the agent tells it when it stops for a damaged catalog; None: another error."""
    damage = catalog_damage(error)
    return stopped("r1", damage.message) if damage is not None else None


def no_damage(error: Exception) -> None:
    """Find nothing, in place of the agent that would stop."""
    del error
