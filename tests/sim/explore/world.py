"""The state of the exploration of commits: ZooKeeper, replicas, messages, and who was told what."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from tests.sim.explore.ensemble import RecordFacts
from tests.sim.explore.replay import Script
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.batch import Proposal
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import TidRecord
from tidelock.csnlog.core.store import Create, SetData

NAMES = (ReplicaId("r1"), ReplicaId("r2"))
ORDERS = TableId("d.orders")

# The last answer to the client of a transaction; a CSN means committed there.
IDLE, WAITING, UNDECIDED, REJECTED = 0, -1, -2, -3


@dataclass(frozen=True, slots=True, eq=False)  # asked for its tid in every state
class CommitTx:
    """A transaction that some client will ask for.

    Attributes:
        home: Number of its home.
        counter: Number of the transaction there.
        label: Its label.
        uses: It touches the table ``orders`` as it was at the beginning.
        alters: It changes the definition of ``orders`` as it was at the beginning, or drops it.
        creates: The table that it creates, as decided at the beginning: all of these want the same name.
        carries: The labels of the transactions that it carries.
    """

    home: int
    counter: int
    label: str | None = None
    uses: bool = False
    alters: bool = False
    creates: TableId | None = None
    carries: tuple[str | None, ...] = ()

    @functools.cache  # noqa: B019 - there are a few of them, and each is asked in every state
    def tid(self, boot: int) -> Tid:
        """Its tid, if it is begun in this life of its home."""
        return Tid(Csn(1), NAMES[self.home], boot, self.counter)

    @functools.cache  # noqa: B019
    def name(self, boot: int) -> str:
        """Its tid as text."""
        return str(self.tid(boot))

    @functools.cache  # noqa: B019
    def riders(self, boot: int) -> tuple[TidRecord, ...]:
        """Return the entries of the transactions that it carries."""
        tids = (Tid(Csn(1), NAMES[self.home], boot, 100 * self.counter + n) for n in range(len(self.carries)))
        return tuple(
            TidRecord(str(tid), label=label, carrier=self.name(boot), rows={ORDERS: 1})
            for tid, label in zip(tids, self.carries, strict=True)
        )

    def proposal(self, boot: int) -> Proposal:
        """Return the proposal of its home."""
        record = TidRecord(self.name(boot), label=self.label)
        tables = {ORDERS: 0} if self.uses or self.alters else {}
        return Proposal(record, tables, tuple(self._ddl(boot)), self.label, riders=self.riders(boot))

    def _ddl(self, boot: int) -> Iterator[Create | SetData]:
        if self.alters or self.creates:
            yield SetData(tree.TABLES, b"", 0)
        if self.alters:
            yield SetData(tree.table(ORDERS), self.name(boot).encode(), 0)
        if self.creates:
            yield Create(tree.table(self.creates), self.name(boot).encode())


class _Value(msgspec.Struct, frozen=True, gc=False):
    """A value of which a state is made: millions are made and kept, and they refer to no cycle."""

    def changed(self, **changes: Any) -> Self:
        """Return the same with other values of some fields."""
        return replace(self, **changes)


class CommitBudget(_Value, frozen=True, gc=False):
    """How often each kind of trouble, and of what somebody does at will, may still happen."""

    #: A multi never arrives.
    lose_request: int = 0
    #: A multi is applied, and its answer is lost.
    lose_reply: int = 0
    #: A multi arrives when its sender has given up on it.
    delay: int = 0
    #: A session ends, and the next one reads from any state that ever was.
    session: int = 0
    #: A process dies; what its catalog has not made durable is gone.
    crash: int = 0
    #: The other replica raises boot and fence of one.
    fence: int = 0
    #: The same, and it holds the tail no longer.
    strike: int = 0
    #: A caller waits no longer.
    expire: int = 0
    #: That caller asks again.
    again: int = 0
    #: A client calls a commit off that was asked for.
    call_off: int = 0
    #: Another multi of a replica (a pin, its progress) ends unknown, so its fence has to be raised.
    want: int = 0
    #: The other replica is asked for an outcome.
    ask: int = 0
    #: The tail moves as far as it may, and the records below it are deleted.
    tail: int = 0

    def less(self, name: str) -> CommitBudget:
        """One less of a kind."""
        return self.changed(**{name: getattr(self, name) - 1})


class PendingRequest(_Value, frozen=True, gc=False):
    """The pending request of a replica: a multi by its number or a read (-1), and its session."""

    kind: str
    multi: int
    session: int


class Reply(_Value, frozen=True, gc=False):
    """The answer that is on its way back: number of the result, and the state of ZooKeeper that it saw."""

    result: int
    at: int


class CommitReplica(_Value, frozen=True, gc=False):
    """One replica: its process if there is one, its session, its catalog."""

    #: Number of the committer's state; -1 while no process runs, or it only starts.
    machine: int
    boot: int = 1
    request: PendingRequest | None = None
    reply: Reply | None = None
    paused: bool = False
    session: int = 1
    #: The oldest state, as an index into the history, that the session may still read.
    seen: int = 0
    #: The last record that was read, and the last that is durable in the catalog.
    taken: Csn = Csn(1)
    applied: Csn = Csn(1)
    #: The answers to a starting process so far; None if no start is under way.
    script: Script | None = None
    #: The transaction whose outcome is being asked for, and what was answered so far.
    asked: int = -1
    answers: Script = ()

    @property
    def running(self) -> bool:
        """Whether the process has begun its life."""
        return self.machine >= 0


class CommitWorld(_Value, frozen=True, gc=False):
    """The whole state of the world of commits."""

    #: The states of ZooKeeper that somebody may still read, oldest first, by their numbers.
    history: tuple[int, ...]
    replicas: tuple[CommitReplica, ...]
    #: Multis that still may arrive.
    late: tuple[int, ...]
    #: For each transaction: what its client has heard, in which life of its home it was begun (0 = not yet),
    #: and what others were told of it.
    heard: tuple[int, ...]
    boots: tuple[int, ...]
    told: tuple[int, ...]
    #: Every record that ever was, those below the tail included.
    log: tuple[RecordFacts, ...]
    budget: CommitBudget
    struck: frozenset[int] = frozenset()

    @property
    def now(self) -> int:
        """Index of the newest state of ZooKeeper."""
        return len(self.history) - 1

    def but(self, which: int, **changes: Any) -> CommitWorld:
        """The same with one replica changed."""
        changed = self.replicas[which].changed(**changes)
        return self.changed(replicas=_with(self.replicas, which, changed))

    def hears(self, tx: int, decision: int) -> CommitWorld:
        """The same with a client that has heard something."""
        return self.changed(heard=_with(self.heard, tx, decision))

    def less(self, name: str) -> CommitWorld:
        """The same with less of a budget."""
        return self.changed(budget=self.budget.less(name))


def _with(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:index], value, *values[index + 1 :])
