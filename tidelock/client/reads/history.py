"""Questions about CSNs and times: when a commit was, what was newest when, who has it; the log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from tidelock.client.agents.transport import segment
from tidelock.client.reads.tags import Tags
from tidelock.client.values.arguments import full_name, milliseconds
from tidelock.client.values.results import TableChange
from tidelock.wire.history import (
    CsnTime,
    InSyncReplicas,
    LastChange,
    PartExplanation,
    TableChangeInfo,
    TableStatistics,
)
from tidelock.wire.log import LogEntry
from tidelock.wire.rows import RowList, instant


class HistoryQuestions(Tags):
    """The questions of a `Database`."""

    def sql(
        self,
        sql: str,
        params: Sequence[Any] = (),
        *,
        csn: int | None = None,
        at: datetime | int | str | None = None,
    ) -> pa.Table:
        """Run one SELECT at a separate snapshot."""
        raise NotImplementedError

    def history(
        self, table: str | None = None, *, from_csn: int | None = None, limit: int = 100
    ) -> RowList[TableChangeInfo]:
        """Return what commits have changed in tables, in the order of CSNs: rows of `system.history`.

        It is kept longer than the log. Merges of compaction change no row and are left out.

        Args:
            table: The only table, by the name that it had after the commit; None: all tables.
            from_csn: The first CSN; None: the last `limit` changes.
            limit: Most changes.
        """
        direction = "desc" if from_csn is None else "asc"
        sql = f"""
            select csn, epoch_ms(time) as time_ms, namespace || '.' || table_name as table, action,
                rows_added, rows_removed, parts_added, parts_removed, tid, home, label, batch, meta
            from system.history
            where csn >= ? and action <> 'compact' and (? is null or namespace || '.' || table_name = ?)
            order by csn {direction}, tid {direction}, 3 {direction} limit {int(limit)}
        """  # noqa: S608 - a word and a number
        name = None if table is None else full_name(table)
        found = self.sql(sql, [from_csn or 0, name, name]).to_pylist()
        rows = [msgspec.convert(row, TableChangeInfo) for row in found]
        return RowList(rows if from_csn is not None else rows[::-1])

    def statistics(
        self, table: str, *, csn: int | str | None = None, distinct: bool = False
    ) -> TableStatistics:
        """Return the size of a table, and of each column the nulls, the smallest and the largest value.

        They come from the footers of the parts, which the catalog keeps: no file is read.

        Args:
            table: `name` or `namespace.name`.
            csn: At this CSN or tag; default: the newest of the replica that answers, not below what this
                client has seen.
            distinct: Also estimate the numbers of distinct values, by a sketch (HyperLogLog) with an error
                of a few per cent. This reads all rows.

        Raises:
            UnknownTableError: There is no such table at that CSN.
            SnapshotTooOldError, NoSuchCsnError, StandbyError: As in `snapshot`.
            TooLargeError, PartDamagedError: As of a query, with `distinct`.
        """
        path = f"/tables/{segment(table)}/statistics"
        return self._at_csn(path, csn, TableStatistics, distinct=1 if distinct else None)

    def explain_part(self, part: str, *, csn: int | str | None = None) -> PartExplanation:
        """Say whether a part is visible at a CSN, and why, as one replica knows.

        Args:
            part: Id of the part.
            csn: The CSN or a tag; default: the newest of the replica that answers, not below what this
                client has seen.

        Raises:
            BadRequestError: It is no id of a part.
            SnapshotTooOldError, NoSuchCsnError, StandbyError: As in `snapshot`.
        """
        return self._at_csn(f"/explain/parts/{segment(part)}", csn, PartExplanation)

    def csn_at(self, at: datetime | int | str) -> int:
        """Return the newest CSN whose effective time is not after a time: that of `snapshot(at=at)`.

        Args:
            at: A datetime with time zone, its ISO 8601 text, or ms since 1970.

        Raises:
            NoSuchCsnError: The time has not come yet.
            SnapshotTooOldError: It is before the history that is kept; `min_csn` in its details begins it.
            StandbyError: The replicas did not apply the log in time.
            BadRequestError: A time without time zone, or text of another form.
        """
        return self._connection.ask("GET", "/csns", answer=CsnTime, query={"at_ms": milliseconds(at)}).csn

    def time_of(self, csn: int) -> datetime:
        """Return the effective time of a CSN (UTC), which never decreases along the log.

        Raises:
            NoSuchCsnError: Above the end of the log.
            SnapshotTooOldError: Its time is not kept any more.
            StandbyError: No replica has reached it within its waiting bound.
        """
        found = self._connection.ask("GET", f"/csns/{csn}", answer=CsnTime)
        return datetime.fromtimestamp(found.time_ms / 1000, UTC)

    def last_change(self, table: str) -> TableChange:
        """Return the newest commit that changed a table's rows or its definition; compaction does neither.

        It includes all that this client has committed or read.

        Raises:
            UnknownTableError: There is no such table.
            StandbyError: No replica has reached within its waiting bound what this client has seen.
        """
        query = {"min_csn": self._connection.highest_csn.at_least(None)}
        path = f"/tables/{segment(table)}/last_change"
        found = self._connection.ask("GET", path, answer=LastChange, query=query)
        return TableChange(found.table, found.csn, instant(found.time_ms))

    def in_sync_replicas(self, csn: int) -> list[str]:
        """Return the replicas that have applied a CSN, by id: each serves reads at it without waiting.

        Raises:
            NoSuchCsnError: Above the end of the log.
        """
        return self._connection.ask("GET", f"/csns/{csn}/replicas", answer=InSyncReplicas).replicas

    def log(self, from_csn: int | None = None, *, limit: int | None = None) -> RowList[LogEntry]:
        """Return records of the CSN log in their order, the first not below `from_csn`.

        BadRequestError when `limit` is above the agent's `log_answer_records_max`.
        """
        query = {"from_csn": from_csn, "limit": limit}
        return RowList(self._connection.ask("GET", "/log", answer=list[LogEntry], query=query))
