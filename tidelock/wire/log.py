"""Records of the log as clients see them: transactions and their entries. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal

from tidelock.wire.cluster import SkippedRecordInfo
from tidelock.wire.rows import Row, instant


class AddedPart(Row, frozen=True, tag="AddPart", tag_field="action"):
    """A part joins a table; see the record in docs/protocol.md#bytes.

    Attributes:
        source: The part whose bytes it shares; None: it came with bytes of its own.
        columns_csn: The CSN at which the table had the columns of these bytes; None: that of the record.
    """

    table: str
    part: str
    path: str
    rows: int
    length: int
    checksum: str
    source: str | None = None
    columns_csn: int | None = None


class RemovedPart(Row, frozen=True, tag="RemovePart", tag_field="action"):
    """A part leaves its table."""

    table: str
    part: str


class SkippedPart(Row, frozen=True, tag="SkipPart", tag_field="action"):
    """An operator declares a part of an earlier commit lost."""

    table: str
    part: str
    rows: int
    csn: int
    tid: str
    by: str
    why: str
    time_ms: int
    without: tuple[str, ...]

    @property
    def time(self) -> datetime | None:
        """When it was declared lost (UTC)."""
        return instant(self.time_ms)


class LoggedTable(Row, frozen=True, tag="DefineTable", tag_field="action"):
    """A table gets a definition; `version` 0 is the first."""

    table: str
    version: int
    definition: dict[str, Any]


class LoggedTag(Row, frozen=True, tag="TagCsn", tag_field="action"):
    """A CSN gets a name, or a name another CSN; `keep_s`: seconds until the tag ends by itself."""

    name: str
    csn: int
    keep_s: float | None = None


class LoggedTagEnd(Row, frozen=True, tag="EndTag", tag_field="action"):
    """A tag ends: its time was over, or a user has ended it."""

    name: str
    expired: bool = False


#: An entry of a record, as its `action` names it.
LoggedEntry = AddedPart | RemovedPart | LoggedTable | SkippedPart | LoggedTag | LoggedTagEnd


class ManifestInfo(Row, frozen=True):
    """The part that holds the entries of a large transaction, and their number."""

    part: str
    length: int
    checksum: str
    entries: int


class LoggedTransaction(Row, frozen=True):
    """One transaction of a record.

    Attributes:
        tid: Its id.
        entries: Its actions; empty if `manifest` names the part that holds them.
        manifest: The manifest of a large transaction.
        holders: Replicas that had durable copies when the record was written, the home first.
        label: Its label.
        data_change: False for a merge: no row is different after it.
        meta: The user's own data.
        progress: The user's own text that is kept with the label.
        batch: The number of its batch if the label belongs to a streaming query.
        carrier: The transaction of the same record whose parts hold its rows, with those of others.
        rows: The number of its rows in each table, if it has a carrier.
    """

    tid: str
    entries: list[LoggedEntry]
    manifest: ManifestInfo | None
    holders: list[str]
    label: str | None
    data_change: bool
    meta: dict[str, Any] | None
    batch: int | None
    carrier: str | None = None
    rows: dict[str, int] | None = None
    progress: str | None = None


class LogEntry(Row, frozen=True, omit_defaults=True):
    """A record of the CSN log.

    Attributes:
        csn: Its CSN.
        kind: `end` closes an epoch, `genesis` begins the log.
        home: The replica that wrote it.
        time_ms: Time by the clock of the home (Unix, ms).
        tids: The transactions that become visible with it.
        skipped: The word of the operator who has had it skipped; home, time and transactions are absent then.
    """

    shown: ClassVar[tuple[str, ...]] = ("csn", "kind", "home", "time", "tids")

    csn: int
    kind: Literal["commit", "end", "genesis"]
    home: str
    time_ms: int
    tids: list[LoggedTransaction]
    skipped: SkippedRecordInfo | None = None

    @property
    def time(self) -> datetime | None:
        """Time by the clock of the home (UTC)."""
        return instant(self.time_ms)
