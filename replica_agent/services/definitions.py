"""The service that creates, changes and drops tables: inside a transaction, or in one of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.model import DefineTable
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.log import CsnLog
from tidelock.errors import (
    TableChangedError,
    TableExistsError,
    TidelockError,
    TransactionClosedError,
)
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.services.points import PastPoints
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.tables.column_changes import NO_CHANGES, ColumnChanges
from tidelock.replica_agent.transactions.ending.commit import Commits, WaitFor
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.definitions import Made, TableStatements
from tidelock.replica_agent.transactions.transaction import Transaction, TxState
from tidelock.wire.tables import CloneRequest, CreateTableRequest

#: A statement that defines a table.
Statement = Callable[[Transaction], Awaitable[Made]]


class Defined(msgspec.Struct, frozen=True):
    """A commit that has defined a table: the statement, and its commit."""

    made: Made
    done: Committed


class DefinedInside(msgspec.Struct, frozen=True):
    """A statement of an open transaction: the CSN that it reads at, and all definitions so far."""

    made: Made
    at: Csn
    all: Sequence[DefineTable]


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
    statements: TableStatements
    points: PastPoints
    transactions: Transactions
    commits: Commits
    clock: Callable[[], float]

    def creating(self, asked: CreateTableRequest, arrow: pa.Schema | None) -> Statement:
        """Return the statement that creates a table; see :meth:`TableStatements.create`."""
        return lambda tx: self.statements.create(tx, asked, arrow)

    def dropping(self, name: str) -> Statement:
        """Return the statement that drops a table; see :meth:`TableStatements.drop`."""
        return lambda tx: self.statements.drop(tx, name)

    def altering(
        self,
        name: str,
        *,
        to: str | None,
        properties: Mapping[str, str | None],
        columns: ColumnChanges = NO_CHANGES,
    ) -> Statement:
        """Return the statement that changes a table; see :meth:`TableStatements.alter`."""
        return lambda tx: self.statements.alter(tx, name, to=to, properties=properties, columns=columns)

    def undropping(self, name: str, *, to: str | None, csn: Csn | None) -> Statement:
        """Return the statement that brings a dropped table back; see :meth:`TableStatements.undrop`."""
        return lambda tx: self.statements.undrop(tx, name, to=to, csn=csn)

    def founding(self, namespace: str, properties: Mapping[str, str]) -> Statement:
        """Return the statement that creates a namespace; see :meth:`TableStatements.found`."""
        return lambda tx: self.statements.found(tx, namespace, properties)

    def clearing(self, namespace: str, *, cascade: bool) -> Statement:
        """Return the statement that drops a namespace; see :meth:`TableStatements.clear`."""
        return lambda tx: self.statements.clear(tx, namespace, cascade=cascade)

    def cloning(self, name: str, asked: CloneRequest) -> Statement:
        """Return the statement that clones a table; see :meth:`TableStatements.clone`."""

        async def clone(tx: Transaction) -> Made:
            if (asked.csn, asked.tag, asked.at_ms) == (None, None, None):
                return await self.statements.clone(tx, name, asked.name, None)
            async with self.points.held(asked) as csn:
                return await self.statements.clone(tx, name, asked.name, csn)

        return clone

    async def inside(self, tid: str, statement: Statement) -> DefinedInside:
        """Run a statement in an open transaction of this home; if it is refused, the transaction goes on.

        Raises:
            UnknownTransactionError, TransactionClosedError: The transaction takes no statement.
            Others as the statement.
        """
        tx = self.transactions.find(tid, sign_of_life=True)
        if tx.state is TxState.OPEN:
            self.condition.require(AgentAction.INSERT)
        made = await statement(tx)
        self.transactions.touch(tx)
        return DefinedInside(made, tx.read_csn, tuple(tx.staged.definitions))

    async def alone(self, statement: Statement) -> Defined:
        """Run a statement in a transaction of its own, and commit that.

        It is decided again after each commit that has meanwhile defined what it is about, or dropped it.

        Raises:
            UnavailableError: What was committed before was not applied here in time.
            Others as the statement, and as any commit.
        """
        self.condition.require(AgentAction.BEGIN)
        deadline = self.clock() + self.settings.commit_timeout_s
        while True:
            version, end = await self.log.tables(patience_s=deadline - self.clock())
            await self.waiters.require(end, deadline - self.clock())
            tx = self.transactions.begin(self.waiters.reached)
            made = None
            try:
                made = await statement(tx)
                tx.staged.defined_at = version
                done = await self.commits.commit(tx.tid, wait=WaitFor.HOME, timeout_s=None)
            except TidelockError as error:
                late = made is not None and isinstance(error, TableChangedError | TableExistsError)
                again = late or _was_dropped(tx, error)
                if tx.leased:
                    await self.commits.roll_back(tx)
                if not again or self.clock() > deadline:
                    raise
            else:
                assert done is not None, "a definition is a change"
                return Defined(made, done)


def _was_dropped(tx: Transaction, error: TidelockError) -> bool:
    """Return whether a transaction was closed since another commit has dropped a table that it uses."""
    return isinstance(error, TransactionClosedError) and isinstance(tx.ending.error, TableChangedError)
