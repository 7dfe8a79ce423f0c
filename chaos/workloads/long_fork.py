"""Long fork: keys that are written once by transactions of their own, and read in groups.

Two readers must not see two writes in opposite orders. The keys of a group are in different tables and are
written through different replicas at about the same time, and nothing else orders them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, Session
from chaos.judging.histories import judged
from chaos.record.history import TXN, Operation
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import Question, Rows, reading
from chaos.workloads.workload import SOME_HISTORY, Client, Workload
from tests.checkers.levels import Level
from tidelock.client import Database, Snapshot, Transaction

TABLES: Final = ("fork_0", "fork_1", "fork_2")
SCHEMA: Final = pa.schema([pa.field("g", pa.int64(), nullable=False), ("v", pa.int64())])
_WRITE_PAUSE_S, _READ_PAUSE_S = 0.75, 1.5
#: Groups back from the newest that readers look at.
_BACK: Final = 2


class LongFork(Workload):
    """Writes of single keys, and reads of groups."""

    name: ClassVar[str] = "long_fork"
    promise: ClassVar[str] = "No two readers see two independent writes in opposite orders."

    def prepare(self, db: Database) -> None:
        """Create the tables."""
        self._values = itertools.count(1)
        self._lock = threading.Lock()
        self._next = 0  # number of the next write: of its group, and its table in it
        for table in TABLES:
            self.create(db, table, SCHEMA, properties=SOME_HISTORY)

    def clients(self) -> Sequence[Client]:
        """Return a writer for each table, and twice the readers of other workloads."""
        writers = [self.acting(self._write, _WRITE_PAUSE_S) for _ in TABLES]
        return [*writers, *self.readers(self._read, _READ_PAUSE_S)]

    def _write(self, session: Session) -> None:
        with self._lock:
            group, which = divmod(self._next, len(TABLES))
            self._next += 1
        session.write(partial(self._attempt, group, which))

    def _attempt(self, group: int, which: int) -> Attempt:
        value = next(self._values)
        row = pa.table({"g": [group], "v": [value]}, schema=SCHEMA)

        def work(tx: Transaction) -> None:
            tx.insert(TABLES[which], row)

        return Attempt([["append", _key(group, which), value]], work)

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of the newest groups at one CSN."""
        return reading(self, lambda: _question(self._newest()), f=TXN)

    def _newest(self) -> range:
        newest = self._next // len(TABLES)
        return range(max(0, newest - _BACK), newest + 1)

    def _read(self, session: Session, csn: int | None) -> int | None:
        groups = self._newest()
        return session.read(_reads(groups), partial(look, groups), csn=csn)

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read all groups at each replica, and judge by both checkers."""
        groups = range(self._next // len(TABLES) + 1)
        self.read_everywhere(db, _reads(groups), lambda _, snap: look(groups, snap), TXN)
        return judged(self.name, self.path, level=Level.SERIALIZABLE)


def _key(group: int, which: int) -> str:
    return f"fork/{group}.{which}"


def _reads(groups: Sequence[int]) -> list[Operation]:
    return [["r", _key(group, which), None] for group in groups for which in range(len(TABLES))]


def look(groups: Sequence[int], snap: Snapshot) -> Found:
    """Return some groups, which follow each other."""
    where = f"where g between {min(groups)} and {max(groups)}"
    sql = " union all ".join(
        f"select {which} as w, g, v from {table} {where}" for which, table in enumerate(TABLES)
    )
    return _found(groups, ((row["w"], row["g"], row["v"]) for row in snap.sql(sql).to_pylist()))


def _question(groups: Sequence[int]) -> Question:
    """Return the read of some groups by Spark."""
    where = f"where g between {min(groups)} and {max(groups)}"

    def found(rows: Rows) -> Found:
        return _found(groups, ((which, g, v) for which, table in enumerate(TABLES) for g, v in rows[table]))

    return Question(_reads(groups), {table: f"select g, v from {table} {where}" for table in TABLES}, found)


def _found(groups: Sequence[int], rows: Iterable[tuple[int, int, int]]) -> Found:
    """Return some groups by rows of the number of the table, the group and the value."""
    there: dict[str, list[int]] = {key: [] for _, key, _ in _reads(groups)}
    for which, group, value in rows:
        there[_key(group, which)].append(value)
    return Found([["r", key, sorted(values)] for key, values in there.items()])
