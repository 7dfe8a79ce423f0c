"""The service for reads: snapshots, queries at a CSN or inside a transaction, changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.model import DefineTable
from tidelock.errors import NoSuchCsnError, SnapshotTooOldError, TidelockError, UnknownTableError
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.readers.availability import ReadAvailability
from tidelock.replica_agent.services.failures import QueryFailures
from tidelock.replica_agent.services.live_state import LiveState
from tidelock.replica_agent.snapshots.change_feed import ChangeFeed
from tidelock.replica_agent.snapshots.implicit_pins import ImplicitPins
from tidelock.replica_agent.snapshots.pinned import Pin, Snapshots
from tidelock.replica_agent.sql.pool import Mutation, RunningStatement, SqlPool
from tidelock.replica_agent.sql.request import SqlRequest
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.system_tables.registry import live_rows
from tidelock.replica_agent.tables.names import full_name, is_system_table
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.insert import Inserts
from tidelock.replica_agent.transactions.statements.row_staging import RowStaging
from tidelock.wire.statements import ChangeResult


class OwnRead(msgspec.Struct, frozen=True):
    """The tables and rows that a query of a transaction reads.

    Attributes:
        csn: The CSN.
        adopted: Merges above it whose results it sees.
        defined: The transaction's own definitions.
    """

    csn: Csn
    adopted: tuple[str, ...]
    defined: tuple[DefineTable, ...]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ReadService:
    """Serves reads of what is applied here, and of the staged rows of this home's transactions."""

    condition: Condition
    waiters: CsnWaiters
    reader: CatalogReader
    tables: Tables
    snapshots: Snapshots
    implicit_pins: ImplicitPins
    changes: ChangeFeed
    transactions: Transactions
    staging: RowStaging
    inserts: Inserts
    sql: SqlPool
    failures: QueryFailures
    live: LiveState

    # -- snapshots -------------------------------------------------------------------------------------------

    async def open_snapshot(
        self, *, csn: Csn | None, at_ms: int | None, min_csn: Csn | None, ttl_s: float | None
    ) -> Pin:
        """Choose or check a CSN and pin it."""
        self.condition.require(AgentAction.LATEST)
        return await self.snapshots.open(csn=csn, at_ms=at_ms, min_csn=min_csn, ttl_s=ttl_s)

    async def require_read(
        self, csn: Csn, table: TableId | None = None, *, wait_s: float | None = None
    ) -> None:
        """Return once this replica can serve ``csn``, of one table or of all.

        Errors as :meth:`Snapshots.require`. The CSN stays readable for a while.
        """
        self.condition.require(AgentAction.READ if csn <= self.waiters.reached else AgentAction.LATEST)
        await self.snapshots.require(csn, table, wait_s=wait_s)
        self.implicit_pins.read(csn)

    async def read_availability(self, csn: Csn) -> ReadAvailability:
        """Return whether ``csn`` can be served here, as the answer for a reader process."""
        try:
            await self.require_read(csn, wait_s=self.snapshots.settings.read_wait_s)
        except SnapshotTooOldError as error:
            return ReadAvailability("too_old", error.message)
        except NoSuchCsnError as error:
            return ReadAvailability("beyond", error.message)
        except TidelockError as error:
            return ReadAvailability("standby", error.message)
        return ReadAvailability("ready")

    # -- queries ---------------------------------------------------------------------------------------------

    async def require_table(self, csn: Csn, table: str) -> TableId:
        """Return the table that has a name at ``csn``, once it can be read there; errors as `require_read`.

        Raises:
            UnknownTableError: No table has the name there.
        """
        self.condition.require(AgentAction.READ if csn <= self.waiters.reached else AgentAction.LATEST)
        await self.snapshots.reach(csn)
        try:
            found = self.tables.find(full_name(table), csn)
        except UnknownTableError:
            self.reader.require_kept(csn)  # below the horizon names are forgotten
            raise
        await self.require_read(csn, found)
        return found

    async def prepare_query(self, csn: Csn, table: str | None) -> None:
        """Return once a query of one table (None: any) can be served; its run checks the tables it reads."""
        if table is not None and not is_system_table(table):
            await self.require_table(csn, table)
            return
        begins = self.reader.table_horizons()
        await self.require_read(csn, min(begins, key=lambda name: begins[name], default=None))

    async def live_rows(self, sql: str) -> dict[str, bytes]:
        """Return the rows of the system tables that a statement names and that only this agent knows.

        UnavailableError where ZooKeeper has to be read and does not answer.
        """
        return await live_rows(self.live, sql)

    async def prepare_own_read(self, tid: str, *, sign_of_life: bool = True) -> OwnRead:
        """Make a transaction's own rows readable by a query.

        Args:
            tid: The transaction.
            sign_of_life: Whether the query keeps it alive.

        Raises:
            TransactionClosedError: The transaction takes no statements.
        """
        tx = self.transactions.find(tid, sign_of_life=sign_of_life)
        async with tx.statements.statement_lock:  # no statement is half done
            self.transactions.require_open(tx)
            tx.require_whole()
            await self.staging.write_out(tx)
        at, staged = tx.begin_statement(self.waiters.reached), tx.staged
        return OwnRead(at, tuple(staged.adopted.tids), tuple(staged.definitions))

    def record_reads(self, tid: str | None, running: RunningStatement) -> Callable[[], None]:
        """Count a query of a transaction as unrecorded until the returned function is called.

        It must be called at the query's end, before the client can commit; an abandoned query stays
        unrecorded.
        """
        if tid is None:
            return lambda: None
        tx = self.transactions.find(tid)
        tx.statements.unrecorded_reads += 1

        def ended() -> None:
            if running.ended is not None:
                tx.note_reads(running.ended.read_set())
                tx.statements.unrecorded_reads -= 1

        return ended

    async def insert_select(self, request: SqlRequest, running: Mutation) -> ChangeResult:
        """Stage the rows of an INSERT INTO ... SELECT that runs in a transaction."""
        self.condition.require(AgentAction.INSERT)
        tx = self.transactions.find(request.tid or "")
        done = await self.inserts.insert_select(tx, running, request.csn)
        self.transactions.touch(tx)
        return done
