"""The writes to the catalog, as jobs for :meth:`tidelock.replica_agent.storage.catalog.Catalog.write`.

Each function is one atomic change; its name says what is durable afterwards. SQL that changes the catalog
is written here, and for garbage in ``catalog_garbage``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tidelock.csnlog.core.ids import NO_STAMP, Csn, PartId, Stamp, TableId, Tid
from tidelock.csnlog.core.labels import landed_tid
from tidelock.csnlog.core.model import (
    AddPart,
    DefineTable,
    EndTag,
    Entry,
    RemovePart,
    SkipPart,
    SkippedRecord,
    TagCsn,
)
from tidelock.errors import CorruptError
from tidelock.replica_agent.storage.catalog_reads import last_outcome_before
from tidelock.replica_agent.tables.names import is_namespace
from tidelock.replication.core.model import Location, PartMeta, Wanted


class StagedPart(msgspec.Struct, frozen=True):
    """A part whose bytes are durable here, and the undecided transaction that made it."""

    meta: PartMeta
    location: Location
    tid: Tid


class TableForms(msgspec.Struct, frozen=True):
    """The derived forms of a table definition, made once when it is applied."""

    definition: dict[str, Any]
    arrow_schema: bytes
    common_metadata: bytes


class AppliedTid(msgspec.Struct, frozen=True):
    """A committed transaction with its resolved entries; ``carrier`` has its ``rows`` if it has no parts."""

    tid: str
    entries: Sequence[Entry]
    label: str | None
    data_change: bool
    batch: int | None = None
    carrier: str | None = None
    meta: dict[str, Any] | None = None
    rows: dict[TableId, int] | None = None
    progress: str | None = None


class AppliedRecord(msgspec.Struct, frozen=True):
    """One record of the log, ready to become visible.

    ``tables`` holds the derived forms of its DDL entries. ``digest`` is that of the record's bytes,
    ``agreed_ms`` the agreed time of its own clocks, ``skip`` the word by which it is passed over.
    """

    csn: Csn
    time_ms: int
    tids: Sequence[AppliedTid]
    tables: dict[tuple[str, int], TableForms]
    stamp: Stamp = NO_STAMP
    digest: str = ""
    agreed_ms: int | None = None
    skip: SkippedRecord | None = None


def set_meta(db: sqlite3.Connection, **values: Any) -> None:
    """Store meta values."""
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())


def save_fence(db: sqlite3.Connection, fence: int) -> None:
    """Store the data version of the own session znode, which only grows."""
    db.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'fence'", (fence,))


def note_undo(db: sqlite3.Connection, paths: Iterable[str]) -> None:
    """Note files that are about to be written: a restart deletes those that no row of ``files`` names."""
    db.executemany("INSERT OR IGNORE INTO undo VALUES (?)", [(path,) for path in paths])


def name_packs(db: sqlite3.Connection, paths: Iterable[str]) -> None:
    """Note the names of packs that will be written: a start looks for parts in them (rule write-behind)."""
    db.executemany("INSERT INTO packs VALUES (?)", [(path,) for path in paths])


def undo_packs(db: sqlite3.Connection) -> None:
    """Turn the packs that no row of a part names into undo rows."""
    db.execute("INSERT OR IGNORE INTO undo SELECT path FROM packs")
    db.execute("DELETE FROM packs")


def add_staged(
    db: sqlite3.Connection,
    parts: Sequence[StagedPart],
    prepared: Iterable[Tid],
    *,
    file_bytes: int | None = None,
) -> list[str]:
    """Add parts with their bytes, and mark transactions as prepared.

    A known part (a push repeated after a lost answer, or a part wanted by an applied record) keeps its CSNs;
    it only gains the bytes if it had none, or wrong ones. Files that held nothing but wrong bytes become undo
    rows and are returned.

    Args:
        db: The catalog.
        parts: All parts of their files.
        prepared: The transactions.
        file_bytes: Length of the one file that holds the parts and something more; by default the length of
            each file is that of its parts.
    """
    # By their names: SQLite would walk all parts that have a file to find those that are not held.
    sql = """
        SELECT part, file FROM parts
        WHERE part IN (SELECT value FROM json_each(?)) AND state <> 'held' AND file IS NOT NULL
    """
    damaged = dict(db.execute(sql, (json.dumps([part.meta.part for part in parts]),)).fetchall())
    files: dict[str, int] = {}
    for part in parts:
        files[part.location.file] = files.get(part.location.file, 0) + part.location.length
    if file_bytes is not None:
        files = dict.fromkeys(files, file_bytes)
    db.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", files.items())
    db.executemany("DELETE FROM undo WHERE path = ?", [(path,) for path in files])
    db.executemany("DELETE FROM packs WHERE path = ?", [(path,) for path in files])
    db.executemany(
        """
        INSERT INTO parts (part, table_name, path, rows, length, checksum, creation_tid,
                           file, offset, blocks, stats, kind, state, form, source, columns_csn)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'held', ?, ?, ?)
        ON CONFLICT (part) DO UPDATE SET
            file = excluded.file, offset = excluded.offset, blocks = excluded.blocks,
            stats = coalesce(stats, excluded.stats), form = coalesce(form, excluded.form),
            state = 'held' WHERE state <> 'held'
        """,
        [
            (
                p.meta.part, p.meta.table, p.meta.path, p.meta.rows, p.meta.length, p.meta.checksum,
                str(p.tid),
                p.location.file, p.location.offset, p.location.blocks,
                json.dumps(p.meta.stats, separators=(",", ":")) if p.meta.stats else None, p.meta.kind,
                p.meta.form, p.meta.source, p.meta.columns_csn,
            )
            for p in parts
        ],
    )  # fmt: skip
    # A push may be slower than the log. An applied transaction is decided: nothing would remove its mark.
    db.executemany(
        """
        INSERT OR IGNORE INTO prepared
        SELECT ?1, ?2, ?3 WHERE NOT EXISTS (SELECT 1 FROM outcomes WHERE tid = ?1)
        """,
        [(str(t), t.home, t.boot) for t in prepared],
    )
    return release_files(db, [damaged.get(part.meta.part) for part in parts]) if damaged else []


def name_staged(db: sqlite3.Connection, parts: Sequence[StagedPart]) -> None:
    """Give the files of a sealed job their tables and partitions; a file without a row gets one.

    A part that has a row is not added again: its file may be a pack that holds other parts too.
    """
    sql = "SELECT 1 FROM parts WHERE part = ?"
    add_staged(db, [part for part in parts if db.execute(sql, (part.meta.part,)).fetchone() is None], [])
    describe(db, [part.meta for part in parts])


def describe(db: sqlite3.Connection, parts: Iterable[PartMeta]) -> None:
    """Give undecided parts that are known by their bytes alone their tables, partitions and statistics."""
    db.executemany(
        """
        UPDATE parts SET table_name = ?, path = ?, rows = ?, stats = ?, form = ?
        WHERE part = ? AND table_name = '' AND kind = 'part' AND creation_csn IS NULL
        """,
        [
            (
                meta.table,
                meta.path,
                meta.rows,
                json.dumps(meta.stats, separators=(",", ":")) if meta.stats else None,
                meta.form,
                meta.part,
            )
            for meta in parts
        ],
    )


def mark_removed(db: sqlite3.Connection, tid: str, parts: Iterable[str]) -> tuple[str, str, int] | None:
    """Mark parts as removed by an undecided transaction of this home, whose locks on them are held.

    All or none: if a record that is applied here has removed one of them already, nothing is marked and
    (part, tid, CSN) of that removal is returned. So no removal can be applied between the check and the mark.
    """
    names = list(parts)
    for part in names:
        row = db.execute(
            "SELECT removal_tid, removal_csn FROM parts WHERE part = ? AND removal_csn IS NOT NULL", (part,)
        ).fetchone()
        if row is not None:
            return part, *row
    db.executemany("UPDATE parts SET removal_tid = ? WHERE part = ?", [(tid, part) for part in names])
    return None


def quarantine(db: sqlite3.Connection, part: str) -> list[PartId]:
    """Mark a held part whose bytes are wrong, and all parts that share them; return these parts."""
    sql = """
        UPDATE parts SET state = 'quarantined' WHERE state = 'held' AND (part = ?1 OR (file, offset) =
            (SELECT file, offset FROM parts WHERE part = ?1 AND state = 'held')) RETURNING part
    """
    return sorted(PartId(found) for (found,) in db.execute(sql, (part,)).fetchall())


def quarantine_files(db: sqlite3.Connection, files: Iterable[str]) -> int:
    """Mark every held part of files that are missing on the disk; return the number of these parts."""
    sql = "UPDATE parts SET state = 'quarantined' WHERE file = ? AND state = 'held'"
    return sum(db.execute(sql, (file,)).rowcount for file in files)


def drop_undecided(db: sqlite3.Connection, tids: Iterable[str]) -> list[str]:
    """Forget what is undecided of transactions that are over.

    The rows of their parts are deleted, and their marks on parts that they would have removed; files that no
    row names any more become undo rows and are returned. What a record has published is decided, and stays.
    """
    files: set[str] = set()
    for tid in tids:
        rows = db.execute(
            (
                "SELECT DISTINCT file FROM parts WHERE creation_tid = ? AND creation_csn IS NULL AND "
                "file IS NOT NULL"
            ),
            (tid,),
        )
        files.update(file for (file,) in rows)
        db.execute("DELETE FROM parts WHERE creation_tid = ? AND creation_csn IS NULL", (tid,))
        db.execute("DELETE FROM prepared WHERE tid = ?", (tid,))
        db.execute(
            "UPDATE parts SET removal_tid = NULL WHERE removal_tid = ? AND removal_csn IS NULL", (tid,)
        )
    return release_files(db, files)


def release_files(db: sqlite3.Connection, files: Iterable[str | None]) -> list[str]:
    """Turn those of the files that contain no part any more into undo rows, and return them."""
    sql = "SELECT 1 FROM parts WHERE file = ? LIMIT 1"
    unused = [path for path in {*files} if path is not None and db.execute(sql, (path,)).fetchone() is None]
    db.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in unused])
    note_undo(db, unused)
    return unused


def drop_unneeded_files(db: sqlite3.Connection) -> None:
    """Turn files that contain no part any more (all were moved) into undo rows, for the next sweep."""
    sql = "DELETE FROM files WHERE NOT EXISTS (SELECT 1 FROM parts WHERE file = files.path) RETURNING path"
    note_undo(db, [path for (path,) in db.execute(sql).fetchall()])


def drop_parts(db: sqlite3.Connection, parts: Iterable[str]) -> list[str]:
    """Forget single undecided parts (an upload that was cut).

    Returns the files to delete, noted as undo rows.
    """
    sql = "DELETE FROM parts WHERE part = ? AND creation_csn IS NULL RETURNING file"
    gone = [db.execute(sql, (part,)).fetchone() for part in parts]
    return release_files(db, [row[0] for row in gone if row])


def forget_undo(db: sqlite3.Connection, paths: Iterable[str]) -> None:
    """Delete the undo rows of files that are deleted from the disk."""
    db.executemany("DELETE FROM undo WHERE path = ?", [(path,) for path in paths])


def apply(db: sqlite3.Connection, records: Sequence[AppliedRecord]) -> list[str]:
    """Make records visible, all in one transaction.

    Parts, removals, tables, outcomes, times and the snapshot CSN. Files that held nothing but parts which are
    declared lost become undo rows and are returned.
    """
    unused: list[str] = []
    time_ms = int(db.execute("SELECT value FROM meta WHERE key = 'time_ms'").fetchone()[0])
    lost = LostParts(db)
    for record in records:
        if record.time_ms < time_ms:
            _heal_times(db, record.time_ms)
        time_ms = record.time_ms
        for applied in record.tids:
            unused += _apply_tid(db, record, applied, lost)
        changed = {entry.table for one in record.tids if one.data_change for entry in one.entries}
        rows = [(table, record.csn) for table in sorted(changed)]
        db.executemany("INSERT OR REPLACE INTO table_changes VALUES (?, ?)", rows)
        change = any(applied.data_change for applied in record.tids)
        row = (record.csn, record.time_ms, change, record.stamp.zxid or None, record.agreed_ms)
        db.execute("INSERT INTO csns VALUES (?, ?, ?, ?, ?)", row)
        if record.skip is not None:
            _note_passed(db, record.skip)
    last = records[-1]
    set_meta(db, snapshot_csn=last.csn, time_ms=last.time_ms, last_digest=last.digest)
    sql = "UPDATE meta SET value = max(value, ?) WHERE key = 'zxid_max'"
    db.execute(sql, (max(record.stamp.zxid for record in records),))
    return unused


def _note_passed(db: sqlite3.Connection, word: SkippedRecord) -> None:
    """Note that a record was passed over here, together with its CSN: a start compares it with the words."""
    db.execute(
        "INSERT INTO skipped_records VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(word.csn, word.zxid, word.digest, word.by, word.why, word.time_ms),
            *(json.dumps(word.tids), word.closes),
        ),
    )


def _heal_times(db: sqlite3.Connection, now_ms: int) -> None:
    """Make the times above a time again, which wrong clocks have made (rule effective-time).

    Each CSN gets the largest of the agreed times of its own record and those before it, without those above
    ``now_ms``. So a record whose own clocks were wrong gets the time before it: no snapshot of a time after
    its commit misses it. Where an agreed time or an earlier time is not known, ``now_ms`` counts.

    The lowest of these times is noted: the clock of what is forgotten steps back to it
    (:mod:`tidelock.replica_agent.snapshots.retention_clock`), or what has just happened would be old.
    """
    sql = "SELECT csn, time_ms FROM csns WHERE time_ms <= ? ORDER BY csn DESC LIMIT 1"
    after, base_ms = db.execute(sql, (now_ms,)).fetchone() or (-1, now_ms)
    args = {"after": after, "base": base_ms, "now": now_ms}
    db.execute(
        """
        UPDATE csns SET time_ms = healed.time_ms FROM (
            SELECT csn, max(:base, max(
                CASE WHEN agreed_ms IS NULL THEN :now WHEN agreed_ms <= :now THEN agreed_ms ELSE 0 END
            ) OVER (ORDER BY csn)) AS time_ms FROM csns WHERE csn > :after
        ) AS healed WHERE csns.csn = healed.csn
        """,
        args,
    )
    db.execute(
        """
        UPDATE outcomes SET time_ms = coalesce((SELECT time_ms FROM csns WHERE csn = outcomes.csn), :now)
        WHERE csn > :after
        """,
        {"after": after, "now": now_ms},
    )
    db.execute(
        "UPDATE history SET time_ms = csns.time_ms FROM csns "
        "WHERE csns.csn = history.csn AND history.csn > ?",
        (after,),
    )
    lowest = db.execute("SELECT min(time_ms) FROM csns WHERE csn > ?", (after,)).fetchone()[0]
    if lowest is not None:
        db.execute(
            "INSERT INTO meta VALUES ('healed_to_ms', ?1) "
            "ON CONFLICT (key) DO UPDATE SET value = min(value, ?1)",
            (lowest,),
        )


def skip(db: sqlite3.Connection, entry: SkipPart, reached: Csn | None = None) -> list[str]:
    """Note that a part is declared lost, and forget it: no snapshot shows it from here on.

    The file of a part that was held becomes an undo row if it holds nothing else, and is returned. If the
    changes that a lost manifest lists were applied before the word came, the catalog shows them and no other
    one does: it notes that it has to be replaced.

    Args:
        db: The catalog.
        entry: The word.
        reached: The CSN up to which the log is applied; None: the snapshot CSN.
    """
    if reached is None:
        reached = Csn(db.execute("SELECT value FROM meta WHERE key = 'snapshot_csn'").fetchone()[0])
    noted = db.execute(
        "INSERT OR IGNORE INTO skips VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(entry.part, entry.table, entry.rows, entry.csn, entry.tid, entry.by, entry.why),
            *(" ".join(entry.without), entry.time_ms),
        ),
    )
    if noted.rowcount == 1 and not entry.table and entry.csn <= reached:
        reason = f"manifest {entry.part} was declared lost after CSN {entry.csn} was applied with it here"
        set_meta(db, clone=reason)
    gone = db.execute("DELETE FROM parts WHERE part = ? RETURNING file", (entry.part,)).fetchone()
    return release_files(db, [gone[0]]) if gone else []


class LostParts:
    """The parts that are declared lost, as records are applied.

    What a lost manifest has listed is not known. A replica that has applied it may have removed such parts
    before the word, in records that the others apply without them.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._parts: set[str] = set()
        self._manifests: list[Csn] = []
        for part, table, csn in db.execute("SELECT part, table_name, csn FROM skips"):
            self._note(part, table, csn)

    def add(self, entry: SkipPart) -> None:
        """Note one more."""
        self._note(entry.part, entry.table, entry.csn)

    def _note(self, part: str, table: str, csn: Csn) -> None:
        self._parts.add(part)
        if not table:
            self._manifests.append(csn)

    def has(self, part: str) -> bool:
        """Return whether a part itself was declared lost."""
        return part in self._parts

    def may_have_had(self, part: str, csn: Csn) -> bool:
        """Return whether a part that is removed at a CSN may be one that a lost manifest has listed."""
        if not any(manifest < csn for manifest in self._manifests):
            return False
        sql = "SELECT 1 FROM parts WHERE part = ? AND creation_csn IS NOT NULL"
        return self._db.execute(sql, (part,)).fetchone() is None


def _apply_tid(
    db: sqlite3.Connection, record: AppliedRecord, applied: AppliedTid, lost: LostParts
) -> list[str]:
    tid, csn, change = applied.tid, record.csn, applied.data_change
    unused: list[str] = []
    for entry in applied.entries:
        match entry:
            case SkipPart():
                unused += skip(db, entry, csn)
                lost.add(entry)
            case AddPart() | RemovePart() if lost.has(entry.part):
                pass  # an operator has declared the part lost: it is neither there nor to be removed
            case AddPart():
                # An early copy may be known by its bytes alone: the record says its table and partition.
                done = db.execute(
                    "UPDATE parts SET creation_csn = ?, creation_change = ?, table_name = ?, path = ?, "
                    "rows = ?, source = ?, columns_csn = ?, kind = 'part' "
                    "WHERE part = ? AND checksum = ? AND state = 'held'",
                    (
                        *(csn, change, entry.table, entry.path, entry.rows, *entry.shared),
                        *(entry.part, entry.checksum),
                    ),
                )
                if (
                    done.rowcount != 1
                ):  # I9: nothing becomes visible whose bytes are not durable and verified here
                    msg = (
                        f"part {entry.part} of {tid} is not held with checksum {entry.checksum}; CSN "
                        f"{csn} cannot be applied"
                    )
                    raise CorruptError(msg, part=entry.part, csn=csn)
            case RemovePart():
                done = db.execute(
                    "UPDATE parts SET removal_tid = ?, removal_csn = ?, removal_change = ? "
                    "WHERE part = ? AND creation_csn < ? AND removal_csn IS NULL",
                    (tid, csn, change, entry.part, csn),
                )
                # I7: two removals of one part would double the rows that replace it.
                if done.rowcount != 1 and not lost.may_have_had(entry.part, csn):
                    msg = (
                        f"part {entry.part} of {entry.table} is removed by {tid} at CSN {csn}, but is not "
                        "there to be removed; this replica stops at the CSN before"
                    )
                    raise CorruptError(msg, removed=entry.part, csn=csn)
            case TagCsn(name, at, keep_s):
                row = (name, at, csn, record.time_ms, keep_s)
                db.execute("INSERT OR REPLACE INTO tags VALUES (?, ?, ?, ?, ?)", row)
            case EndTag(name):
                db.execute("DELETE FROM tags WHERE name = ?", (name,))
            case DefineTable():
                _define(db, entry, tid, csn, record.tables[entry.table, entry.version])
    db.execute("UPDATE parts SET creation_csn = ? WHERE creation_tid = ? AND kind = 'manifest'", (csn, tid))
    db.execute("DELETE FROM prepared WHERE tid = ?", (tid,))
    db.execute(
        "INSERT OR IGNORE INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?)",
        (tid, csn, record.time_ms, applied.label, applied.batch, applied.carrier, applied.progress),
    )
    if (landed := landed_tid(applied.label)) is not None:  # its rows are in the parts of this transaction
        unused += drop_undecided(db, [landed])
    return unused


def _define(db: sqlite3.Connection, entry: DefineTable, tid: str, csn: Csn, made: TableForms) -> None:
    """Note a definition; all parts of a table that it drops leave the table.

    A commit that adds a part checks the version of the definition for which the part was made. So none is
    added later (rule tables).
    """
    drops = entry.drops
    state = "dropped" if drops else "namespace" if is_namespace(made.definition["name"]) else "active"
    db.execute(
        "INSERT OR IGNORE INTO tables VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(entry.table, entry.version, csn, json.dumps(made.definition), made.arrow_schema),
            *(made.common_metadata, state, made.definition["name"]),
        ),
    )
    if drops:
        db.execute(
            "UPDATE parts SET removal_tid = ?, removal_csn = ?, removal_change = 1 "
            "WHERE table_name = ? AND creation_csn < ? AND removal_csn IS NULL",
            (tid, csn, entry.table, csn),
        )


def prune_outcomes(
    db: sqlite3.Connection, before_ms: int, labels_before_ms: int, streams_before_ms: int
) -> int:
    """Forget outcomes older than the retention; return the new floor (the largest CSN forgotten, or 0).

    An outcome under a label is kept with it, that of a streaming query only for its last batch. Each run
    searches what has become old since the last one.

    Args:
        db: The catalog.
        before_ms: For outcomes without a label (Unix, ms).
        labels_before_ms: For those under labels of single runs.
        streams_before_ms: For those of the last batches of streaming queries.
    """
    floor, labels = last_outcome_before(db, before_ms), last_outcome_before(db, labels_before_ms)
    before = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('outcome_floor', 'label_floor')"))
    if floor:
        sql = "DELETE FROM outcomes WHERE csn > ? AND csn <= ? AND label IS NULL"
        db.execute(sql, (before.get("outcome_floor", 0), floor))
        db.execute(
            "DELETE FROM outcomes AS o WHERE batch IS NOT NULL AND csn <= ? AND (time_ms < ? OR csn < "
            "(SELECT max(csn) FROM outcomes WHERE label = o.label))",
            (floor, streams_before_ms),
        )
        db.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'outcome_floor'", (floor,))
    if labels:
        sql = "DELETE FROM outcomes WHERE csn > ? AND csn <= ? AND label IS NOT NULL AND batch IS NULL"
        db.execute(sql, (before.get("label_floor", 0), labels))
        set_meta(db, label_floor=max(labels, before.get("label_floor", 0)))
    return floor


def want(db: sqlite3.Connection, wanted: Sequence[Wanted]) -> None:
    """Note parts that are missing here; existing rows stay as they are."""
    db.executemany(
        """
        INSERT OR IGNORE INTO parts
               (part, table_name, path, rows, length, checksum, creation_tid, kind, source, columns_csn,
                state)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'wanted')
        """,
        [
            (
                w.meta.part,
                w.meta.table,
                w.meta.path,
                w.meta.rows,
                w.meta.length,
                w.meta.checksum,
                str(w.tid),
                w.meta.kind,
                w.meta.source,
                w.meta.columns_csn,
            )
            for w in wanted
        ],
    )
