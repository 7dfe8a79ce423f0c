"""The service for operators, and for requests about tables."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId
from tidelock.csnlog.core.model import DefineTable
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
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.own_tables import defined
from tidelock.replica_agent.storage.table_reads import TableRow
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.tables.names import DEFAULT_NAMESPACE, full_name
from tidelock.replica_agent.tables.partitions import path_in
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.wire.audit import Digests
from tidelock.wire.cluster import SwitchInfo
from tidelock.wire.tables import NamespaceInfo, TableInfo


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class AdministrationService:
    """Shows tables, merges parts, raises the horizon, audits."""

    settings: AgentSettings
    replica: ReplicaId
    condition: Condition
    switches: Switches
    waiters: CsnWaiters
    reader: CatalogReader
    catalog: Catalog
    tables: Tables
    transactions: Transactions
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

    async def readable(self, csn: int | None) -> Csn:
        """Return a CSN once all tables can be shown at it; None: the CSN that is applied here."""
        if csn is None:
            return self.reached
        await self.reads.require_read(Csn(csn))
        return Csn(csn)

    async def readable_table(self, csn: int | None, name: str) -> tuple[Csn, TableId]:
        """Return a CSN (None: that which is applied here) once a table can be shown at it, and the table.

        UnknownTableError if none has the name there.
        """
        if csn is None:
            return self.reached, self.tables.find(full_name(name), self.reached)
        return Csn(csn), await self.reads.require_table(Csn(csn), name)

    async def describe_all(self, csn: Csn) -> list[TableInfo]:
        """Describe all tables at a readable CSN."""
        return await self.catalog.read(
            lambda reader: [_table_info(reader, row, csn) for row in reader.tables(csn)]
        )

    async def describe(self, csn: Csn, table: TableId) -> TableInfo:
        """Describe a table at a readable CSN."""

        def read(reader: CatalogReader) -> TableInfo:
            row = reader.table(table, csn)
            assert row is not None, "it was found at this CSN"
            return _table_info(reader, row, csn)

        return await self.catalog.read(read)

    async def namespaces(self, csn: Csn) -> list[NamespaceInfo]:
        """Describe the namespaces at a readable CSN: those that are defined, and those that have tables."""

        def read(reader: CatalogReader) -> list[NamespaceInfo]:
            counts = Counter(name.partition(".")[0] for name in reader.table_names(csn).values())
            rows = reader.namespaces(csn)
            found = {row.name.removesuffix("."): row.definition["properties"] for row in rows}
            names = sorted({DEFAULT_NAMESPACE, *counts, *found})
            return [NamespaceInfo(name, found.get(name, {}), counts[name]) for name in names]

        return await self.catalog.read(read)

    async def describe_inside(self, tid: str, name: str) -> TableInfo:
        """Describe a table as a transaction of this home sees it, with the rows of its snapshot."""
        tx = self.transactions.find(tid)
        at, made = tx.tid.snapshot, tuple(tx.staged.definitions)
        table = self.tables.seen(at, made).find(full_name(name))

        def read(reader: CatalogReader) -> TableInfo:
            own = [one for one in made if one.table == table]
            row = defined(own[-1]) if own else reader.table(table, at)
            assert row is not None, "it was found at this CSN"
            return _table_info(reader, row, at, made)

        return await self.catalog.read(read)

    async def shown(
        self, definition: Mapping[str, Any], csn: Csn, made: Sequence[DefineTable] = ()
    ) -> dict[str, Any]:
        """Return a definition as clients see it at a CSN: with names of tables in place of their ids.

        Args:
            definition: The definition.
            csn: The CSN.
            made: Definitions after it, which are not committed.
        """
        return await self.catalog.read(lambda reader: _named(reader, definition, csn, made))

    async def parts(self, csn: Csn, table: TableId) -> bytes:
        """Describe the parts of a table at a readable CSN: a JSON list of :class:`PartInfo`."""
        _, schema = self.tables.schema(table, csn)
        return await self.catalog.read(
            lambda reader: reader.parts_json(table, schema.name, csn, schema.layouts)
        )

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
        _, schema = self.tables.named(full_name(table), self.reached)
        path = None if partition is None else path_in(schema, partition)
        return await self.compactor.optimizer.run(schema.id, path, timeout_s)

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


def _table_info(
    reader: CatalogReader, table: TableRow, csn: Csn, made: Sequence[DefineTable] = ()
) -> TableInfo:
    """Describe a table with its sums, which are made of the rows of all its parts."""
    parts, rows, size = reader.totals(table.id, csn)
    schema = base64.b64encode(table.arrow_schema).decode()
    shown = {"version": table.version, "arrow_schema": schema, "parts": parts, "rows": rows, "bytes": size}
    return msgspec.convert({**_named(reader, table.definition, csn, made), **shown}, TableInfo)


def _named(
    reader: CatalogReader, definition: Mapping[str, Any], csn: Csn, made: Sequence[DefineTable]
) -> dict[str, Any]:
    """Return a definition with the names of the tables that it refers to, in place of their ids."""
    found = dict(definition)
    if "checks" in found:
        found["checks"] = {one["name"]: one["sql"] for one in found["checks"]}
    if found.keys() & {"derived_from", "dependents"}:
        names = reader.table_names(csn) | {one.table: one.definition["name"] for one in made}
        if "derived_from" in found:
            found["derived_from"] = names[found["derived_from"]]
        if "dependents" in found:
            found["dependents"] = [names[table] for table in found["dependents"]]
    return found
