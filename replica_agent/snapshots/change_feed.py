"""The change feed of tables for clients, over the commits that are applied on this replica."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.errors import BadRequestError, UnknownTableError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.snapshots.implicit_pins import ImplicitPins
from tidelock.replica_agent.snapshots.pinned import Snapshots
from tidelock.replica_agent.sql.request import ChangesRequest
from tidelock.replica_agent.storage.change_reads import ChangeReader
from tidelock.replica_agent.storage.change_sets import CsnChangePage
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.wire.ids import TableName


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ChangeFeed:
    """The changes of tables."""

    settings: AgentSettings
    condition: Condition
    waiters: CsnWaiters
    tables: Tables
    snapshots: Snapshots
    implicit_pins: ImplicitPins

    async def page(
        self,
        name: TableName,
        since: Csn,
        until: Csn | None,
        *,
        files_max: int | None = None,
        bytes_max: int | None = None,
        wait_s: float = 0.0,
    ) -> tuple[TableSchema, CsnChangePage]:
        """Return a table's schema and its change sets in (since, until], as many as fit, at least one.

        The parts in them stay readable for a while, on every replica.

        Args:
            name: The name of the table at ``until``.
            since: CSN after which they begin.
            until: CSN up to which they go; None: the CSN that is applied here, or the last one at which the
                table has its name, if it lost it above ``since``.
            files_max: Most parts; at most `changes_files_max`, which None means too.
            bytes_max: Most bytes of the parts; at most `changes_bytes_max`, which None means too.
            wait_s: Without ``until``: longest wait for a commit above ``since``, at most `wait_bound_s`.

        Raises:
            BadRequestError: ``since`` is above ``until``, a limit is not above 0, or the wait is out of
                range.
            UnknownTableError: No table has the name at ``until``, or at ``since`` another one had it.
            SnapshotTooOldError: ``since`` is below the horizon of the table.
            NoSuchCsnError: ``since`` or ``until`` is above the end of the log.
            StandbyError: It was not applied here within `wait_bound_s`.
        """
        files = _limit("files_max", files_max, self.settings.changes_files_max)
        size = _limit("bytes_max", bytes_max, self.settings.changes_bytes_max)
        if not 0 <= wait_s <= self.settings.wait_bound_s:
            msg = f"wait_s={wait_s} is outside 0..{self.settings.wait_bound_s} (wait_bound_s)"
            raise BadRequestError(msg)
        end = await self._reach(since, until)
        if until is None and end == since:
            await self.waiters.wait(Csn(since + 1), wait_s)
            end = self.waiters.reached
        if until is None and (last := self._with_name(name, since, end)) > since:
            end = last
        schema = await self._table(name, since, end)

        def read() -> CsnChangePage:
            with closing(ChangeReader(self.settings.data_dir)) as reader:
                return reader.page(schema.id, since, end, files_max=files, bytes_max=size)

        page = await asyncio.to_thread(read)
        if page.sets:
            self.implicit_pins.read_from(since)
        return schema, page

    def schemas(self, table: TableId, page: CsnChangePage) -> dict[Csn, TableSchema]:
        """Return the schemas of a table at the CSNs around the changes of a page, as far as it exists there.

        They say what the files of its parts are called there, and how long they are.
        """
        csns = {page.since, page.to, *(csn for one in page.sets for csn in (Csn(one.csn - 1), one.csn))}
        return {
            csn: self.tables.schema(table, csn)[1]
            for csn in csns
            if self.tables.version(table, csn) is not None
        }

    async def rows(
        self, name: TableName, since: Csn, until: Csn, *, net: bool, named_at: Csn | None = None
    ) -> ChangesRequest:
        """Return the request to an SQL process for the changed rows in (since, until], or their net effect.

        The range stays readable for a while. Errors as :meth:`page`.

        Args:
            name: The name of the table at ``named_at``.
            since: CSN after which they begin.
            until: The last CSN.
            net: Whether they are the difference of the two snapshots.
            named_at: The CSN of the name and the columns, not below ``until``; None: ``until``, or if the
                table was dropped above ``since``, the last CSN before that. Its rows are then deletes.
        """
        if named_at is not None and named_at < until:
            msg = f"named_at={named_at} is below CSN {until}, to which the changes go; give a later one"
            raise BadRequestError(msg)
        await self._reach(since, until if named_at is None else named_at)
        if named_at is None:
            gone = self.tables.bearer(name, until) is None
            named_at = self._with_name(name, since, until) if gone else until
        schema = await self._table(name, since, named_at)
        self.implicit_pins.read_from(since)
        return ChangesRequest(named_at, since, schema.id, self.settings.changes_files_max, net, until)

    def _with_name(self, name: TableName, since: Csn, until: Csn) -> Csn:
        """Return the last CSN at which the table that has a name at ``since`` has it; else ``until``."""
        table = self.tables.bearer(name, since)
        lost = None if table is None else self.tables.lost(name, table, until)
        return until if lost is None else Csn(lost - 1)

    async def _table(self, name: TableName, since: Csn, until: Csn) -> TableSchema:
        """Return the table that has a name at ``until``, whose changes since ``since`` are kept.

        Raises:
            UnknownTableError: None has it; or at ``since`` another table had it, whose rows are not those
                that the changes begin with.
        """
        before = self.tables.bearer(name, since)
        lost = None if before is None else self.tables.lost(name, before, until)
        if before is not None and lost is not None:
            await self.snapshots.require(since, before)
            raise UnknownTableError(
                f"the table that had the name {name} at CSN {since} has it no more at CSN {until}: at CSN "
                f"{lost} it was dropped or got another name. Read its changes up to CSN {lost - 1}; a table "
                "that has the name now begins with its creation",
                table=name,
                csn=until,
            )
        schema = self.tables.named(name, until)[1]
        await self.snapshots.require(since, schema.id)
        return schema

    async def _reach(self, since: Csn, until: Csn | None) -> Csn:
        """Return the end of the changes of (since, until], when all of them are applied here.

        Errors as :meth:`page`.
        """
        if until is not None and until < since:
            msg = f"the changes from CSN {since} to CSN {until}: the first must not be above the second"
            raise BadRequestError(msg)
        newest = since if until is None else until
        self.condition.require(AgentAction.READ if newest <= self.waiters.reached else AgentAction.LATEST)
        await self.snapshots.reach(newest)
        return self.waiters.reached if until is None else until


def _limit(name: str, asked: int | None, most: int) -> int:
    if asked is not None and asked < 1:
        msg = f"{name}={asked} is not above 0; leave it out for changes_{name}={most}"
        raise BadRequestError(msg)
    return most if asked is None else min(asked, most)
