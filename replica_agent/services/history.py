"""The service for CSNs and times: when a commit was, what was newest when, and who has it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidelock.csnlog.core.ids import CSN_IMPORT, Csn, PartId
from tidelock.errors import NoSuchCsnError, SnapshotTooOldError
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.replicas.membership import Membership
from tidelock.replica_agent.services.reads import ReadService
from tidelock.replica_agent.services.stories import part_at, statistics_at
from tidelock.replica_agent.snapshots.pinned import Snapshots
from tidelock.replica_agent.sql.request import SqlRequest, quote
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.tables.names import full_name
from tidelock.wire.history import CsnTime, InSyncReplicas, LastChange, PartExplanation, TableStatistics
from tidelock.wire.ids import TableName


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class HistoryService:
    """Answers from what is applied here; it waits, within a bound, for what is not."""

    condition: Condition
    reader: CatalogReader
    snapshots: Snapshots
    membership: Membership
    reads: ReadService
    data_dir: Path

    async def time_of(self, csn: Csn) -> CsnTime:
        """Return the effective time of a CSN.

        Raises:
            NoSuchCsnError: It is above the end of the log, or the log has no such number.
            SnapshotTooOldError: Its time is not kept any more.
            StandbyError: It was not applied here in time.
        """
        self.condition.require(AgentAction.READ)
        await self.snapshots.reach(csn)
        time_ms = self.reader.time_of(csn)
        if time_ms is None:
            oldest = max(self.reader.horizon(), CSN_IMPORT)
            if csn > oldest:  # it is applied, so it would be there
                raise NoSuchCsnError(
                    f"there is no CSN {csn}: the epoch of the log ends before it; ask for that of a commit",
                    end_csn=self.membership.waiters.reached,
                )
            msg = f"the time of CSN {csn} is not kept: times are kept from horizon {oldest} on; ask for that"
            raise SnapshotTooOldError(msg, csn=csn, min_csn=oldest)
        return CsnTime(csn, time_ms)

    async def csn_at(self, at_ms: int) -> CsnTime:
        """Return the newest CSN whose effective time is not after a time; errors as Snapshots.at_time."""
        self.condition.require(AgentAction.LATEST)
        csn = await self.snapshots.at_time(at_ms)
        return CsnTime(csn, self.reader.time_of(csn) or 0)

    async def in_sync_replicas(self, csn: Csn) -> InSyncReplicas:
        """Return the replicas that have applied a CSN; NoSuchCsnError above the end of the log."""
        self.condition.require(AgentAction.READ)
        await self.snapshots.require_exists(csn)
        reached = {**await self.membership.ask(), self.membership.replica: self.membership.waiters.reached}
        return InSyncReplicas(csn, sorted(replica for replica, at in reached.items() if at >= csn))

    async def last_change(self, table: str, min_csn: Csn | None) -> LastChange:
        """Return the last change of a table.

        Args:
            table: `name` or `namespace.name`.
            min_csn: Changes up to this CSN are included.

        Raises:
            UnknownTableError: There is no such table.
            NoSuchCsnError, StandbyError: ``min_csn`` is not applied here in time.
        """
        self.condition.require(AgentAction.READ)
        if min_csn is not None:
            await self.snapshots.reach(min_csn)
        row = self.reader.require_named(full_name(table), self.reader.snapshot_csn())
        csn = self.reader.last_change(row.id)
        assert csn is not None, "its definition was a change"
        return LastChange(row.name, csn, self.reader.time_of(csn))

    async def explain_part(self, part: PartId, csn: Csn | None) -> PartExplanation:
        """Return whether a part is visible at a CSN (None: that which is applied here), and why.

        Raises:
            NoSuchCsnError, StandbyError, SnapshotTooOldError: The CSN cannot be read here.
        """
        self.condition.require(AgentAction.READ)
        at = self.snapshots.waiters.reached if csn is None else csn
        await self.snapshots.reach(at)
        return await asyncio.to_thread(part_at, self.data_dir, self.membership.replica, part, at)

    async def statistics(self, table: str, csn: Csn | None, *, distinct: bool) -> TableStatistics:
        """Return the size of a table, and the values of its columns.

        Args:
            table: `name` or `namespace.name`.
            csn: The CSN; None: that which is applied here.
            distinct: Estimate the numbers of distinct values: all rows are read in a SQL process.

        Raises:
            UnknownTableError: There is no such table at the CSN.
            NoSuchCsnError, StandbyError, SnapshotTooOldError: The CSN cannot be read here.
            CorruptError, TooLargeError, UnavailableError: As of a query, with ``distinct``.
        """
        self.condition.require(AgentAction.READ)
        at = self.snapshots.waiters.reached if csn is None else csn
        found = await self.reads.require_table(at, table)
        row = self.reader.table(found, at)
        assert row is not None, "it was found at this CSN"
        names = [column["name"] for column in row.definition["columns"]]
        counts = await self._distinct(row.name, names, at) if distinct else []
        return await asyncio.to_thread(statistics_at, self.data_dir, row, at, counts)

    async def _distinct(self, table: TableName, columns: list[str], csn: Csn) -> list[int]:
        wanted = ", ".join(f"approx_count_distinct({quote(name)})" for name in columns)
        source = ".".join(map(quote, table.split(".")))
        sql = f"SELECT {wanted} FROM {source}"  # noqa: S608 - quoted names
        pieces = [piece async for piece in self.reads.sql.run(SqlRequest(csn, None, sql))]
        found = pa.ipc.open_stream(b"".join(pieces)).read_all()
        return [column[0].as_py() for column in found.columns]
