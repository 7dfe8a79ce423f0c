"""Random plans of sessions, drawn from a seed before anything runs: what each does, in which order.

A plan does not depend on what happens: where a statement is refused, what its transaction still had planned
is passed over. So a plan is a list that can be printed, and run again by its seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.support.histories.table_model import (
    Add,
    Condition,
    Delete,
    DropPartition,
    Everything,
    Floats,
    Insert,
    Keys,
    Merge,
    MovePartition,
    Partition,
    Put,
    Read,
    Remainder,
    ReplacePartition,
    Row,
    Statement,
    Truncate,
    Update,
    Upsert,
    float_of,
)

LEVELS: Final = ("snapshot", "read_committed", "serializable")


@dataclass(frozen=True, slots=True)
class Begin:
    """A session begins a transaction."""

    session: str
    replica: str
    isolation: str


@dataclass(frozen=True, slots=True)
class Run:
    """A session runs a statement in its transaction."""

    session: str
    statement: Statement


@dataclass(frozen=True, slots=True)
class Commit:
    """A session commits its transaction."""

    session: str


@dataclass(frozen=True, slots=True)
class Rollback:
    """A session gives its transaction up."""

    session: str


@dataclass(frozen=True, slots=True)
class Look:
    """Somebody reads all tables on a replica at an old CSN: a share of the way from the first to the last."""

    replica: str
    share: float


@dataclass(frozen=True, slots=True)
class Optimize:
    """Somebody has a table compacted to the end by a replica."""

    replica: str
    table: str


@dataclass(frozen=True, slots=True)
class Kill:
    """A replica is killed."""

    replica: str


@dataclass(frozen=True, slots=True)
class Stop:
    """A replica is asked to end."""

    replica: str


@dataclass(frozen=True, slots=True)
class Start:
    """A replica is started."""

    replica: str


Step = Begin | Run | Commit | Rollback | Look | Optimize | Kill | Stop | Start
Fault = Kill | Stop | Start

#: Of a transaction, at least and at most.
_STATEMENTS: Final = (1, 6)
#: Keys are below this: few, so that statements meet.
_KEYS: Final = 20
#: Values that are drawn instead of small ones: so large that many of them can still be added.
_EXTREMES: Final = {98: 1 << 55, 99: (1 << 55) - 1}
_OPERATORS: Final = ("=", ">", "<=")
#: How often each kind is drawn.
_WEIGHTS: Final[dict[type[Statement], float]] = {
    Read: 4,
    Insert: 6,
    Delete: 2,
    Update: 3,
    Upsert: 2,
    Merge: 1.5,
    DropPartition: 1,
    Truncate: 0.3,
    ReplacePartition: 0.7,
    MovePartition: 1,
}


def draw(
    seed: int,
    steps: int,
    *,
    tables: Sequence[str],
    replicas: Sequence[str],
    sessions: int,
    faults: int = 0,
    statements: Sequence[type[Statement]] = (),
) -> list[Step]:
    """Draw a plan.

    Args:
        seed: The same one gives the same plan.
        steps: About so many; what is open at the end is committed.
        tables: Of equal schema (`table_model.SCHEMA`).
        replicas: Homes of transactions.
        sessions: How many; each has at most one open transaction.
        faults: How often a replica is killed or stopped; one at a time.
        statements: Kinds to take; default: all.
    """
    return list(Drawer(random.Random(seed), tables, replicas, statements).steps(steps, sessions, faults))


class Drawer:
    """Draws steps and statements."""

    def __init__(
        self,
        rng: random.Random,
        tables: Sequence[str],
        replicas: Sequence[str],
        statements: Sequence[type[Statement]],
    ) -> None:
        self._rng, self._tables, self._replicas = rng, tables, replicas
        self._kinds = {
            kind: weight for kind, weight in _WEIGHTS.items() if not statements or kind in statements
        }

    def steps(self, count: int, sessions: int, faults: int) -> Iterator[Step]:
        """Draw about so many steps."""
        left = {f"s{number}": 0 for number in range(1, sessions + 1)}  # statements of the open transaction
        is_open: set[str] = set()
        coming = self._faults(count, faults)
        for number in range(count):
            yield from coming.pop(number, ())
            session = self._rng.choice(list(left))
            if session not in is_open:
                if self._rng.random() < 0.2:
                    yield self._aside()
                is_open.add(session)
                left[session] = self._rng.randint(*_STATEMENTS)
                yield Begin(session, self._rng.choice(self._replicas), self._level())
            elif left[session]:
                left[session] -= 1
                yield Run(session, self.statement())
            else:
                is_open.remove(session)
                yield Rollback(session) if self._rng.random() < 0.1 else Commit(session)
        for rest in sorted(coming):
            yield from coming[rest]
        for session in sorted(is_open):
            yield Commit(session)

    def _faults(self, count: int, faults: int) -> dict[int, list[Step]]:
        """Return kills and starts by the number of the step before which they come."""
        found: dict[int, list[Step]] = {}
        for number in range(faults):
            at = (number + 1) * count // (faults + 1)
            replica = self._rng.choice(self._replicas)
            end: Step = Stop(replica) if self._rng.random() < 0.25 else Kill(replica)
            found.setdefault(at, []).append(end)
            back = at + self._rng.randint(0, max(0, count // (faults + 1) - 1))
            found.setdefault(back, []).append(Start(replica))
        return found

    def _level(self) -> str:
        return self._rng.choices(LEVELS, (3, 1, 1))[0]

    def _aside(self) -> Step:
        if self._rng.random() < 0.3:
            return Optimize(self._rng.choice(self._replicas), self._rng.choice(self._tables))
        return Look(self._rng.choice(self._replicas), self._rng.random())

    def statement(self) -> Statement:
        """Draw a statement."""
        rng = self._rng
        (kind,) = rng.choices(list(self._kinds), list(self._kinds.values()))
        table = rng.choice(self._tables)
        if kind is Read:
            return Read(table, self._where())
        if kind is Insert:
            return Insert(table, self._rows(rng.randint(1, 4)))
        if kind is Delete:
            return Delete(table, self._where())
        if kind is Update:
            change = Add(rng.randint(1, 9)) if rng.random() < 0.6 else self._put()
            return Update(table, self._where(), change)
        if kind is Upsert:
            return Upsert(table, self._rows(rng.randint(1, 3)))
        if kind is Merge:
            return Merge(table, self._rows(rng.randint(1, 3)))
        if kind is DropPartition:
            return DropPartition(table, self._p())
        if kind is Truncate:
            return Truncate(table)
        p = self._p()
        if kind is ReplacePartition:
            return ReplacePartition(table, p, tuple((p, k, v) for _, k, v in self._rows(rng.randint(0, 3))))
        return MovePartition(table, p, rng.choice([other for other in self._tables if other != table]))

    def _put(self) -> Put:
        return Put("p", self._p()) if self._rng.random() < 0.5 else Put("v", self._v())

    def _where(self) -> Condition:
        rng = self._rng
        low = rng.randrange(_KEYS)
        high, p, rest = low + rng.randint(0, 5), self._p(), rng.randrange(3)
        number = float_of(low)
        return rng.choices(
            (
                Keys(low, high),
                Partition(p),
                Remainder(3, rest) if low % 2 else Floats(_OPERATORS[rest], repr(number or 0.0)),
                Everything(),
            ),
            (6, 3, 2, 1),
        )[0]

    def _rows(self, count: int) -> tuple[Row, ...]:
        return tuple((self._p(), k, self._v()) for k in sorted(self._rng.sample(range(_KEYS), count)))

    def _p(self) -> int | None:
        return self._rng.choice((None, 1, 2, 3))

    def _v(self) -> int | None:
        if self._rng.random() < 0.1:
            return None
        number = self._rng.randrange(100)
        return _EXTREMES.get(number, number)
