"""The driver of the outcome rules: asks the questions that they return, until they return the outcome.

Clients and peers use it over HTTP; so do the background task that decides undecided transactions, the removal
locks and the audit. Their requests differ by their policy alone
(:mod:`tidelock.replica_agent.transactions.outcomes.rules`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidelock.csnlog.core.ids import Csn, ReplicaId, Tid
from tidelock.csnlog.core.results import Committed, HomeAnswer, LogReading, NoAnswer, Outcome, OwnOutcome
from tidelock.errors import UnknownTransactionError
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.transactions.outcomes.rules import (
    AskHome,
    FenceHome,
    NeverWas,
    OutcomeFacts,
    OwnFacts,
    Policy,
    SearchLog,
    next_step,
    own_outcome,
)
from tidelock.replica_agent.transactions.registry import Transactions


class LogPort(Protocol):
    """The reads of ZooKeeper: :class:`tidelock.csnlog.log.CsnLog`."""

    async def find(self, tid: Tid, *, newest: bool = False) -> LogReading:
        """Read the session znode of the home, then the log to its end."""


class HomePort(Protocol):
    """The homes of others' transactions."""

    async def ask(self, tid: Tid) -> HomeAnswer | NoAnswer:
        """Ask the home of a transaction, within a bound."""

    async def fence(self, home: ReplicaId, boot: int) -> int | None:
        """Fence a home in one boot if it has long been silent; return None if that was not done."""


class LocalPort(Protocol):
    """The knowledge of this replica itself."""

    def commit(self, tid: Tid) -> Committed | None:
        """Return a commit that is applied here, or about to be, as far as that is kept."""

    def floor(self) -> Csn:
        """Return the oldest snapshot CSN whose outcomes are kept."""

    def facts(self, tid: Tid) -> OwnFacts:
        """Return all that is known of a transaction without a request to another process."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class LocalOutcomes:
    """The outcomes that this replica knows by itself.

    Attributes:
        replica: The own id.
        boot: The own boot.
        transactions: The registry of its open and recently ended transactions.
        reader: Reads the catalog.
        taken: Returns the CSN of a transaction in a record that was delivered and is not applied.
    """

    replica: ReplicaId
    boot: int
    transactions: Transactions
    reader: CatalogReader
    taken: Callable[[str], Csn | None]

    def commit(self, tid: Tid) -> Committed | None:
        """Return a commit that is applied here, or about to be, as far as that is kept."""
        taken = self.taken(str(tid))
        if taken is not None:
            return Committed(taken)
        found = self.reader.outcome(str(tid))
        return Committed(*found) if found else None

    def floor(self) -> Csn:
        """Return the oldest snapshot CSN whose outcomes are kept."""
        return Csn(self.reader.meta("outcome_floor"))

    def facts(self, tid: Tid) -> OwnFacts:
        """Return all that is known of a transaction without any request; the floor is read last.

        A tid that is only reserved is not taken any more: the answer is that it is aborted.
        """
        self.transactions.withdraw(tid)
        return OwnFacts(
            replica=self.replica,
            boot=self.boot,
            commit=self.commit(tid),
            registered=self.transactions.outcome(str(tid)),
            applied=self.reader.snapshot_csn(),
            floor=self.floor(),
            issued=self.transactions.issued,
        )


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OutcomeResolver:
    """Finds outcomes for one replica in one boot.

    Attributes:
        replica: The own id.
        local: The knowledge of this replica itself.
        log: Reads ZooKeeper.
        homes: Asks and fences the homes of others' transactions.
    """

    replica: ReplicaId
    local: LocalPort
    log: LogPort
    homes: HomePort

    def own(self, tid: Tid) -> OwnOutcome:
        """Return what this replica knows of its own transaction, for a peer that asks."""
        return own_outcome(tid, self.local.facts(tid))

    async def outcome(self, tid: Tid, policy: Policy) -> Outcome:
        """Find out what became of a transaction of any replica.

        Args:
            tid: The transaction.
            policy: The purpose of the question, and the means that are allowed.

        Raises:
            UnknownTransactionError: No such transaction exists: its home is no replica of the cluster, has
                never had that boot or has begun no such transaction in it; or the log ends below its
                snapshot.
            FencedError: Another replica has raised the own fence.
            UnavailableError: ZooKeeper could not be read; ask again, or ask another replica.
        """
        here = self.local.facts(tid)
        facts = OutcomeFacts(tid, tid.home != self.replica, here.commit, own_outcome(tid, here))
        while True:
            match next_step(facts, policy):
                case SearchLog(newest):
                    facts = await self._read(facts, newest=newest)
                case AskHome():
                    facts = facts.answered(await self.homes.ask(tid))
                case FenceHome():
                    version = await self.homes.fence(tid.home, tid.boot)
                    facts = facts.fenced(raised=version is not None)
                case NeverWas() as never:
                    raise _no_such(tid, never)
                case outcome:
                    return outcome

    async def _read(self, facts: OutcomeFacts, *, newest: bool) -> OutcomeFacts:
        """Read the log, then the own catalog, then the floor.

        A record passes from the log to the records that are delivered here, and from there into the catalog,
        so this order sees it in one of the three. An outcome that the catalog forgets meanwhile raises the
        floor, which is read last.
        """
        reading = await self.log.find(facts.tid, newest=newest)
        kept = self.local.commit(facts.tid)
        return facts.with_reading(reading, kept=kept, floor=self.local.floor(), newest=newest)


def _no_such(tid: Tid, never: NeverWas) -> UnknownTransactionError:
    if never.end is not None:
        problem = f"reads at CSN {tid.snapshot}, and the log ends at {never.end}"
    elif never.boot is None:
        problem = f"names replica {tid.home}, which this cluster does not have"
    elif never.boot == tid.boot:
        problem = f"names no transaction that {tid.home} has begun since its last start, boot {tid.boot}"
    else:
        problem = f"names boot {tid.boot} of replica {tid.home}, whose last boot is {never.boot}"
    details = {} if never.boot is None else {"boot": never.boot}
    return UnknownTransactionError(
        f"tid {tid} {problem}; check the tid and the cluster", tid=str(tid), **details
    )
