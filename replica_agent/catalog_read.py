"""Read access to a replica's catalog, for any process of the agent: what is visible, and where it lies.

A :class:`CatalogReader` holds a read-only SQLite connection (WAL: never blocks the writer, never blocked by
it) and keeps no other state. It is for one thread.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidelock.csnlog.ids import Csn, PartId, TableName
from tidelock.csnlog.visibility import VISIBLE_SQL
from tidelock.errors import UnknownTableError
from tidelock.replication.model import PartKind, PartMeta


@dataclass(frozen=True, slots=True)
class PartRow:
    """One part of the catalog.

    Attributes:
        part: Part id.
        table: Full table name.
        path: Hive-style partition path, ``""`` without partitions.
        rows: Rows.
        length: Bytes of the range.
        checksum: XXH3-128 (hex) of the range.
        creation_tid: Textual tid.
        creation_csn: CSN or None while undecided.
        file: Path below the data directory, None while the part is wanted.
        offset: Where the range begins in the file.
        blocks: XXH3-64 digests (8 bytes each, big-endian) of the range's 256 KiB blocks.
        kind: ``part`` or ``manifest``.
        state: ``held``, ``wanted`` or ``quarantined``.
    """

    part: PartId
    table: TableName
    path: str
    rows: int
    length: int
    checksum: str
    creation_tid: str
    creation_csn: Csn | None
    file: str | None
    offset: int
    blocks: bytes
    kind: PartKind
    state: str

    @property
    def meta(self) -> PartMeta:
        """What another replica would have to know of the part."""
        return PartMeta(
            part=self.part,
            table=self.table,
            path=self.path,
            rows=self.rows,
            length=self.length,
            checksum=self.checksum,
            kind=self.kind,
        )

    @property
    def name(self) -> str:
        """The file's path below the table's folder in a snapshot."""
        return f"{self.path}/{self.part}.parquet" if self.path else f"{self.part}.parquet"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A table's definition as it stands at a CSN (``definition``: docs/protocol.md, section 2)."""

    name: TableName
    version: int
    from_csn: Csn
    definition: dict[str, Any]
    arrow_schema: bytes
    common_metadata: bytes


_PART = (
    "part, table_name, path, rows, length, checksum, creation_tid, creation_csn, file, offset, "
    "coalesce(blocks, x''), kind, state"
)
_TABLE = "name, version, from_csn, definition, arrow_schema, common_metadata"


class CatalogReader:
    """Read-only view of ``catalog.db``; every method is one consistent SQLite read."""

    def __init__(self, data_dir: Path) -> None:
        """Open the catalog below ``data_dir``; sqlite3.OperationalError when there is none."""
        self._db = sqlite3.connect(
            f"file:{data_dir / 'catalog.db'}?mode=ro", uri=True, isolation_level=None, cached_statements=64
        )
        self._db.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def meta(self, key: str) -> Any:
        """Return the value of one meta key, or None."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def snapshot_csn(self) -> Csn:
        """Return the largest CSN up to which everything is applied here."""
        return Csn(self.meta("snapshot_csn"))

    def horizon(self) -> Csn:
        """Return the CSN below which nothing is promised."""
        return Csn(self.meta("horizon"))

    def csn_at(self, time_ms: int) -> Csn | None:
        """Return the newest applied CSN whose effective time is not after ``time_ms``, or None."""
        row = self._db.execute("SELECT max(csn) FROM csns WHERE time_ms <= ?", (time_ms,)).fetchone()
        return None if row[0] is None else Csn(row[0])

    def outcome(self, tid: str) -> tuple[Csn, int] | None:
        """Return (CSN, effective time in ms) of a committed transaction, or None."""
        row = self._db.execute("SELECT csn, time_ms FROM outcomes WHERE tid = ?", (tid,)).fetchone()
        return (Csn(row[0]), row[1]) if row else None

    def prepared(self) -> list[str]:
        """Return the undecided transactions that have marks or parts here, as textual tids."""
        sql = (
            "SELECT tid FROM prepared UNION SELECT DISTINCT creation_tid FROM parts WHERE "
            "creation_csn IS NULL"
        )
        return [tid for (tid,) in self._db.execute(sql)]

    def held(self, parts: Iterable[PartId]) -> set[PartId]:
        """Return those of ``parts`` whose bytes are durable and believed right here."""
        sql = "SELECT part FROM parts WHERE part = ? AND state = 'held'"
        return {part for part in parts if self._db.execute(sql, (part,)).fetchone()}

    def parts_of(self, tid: str) -> list[PartRow]:
        """Return every part that a transaction has created and that is known here."""
        return [
            PartRow(*row)
            for row in self._db.execute(f"SELECT {_PART} FROM parts WHERE creation_tid = ?", (tid,))
        ]

    def csn_of_label(self, label: str) -> Csn | None:
        """Return the CSN at which a label was committed, or None."""
        row = self._db.execute("SELECT csn FROM outcomes WHERE label = ?", (label,)).fetchone()
        return Csn(row[0]) if row else None

    def files(self) -> tuple[set[str], list[str]]:
        """Return the paths that parts may lie in, and those of undo rows."""
        named = {path for (path,) in self._db.execute("SELECT path FROM files")}
        return named, [path for (path,) in self._db.execute("SELECT path FROM undo")]

    def not_held(self) -> list[PartRow]:
        """Return the parts that must be fetched from a peer."""
        return [PartRow(*row) for row in self._db.execute(f"SELECT {_PART} FROM parts WHERE state <> 'held'")]

    def table(self, name: TableName, at: Csn) -> TableRow | None:
        """Return the table as defined at ``at``, or None if it does not exist there."""
        rows = self._tables("AND name = :name", {"s": at, "name": name})
        return rows[0] if rows else None

    def require_table(self, name: TableName, at: Csn) -> TableRow:
        """Return the table as defined at ``at``; UnknownTableError if it does not exist there."""
        found = self.table(name, at)
        if found is None:
            msg = (
                f"there is no table {name} at CSN {at}; `tidelock tables` lists them, a newer "
                "snapshot may know more"
            )
            raise UnknownTableError(msg, table=name, csn=at)
        return found

    def table_version(self, name: TableName, at: Csn) -> int | None:
        """Return the version of the table's definition at ``at``, or None; cheaper than :meth:`table`."""
        sql = "SELECT state, max(version) FROM tables WHERE name = ? AND from_csn <= ?"
        state, version = self._db.execute(sql, (name, at)).fetchone()
        return version if state == "active" else None

    def totals(self, table: TableName, at: Csn) -> tuple[int, int, int]:
        """Return (parts, rows, bytes) of ``table`` visible at ``at``."""
        sql = (
            "SELECT count(*), coalesce(sum(rows), 0), coalesce(sum(length), 0) FROM parts WHERE "
            f"table_name = :table AND kind = 'part' AND {VISIBLE_SQL}"
        )
        parts, rows, size = self._db.execute(sql, {"table": table, "s": at, "own": None}).fetchone()
        return parts, rows, size

    def tables(self, at: Csn) -> list[TableRow]:
        """Return all tables that exist at ``at``, by name."""
        return self._tables("", {"s": at})

    def _tables(self, condition: str, args: dict[str, Any]) -> list[TableRow]:
        sql = f"""
            SELECT {_TABLE}, state, max(version) FROM tables WHERE from_csn <= :s {condition}
            GROUP BY name ORDER BY name
        """
        return [
            TableRow(TableName(name), version, Csn(csn), json.loads(definition), schema, common)
            for name, version, csn, definition, schema, common, state, _ in self._db.execute(sql, args)
            if state == "active"
        ]

    def parts(self, table: TableName, at: Csn, own: str | None = None) -> list[PartRow]:
        """Return the parts of ``table`` visible at ``at`` (inside ``own``, if given), by path and id."""
        sql = (
            f"SELECT {_PART} FROM parts WHERE table_name = :table AND kind = 'part' AND "
            f"{VISIBLE_SQL} ORDER BY path, part"
        )
        return [PartRow(*row) for row in self._db.execute(sql, {"table": table, "s": at, "own": own})]

    def part(self, part: PartId) -> PartRow | None:
        """Return one part, committed or not, or None."""
        row = self._db.execute(f"SELECT {_PART} FROM parts WHERE part = ?", (part,)).fetchone()
        return PartRow(*row) if row else None
