"""Catalogs as values: the product's SQL runs on each of them once.

A catalog is a number. It stands for the rows of all its tables; two catalogs with the same rows have the
same number. So a state that is explored is small, and what was done with a catalog is remembered.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from tidelock.replica_agent.storage.catalog_garbage import Collectables
from tidelock.replica_agent.storage.catalog_schema import FORMAT, SCHEMA

T = TypeVar("T")

#: The rows of ``meta`` of a new catalog that are the same at all replicas.
_META: Final = {
    "format": FORMAT,
    "snapshot_csn": 0,
    "time_ms": 0,
    "tail": 0,
    "horizon": 0,
    "last_digest": "",
    "zxid_max": 0,
}


class Catalogs:
    """All catalogs that were met; number 0 is the new one."""

    def __init__(self) -> None:
        self._bytes: list[bytes] = []
        self._numbers: dict[Hashable, int] = {}
        self._done: dict[Hashable, int] = {}
        self._told: dict[Hashable, Any] = {}
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            for statement in SCHEMA.split(";"):
                db.execute(statement)
            db.executemany("INSERT INTO meta VALUES (?, ?)", _META.items())
            self._number(db)

    def after(self, catalog: int, key: Hashable, job: Callable[[sqlite3.Connection], object]) -> int:
        """Return the catalog after a job, which is known by its key."""
        if (catalog, key) not in self._done:
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
                db.deserialize(self._bytes[catalog])
                job(db)
                self._done[catalog, key] = self._number(db)
        return self._done[catalog, key]

    def told(self, catalog: int, key: Hashable, question: Callable[[Collectables], T]) -> T:
        """Return the answer of a catalog to a question, which is known by its key."""
        if (catalog, key) not in self._told:
            with self.folder(catalog) as folder, closing(Collectables(folder)) as reader:
                self._told[catalog, key] = question(reader)
        answer: T = self._told[catalog, key]
        return answer

    @contextmanager
    def folder(self, catalog: int) -> Iterator[Path]:
        """Put a catalog into a folder of its own, as a replica has it."""
        with tempfile.TemporaryDirectory(prefix="tidelock-explore-") as name:
            (Path(name) / "catalog.db").write_bytes(self._bytes[catalog])
            yield Path(name)

    def _number(self, db: sqlite3.Connection) -> int:
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
        rows = tuple(
            (name, tuple(sorted(db.execute(f'SELECT * FROM "{name}"'), key=repr))) for (name,) in names
        )
        if rows not in self._numbers:
            self._numbers[rows] = len(self._bytes)
            self._bytes.append(db.serialize())
        return self._numbers[rows]
