"""The facts of one audit, in a separate SQLite file beside the catalog, which is attached read-only.

So a replica with millions of parts is compared in bounded memory, and all reads of a check see one state of
the catalog. The file is in ``tmp/``, which every start empties; it is never read again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_SCHEMA: Final = """
CREATE TABLE disk (path TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE log_csns (
    csn INTEGER PRIMARY KEY, before INTEGER, time_ms INTEGER NOT NULL, wrong_above_ms INTEGER NOT NULL,
    change INTEGER NOT NULL
);
CREATE TABLE log_tids (
    tid TEXT PRIMARY KEY, csn INTEGER NOT NULL, label TEXT, batch INTEGER, progress TEXT
) WITHOUT ROWID;
CREATE TABLE log_parts (
    part TEXT PRIMARY KEY, csn INTEGER NOT NULL, tid TEXT NOT NULL, table_name TEXT NOT NULL,
    path TEXT NOT NULL, rows INTEGER NOT NULL, length INTEGER NOT NULL, checksum TEXT NOT NULL,
    change INTEGER NOT NULL, kind TEXT NOT NULL, source TEXT, columns_csn INTEGER
) WITHOUT ROWID;
CREATE TABLE log_removals (
    part TEXT PRIMARY KEY, csn INTEGER NOT NULL, tid TEXT NOT NULL, table_name TEXT NOT NULL,
    change INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE log_drops (
    table_name TEXT NOT NULL, csn INTEGER NOT NULL, tid TEXT NOT NULL, PRIMARY KEY (table_name, csn)
) WITHOUT ROWID;
CREATE TABLE log_unread (
    tid TEXT PRIMARY KEY, csn INTEGER NOT NULL, part TEXT NOT NULL, why TEXT NOT NULL, change INTEGER NOT NULL
);
"""
_COLUMNS: Final = {
    "disk": 2,
    "log_csns": 5,
    "log_tids": 5,
    "log_parts": 12,
    "log_removals": 5,
    "log_drops": 3,
    "log_unread": 5,
}
_INSERT: Final = {
    table: f"INSERT OR IGNORE INTO main.{table} VALUES ({', '.join('?' * count)})"  # noqa: S608
    for table, count in _COLUMNS.items()
}
_DELETE: Final = {table: f"DELETE FROM main.{table}" for table in _COLUMNS}  # noqa: S608
_CACHE_BYTES: Final = 8 << 20


class AuditDatabase:
    """The file; used by one thread at a time.

    Args:
        data_dir: The agent's data directory.
        name: Name of the file in ``tmp/``; it must not exist yet.
    """

    def __init__(self, data_dir: Path, name: str) -> None:
        self._path = data_dir / "tmp" / name
        self.db = sqlite3.connect(
            f"file:{self._path}", uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            self.db.row_factory = sqlite3.Row
            self.db.execute("PRAGMA journal_mode = OFF")
            self.db.execute("PRAGMA synchronous = OFF")
            self.db.execute(f"PRAGMA cache_size = -{_CACHE_BYTES // 1024}")
            self.db.executescript(_SCHEMA)
            self.db.execute("ATTACH ? AS catalog", (f"file:{data_dir / 'catalog.db'}?mode=ro",))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close and delete the file."""
        self.db.close()
        self._path.unlink(missing_ok=True)

    @contextmanager
    def one_state(self) -> Iterator[None]:
        """Read one state of the catalog: all reads of the block see the moment of the first read."""
        self.db.execute("BEGIN")
        try:
            self.meta("snapshot_csn")
            yield
        finally:
            self.db.execute("COMMIT")

    def meta(self, key: str) -> int:
        """Return a number of the catalog's meta table."""
        return int(self.db.execute("SELECT value FROM catalog.meta WHERE key = ?", (key,)).fetchone()[0])

    def rows(self, sql: str, args: Mapping[str, Any] | None = None) -> Iterator[sqlite3.Row]:
        """Run a query."""
        return iter(self.db.execute(sql, args or {}))

    def count(self, sql: str, args: Mapping[str, Any] | None = None) -> int:
        """Run a query that counts."""
        return int(self.db.execute(sql, args or {}).fetchone()[0])

    def add(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add rows to a table of facts; of two rows with one key the first remains."""
        self.db.executemany(_INSERT[table], rows)

    def clear(self, *tables: str) -> None:
        """Empty tables of facts."""
        for table in tables:
            self.db.execute(_DELETE[table])
