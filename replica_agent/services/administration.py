"""The service for operators, and for requests about tables."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from tidelock.csnlog.core.ids import Csn, ReplicaId, TableName
from tidelock.csnlog.core.results import Committed
from tidelock.errors import TableExistsError
from tidelock.replica_agent.audit.auditor import Auditor
from tidelock.replica_agent.audit.digests import digests
from tidelock.replica_agent.compaction.compactor import Compactor
from tidelock.replica_agent.compaction.optimize import Optimized
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.config.switches import Switches
from tidelock.replica_agent.services.lost_parts import LostPartService
from tidelock.replica_agent.services.reads import ReadService
from tidelock.replica_agent.snapshots.horizon import HorizonMover, Moved
from tidelock.replica_agent.snapshots.pinned import Snapshots
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, TableRow
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.tables.partitions import path_in
from tidelock.replica_agent.tables.schema import Derivation, TableSchema
from tidelock.replica_agent.transactions.ending.commit import Commits, WaitFor
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.derived import DerivedTables
from tidelock.wire.audit import Digests
from tidelock.wire.cluster import SwitchInfo
from tidelock.wire.tables import TableInfo


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AdministrationService:
    """Creates and shows tables, merges parts, raises the horizon, audits."""

    settings: AgentSettings
    replica: ReplicaId
    condition: Condition
    switches: Switches
    waiters: CsnWaiters
    reader: CatalogReader
    catalog: Catalog
    tables: Tables
    derived: DerivedTables
    transactions: Transactions
    commits: Commits
    reads: ReadService
    snapshots: Snapshots
    horizon: HorizonMover
    compactor: Compactor
    auditor: Auditor
    lost_parts: LostPartService

    @property
    def reached(self) -> Csn:
        """The CSN up to which records are applied here."""
        return self.waiters.reached

    # -- tables ----------------------------------------------------------------------------------------------

    def check_schema(
        self,
        name: str,
        arrow: pa.Schema,
        partition_by: list[str],
        sort_by: list[str],
        properties: dict[str, str],
        derivation: Derivation | None,
    ) -> TableSchema:
        """Return the schema of a table that is to be created; errors as :meth:`TableSchema.from_request`."""
        return TableSchema.from_request(
            name,
            arrow,
            partition_by,
            sort_by,
            properties,
            derivation=derivation,
            columns_max=self.settings.columns_max,
            retention_s_min=self.settings.history_retention_s,
        )

    async def create_table(self, schema: TableSchema) -> Committed:
        """Create a table in a separate transaction.

        Raises:
            TableExistsError: A table of this name exists.
            Others as :meth:`DerivedTables.defining`, and as any commit.
        """
        self.condition.require(AgentAction.BEGIN)
        if self.reader.table(schema.name, self.reached):
            msg = f"table {schema.name} exists already; use it, or choose another name"
            raise TableExistsError(msg, table=schema.name)
        definitions = await self.derived.defining(schema, self.reached)
        tx = self.transactions.begin(self.reached)
        tx.staged.definitions += definitions
        done = await self.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=None)
        assert done is not None, "a definition is a change"
        return done

    async def readable(self, csn: int | None, table: TableName | None = None) -> Csn:
        """Return a CSN once tables (None: all) can be shown at it; None: the CSN that is applied here."""
        if csn is None:
            return self.reached
        await self.reads.require_read(Csn(csn), table)
        return Csn(csn)

    def snapshot_of(self, tid: str) -> Csn:
        """Return the CSN at which a transaction of this home sees tables."""
        return self.transactions.find(tid).tid.snapshot

    async def describe_all(self, csn: Csn) -> list[TableInfo]:
        """Describe all tables at a readable CSN."""
        return await self.catalog.read(
            lambda reader: [_table_info(reader, row, csn) for row in reader.tables(csn)]
        )

    async def describe(self, name: TableName, csn: Csn) -> TableInfo:
        """Describe a table at a readable CSN; UnknownTableError if it does not exist."""
        return await self.catalog.read(
            lambda reader: _table_info(reader, reader.require_table(name, csn), csn)
        )

    async def parts(self, name: TableName, csn: Csn) -> bytes:
        """Describe the parts of a table at a readable CSN: a JSON list of :class:`PartInfo`.

        UnknownTableError if the table does not exist.
        """

        def read(reader: CatalogReader) -> bytes:
            reader.require_table(name, csn)
            return reader.parts_json(name, csn)

        return await self.catalog.read(read)

    # -- operators -------------------------------------------------------------------------------------------

    async def optimize(
        self, table: str, partition: Mapping[str, Any] | None, *, timeout_s: float, min_csn: Csn | None
    ) -> Optimized:
        """Merge the parts of a table, or of one partition, as far as possible; see :meth:`Optimizer.run`.

        Raises:
            UnknownTableError, BadRequestError: No such table, or the values do not name a partition.
            StandbyError: ``min_csn`` was not reached in time.
        """
        self.condition.require(AgentAction.BEGIN)
        if min_csn is not None:
            await self.snapshots.reach(min_csn)
        name = full_name(table)
        _, schema = self.tables.schema(name, self.reached)
        path = None if partition is None else path_in(schema, partition)
        return await self.compactor.optimizer.run(name, path, timeout_s)

    async def force_horizon(self, csn: Csn | None, *, drop_pins: bool) -> Moved:
        """Raise the horizon by order of an operator; see :meth:`HorizonMover.force`."""
        self.condition.require(AgentAction.COLLECT)
        moved = await self.horizon.force(csn, drop_pins=drop_pins)
        if drop_pins:
            await self.snapshots.forget_ended()
        return moved

    def set_switch(self, name: str, value: str) -> list[SwitchInfo]:
        """Set a switch until the agent is started again, and return all switches; in any state of the agent.

        Raises:
            BadRequestError: No switch has this name, or the value is not one of its values.
        """
        self.switches.set(name, value)
        return [SwitchInfo(*shown) for shown in self.switches.shown()]

    def admit_audit(self) -> None:
        """Raise unless the agent's state allows an audit."""
        self.condition.require(AgentAction.LATEST)

    async def digests(self, csn: Csn, above: Csn | None, *, tables: bool) -> Digests:
        """Return the digests of this replica at a CSN, for comparison; outcomes outlive the horizon."""
        if tables or csn > self.reached:
            await self.reads.require_read(csn)
        return await asyncio.to_thread(
            digests, self.settings.data_dir, self.replica, csn, above, tables=tables
        )


def _table_info(reader: CatalogReader, table: TableRow, csn: Csn) -> TableInfo:
    """Describe a table with its sums, which are made of the rows of all its parts."""
    parts, rows, size = reader.totals(table.name, csn)
    schema = base64.b64encode(table.arrow_schema).decode()
    shown = {"version": table.version, "arrow_schema": schema, "parts": parts, "rows": rows, "bytes": size}
    return msgspec.convert({**table.definition, **shown}, TableInfo)
