"""Read access to a replica's catalog, for any process of the agent: what is visible, and where it is stored.

A :class:`CatalogReader` holds a read-only SQLite connection (WAL: never blocks the writer, never blocked by
it) and keeps no other state. It is for one thread.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from tidelock.csnlog.core.ids import CSN_IMPORT, CSN_NONE, Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.imprint import Imprint
from tidelock.csnlog.core.model import SkippedRecord
from tidelock.csnlog.core.visibility import Replaced, visible_args
from tidelock.errors import SnapshotTooOldError
from tidelock.replica_agent.storage.catalog_schema import TWIN_SQL, VISIBLE_OF_TABLE, twin_args
from tidelock.replica_agent.storage.table_reads import TableReads
from tidelock.replica_agent.tables.layouts import NO_LAYOUTS, Layouts
from tidelock.replication.core.model import Location, PartKind, PartMeta
from tidelock.wire.ids import TableName


class PartRow(msgspec.Struct, frozen=True):
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
        offset: Start of the range in the file.
        blocks: XXH3-64 digests (8 bytes each, big-endian) of the range's 256 KiB blocks.
        kind: ``part``, ``landed`` or ``manifest``.
        state: ``held``, ``wanted`` or ``quarantined``.
        source: The part whose bytes it shares, or None.
        shared_columns_csn: The CSN at which its table had the columns of its shared bytes, or None.
    """

    part: PartId
    table: TableId
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
    source: PartId | None = None
    shared_columns_csn: Csn | None = None

    @property
    def columns_csn(self) -> Csn | None:
        """Return the CSN at which its table had the columns of its file; None: as the transaction sees it."""
        return self.creation_csn if self.shared_columns_csn is None else self.shared_columns_csn

    @property
    def held(self) -> Location | None:
        """Return the place of its bytes, which are assumed right; None while they are not here, or wrong."""
        if self.state != "held" or self.file is None:
            return None
        return Location(self.file, self.offset, self.length, self.blocks)

    @property
    def meta(self) -> PartMeta:
        """Return what another replica has to know of the part."""
        return PartMeta(
            part=self.part,
            table=self.table,
            path=self.path,
            rows=self.rows,
            length=self.length,
            checksum=self.checksum,
            kind=self.kind,
            source=self.source,
            columns_csn=self.shared_columns_csn,
        )

    @property
    def name(self) -> str:
        """Return the file's path below the table's folder in a snapshot."""
        return f"{self.path}/{self.part}.parquet" if self.path else f"{self.part}.parquet"


class OutcomeRow(msgspec.Struct, frozen=True):
    """A committed transaction: its tid, its CSN, that CSN's effective time (Unix, ms), its progress."""

    tid: str
    csn: Csn
    time_ms: int
    progress: str | None = None


class SkippedPart(msgspec.Struct, frozen=True):
    """A part that an operator has declared lost; the attributes as in :class:`SkipPart`.

    Attributes:
        time_ms: The time of that word (Unix, ms).
    """

    part: PartId
    table: TableId
    rows: int
    csn: Csn
    tid: str
    by: str
    why: str
    without: tuple[ReplicaId, ...]
    time_ms: int


class EndingLabel(msgspec.Struct, frozen=True):
    """A label that is to be released: the last transaction that it named, and whether it is a stream's."""

    tid: str
    name: str
    stream: bool


#: Columns of ``parts`` in the order of :class:`PartRow`.
PART_COLUMNS = (
    "part, table_name, path, rows, length, checksum, creation_tid, creation_csn, file, offset, "
    "coalesce(blocks, x''), kind, state, source, columns_csn"
)


def last_outcome_before(db: sqlite3.Connection, before_ms: int) -> Csn:
    """Return the last CSN of ``outcomes`` with an effective time before a time (Unix, ms), 0 if none has."""
    return _last_before(db, "outcomes", before_ms)


def _last_before(db: sqlite3.Connection, table: Literal["outcomes", "csns"], before_ms: int) -> Csn:
    """Return the last CSN of a table with an effective time before a time (Unix, ms), 0 if none has.

    Times grow with CSNs, so this is a binary search: neither the kept rows, millions of them, are scanned nor
    those below them that stay with their labels.
    """
    sql = f"SELECT csn, time_ms FROM {table} WHERE csn >= ? ORDER BY csn LIMIT 1"
    newest = db.execute(f"SELECT coalesce(max(csn), 0) FROM {table}").fetchone()[0]
    before, from_here = CSN_NONE, newest + 1
    while before + 1 < from_here:
        middle = (before + from_here) // 2
        row = db.execute(sql, (middle,)).fetchone()
        if row is not None and row[1] < before_ms:
            before = Csn(row[0])
        else:
            from_here = middle
    return before


#: The parts of a parameter that is a JSON list. One query for all: each one gives up the interpreter's lock.
_GIVEN: Final = "SELECT value FROM json_each(?)"


def skipped_records(db: sqlite3.Connection) -> dict[Csn, SkippedRecord]:
    """Return the records that a catalog has passed over, by CSN."""
    sql = "SELECT csn, zxid, digest, operator, why, time_ms, tids, closes FROM skipped_records ORDER BY csn"
    return {
        Csn(csn): SkippedRecord(
            Csn(csn), zxid, digest, by, why, time_ms, tuple(json.loads(tids)), bool(closes)
        )
        for csn, zxid, digest, by, why, time_ms, tids, closes in db.execute(sql)
    }


class CatalogReader(TableReads):
    """Read-only view of ``catalog.db``; every method is one consistent SQLite read."""

    def __init__(self, data_dir: Path, *, one_thread: bool = True) -> None:
        """Open the catalog below ``data_dir``; sqlite3.OperationalError if it does not exist.

        Without ``one_thread`` several threads may use it, one after the other.
        """
        self._db = sqlite3.connect(
            f"file:{data_dir / 'catalog.db'}?mode=ro",
            uri=True,
            isolation_level=None,
            cached_statements=64,
            check_same_thread=one_thread,
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

    def last_imprint(self) -> Imprint:
        """Return the imprint of the last applied record."""
        return Imprint(self.meta("zxid_max") or 0, self.meta("last_digest") or "")

    def horizon(self) -> Csn:
        """Return the CSN below which nothing is promised."""
        return Csn(self.meta("horizon"))

    def table_horizons(self) -> dict[TableId, Csn]:
        """Return the horizons of the tables with their own retention; they are never above the common one."""
        rows = self._db.execute("SELECT table_name, csn FROM table_horizons")
        return {TableId(name): Csn(csn) for name, csn in rows}

    def keeps(self, csn: Csn, table: TableId) -> bool:
        """Return whether ``csn`` is still promised for one table."""
        horizon = self.horizon()
        return csn >= horizon or csn >= self.table_horizons().get(table, horizon)

    def require_kept(self, csn: Csn, table: TableId | None = None) -> None:
        """Raise SnapshotTooOldError unless ``csn`` is still promised: for one table, or for all tables."""
        horizon = max(self.horizon(), CSN_IMPORT)
        if csn >= horizon:
            return
        kept = self.table_horizons()
        oldest = max(kept.get(table, horizon), CSN_IMPORT) if table is not None else horizon
        if csn >= oldest:
            return
        names = self.table_names(csn)
        about = f"table {names.get(table, table)} at CSN {csn}" if table is not None else f"CSN {csn}"
        msg = (
            f"{about} is below the horizon {oldest}: the oldest readable CSN is {oldest}; read at a newer CSN"
        )
        longer = sorted(
            names[one] for one, begin in kept.items() if begin <= csn and csn >= CSN_IMPORT and one in names
        )
        if longer:
            msg += f". Tables with a longer retention can be read there one by one: {', '.join(longer)}"
        raise SnapshotTooOldError(msg, csn=csn, min_csn=oldest)

    def csn_at(self, time_ms: int) -> Csn | None:
        """Return the newest applied CSN whose effective time is not after ``time_ms``, or None."""
        self._db.execute("BEGIN")  # wrong times may be mended meanwhile
        try:
            return _last_before(self._db, "csns", time_ms + 1) or None
        finally:
            self._db.execute("COMMIT")

    def time_of(self, csn: Csn) -> int | None:
        """Return the effective time (Unix, ms) of an applied CSN, or None if it is not kept."""
        row = self._db.execute("SELECT time_ms FROM csns WHERE csn = ?", (csn,)).fetchone()
        return None if row is None else int(row[0])

    def last_change(self, table: TableId) -> Csn | None:
        """Return the CSN that last changed the rows or the definition of a table, or None if none has."""
        row = self._db.execute("SELECT csn FROM table_changes WHERE table_name = ?", (table,)).fetchone()
        return None if row is None else Csn(row[0])

    def outcome(self, tid: str) -> tuple[Csn, int] | None:
        """Return (CSN, effective time in ms) of a committed transaction, or None."""
        row = self._db.execute("SELECT csn, time_ms FROM outcomes WHERE tid = ?", (tid,)).fetchone()
        return (Csn(row[0]), row[1]) if row else None

    def committed(self, tids: Iterable[str]) -> set[str]:
        """Return those of ``tids`` that are committed here."""
        sql = f"SELECT tid FROM outcomes WHERE tid IN ({_GIVEN})"
        return {tid for (tid,) in self._db.execute(sql, (json.dumps([*tids]),))}

    def prepared(self) -> list[str]:
        """Return the transactions that have something undecided here, as textual tids.

        They are prepared, have made parts, or have marked parts as removed.
        """
        sql = (
            "SELECT tid FROM prepared UNION SELECT DISTINCT creation_tid FROM parts WHERE "
            "creation_csn IS NULL UNION SELECT DISTINCT removal_tid FROM parts WHERE "
            "removal_tid IS NOT NULL AND removal_csn IS NULL"
        )
        return [tid for (tid,) in self._db.execute(sql)]

    def landed(self, tid: str) -> list[tuple[PartMeta, Location | None]]:
        """Return the parts of an undecided landing that is confirmed here, with their places; else none."""
        sql = f"""
            SELECT stats, form, {PART_COLUMNS} FROM parts WHERE creation_tid = ?1 AND creation_csn IS NULL
                AND kind = 'landed' AND EXISTS (SELECT 1 FROM prepared WHERE tid = ?1)
        """
        rows = [(stats, form, PartRow(*row)) for stats, form, *row in self._db.execute(sql, (tid,))]
        return [
            (msgspec.structs.replace(row.meta, stats=json.loads(stats or "null"), form=form), row.held)
            for stats, form, row in rows
        ]

    def landed_tids(self) -> list[str]:
        """Return the undecided landings of which parts are here."""
        sql = "SELECT DISTINCT creation_tid FROM parts WHERE creation_csn IS NULL AND kind = 'landed'"
        return [tid for (tid,) in self._db.execute(sql)]

    def held(self, parts: Iterable[PartId]) -> set[PartId]:
        """Return those of ``parts`` whose bytes are durable and assumed correct here."""
        sql = f"SELECT part FROM parts WHERE part IN ({_GIVEN}) AND state = 'held'"
        return {PartId(part) for (part,) in self._db.execute(sql, (json.dumps([*parts]),))}

    def skipped(self, tid: str | None = None) -> list[SkippedPart]:
        """Return the parts that are declared lost, in the order of their CSNs: all, or those of a tid.

        The rows of a transaction that was carried are in the parts of its carrier.
        """
        sql = """
            SELECT part, table_name, rows, csn, tid, operator, why, without, time_ms FROM skips
            WHERE ?1 IS NULL OR tid IN (?1, (SELECT carrier FROM outcomes WHERE tid = ?1)) ORDER BY csn, part
        """
        found = self._db.execute(sql, (tid,))
        return [
            SkippedPart(part, table, rows, csn, of, by, why, _replicas(without), time_ms)
            for part, table, rows, csn, of, by, why, without, time_ms in found
        ]

    def skipped_records(self) -> dict[Csn, SkippedRecord]:
        """Return the records that were passed over here, by CSN."""
        return skipped_records(self._db)

    def is_skipped(self, part: PartId) -> bool:
        """Return whether a part is declared lost."""
        return self._db.execute("SELECT 1 FROM skips WHERE part = ?", (part,)).fetchone() is not None

    def nameless(self, parts: Iterable[PartId]) -> set[PartId]:
        """Return those of ``parts`` that are known by their bytes alone: early copies."""
        if not (given := [*parts]):
            return set()
        sql = f"SELECT part FROM parts WHERE part IN ({_GIVEN}) AND table_name = '' AND kind = 'part'"
        return {PartId(part) for (part,) in self._db.execute(sql, (json.dumps(given),))}

    def parts_of(self, tid: str) -> list[PartRow]:
        """Return every part that a transaction, or its carrier, has created and that is known here."""
        sql = (
            f"SELECT {PART_COLUMNS} FROM parts WHERE creation_tid IN "
            "(?1, (SELECT carrier FROM outcomes WHERE tid = ?1))"
        )
        return [PartRow(*row) for row in self._db.execute(sql, (tid,))]

    def remover(self, part: PartId) -> str | None:
        """Return the textual tid of the transaction that removes or has removed a part, or None."""
        found = self._db.execute("SELECT removal_tid FROM parts WHERE part = ?", (part,)).fetchone()
        return None if found is None else found[0]

    def run(self, tid: str) -> OutcomeRow | None:
        """Return a committed transaction with the progress that it keeps, or None."""
        sql = "SELECT tid, csn, time_ms, progress FROM outcomes WHERE tid = ?"
        row = self._db.execute(sql, (tid,)).fetchone()
        return OutcomeRow(*row) if row else None

    def run_of_batch(self, label: str, batch: int) -> OutcomeRow | None:
        """Return the commit of a batch of a streaming query, or None if it is not known any more."""
        sql = """
            SELECT tid, csn, time_ms, progress FROM outcomes WHERE label = ? AND batch = ?
            ORDER BY csn DESC LIMIT 1
        """
        row = self._db.execute(sql, (label, batch)).fetchone()
        return OutcomeRow(*row) if row else None

    def ending_labels(self, home: ReplicaId, before_ms: int, streams_before_ms: int) -> list[EndingLabel]:
        """Return the labels that a home releases: their outcomes end with those before a time (Unix, ms).

        Args:
            home: The home of their transactions.
            before_ms: For labels of single runs.
            streams_before_ms: For labels of streaming queries whose last batch is older.
        """
        sql = """
            SELECT tid, label, 0 FROM outcomes
            WHERE csn > :from AND csn <= :to AND label IS NOT NULL AND batch IS NULL
            UNION ALL
            SELECT tid, label, 1 FROM outcomes o WHERE batch IS NOT NULL AND time_ms < :streams
                AND csn = (SELECT max(csn) FROM outcomes WHERE label = o.label)
        """
        ended = last_outcome_before(self._db, before_ms)
        args = {"from": self.meta("label_floor") or CSN_NONE, "to": ended, "streams": streams_before_ms}
        rows = self._db.execute(sql, args)
        return [
            EndingLabel(tid, label, bool(stream))
            for tid, label, stream in rows
            if Tid.parse(tid).home == home
        ]

    def files(self) -> tuple[set[str], list[str]]:
        """Return the paths of files that may contain parts, and the paths of undo rows."""
        named = {path for (path,) in self._db.execute("SELECT path FROM files")}
        return named, [path for (path,) in self._db.execute("SELECT path FROM undo")]

    def names_file(self, path: str) -> bool:
        """Return whether a file may contain parts."""
        return self._db.execute("SELECT 1 FROM files WHERE path = ?", (path,)).fetchone() is not None

    def packs(self) -> list[str]:
        """Return the paths of packs that may contain parts without a row, in the order of their names."""
        return [path for (path,) in self._db.execute("SELECT path FROM packs ORDER BY path")]

    def missing(self, state: str, *, visible: bool, after: int, limit: int) -> list[tuple[int, PartRow]]:
        """Return committed parts whose bytes are not here, with their place in the order of the catalog.

        Args:
            state: ``wanted`` or ``quarantined``.
            visible: The parts that no applied record has removed, or the others, and manifests: no reader
                needs them, and peers delete them when the tail has passed their record.
            after: The place behind which to begin; 0 at first.
            limit: The largest number of parts.
        """
        sql = f"""
            SELECT rowid, {PART_COLUMNS} FROM parts INDEXED BY parts_not_held
            WHERE state <> 'held' AND state = ? AND rowid > ?
                AND creation_csn IS NOT NULL AND (removal_csn IS NULL AND kind = 'part') = ?
            ORDER BY rowid LIMIT ?
        """
        args = (state, after, visible, limit)
        return [(row[0], PartRow(*row[1:])) for row in self._db.execute(sql, args)]

    def has_twin(self, meta: PartMeta) -> bool:
        """Return whether another part with the bytes of this one is held here."""
        return self._db.execute(f"SELECT 1 {TWIN_SQL}", twin_args(meta)).fetchone() is not None

    def visible(self, parts: Iterable[PartId]) -> set[PartId]:
        """Return those of ``parts`` that an applied record has added and none has removed."""
        sql = "SELECT 1 FROM parts WHERE part = ? AND creation_csn IS NOT NULL AND removal_csn IS NULL"
        return {part for part in parts if self._db.execute(sql, (part,)).fetchone()}

    def visible_bytes(self) -> dict[bool, tuple[int, int]]:
        """Return (parts, bytes) of the parts that no applied record has removed: held here, and not held."""
        sql = """
            SELECT state = 'held', count(*), sum(length) FROM parts
            WHERE creation_csn IS NOT NULL AND removal_csn IS NULL AND kind = 'part' GROUP BY 1
        """
        found = {bool(held): (parts, size) for held, parts, size in self._db.execute(sql)}
        return {held: found.get(held, (0, 0)) for held in (True, False)}

    def totals(
        self, table: TableId, at: Csn, own: str | None = None, adopted: Iterable[str] = ()
    ) -> tuple[int, int, int]:
        """Return (parts, rows, bytes) of ``table`` visible at ``at``, with the arguments of :meth:`parts`."""
        sql = f"SELECT count(*), coalesce(sum(rows), 0), coalesce(sum(length), 0) FROM {VISIBLE_OF_TABLE}"
        parts, rows, size = self._db.execute(
            sql, {"table": table} | visible_args(at, own, adopted)
        ).fetchone()
        return parts, rows, size

    def parts(
        self, table: TableId, at: Csn, own: str | None = None, adopted: Iterable[str] = ()
    ) -> list[PartRow]:
        """Return the parts of ``table`` visible at ``at``, by path and id.

        With ``own`` the view is that of this transaction, which has adopted the merges ``adopted``.
        """
        sql = f"SELECT {PART_COLUMNS} FROM {VISIBLE_OF_TABLE} ORDER BY path, part"
        args = {"table": table} | visible_args(at, own, adopted)
        return [PartRow(*row) for row in self._db.execute(sql, args)]

    def parts_json(self, table: TableId, name: TableName, at: Csn, layouts: Layouts = NO_LAYOUTS) -> bytes:
        """Return the parts of ``table`` visible at ``at``, by path and id, as JSON of `PartInfo`.

        Their files are below the folder of the name that it has there, with the lengths that ``layouts`` say.

        SQLite makes it without the interpreter's lock: a hundred thousand objects of Python, their encoding
        and their end would each hold up the event loop.
        """
        sql = f"""
            SELECT CAST(json_group_array(json_object(
                'part', part, 'path', path, 'rows', rows, 'length', length, 'checksum', checksum,
                'file', :folder || iif(path = '', '', '/' || path) || '/' || part
                    || '.parquet',
                'file_length', file_length
            )) AS BLOB)
            FROM (
                SELECT part, path, rows, length, checksum, {layouts.length_sql()} AS file_length
                FROM {VISIBLE_OF_TABLE} ORDER BY path, part
            )
        """
        args = {"table": table, "folder": name.replace(".", "/")} | visible_args(at)
        found: bytes = self._db.execute(sql, args).fetchone()[0]
        return found

    def partition(
        self, table: TableId, path: str, at: Csn, own: str | None = None, adopted: Iterable[str] = ()
    ) -> list[PartRow]:
        """Return the parts of one partition of ``table``, as :meth:`parts` does."""
        sql = f"SELECT {PART_COLUMNS} FROM {VISIBLE_OF_TABLE} AND path = :path ORDER BY part"
        args = {"table": table, "path": path} | visible_args(at, own, adopted)
        return [PartRow(*row) for row in self._db.execute(sql, args)]

    def partitions(self, table: TableId, at: Csn) -> set[str]:
        """Return the partition paths of ``table`` that have parts at ``at``."""
        sql = f"SELECT DISTINCT path FROM {VISIBLE_OF_TABLE}"
        return {path for (path,) in self._db.execute(sql, {"table": table} | visible_args(at))}

    def changed_partitions(self, table: TableId, since: Csn) -> set[str]:
        """Return the partitions of ``table`` whose rows commits above ``since`` have changed.

        Compaction changes no rows. Parts collected since were removed below every CSN that is in use.
        """
        sql = """
            SELECT path FROM parts WHERE table_name = :t AND creation_csn > :s AND creation_change
            UNION SELECT path FROM parts WHERE removal_csn > :s AND table_name = :t AND removal_change
        """
        return {path for (path,) in self._db.execute(sql, {"t": table, "s": since})}

    def replaced_since(self, table: TableId | None, since: Csn) -> list[Replaced]:
        """Return the replacements by merges above ``since``, in one table or (None) in all, in order."""
        # The plus forces the index of removals: few occur between two checks, and a table has many parts.
        sql = """
            SELECT removal_tid, creation_tid, creation_csn FROM parts
            WHERE removal_csn > :s AND (:t IS NULL OR +table_name = :t) AND NOT removal_change
            ORDER BY removal_csn
        """
        return [Replaced(*row) for row in self._db.execute(sql, {"s": since, "t": table})]

    def added_since(self, table: TableId, since: Csn) -> list[tuple[str, dict[str, Any] | None]]:
        """Return (partition path, statistics) of the parts that commits above ``since`` have added.

        Parts of compaction are left out: they hold no new rows. Parts that were removed since count.
        """
        sql = "SELECT path, stats FROM parts WHERE table_name = ? AND creation_csn > ? AND creation_change"
        return [
            (path, None if stats is None else json.loads(stats))
            for path, stats in self._db.execute(sql, (table, since))
        ]

    def history_rows(self) -> int:
        """Return the number of rows of the history of commits; it reads them all."""
        return int(self._db.execute("SELECT count(*) FROM history").fetchone()[0])

    def part_counts(self) -> list[tuple[TableId, str, int]]:
        """Return (table, partition path, parts) of every partition that has parts at the snapshot CSN."""
        sql = """
            SELECT table_name, path, count(*) FROM parts
            WHERE removal_csn IS NULL AND creation_csn IS NOT NULL AND table_name <> ''
            GROUP BY table_name, path
        """
        return [(TableId(table), path, count) for table, path, count in self._db.execute(sql)]

    def paths(self, parts: Iterable[PartId]) -> dict[PartId, str]:
        """Return the partition paths of those parts that are known here, visible or not."""
        sql = "SELECT part, path FROM parts WHERE part = ?"
        return dict(row for part in parts for row in self._db.execute(sql, (part,)))

    def compactable(self, table: TableId, path: str, at: Csn) -> list[tuple[PartId, int, int, str, Csn, int]]:
        """Return the parts of a partition that can be merged.

        (part, rows, bytes, tid that created it, its CSN, the time of that CSN in ms)

        They are visible at ``at`` and now, whole here, and not marked by a transaction that removes them.
        """
        sql = """
            SELECT part, rows, length, creation_tid, creation_csn, coalesce(time_ms, 0)
            FROM parts LEFT JOIN csns ON csn = creation_csn
            WHERE table_name = ? AND path = ? AND removal_csn IS NULL AND removal_tid IS NULL
            AND creation_csn <= ? AND state = 'held'
        """
        return list(self._db.execute(sql, (table, path, at)))

    def part(self, part: PartId) -> PartRow | None:
        """Return one part, committed or not, or None."""
        row = self._db.execute(f"SELECT {PART_COLUMNS} FROM parts WHERE part = ?", (part,)).fetchone()
        return PartRow(*row) if row else None

    def held_rows(self, parts: Iterable[PartId]) -> dict[PartId, PartRow]:
        """Return the rows of those of ``parts`` whose bytes are durable and assumed correct here."""
        sql = f"SELECT {PART_COLUMNS} FROM parts WHERE part IN ({_GIVEN}) AND state = 'held'"
        rows = (PartRow(*row) for row in self._db.execute(sql, (json.dumps([*parts]),)))
        return {row.part: row for row in rows}

    def statistics(self, part: PartId) -> dict[str, list[Any]]:
        """Return the known statistics of a part's columns (:data:`part_stats.Statistics`), maybe none."""
        row = self._db.execute("SELECT stats FROM parts WHERE part = ?", (part,)).fetchone()
        return json.loads(row[0]) if row and row[0] else {}


def _replicas(names: str) -> tuple[ReplicaId, ...]:
    return tuple(ReplicaId(name) for name in names.split())
