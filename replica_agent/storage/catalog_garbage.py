"""Deletion of rows that nothing needs any more, as jobs for :meth:`Catalog.write`, and their candidates.

Each kind has its own rule (docs/protocol.md#history). Every job takes a bounded number of rows, so that
commits, which share the writer, wait for a moment only. After a crash each job can be repeated on the
remaining rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, TableId
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog_reads import CatalogReader

#: ``tidelock.replication.core.horizon_rules.collectable`` over ``parts p LEFT JOIN table_horizons h``: by the
#: horizon of the part's table if the table has its own horizon, else by the horizon ``:h``.
COLLECTABLE_SQL = "p.removal_csn <= :h AND p.removal_csn <= coalesce(h.csn, :h)"


def note_horizon(db: sqlite3.Connection, horizon: Csn, tail: Csn, kept: Mapping[TableId, Csn]) -> None:
    """Make the new bounds of the promises durable, before anything below them is deleted.

    Args:
        db: The catalog.
        horizon: As seen in ZooKeeper.
        tail: As seen in ZooKeeper.
        kept: The limit of the horizon of each table with its own retention. The first horizon of such a table
            is the one that has applied to it so far. A table that has lost its retention gets the common one.
    """
    before = int(db.execute("SELECT value FROM meta WHERE key = 'horizon'").fetchone()[0])
    now = max(before, horizon)
    db.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'tail'", (tail,))
    db.execute("UPDATE meta SET value = ? WHERE key = 'horizon'", (now,))
    db.executemany(
        """
        INSERT INTO table_horizons VALUES (?1, max(?2, min(?3, ?4)))
        ON CONFLICT (table_name) DO UPDATE SET csn = max(csn, min(?3, ?4))
        """,
        [(table, before, csn, now) for table, csn in kept.items()],
    )
    known = [name for (name,) in db.execute("SELECT table_name FROM table_horizons")]
    db.executemany(
        "DELETE FROM table_horizons WHERE table_name = ?", [(name,) for name in known if name not in kept]
    )


def collect_parts(db: sqlite3.Connection, parts: Sequence[PartId]) -> list[str]:
    """Forget removed parts that are below the noted horizon.

    Returns the files that contain no part any more, noted as undo rows.
    """
    sql = f"""
        DELETE FROM parts AS p WHERE p.part = :part AND EXISTS (
            SELECT 1 FROM meta LEFT JOIN table_horizons h ON h.table_name = p.table_name
            WHERE meta.key = 'horizon' AND {COLLECTABLE_SQL.replace(":h", "meta.value")})
        RETURNING file
    """  # noqa: S608
    files = [row[0] for part in parts for row in db.execute(sql, {"part": part}).fetchall()]
    return jobs.release_files(db, files)


def collect_manifests(db: sqlite3.Connection, parts: Sequence[PartId]) -> list[str]:
    """Forget manifests below the tail: every replica has applied their entries; return files as above."""
    sql = """
        DELETE FROM parts WHERE part = ? AND kind = 'manifest'
            AND creation_csn < (SELECT value FROM meta WHERE key = 'tail') RETURNING file
    """
    files = [row[0] for part in parts for row in db.execute(sql, (part,)).fetchall()]
    return jobs.release_files(db, files)


def collect_tables(db: sqlite3.Connection) -> int:
    """Forget definitions that were superseded below the horizon of their table; return their number."""
    sql = """
        DELETE FROM tables AS old WHERE EXISTS (
            SELECT 1 FROM tables AS new JOIN meta ON meta.key = 'horizon'
                LEFT JOIN table_horizons h ON h.table_name = new.id
            WHERE new.id = old.id AND new.version > old.version
                AND new.from_csn <= coalesce(h.csn, meta.value) AND new.from_csn <= meta.value)
    """
    return db.execute(sql).rowcount


def collect_csns(db: sqlite3.Connection, csns: Sequence[Csn]) -> None:
    """Forget the times of CSNs (:meth:`Collectables.unused_csns`)."""
    db.executemany("DELETE FROM csns WHERE csn = ?", [(csn,) for csn in csns])


class Removed(NamedTuple):
    """A part that may be deleted, its file if it has one, and the CSN that decides it."""

    part: PartId
    file: str | None
    csn: Csn


class Collectables(CatalogReader):
    """Reads what may be forgotten; for one thread, like its base."""

    def removed_parts(self, after: Removed | None, limit: int) -> list[Removed]:
        """Return parts that may be deleted, by removal CSN and id, those that follow ``after``."""
        sql = f"""
            SELECT p.part, p.file, p.removal_csn
            FROM parts p LEFT JOIN table_horizons h ON h.table_name = p.table_name
            WHERE {COLLECTABLE_SQL} AND p.removal_csn >= :csn AND (p.removal_csn, p.part) > (:csn, :part)
            ORDER BY p.removal_csn, p.part LIMIT :limit
        """  # noqa: S608
        csn, part = (after.csn, after.part) if after is not None else (CSN_NONE, "")
        args = {"h": self.horizon(), "csn": csn, "part": part, "limit": limit}
        return [Removed(*row) for row in self._db.execute(sql, args)]

    def old_manifests(self, limit: int) -> list[Removed]:
        """Return manifests that no replica needs any more."""
        sql = """
            SELECT part, file, creation_csn FROM parts WHERE table_name = '' AND kind = 'manifest'
                AND creation_csn < (SELECT value FROM meta WHERE key = 'tail') LIMIT ?
        """
        return [Removed(*row) for row in self._db.execute(sql, (limit,))]

    def unused_csns(self) -> list[Csn]:
        """Return the CSNs whose times nothing needs any more.

        They are below every horizon, no part was created at them (listings show when a part was committed),
        and none of them is the last change of a table. The newest CSN not above the horizons stays: a time up
        to the next CSN refers to it.
        """
        floor = min([self.horizon(), *self.table_horizons().values()])
        used = {
            csn
            for (csn,) in self._db.execute(
                "SELECT creation_csn FROM parts WHERE creation_csn < ? UNION SELECT csn FROM table_changes",
                (floor,),
            )
        }
        sql = "SELECT csn FROM csns WHERE csn < (SELECT max(csn) FROM csns WHERE csn <= ?)"
        return [Csn(csn) for (csn,) in self._db.execute(sql, (floor,)) if csn not in used]
