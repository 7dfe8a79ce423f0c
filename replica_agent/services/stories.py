"""Answers from the catalog about one thing each: a part at a CSN, a transaction, the columns of a table.

Every function opens the catalog for itself, so that it may run in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId
from tidelock.replica_agent.storage.table_reads import TableRow
from tidelock.replica_agent.system_tables.catalog_rows import SystemReader
from tidelock.replica_agent.system_tables.columns_table import bounds_in
from tidelock.replica_agent.system_tables.definition import View
from tidelock.replica_agent.tables.column_bounds import as_text
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.wire.history import ColumnStatistics, PartExplanation, TableChangeInfo, TableStatistics

#: The columns of a part that tell its story, in the order of :class:`_Versions`.
_VERSIONS: Final = (
    *("table_name", "path", "rows", "length", "state", "file", "kind", "creation_csn", "creation_tid"),
    *("NOT creation_change", "removal_csn", "removal_tid", "NOT removal_change"),
)
_CHANGES: Final = (
    *("csn", "time_ms", "name", "action", "rows_added", "rows_removed", "parts_added", "parts_removed"),
    *("tid", "tid_home(tid)", "label", "batch", "meta"),
)


class _Versions(msgspec.Struct, frozen=True):
    """A part in the catalog, with the commits that have added and removed it."""

    table: TableId
    path: str
    rows: int
    length: int
    state: str
    file: str | None
    kind: str
    added_csn: Csn | None
    added_tid: str
    merged: int
    removed_csn: Csn | None
    removed_tid: str | None
    removed_by_merge: int


class Story(msgspec.Struct, frozen=True):
    """A committed transaction as the catalog knows it.

    Attributes:
        time_ms: Effective time of its commit (Unix, ms); None if its outcome is not kept.
        label: Its label.
        batch: The number of its batch.
        carrier: The transaction whose parts have its rows.
        changes: Its changes of tables.
    """

    time_ms: int | None = None
    label: str | None = None
    batch: int | None = None
    carrier: str | None = None
    changes: tuple[TableChangeInfo, ...] = ()


def story_of(data_dir: Path, tid: str, csn: Csn | None) -> Story:
    """Return what the catalog knows of a transaction, which was committed at a CSN if it was."""
    if csn is None:
        return Story()
    with closing(SystemReader(data_dir)) as reader:
        outcome = _one(reader, ("time_ms", "label", "batch", "carrier"), "outcomes WHERE tid = :tid", tid=tid)
        where = "history WHERE csn = :csn AND tid = :tid ORDER BY name"
        found = reader.selected(_CHANGES, where, {"csn": csn, "tid": tid}, _ALL)
        changes = tuple(TableChangeInfo(*row) for rows in found for row in rows)
    time_ms, label, batch, carrier = outcome or (None, None, None, None)
    return Story(time_ms, label, batch, carrier, changes)


def part_at(data_dir: Path, replica: ReplicaId, part: PartId, csn: Csn) -> PartExplanation:
    """Return whether a part is visible at a CSN that is applied here, and why.

    Raises:
        SnapshotTooOldError: The CSN is below the horizon of its table.
    """
    with closing(SystemReader(data_dir)) as reader:
        row = _one(reader, _VERSIONS, "parts WHERE part = :part", part=part)
        if row is None:
            why = _why_unknown(reader, part)
            return PartExplanation(part=part, csn=csn, visible=False, why=why, asked=replica)
        found = _Versions(*row)
        reader.require_kept(csn, found.table)
        visible, why = judged(found, csn)
        names = reader.table_names(csn)
        return PartExplanation(
            part=part,
            csn=csn,
            visible=visible,
            why=why,
            asked=replica,
            table=names.get(found.table, found.table) or None,
            path=found.path,
            rows=found.rows,
            length=found.length,
            state=found.state,
            file=found.file,
            added_csn=found.added_csn,
            added_time_ms=None if found.added_csn is None else reader.time_of(found.added_csn),
            added_tid=found.added_tid,
            merged=bool(found.merged),
            removed_csn=found.removed_csn,
            removed_time_ms=None if found.removed_csn is None else reader.time_of(found.removed_csn),
            removed_tid=found.removed_tid,
        )


def judged(part: _Versions, csn: Csn) -> tuple[bool, str]:
    """Return whether a part is visible at a CSN, outside of transactions, and the reason."""
    if part.kind == "manifest":
        return False, f"it is the manifest of transaction {part.added_tid}, which no reader sees"
    if part.added_csn is None:
        return False, f"its transaction {part.added_tid} is not committed, as far as is applied here"
    if part.added_csn > csn:
        return False, f"it was added at CSN {part.added_csn}, above {csn}"
    if part.removed_csn is not None and part.removed_csn <= csn:
        how = "compaction replaced it" if part.removed_by_merge else f"{part.removed_tid} removed it"
        return False, f"{how} at CSN {part.removed_csn}, not above {csn}"
    until = "no commit has removed it" if part.removed_csn is None else f"it is removed at {part.removed_csn}"
    bytes_are = {
        "held": "",
        "wanted": "; its bytes are not on this replica yet, so it refers readers to another one",
        "quarantined": "; its bytes are damaged on this replica, which fetches them again",
    }[part.state]
    return True, f"it was added at CSN {part.added_csn}, not above {csn}, and {until}{bytes_are}"


def _why_unknown(reader: SystemReader, part: PartId) -> str:
    lost = next((one for one in reader.skipped() if one.part == part), None)
    if lost is not None:
        return f"{lost.by} declared it lost: {lost.why or 'no reason was given'}"
    return (
        "this replica does not know it: it was never committed, or it was removed below the horizon "
        f"{reader.horizon()} and deleted"
    )


def statistics_at(
    data_dir: Path, table: TableRow, csn: Csn, distinct: Sequence[int | None]
) -> TableStatistics:
    """Return the statistics of a table at a CSN that is applied here.

    Args:
        data_dir: The data directory of the replica.
        table: The table there.
        csn: The CSN.
        distinct: The estimated numbers of distinct values, in the order of the columns; empty if they were
            not asked for.

    Raises:
        SnapshotTooOldError: The CSN is below the horizon of the table.
    """
    schema = TableSchema.from_definition(table.id, table.definition)
    with closing(SystemReader(data_dir)) as reader:
        known = bounds_in(View(reader, csn, [table]), table).columns()
        parts, rows, size = reader.totals(table.id, csn)
        reader.require_kept(csn, table.id)
    columns = [
        ColumnStatistics(
            column.name,
            column.type,
            known[column.name].nulls,
            as_text(column, known[column.name].low),
            as_text(column, known[column.name].high),
            distinct[number] if distinct else None,
        )
        for number, column in enumerate(schema.columns)
    ]
    return TableStatistics(table.name, csn, rows, size, parts, columns)


#: Rows that are read at once where there are few.
_ALL: Final = 1000


def _one(reader: SystemReader, columns: Sequence[str], source: str, **args: Any) -> tuple[Any, ...] | None:
    """Return the only row of a source, or None."""
    batch = next(reader.selected(columns, source, args, 1), None)
    return None if batch is None else batch[0]
