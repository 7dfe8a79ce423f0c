"""The history of commits: what each transaction has changed in each table, kept longer than the log.

A row is written in the catalog transaction that applies the record, so every replica has the same rows of the
records that it has applied. Each row holds all that it shows: tables, parts and outcomes that it tells of may
be forgotten. A rider has the rows that it gave to its carrier, and the carrier, which is no work of a user,
has no row.
"""

from __future__ import annotations

import functools
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.model import AddPart, ChangeTable, DefineTable, Entry, RemovePart, SkipPart
from tidelock.replica_agent.storage.catalog_writes import AppliedRecord, AppliedTid

_ROW: Final = "INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def note(db: sqlite3.Connection, records: Sequence[AppliedRecord]) -> None:
    """Note what records have changed, after they were applied in the same transaction.

    Times are those of the CSNs, where wrong clocks within the batch are mended; those of rows that are there
    are mended with the CSNs.
    """
    times = dict(db.execute("SELECT csn, time_ms FROM csns WHERE csn >= ?", (records[0].csn,)))
    name = functools.cache(functools.partial(_name, db))
    lost = {part for (part,) in db.execute("SELECT part FROM skips")}
    for record in records:
        carriers = {one.carrier for one in record.tids}
        for one in record.tids:
            if one.tid not in carriers:
                found = _changes(db, record.csn, one, lost)
                db.executemany(
                    _ROW,
                    (
                        (record.csn, one.tid, table, name(record.csn, table), times[record.csn], *change)
                        for table, change in found
                    ),
                )


def _changes(
    db: sqlite3.Connection, csn: Csn, one: AppliedTid, lost: set[str]
) -> Iterator[tuple[TableId, tuple[Any, ...]]]:
    """Yield each table that a transaction has changed, with the rest of its row."""
    entries_of: dict[TableId, list[Entry]] = defaultdict(list)
    added, rows_added = Counter[TableId](), Counter[TableId](one.rows or {})
    for entry in one.entries:
        entries_of[entry.table].append(entry)
        if isinstance(entry, AddPart) and entry.part not in lost:
            added[entry.table] += 1
            rows_added[entry.table] += entry.rows
    meta = None if one.meta is None else json.dumps(one.meta, ensure_ascii=False)
    for table in sorted(filter(None, entries_of.keys() | rows_added.keys())):
        entries = entries_of[table]
        removed, rows_removed = _removed(db, csn, one.tid, table, entries)
        yield (
            table,
            (
                _action(entries, one, adds=bool(added[table] or rows_added[table]), removes=bool(removed)),
                *(rows_added[table], rows_removed, added[table], removed, one.label, one.batch, meta),
            ),
        )


def _removed(
    db: sqlite3.Connection, csn: Csn, tid: str, table: TableId, entries: Sequence[Entry]
) -> tuple[int, int]:
    """Return how many parts a transaction has removed, or declared lost, and how many rows they had."""
    declared = [entry.rows for entry in entries if isinstance(entry, SkipPart)]
    if not any(isinstance(entry, RemovePart | ChangeTable) for entry in entries):
        return len(declared), sum(declared)
    sql = """
        SELECT count(*), coalesce(sum(rows), 0) FROM parts
        WHERE table_name = ? AND removal_csn = ? AND removal_tid = ?
    """
    parts, rows = db.execute(sql, (table, csn, tid)).fetchone()
    return parts + len(declared), rows + sum(declared)


def _name(db: sqlite3.Connection, csn: Csn, table: TableId) -> str:
    """Return the name of a table from a CSN on; its id where no definition is known."""
    sql = "SELECT name FROM tables WHERE id = ? AND from_csn <= ? ORDER BY version DESC LIMIT 1"
    found = db.execute(sql, (table, csn)).fetchone()
    return str(table if found is None else found[0])


def _action(entries: Sequence[Entry], one: AppliedTid, *, adds: bool, removes: bool) -> str:
    definitions = [entry for entry in entries if isinstance(entry, DefineTable)]
    if definitions:
        last = definitions[-1]
        if last.drops:
            return "drop"
        return "create" if definitions[0].version == 0 else "alter"
    if any(isinstance(entry, SkipPart) for entry in entries):
        return "lost"
    if not one.data_change:
        return "compact"
    return "change" if adds and removes else "delete" if removes else "insert"


def prune(db: sqlite3.Connection, before_ms: int, excess: int, limit: int) -> int:
    """Forget the oldest rows: those before a time (Unix, ms), and so many that are too many.

    At most ``limit`` rows go at once. Return how many have gone.
    """
    sql = "SELECT count(*) FROM (SELECT time_ms FROM history ORDER BY csn LIMIT ?) WHERE time_ms < ?"
    old = db.execute(sql, (limit, before_ms)).fetchone()[0]
    gone = db.execute(
        """
        DELETE FROM history WHERE (csn, tid, table_name) IN
            (SELECT csn, tid, table_name FROM history ORDER BY csn, tid, table_name LIMIT ?)
        """,
        (max(0, min(limit, max(excess, old))),),
    )
    return gone.rowcount
