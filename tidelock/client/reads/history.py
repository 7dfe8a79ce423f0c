"""Questions about CSNs and times: when a commit was, what was newest when, who has it; the log."""

from __future__ import annotations

from datetime import UTC, datetime

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.transport import segment
from tidelock.client.values.arguments import milliseconds
from tidelock.client.values.results import TableChange
from tidelock.wire.cluster import LogEntry
from tidelock.wire.history import CsnTime, InSyncReplicas, LastChange
from tidelock.wire.rows import RowList, instant


class HistoryQuestions:
    """The questions of a `Database`."""

    _connection: Connection

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
