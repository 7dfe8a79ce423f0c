"""Bodies about CSNs and their times. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import msgspec

from tidelock.wire.rows import Row, instant


class CsnTime(msgspec.Struct, frozen=True):
    """A CSN with its effective time (Unix, ms), which never decreases along the log."""

    csn: int
    time_ms: int


class InSyncReplicas(msgspec.Struct, frozen=True):
    """The replicas that have applied `csn`, by their answers: each serves reads at it without waiting."""

    csn: int
    replicas: list[str]


class LastChange(msgspec.Struct, frozen=True):
    """The last change of a table that is applied on the replica that answers.

    Attributes:
        table: Full name of the table.
        csn: The commit that last changed its rows or its definition; compaction changes neither.
        time_ms: Effective time of that commit (Unix, ms); null if it is not known any more.
    """

    table: str
    csn: int
    time_ms: int | None


class TableChangeInfo(Row, frozen=True):
    """The changes that a transaction has made to a table: a row of `system.history`.

    Attributes:
        csn: CSN of the commit.
        time_ms: Effective time of the commit (Unix, ms).
        table: Full name of the table after the commit.
        action: `insert`, `delete`, `change`, `compact`, `create`, `alter`, `drop` or `lost`.
        rows_added: Rows of the parts that it has added.
        rows_removed: Rows of the parts that it has removed.
        parts_added: Parts that it has added; 0 if its rows are in parts of a carrier.
        parts_removed: Parts that it has removed.
        tid: The transaction.
        home: The replica at which it was begun.
        label: Its label.
        batch: The number of its batch if the label belongs to a streaming query.
        meta: The user's own data, as JSON.
    """

    shown: ClassVar[tuple[str, ...]] = (
        *("csn", "time", "table", "action", "rows_added", "rows_removed", "tid", "label", "meta"),
    )

    csn: int
    time_ms: int
    table: str
    action: str
    rows_added: int
    rows_removed: int
    parts_added: int
    parts_removed: int
    tid: str
    home: str
    label: str | None
    batch: int | None
    meta: str | None

    @property
    def time(self) -> datetime | None:
        """Effective time of the commit (UTC)."""
        return instant(self.time_ms)


class PartExplanation(Row, frozen=True, kw_only=True):
    """Whether a part is visible at a CSN, and why, as one replica knows.

    Attributes:
        part: The part.
        csn: The CSN.
        visible: Whether a reader at this CSN sees it.
        why: The reason, as a sentence.
        asked: The replica that answers.
        table: Full name of its table at the CSN, or its id; null if the part is not known, as the rest.
        path: Path of its partition.
        rows: Number of its rows.
        length: Number of its bytes.
        state: `held`, `wanted` or `quarantined`, on the replica that answers.
        file: Its file below the data directory of that replica; null if it is not held.
        added_csn: CSN that added it; null before its commit is applied.
        added_time_ms: Effective time of that CSN (Unix, ms); null if it is not kept.
        added_tid: The transaction that made it.
        merged: Whether compaction made it.
        removed_csn: CSN that removed it; null if none has.
        removed_time_ms: Effective time of that CSN (Unix, ms).
        removed_tid: The transaction that removed it, or is about to.
    """

    shown: ClassVar[tuple[str, ...]] = ("part", "csn", "visible", "why", "table", "state")

    part: str
    csn: int
    visible: bool
    why: str
    asked: str
    table: str | None = None
    path: str | None = None
    rows: int | None = None
    length: int | None = None
    state: str | None = None
    file: str | None = None
    added_csn: int | None = None
    added_time_ms: int | None = None
    added_tid: str | None = None
    merged: bool | None = None
    removed_csn: int | None = None
    removed_time_ms: int | None = None
    removed_tid: str | None = None


class ColumnStatistics(Row, frozen=True):
    """The values of a column at a CSN.

    Attributes:
        name: Name of the column.
        type: Its type, in Spark's names.
        nulls: Number of nulls; null if a part does not say.
        min: Smallest value as text, times in ISO 8601; null if there is none, or if it is not known.
        max: Largest value, likewise.
        distinct: Number of distinct values that are not null, as a sketch estimates it; null if it was not
            asked for.
    """

    name: str
    type: str
    nulls: int | None
    min: str | None
    max: str | None
    distinct: int | None = None


class TableStatistics(Row, frozen=True):
    """The size of a table at a CSN, and the values of its columns.

    Attributes:
        table: Full name of the table.
        csn: The CSN.
        rows: Number of rows.
        bytes: Bytes of the parts.
        parts: Number of parts.
        columns: The columns in their order.
    """

    table: str
    csn: int
    rows: int
    bytes: int
    parts: int
    columns: list[ColumnStatistics]
