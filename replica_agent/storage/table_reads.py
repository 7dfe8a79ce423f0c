"""Reads of the definitions of tables, by their ids and by the names that they have at a CSN."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from typing import Any

import msgspec

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.replica_agent.tables.names import no_table
from tidelock.wire.ids import TableName
from tidelock.wire.tags import TagInfo

#: States of what exists.
_DEFINED = ("active", "namespace")
_TABLE = "id, name, version, from_csn, definition, arrow_schema, common_metadata"


class TableRow(msgspec.Struct, frozen=True):
    """A table's definition at a CSN (``definition``: docs/protocol.md#bytes)."""

    id: TableId
    name: TableName
    version: int
    from_csn: Csn
    definition: dict[str, Any]
    arrow_schema: bytes
    common_metadata: bytes


class DroppedTable(msgspec.Struct, frozen=True):
    """A table that was dropped: its last version, the CSN of that, and its definition."""

    id: TableId
    version: int
    csn: Csn
    definition: dict[str, Any]


class TableReads:
    """The methods of a catalog's reader that read definitions and tags."""

    _db: sqlite3.Connection

    def snapshot_csn(self) -> Csn:
        """Return the largest CSN up to which everything is applied here."""
        raise NotImplementedError

    def tags(self) -> list[TagInfo]:
        """Return all tags, by name."""
        rows = self._db.execute("SELECT name, csn, made_csn, made_ms, keep_s FROM tags ORDER BY name")
        return [TagInfo(*row) for row in rows]

    def tag(self, name: str) -> TagInfo | None:
        """Return a tag, or None."""
        sql = "SELECT name, csn, made_csn, made_ms, keep_s FROM tags WHERE name = ?"
        row = self._db.execute(sql, (name,)).fetchone()
        return None if row is None else TagInfo(*row)

    def tag_csns(self) -> dict[str, Csn]:
        """Return the CSN of each tag."""
        return {tag.name: Csn(tag.csn) for tag in self.tags()}

    def retentions(self) -> dict[TableId, float]:
        """Return the retention in seconds of each table that has its own, also of a dropped one."""
        of_any_version = """SELECT DISTINCT id FROM tables WHERE definition LIKE '%"retention_s"%'"""
        rows = self._tables(of_any_version, {"s": self.snapshot_csn()}, ("active", "dropped"))
        found = {row.id: row.definition["properties"].get("retention_s") for row in rows}
        return {name: float(kept_s) for name, kept_s in found.items() if kept_s is not None}

    def table(self, table: TableId, at: Csn) -> TableRow | None:
        """Return a table as defined at ``at``, or None if it does not exist there."""
        rows = self._tables("VALUES (:id)", {"s": at, "id": table}, _DEFINED)
        return rows[0] if rows else None

    def named(self, name: TableName, at: Csn) -> TableRow | None:
        """Return the table that has a name at ``at``, or None."""
        rows = self._tables("SELECT DISTINCT id FROM tables WHERE name = :name", {"s": at, "name": name})
        return next((row for row in rows if row.name == name), None)

    def require_named(self, name: TableName, at: Csn) -> TableRow:
        """Return the table that has a name at ``at``; UnknownTableError if there is none."""
        found = self.named(name, at)
        if found is None:
            raise no_table(name, at, self.table_names(at).values())
        return found

    def versions(self, table: TableId) -> list[tuple[Csn, int | None]]:
        """Return the versions of a table's definition with the CSN from which each holds, the newest first.

        None stands for a table that does not exist from there on.
        """
        sql = "SELECT from_csn, version, state FROM tables WHERE id = ? ORDER BY version DESC"
        found = self._db.execute(sql, (table,))
        return [(Csn(csn), version if state in _DEFINED else None) for csn, version, state in found]

    def bearers(self, name: TableName) -> list[tuple[Csn, TableId | None]]:
        """Return the tables that have had a name, with the CSN from which each has it, the newest first.

        None stands for a name that no table has from there on.
        """
        sql = """
            SELECT from_csn, id, name = :name AND state <> 'dropped' AS bears, max(version) FROM tables
            WHERE id IN (SELECT id FROM tables WHERE name = :name)
            GROUP BY id, from_csn ORDER BY from_csn, bears
        """
        found: list[tuple[Csn, TableId | None]] = []
        bearer: TableId | None = None
        for csn, table, bears, _ in self._db.execute(sql, {"name": name}):
            if bears or table == bearer:
                bearer = TableId(table) if bears else None
                found.append((Csn(csn), bearer))
        return found[::-1]

    def last_definition(self, table: TableId) -> tuple[int, dict[str, Any]] | None:
        """Return version and content of a table's last definition, of a dropped one too; None without one."""
        sql = "SELECT version, definition FROM tables WHERE id = ? ORDER BY version DESC LIMIT 1"
        row = self._db.execute(sql, (table,)).fetchone()
        return None if row is None else (row[0], json.loads(row[1]))

    def dropped(self, name: TableName, at: Csn, since: Csn | None = None) -> DroppedTable | None:
        """Return the table that was dropped last under a name, of those that do not exist at a CSN.

        Args:
            name: The name.
            at: The CSN.
            since: The CSN of the drop; None: any.
        """
        sql = """
            SELECT id, version, from_csn, definition FROM tables t WHERE state = 'dropped' AND name = :name
                AND from_csn <= :at AND (:since IS NULL OR from_csn = :since)
                AND version = (SELECT max(version) FROM tables WHERE id = t.id AND from_csn <= :at)
            ORDER BY from_csn DESC, id DESC LIMIT 1
        """
        row = self._db.execute(sql, {"name": name, "at": at, "since": since}).fetchone()
        if row is None:
            return None
        return DroppedTable(TableId(row[0]), row[1], Csn(row[2]), json.loads(row[3]))

    def table_names(self, at: Csn) -> dict[TableId, TableName]:
        """Return the names of the tables that exist at ``at``, without reading their definitions."""
        sql = "SELECT id, name, state, max(version) FROM tables WHERE from_csn <= ? GROUP BY id"
        rows = self._db.execute(sql, (at,))
        return {TableId(table): TableName(name) for table, name, state, _ in rows if state == "active"}

    def namespaces(self, at: Csn) -> list[TableRow]:
        """Return the namespaces that are defined at ``at``, by name (`namespace_key`)."""
        return self._tables("SELECT DISTINCT id FROM tables WHERE name LIKE '%.'", {"s": at}, ("namespace",))

    def tables(self, at: Csn) -> list[TableRow]:
        """Return all tables that exist at ``at``, by name."""
        return self._tables("SELECT DISTINCT id FROM tables", {"s": at})

    def _tables(
        self, ids: str, args: dict[str, Any], states: Collection[str] = ("active",)
    ) -> list[TableRow]:
        # A definition has kilobytes, and a table may have thousands of them: no other than the last is read.
        sql = f"""
            WITH known (of) AS ({ids})
            SELECT {_TABLE}, state FROM known CROSS JOIN tables ON id = of AND version =
                (SELECT version FROM tables WHERE id = of AND from_csn <= :s ORDER BY version DESC LIMIT 1)
            ORDER BY name
        """  # noqa: S608 - constants
        return [
            TableRow(TableId(table), TableName(name), version, Csn(csn), json.loads(text), schema, common)
            for table, name, version, csn, text, schema, common, state in self._db.execute(sql, args)
            if state in states
        ]
