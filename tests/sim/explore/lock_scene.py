"""The state of the exploration of removal locks: transactions, replicas, what may still go wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tests.sim.explore.answers import Heard
from tests.sim.explore.lockers import LockRun
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId
from tidelock.replication.core.lock_rules import OnePart, Wide, overlap

NAMES: Final = (ReplicaId("r1"), ReplicaId("r2"), ReplicaId("r3"))
#: All parts of the table, with their partitions.
PARTS: Final = {PartId("r9-1-1"): "y=1", PartId("r9-1-2"): "y=2"}

# The phases of a transaction. From DONE on it is decided.
IDLE, TAKING, HELD, GIVING, DONE, COMMITTED = range(6)


@dataclass(frozen=True, slots=True)
class LockRemoval:
    """A transaction that removes parts, by their numbers, or what a wide scope covers.

    Attributes:
        home: Number of its home.
        parts: Numbers of the parts.
        wide: What it locks instead.
    """

    home: int
    parts: tuple[int, ...] = ()
    wide: Wide | None = None

    def covers(self, part: PartId) -> bool:
        """Tell whether it removes a part that it sees."""
        if self.wide is not None:
            return overlap(self.wide, OnePart(part, PARTS[part]))
        return part in {list(PARTS)[number - 1] for number in self.parts}


class LockMishaps(NamedTuple):
    """How often each thing may still happen."""

    #: A multi is lost.
    lose: int = 0
    #: A multi is applied, and its answer lost.
    reply: int = 0
    #: A multi arrives when its sender has given up on it.
    late: int = 0
    #: A process dies.
    crash: int = 0
    #: A replica that lives is taken for silent by another.
    silent: int = 0
    #: Two replicas are about the locks of a silent one at once.
    race: int = 0
    #: A transaction is rolled back that has its locks.
    rollback: int = 0
    #: A replica that is down gets an empty disk.
    replace: int = 0

    def less(self, name: str) -> LockMishaps:
        """One less of a kind."""
        return self._replace(**{name: getattr(self, name) - 1})


class LockAgent(NamedTuple):
    """A replica: its process, what that remembers of locks, and how far it has applied the log."""

    mind: int
    up: bool = True
    boot: int = 1
    fence: int = 0
    applied: Csn = Csn(1)
    #: The most that it had applied on a disk that was replaced, and that the others still reckon with.
    told: Csn = Csn(1)
    run: LockRun | None = None
    script: tuple[Heard, ...] = ()
    #: It is about the locks of a silent replica.
    sweeper: bool = False
    #: It is registered; one that is not has no process, and holds no lock back.
    member: bool = True


class Deal(NamedTuple):
    """A transaction: what it is at, in which life of its home it was begun, and at which CSN."""

    phase: int = IDLE
    boot: int = 0
    snapshot: Csn = Csn(1)
    #: Parts that it removes.
    removes: frozenset[PartId] = frozenset()


class LockScene(NamedTuple):
    """The whole state of the world of locks."""

    zk: int
    agents: tuple[LockAgent, ...]
    deals: tuple[Deal, ...]
    late: frozenset[int] = frozenset()
    tail: Csn = Csn(0)
    #: The end of the log and its own progress, as the first replica has read them to register the last one.
    registering: tuple[Csn, Csn] | None = None
    mishaps: LockMishaps = LockMishaps()
    #: Whether some transaction ever had its locks, or a mishap was the reason that none had.
    won: bool = False

    def but(self, which: int, **changes: Any) -> LockScene:
        """The same with one agent changed."""
        agents = (*self.agents[:which], self.agents[which]._replace(**changes), *self.agents[which + 1 :])
        return self._replace(agents=agents)

    def deal(self, which: int, **changes: Any) -> LockScene:
        """The same with one transaction changed."""
        deals = (*self.deals[:which], self.deals[which]._replace(**changes), *self.deals[which + 1 :])
        return self._replace(deals=deals)

    def less(self, name: str) -> LockScene:
        """The same with less of a kind of mishap."""
        return self._replace(mishaps=self.mishaps.less(name), won=True)
