"""Sets that grow: every acknowledged element is there, once, from its commit on, with its bytes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, Session
from chaos.judging import presence
from chaos.record.history import Operation, ended, lines
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import Question, Rows, reading
from chaos.workloads.workload import SOME_HISTORY, Client, Workload
from tidelock.client import Database, Snapshot, Transaction

TABLE: Final = "set_full"
PLAIN: Final = pa.schema([pa.field("s", pa.int64(), nullable=False), ("e", pa.int64())])
SCHEMA: Final = pa.schema([*PLAIN, ("noise", pa.binary())])
#: Every so many elements one has bytes that no encoding shortens: its part has a file of its own, as large
#: parts have, and faults that damage such files find some.
_NOISY_EVERY, _NOISE_BYTES = 4, 8 << 10
#: Elements of one set; then another begins, so that a read stays small.
SIZE: Final = 200
_WRITERS, _WRITE_PAUSE_S, _READ_PAUSE_S = 3, 0.5, 3.0
#: Share of the reads that look at an older set than the newest.
_OLD: Final = 0.3


class SetFull(Workload):
    """Inserts of one row each, and reads of whole sets."""

    name: ClassVar[str] = "set_full"
    promise: ClassVar[str] = (
        "Every acknowledged element is in its set, once, from its CSN on, at every replica."
    )

    def prepare(self, db: Database) -> None:
        """Create the table."""
        self._elements = itertools.count()
        self._newest = 0
        self.create(db, TABLE, SCHEMA, properties=SOME_HISTORY)

    def clients(self) -> Sequence[Client]:
        """Return writers, readers pinned at each replica and at any, and a reader of old CSNs."""
        writers = [self.acting(self._add, _WRITE_PAUSE_S) for _ in range(_WRITERS)]
        return [*writers, *self.readers(self._read, _READ_PAUSE_S)]

    def _add(self, session: Session) -> None:
        def attempt() -> Attempt:
            element = next(self._elements)
            number = self._newest = element // SIZE

            def work(tx: Transaction) -> None:
                tx.insert(TABLE, row(number, element))

            return Attempt([["add", f"{TABLE}/{number}", element]], work, f="add")

        session.write(attempt)

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of one set."""
        return reading(self, lambda: question(TABLE, some_set(self._newest)))

    def _read(self, session: Session, csn: int | None) -> int | None:
        number = some_set(self._newest)
        return session.read(reads(TABLE, [number]), partial(look, TABLE, [number]), csn=csn, f="read")

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read all sets at each replica, and judge."""
        numbers = range(self._newest + 1)
        whole = partial(look, TABLE, numbers, noise=True)
        self.read_everywhere(db, reads(TABLE, numbers), lambda _, snap: whole(snap), "read")
        return presence.judged(self.name, ended(lines(self.path)))


def reads(table: str, numbers: Sequence[int]) -> list[Operation]:
    """Return the reads of some sets."""
    return [["r", f"{table}/{number}", None] for number in numbers]


def some_set(newest: int) -> int:
    """Return a set to be read: mostly the newest one."""
    return random.randint(0, newest) if random.random() < _OLD else newest


def question(table: str, number: int) -> Question:
    """Return the read of a set by Spark."""

    def found(rows: Rows) -> Found:
        return Found([["r", f"{table}/{number}", sorted(element for [element] in rows[table])]])

    return Question(reads(table, [number]), {table: f"select e from {table} where s = {number}"}, found)


def row(number: int, element: int) -> pa.Table:
    """Return the row of an element."""
    return pa.table({"s": [number], "e": [element], "noise": [_noise(element)]}, schema=SCHEMA)


def look(table: str, numbers: Sequence[int], snap: Snapshot, *, noise: bool = False) -> Found:
    """Return some sets, which follow each other.

    With ``noise`` the bytes of the elements are compared; one with others is told as its complement, an
    element that nobody has added.
    """
    sets: dict[int, list[int]] = {number: [] for number in numbers}
    columns = (SCHEMA if noise else PLAIN).names
    for found in snap.read(table, columns, "s between ? and ?", [min(numbers), max(numbers)]).to_pylist():
        element = found["e"]
        sets[found["s"]].append(~element if noise and found["noise"] != _noise(element) else element)
    return Found([["r", f"{table}/{number}", sorted(there)] for number, there in sets.items()])


def _noise(element: int) -> bytes | None:
    return None if element % _NOISY_EVERY else random.Random(element).randbytes(_NOISE_BYTES)
