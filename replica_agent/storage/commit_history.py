"""The history of commits: what each transaction has changed in each table, kept longer than the log.

A row is written in the catalog transaction that applies the record, so every replica has the same rows of the
records that it has applied. Each row holds all that it shows: tables, parts and outcomes that it tells of may
be forgotten. A rider has the rows that it gave to its carrier, and the carrier, which is no work of a user,
has no row.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.model import AddPart, ChangeTable, DefineTable, Entry, RemovePart, SkipPart
from tidelock.replica_agent.storage.catalog_writes import AppliedRecord, AppliedTid

_ROW: Final = "INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def note(db: sqlite3.Connection, records: Sequence[AppliedRecord]) -> None:
    """Note what records have changed, after they were applied in the same transaction."""
    newest_ms = db.execute("SELECT time_ms FROM history ORDER BY csn DESC LIMIT 1").fetchone()
    lost = {part for (part,) in db.execute("SELECT part FROM skips")}
    for record in records:
        carriers = {one.carrier for one in record.tids}
        for one in record.tids:
            if one.tid not in carriers:
                db.executemany(_ROW, _rows(db, record, one, lost))
    lowest_ms = min(record.time_ms for record in records)
    if newest_ms is not None and newest_ms[0] > lowest_ms:
        _heal(db, lowest_ms)


def _heal(db: sqlite3.Connection, now_ms: int) -> None:
    """Take over the times of CSNs that were made again, since wrong clocks had made them."""
    db.execute(
        "UPDATE history SET time_ms = csns.time_ms FROM csns "
        "WHERE csns.csn = history.csn AND history.time_ms > ?",
        (now_ms,),
    )


def _rows(
    db: sqlite3.Connection, record: AppliedRecord, one: AppliedTid, lost: set[str]
) -> Iterator[tuple[Any, ...]]:
    added, rows_added = Counter[TableId](), Counter[TableId](one.rows or {})
    for entry in one.entries:
        if isinstance(entry, AddPart) and entry.part not in lost:
            added[entry.table] += 1
            rows_added[entry.table] += entry.rows
    meta = None if one.meta is None else json.dumps(one.meta, ensure_ascii=False)
    tables = {entry.table for entry in one.entries} | rows_added.keys()
    for table in sorted(table for table in tables if table):
        entries = [entry for entry in one.entries if entry.table == table]
        removed, rows_removed = _removed(db, record.csn, one.tid, table, entries)
        yield (
            *(record.csn, one.tid, table, _name(db, record.csn, table), record.time_ms),
            _action(entries, one, adds=bool(added[table] or rows_added[table]), removes=bool(removed)),
            *(rows_added[table], rows_removed, added[table], removed, one.label, one.batch, meta),
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
        if isinstance(last, ChangeTable) and last.drops:
            return "drop"
        return "create" if definitions[0].version == 0 else "alter"
    if any(isinstance(entry, SkipPart) for entry in entries):
        return "lost"
    if not one.data_change:
        return "compact"
    return "change" if adds and removes else "delete" if removes else "insert"


def prune(db: sqlite3.Connection, before_ms: int, rows_max: int, limit: int) -> int:
    """Forget the oldest rows: those before a time (Unix, ms), and those above a number of rows.

    At most ``limit`` rows go at once. Return how many have gone.
    """
    excess = db.execute("SELECT count(*) FROM history").fetchone()[0] - rows_max
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
