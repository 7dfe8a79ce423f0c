"""Tables with a unique key: upserts of the same keys by many clients, and inserts of which one wins.

Each row of the table that replaces has a stamp, so a key is a register: a reader finds each key once, with
its newest value. In the table that refuses, several clients insert each key, and one of them is acknowledged.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, Session
from chaos.judging.histories import judged
from chaos.record.history import TXN, Operation, ended, lines
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import Question, reading
from chaos.workloads.workload import SOME_HISTORY, Client, Workload
from tests.checkers.levels import Level
from tidelock.client import Database, Snapshot, Transaction
from tidelock.errors import DuplicateKeyError

NEWEST, FIRST = "unique_newest", "unique_first"
SCHEMA: Final = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
#: Keys of the table that replaces, and the newest keys of the one that refuses, that are in use.
_KEYS, _RACED = 12, 3
_WRITERS, _WRITE_PAUSE_S, _READ_PAUSE_S = 3, 4.0, 3.0


class UniqueKeys(Workload):
    """Upserts, inserts that may be refused, and reads."""

    name: ClassVar[str] = "unique_keys"
    promise: ClassVar[str] = (
        "Every key is there once at every CSN, with its newest value; of two inserts one wins."
    )

    def prepare(self, db: Database) -> None:
        """Create both tables."""
        self._stamps = itertools.count(1)
        self._raced = 0
        options = SOME_HISTORY | {"unique_key": "k"}
        self.create(db, NEWEST, SCHEMA, properties={**options, "on_duplicate": "replace"})
        self.create(db, FIRST, SCHEMA, properties=options)

    def clients(self) -> Sequence[Client]:
        """Return writers of both kinds, and readers of all kinds."""
        upserting = [self.acting(self._upsert, _WRITE_PAUSE_S) for _ in range(_WRITERS)]
        racing = [self.acting(self._race, 2 * _WRITE_PAUSE_S) for _ in range(_WRITERS)]
        return [*upserting, *racing, *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of the keys that many clients write, at one CSN."""
        keys = [f"{NEWEST}/{key}" for key in range(_KEYS)]
        query = {NEWEST: f"select k, v from {NEWEST}"}
        question = Question(_reads(keys), query, partial(_found_by_spark, keys))
        return reading(self, lambda: question, f=TXN)

    def _upsert(self, session: Session) -> None:
        keys = sorted(random.sample(range(_KEYS), random.choice([1, 2])))
        by_upsert = random.choice([True, False])

        def attempt() -> Attempt:
            stamps = [next(self._stamps) for _ in keys]
            rows = pa.table({"k": keys, "v": stamps}, schema=SCHEMA)

            def work(tx: Transaction) -> None:
                if by_upsert:
                    tx.upsert(NEWEST, rows, on=["k"])
                else:
                    tx.insert(NEWEST, rows)

            pairs = zip(keys, stamps, strict=True)
            return Attempt([["w", f"{NEWEST}/{key}", stamp] for key, stamp in pairs], work)

        session.write(attempt)

    def _race(self, session: Session) -> None:
        key = max(0, self._raced - random.randrange(_RACED))

        def attempt() -> Attempt:
            stamp = next(self._stamps)
            row = pa.table({"k": [key], "v": [stamp]}, schema=SCHEMA)

            def work(tx: Transaction) -> None:
                tx.insert(FIRST, row)

            return Attempt([["w", f"{FIRST}/{key}", stamp]], work, expected=(DuplicateKeyError,))

        try:
            session.write(attempt)
        except DuplicateKeyError:
            self._raced = max(self._raced, key + 1)

    def _keys(self) -> list[str]:
        raced = range(max(0, self._raced - _RACED), self._raced + 1)
        return [*(f"{NEWEST}/{key}" for key in range(_KEYS)), *(f"{FIRST}/{key}" for key in raced)]

    def _read(self, session: Session, csn: int | None) -> int | None:
        keys = self._keys()
        return session.read(_reads(keys), partial(look, keys), csn=csn)

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read all keys at each replica, and judge rows and versions."""
        keys = [f"{NEWEST}/{key}" for key in range(_KEYS)]
        keys += [f"{FIRST}/{key}" for key in range(self._raced + 1)]
        self.read_everywhere(db, _reads(keys), lambda _, snap: look(keys, snap), TXN)
        all_lines = list(ended(lines(self.path)))
        versions = judged(self.name, self.path, level=Level.SERIALIZABLE)
        return [*twice(all_lines), *two_winners(all_lines), *versions]


def _reads(keys: Sequence[str]) -> list[Operation]:
    return [["r", key, None] for key in keys]


def look(keys: Sequence[str], snap: Snapshot) -> Found:
    """Return the values of some keys, in both tables."""
    sql = f"select '{NEWEST}' as t, k, v from {NEWEST} union all select '{FIRST}', k, v from {FIRST}"
    there: dict[str, list[int]] = {key: [] for key in keys}
    for row in snap.sql(sql).to_pylist():
        name = f"{row['t']}/{row['k']}"
        if name in there:
            there[name].append(row["v"])
    return Found([["r", key, sorted(values)] for key, values in there.items()])


def _found_by_spark(keys: Sequence[str], rows: dict[str, list[list[Any]]]) -> Found:
    there: dict[str, list[int]] = {key: [] for key in keys}
    for k, v in rows[NEWEST]:
        there[f"{NEWEST}/{k}"].append(v)
    return Found([["r", key, sorted(values)] for key, values in there.items()])


def twice(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the reads in which a key has more than one row."""
    found = []
    for line in all_lines:
        several = {
            key: there for name, key, there in line["value"] if name == "r" and there and len(there) > 1
        }
        if line["type"] == "ok" and several:
            story = (
                f"Expected each key once at CSN {line['snapshot']} of {line.get('replica')}, found "
                f"the values {several} (operation {line['index']})."
            )
            found.append(Violation(UniqueKeys.name, "unique key", story, line["time"]))
    return found


def two_winners(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the keys of the table that refuses of which more than one insert was acknowledged."""
    winners: dict[str, list[dict[str, Any]]] = {}
    for line in all_lines:
        for name, key, _ in line["value"]:
            if name == "w" and line["type"] == "ok" and key.startswith(FIRST):
                winners.setdefault(key, []).append(line)
    wrong = {key: several for key, several in winners.items() if len(several) > 1}
    count = Counter({key: len(several) for key, several in wrong.items()})
    return [
        Violation(
            UniqueKeys.name,
            "unique key",
            f"Expected that one insert of {key} wins, found {count[key]} acknowledged: "
            f"{[(line['tid'], line['csn'], line['value']) for line in several]}.",
            several[-1]["time"],
            tuple(line["tid"] for line in several),
        )
        for key, several in wrong.items()
    ]
