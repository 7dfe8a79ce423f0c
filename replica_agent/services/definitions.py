"""The service that creates, changes and drops tables, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tidelock.csnlog.core.ids import TableId
from tidelock.csnlog.core.model import DefineTable
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.log import CsnLog
from tidelock.errors import TableChangedError, TableExistsError, UnavailableError, UnknownTableError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.tables import definitions
from tidelock.replica_agent.tables.definitions import Last
from tidelock.replica_agent.tables.names import full_name, no_table
from tidelock.replica_agent.tables.schema import Derivation, TableSchema
from tidelock.replica_agent.transactions.ending.commit import Commits, WaitFor
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.derived import DerivedTables
from tidelock.wire.ids import TableName
from tidelock.wire.tables import CreateTableRequest


class Defined(msgspec.Struct, frozen=True):
    """A commit that has defined a table: the definition, and its commit."""

    definition: DefineTable
    done: Committed


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DefinitionService:
    """Creates, changes and drops tables.

    Attributes:
        clock: Monotonic seconds.
    """

    settings: AgentSettings
    condition: Condition
    log: CsnLog
    waiters: CsnWaiters
    tables: Tables
    derived: DerivedTables
    transactions: Transactions
    commits: Commits
    clock: Callable[[], float]

    async def create(self, asked: CreateTableRequest, arrow: pa.Schema) -> Defined:
        """Create a table.

        Args:
            asked: The request.
            arrow: Its columns.

        Raises:
            TableExistsError: A table of this name exists, and is not to be replaced.
            UnknownTableError: The source does not exist.
            Others as `TableSchema.from_request` and `DerivedTables.check`, and as any commit.
        """

        def schema(derivation: Derivation | None) -> TableSchema:
            return TableSchema.from_request(
                asked.name, arrow, asked.partition_by, asked.sort_by, asked.properties,
                derivation=derivation,
                columns_max=self.settings.columns_max,
                retention_s_min=self.settings.history_retention_s,
            )  # fmt: skip

        async def define() -> list[DefineTable]:
            derivation = None
            if asked.derived_from is not None:
                table = self.tables.find(full_name(asked.derived_from), self.waiters.reached)
                derivation = Derivation(table, asked.derived_sql or "")
            made = schema(derivation)
            found = (definitions.replacing if asked.or_replace else definitions.creating)(made, self)
            if derivation is not None:
                await self.derived.check(made, self.waiters.reached)
            return found

        return await self._commit(define)

    async def drop(self, name: str) -> Defined:
        """Drop a table: it does not exist from the CSN of the commit on; errors as `definitions.dropping`."""

        async def define() -> list[DefineTable]:
            return definitions.dropping(full_name(name), self)

        return await self._commit(define)

    async def alter(self, name: str, *, to: str | None, properties: Mapping[str, str | None]) -> Defined:
        """Give a table another name, or other properties; errors as `definitions.altering`."""
        least_s = self.settings.history_retention_s

        async def define() -> list[DefineTable]:
            new = None if to is None else full_name(to)
            found = definitions.altering(full_name(name), self, to=new, properties=properties)
            TableSchema.from_definition(found[0].table, found[0].definition).check_properties(least_s)
            return found

        return await self._commit(define)

    async def _commit(self, define: Callable[[], Awaitable[Sequence[DefineTable]]]) -> Defined:
        """Commit definitions; make them again after each commit that has defined any table meanwhile."""
        self.condition.require(AgentAction.BEGIN)
        deadline = self.clock() + self.settings.commit_timeout_s
        while True:
            version, end = await self.log.tables()
            if not await self.waiters.wait(end, max(0.0, deadline - self.clock())):
                raise UnavailableError(f"CSN {end} was not applied here in time", csn=end)
            made = await define()
            tx = self.transactions.begin(self.waiters.reached)
            tx.staged.definitions += made
            tx.staged.defined_at = version
            try:
                done = await self.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=None)
            except (TableChangedError, TableExistsError):
                if self.clock() > deadline:
                    raise
            else:
                assert done is not None, "a definition is a change"
                return Defined(made[0], done)

    # -- the tables that are applied here, for `definitions` ------------------------------------------------

    def bearer(self, name: TableName) -> TableId | None:
        """Return the table that has a name, or None."""
        return self.tables.bearer(name, self.waiters.reached)

    def last(self, table: TableId) -> Last | None:
        """Return the last definition of a table, of a dropped one too; None if the id was never given."""
        found = self.tables.reader.last_definition(table)
        return None if found is None else Last(found[0], TableSchema.from_definition(table, found[1]))

    def missing(self, name: TableName) -> UnknownTableError:
        """Return the error about a name that no table has."""
        at = self.waiters.reached
        return no_table(name, at, self.tables.reader.table_names(at).values())
