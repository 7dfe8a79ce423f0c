"""Jobs under labels: each is run by several clients, also by Spark whose drivers die, and counts once."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, Session
from chaos.judging import presence
from chaos.judging.histories import judged
from chaos.record.history import TXN, History, Operation, ended, lines
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import Question, Rows, reading
from chaos.spark.writing import LabelledJobs
from chaos.workloads.workload import SOME_HISTORY, Client, Workload
from chaos.world import World
from tidelock.client import Database, Snapshot, Transaction
from tidelock.errors import LabelExistsError

JOBS, BATCHES, SPARK = "labels_jobs", "labels_batches", "labels_spark"
SCHEMA: Final = pa.schema([("job", pa.int64()), ("stamp", pa.int64())])
#: The streaming label, whose batches count in their order.
STREAM: Final = "labels stream"
#: Clients run one of the newest jobs, so that each is run about twice; readers look at twice as many.
_CONTENDED: Final = 3
_WRITERS, _WRITE_PAUSE_S, _READ_PAUSE_S = 4, 2.0, 3.0


class Labels(Workload):
    """Jobs and batches under labels, run by several clients each."""

    name: ClassVar[str] = "labels"
    promise: ClassVar[str] = (
        "What is done under a label counts once, whoever does it how often, and is never lost."
    )

    def __init__(self, world: World, *, pace: float = 1.0) -> None:
        super().__init__(world, pace=pace)
        self._spark_history = History(world.history(SPARK))

    def close(self) -> None:
        """Close both histories."""
        super().close()
        self._spark_history.close()

    def prepare(self, db: Database) -> None:
        """Create the tables."""
        self._stamps = itertools.count(1)
        self._lock = threading.Lock()
        self._newest = {JOBS: 0, BATCHES: 0}
        for table in (JOBS, BATCHES, SPARK):
            self.create(db, table, SCHEMA, properties=SOME_HISTORY)
        self._by_spark = LabelledJobs(self.world, self.name, SPARK, self._spark_history)

    def clients(self) -> Sequence[Client]:
        """Return clients that run jobs and batches, and readers of all kinds."""
        running = [self.acting(self._run, _WRITE_PAUSE_S) for _ in range(_WRITERS)]
        return [*running, *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return jobs that write under a label until they are known to be done, and reads of all tables."""
        written = Question([["r", SPARK, None]], {SPARK: f"select job from {SPARK}"}, _found_of_spark)
        return [
            SparkJob("labels, written by Spark", self._by_spark.run),
            *reading(self, lambda: _question(self._numbers()), f=TXN),
            *reading(self, lambda: written, history=self._spark_history),
        ]

    def last_spark_jobs(self) -> Sequence[SparkJob]:
        """Return the job that is still under way, if there is one."""
        return [SparkJob("labels, the last job", self._by_spark.finish)]

    def _run(self, session: Session) -> None:
        table = random.choice([JOBS, BATCHES])
        with self._lock:
            number = max(0, self._newest[table] - random.randrange(_CONTENDED))
            if number == self._newest[table]:
                self._newest[table] += 1
        begin = {"label": f"labels job {number}"} if table == JOBS else {"label": STREAM, "batch": number}

        def attempt() -> Attempt:
            stamp = next(self._stamps)
            row = pa.table({"job": [number], "stamp": [stamp]}, schema=SCHEMA)

            def work(tx: Transaction) -> None:
                tx.insert(table, row)

            value = [["append", f"{table}/{number}", stamp]]
            return Attempt(value, work, begin, expected=(LabelExistsError,))

        try:
            session.write(attempt)
        except LabelExistsError:
            return  # the work is done; its CSN is in the history

    def _numbers(self) -> dict[str, range]:
        """Return the jobs that are read, of each table."""
        return {
            table: range(max(0, newest - 2 * _CONTENDED), newest + 1)
            for table, newest in self._newest.items()
        }

    def _read(self, session: Session, csn: int | None) -> int | None:
        numbers = self._numbers()
        return session.read(_reads(numbers), partial(look, numbers), csn=csn)

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read all jobs at each replica, and judge those of clients and those of Spark."""
        numbers = {table: range(newest + 1) for table, newest in self._newest.items()}
        end = self.read_everywhere(db, _reads(numbers), lambda _, snap: look(numbers, snap), TXN)
        for replica in sorted(self.world.cluster.replicas):
            self._by_spark.read(replica, end)
        found = judged(self.name, self.path)
        found += not_once(ended(lines(self.path)))
        return [*found, *presence.judged(self.name, ended(lines(self._spark_history.path)))]


def _reads(numbers: dict[str, range]) -> list[Operation]:
    return [["r", f"{table}/{number}", None] for table, some in numbers.items() for number in some]


def look(numbers: dict[str, range], snap: Snapshot) -> Found:
    """Return the stamps of some jobs of each table."""
    sql = " union all ".join(
        f"select '{table}' as t, job, stamp from {table} where {_where(some)}"
        for table, some in numbers.items()
    )
    return _found(numbers, (tuple(row.values()) for row in snap.sql(sql).to_pylist()))


def _question(numbers: dict[str, range]) -> Question:
    """Return the read of some jobs of each table by Spark."""
    queries = {
        table: f"select job, stamp from {table} where {_where(some)}" for table, some in numbers.items()
    }

    def found(rows: Rows) -> Found:
        return _found(numbers, ((table, *row) for table in numbers for row in rows[table]))

    return Question(_reads(numbers), queries, found)


def _where(some: range) -> str:
    return f"job between {some.start} and {some.stop - 1}"


def _found(numbers: dict[str, range], rows: Iterable[tuple[Any, ...]]) -> Found:
    """Return the stamps of some jobs, by rows of table, job and stamp."""
    there: dict[str, list[int]] = {key: [] for _, key, _ in _reads(numbers)}
    for table, job, stamp in rows:
        there[f"{table}/{job}"].append(stamp)
    return Found([["r", key, sorted(stamps)] for key, stamps in there.items()])


def _found_of_spark(rows: Rows) -> Found:
    return Found([["r", SPARK, sorted(job for [job] in rows[SPARK])]])


def not_once(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the jobs that are there twice, were acknowledged twice, or are done and missing."""
    found: list[Violation] = []
    done: dict[str, tuple[int, dict[str, Any]]] = {}
    won: dict[str, dict[str, Any]] = {}
    reads = []
    for line in all_lines:
        if line["value"][0][0] == "r":
            reads += [line] if line["type"] == "ok" else []
            continue
        [(_, key, _)] = line["value"]
        csn = line.get("csn" if line["type"] == "ok" else "told")
        # A batch is refused too if a later one was committed; that says nothing of its own rows.
        of_another = line.get("batch") not in {None, int(key.partition("/")[2])}
        if csn is not None and not of_another:
            done.setdefault(key, (csn, line))
        if line["type"] == "ok" and (first := won.setdefault(key, line)) is not line:
            story = (
                f"Expected that one run of {key} is acknowledged, found {first['value']} and {line['value']}."
            )
            tids = (first["tid"], line["tid"])
            found.append(Violation(Labels.name, "label once", story, line["time"], tids))
    for line in reads:
        at = f"at CSN {line['snapshot']} of {line.get('replica')} (operation {line['index']})"
        for _, key, stamps in line["value"]:
            csn, proof = done.get(key, (None, None))
            missing = csn is not None and csn <= line["snapshot"] and not stamps
            if missing or len(stamps) > 1:
                story = f"Expected {key} once {at}, found {stamps}."
                story += (
                    f" It was done by CSN {csn}, as operation {proof['index']} was told." if proof else ""
                )
                found.append(Violation(Labels.name, "label once", story, line["time"]))
    return found
