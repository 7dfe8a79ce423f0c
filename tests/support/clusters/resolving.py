"""The product's resolver of outcomes without an agent: a test provides the replica's knowledge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, Tid
from tidelock.csnlog.core.results import Aborted, Committed, HomeAnswer, NoAnswer, Running
from tidelock.replica_agent.transactions.outcomes.resolver import HomePort, LogPort, OutcomeResolver
from tidelock.replica_agent.transactions.outcomes.rules import OwnFacts


def nothing(_: Tid) -> None:
    """Know nothing of a transaction."""


@dataclass(slots=True, kw_only=True)
class GivenLocal:
    """The knowledge of a replica itself (`LocalPort`), as a test provides it."""

    replica: ReplicaId
    boot: int
    known: Callable[[Tid], Committed | None] = nothing
    registered: Callable[[Tid], Committed | Aborted | Running | None] = nothing
    applied: Csn = CSN_NONE
    oldest: Csn = CSN_NONE
    issued: int = 1 << 60

    def commit(self, tid: Tid) -> Committed | None:
        """Return the commit that is given."""
        return self.known(tid)

    def floor(self) -> Csn:
        """Return the floor that is given."""
        return self.oldest

    def facts(self, tid: Tid) -> OwnFacts:
        """Return the facts in the order of the product."""
        return OwnFacts(
            self.replica,
            self.boot,
            self.commit(tid),
            self.registered(tid),
            self.applied,
            self.floor(),
            self.issued,
        )


@dataclass(slots=True)
class GivenHomes:
    """Homes (`HomePort`) whose answers a test provides, and which cannot be fenced."""

    answers: Mapping[Tid, HomeAnswer] = field(default_factory=dict)
    asked: list[Tid] = field(default_factory=list)

    async def ask(self, tid: Tid) -> HomeAnswer | NoAnswer:
        """Return the answer that is given, if there is one."""
        self.asked.append(tid)
        return self.answers.get(tid, NoAnswer())

    async def fence(self, home: ReplicaId, boot: int) -> int | None:
        """Refuse to fence."""
        del home, boot
        return None


def resolver_over(log: LogPort, local: GivenLocal, homes: HomePort | None = None) -> OutcomeResolver:
    """Return the product's resolver over a log."""
    return OutcomeResolver(replica=local.replica, local=local, log=log, homes=homes or GivenHomes())
