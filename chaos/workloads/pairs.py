"""Pairs: +n in one table and -n in another, in one transaction, while compaction and collection are quick.

After ClickHouse's 01174: pairs are inserted and deleted by transactions, parts are merged and old ones thrown
away all the time, and every reader sees the whole of a pair or nothing of it.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, RolledBack, Session
from chaos.judging import presence
from chaos.record.history import Operation, ended, lines
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import Question, reading
from chaos.workloads.workload import Client, Workload
from tidelock.client import Database, Snapshot, Transaction
from tidelock.errors import BadRequestError

PLUS, MINUS = "pairs_plus", "pairs_minus"
SCHEMA: Final = pa.schema([("n", pa.int64())])
SQL: Final = f"select n from {PLUS} union all select n from {MINUS}"
_VALUE: Final[list[Operation]] = [["r", PLUS, None], ["r", MINUS, None]]
_WRITERS, _WRITE_PAUSE_S, _READ_PAUSE_S = 3, 2.0, 3.0
#: Pairs that stay; the oldest beyond them are deleted.
_KEPT: Final = 60
#: How often a client looks whether there was a merge or a collection, in seconds.
_WATCH_PAUSE_S: Final = 5.0
#: The events that readers must meet, or their reads show nothing of what this workload is for.
MET: Final = frozenset({f"a merge of {PLUS}", f"a merge of {MINUS}", "a collection"})
#: Share of the inserts that end with a rollback, and of the steps that ask for a merge of a table.
_ROLLBACKS, _MERGES = 0.1, 0.05


class Pairs(Workload):
    """Inserts, deletes and reads of pairs."""

    name: ClassVar[str] = "pairs"
    promise: ClassVar[str] = (
        "The sum over both tables is 0 at every CSN, while parts are merged and collected."
    )
    settings: ClassVar[Mapping[str, object]] = {
        "compaction_interval_s": 1.0,
        "compaction_parts_min": 3,
        "history_retention_s": 20.0,
        "horizon_interval_s": 2.0,
        "clean_interval_s": 5.0,
    }

    def prepare(self, db: Database) -> None:
        """Create both tables."""
        self._numbers = itertools.count(1)
        self._there: list[int] = []
        self._unmet = set(MET)
        for table in (PLUS, MINUS):
            self.create(db, table, SCHEMA)

    def clients(self) -> Sequence[Client]:
        """Return writers, and readers of all kinds."""
        writers = [self.acting(self._change, _WRITE_PAUSE_S) for _ in range(_WRITERS)]
        watching = self.acting(self._watch, _WATCH_PAUSE_S)
        return [watching, *writers, *self.readers(self._read, _READ_PAUSE_S)]

    @property
    def content(self) -> bool:
        """Whether both tables were merged, and something was collected, while clients worked."""
        return not self._unmet

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of both tables at one CSN."""
        queries = {table: f"select n from {table}" for table in (PLUS, MINUS)}
        question = Question(
            _VALUE, queries, lambda rows: found([n for [n] in rows[PLUS]], [n for [n] in rows[MINUS]])
        )
        return reading(self, lambda: question)

    def _change(self, session: Session) -> None:
        if len(self._there) > _KEPT:
            oldest = self._there.pop(0)
            session.write(partial(_removal, oldest))
            return
        numbers: list[int] = []

        def attempt() -> Attempt:
            numbers[:] = [next(self._numbers)]
            return _insertion(numbers[0])

        if session.write(attempt) is not None:
            self._there.append(numbers[0])
        if random.random() < _MERGES:
            self._merge(session)

    def _watch(self, _session: Session) -> None:
        """Note the first merge of each table and the first collection, by the logs of the replicas."""
        if not self._unmet:
            return
        for replica in self.world.cluster.replicas:
            with suppress(OSError, BadRequestError):  # it has left meanwhile, or has no node yet
                for met in self._unmet & events_met(self.world.cluster.node(replica).log().splitlines()):
                    self._unmet.remove(met)
                    self.world.journal.note("met", workload=self.name, met=met, replica=replica)

    def _merge(self, session: Session) -> None:
        session.ask(lambda db: db.optimize(random.choice([PLUS, MINUS]), timeout_s=1))

    def _read(self, session: Session, csn: int | None) -> int | None:
        return session.read(_VALUE, look, csn=csn, f="read")

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read both tables at each replica, and judge."""
        self.read_everywhere(db, _VALUE, lambda _, snap: look(snap), "read")
        all_lines = list(ended(lines(self.path)))
        return [*unpaired(all_lines), *presence.judged(self.name, all_lines)]


def events_met(log: Iterable[str]) -> set[str]:
    """Return those of `MET` that the log of a replica tells of. Pure."""
    found = set()
    for line in log:
        if '"compacted"' not in line and '"collected"' not in line:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue  # a line that is being written
        if event["event"] == "compacted":
            found.add(f"a merge of {event['table'].removeprefix('default.')}")
        elif event["event"] == "collected" and event["parts"]:
            found.add("a collection")
    return found & MET


def _insertion(number: int) -> Attempt:
    value: list[Operation] = [["add", PLUS, number], ["add", MINUS, -number]]
    rolled_back = random.random() < _ROLLBACKS

    def work(tx: Transaction) -> None:
        for _, table, n in value:
            tx.insert(table, pa.table({"n": [n]}, schema=SCHEMA))
        if rolled_back:
            raise RolledBack

    return Attempt(value, work, f="add")


def _removal(number: int) -> Attempt:
    value: list[Operation] = [["remove", PLUS, number], ["remove", MINUS, -number]]

    def work(tx: Transaction) -> None:
        for _, table, n in value:
            tx.delete(table, "n = ?", [n])

    return Attempt(value, work, f="remove")


def look(snap: Snapshot) -> Found:
    """Return both tables."""
    numbers = snap.sql(SQL)["n"].to_pylist()
    return found([n for n in numbers if n > 0], [n for n in numbers if n < 0])


def found(plus: Sequence[int], minus: Sequence[int]) -> Found:
    """Return what a read of both tables has found."""
    return Found([["r", PLUS, sorted(plus)], ["r", MINUS, sorted(minus, reverse=True)]])


def unpaired(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the reads in which a number has no counterpart."""
    wrong = []
    for line in all_lines:
        if line["type"] != "ok" or line["f"] != "read":
            continue
        (_, _, plus), (_, _, minus) = line["value"]
        alone = Counter(plus)
        alone.subtract(-n for n in minus)
        torn = {n: count for n, count in alone.items() if count}
        if torn:
            story = (
                f"Expected a sum of 0 with a counterpart of each number, found {sum(plus) + sum(minus)} at "
                f"CSN {line['snapshot']} of {line.get('replica')}; more often plus than minus: {torn} "
                f"(operation {line['index']})."
            )
            wrong.append(Violation(Pairs.name, "total constant", story, line["time"]))
    return wrong
