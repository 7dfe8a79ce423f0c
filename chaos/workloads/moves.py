"""Rows that are moved between two tables, after ClickHouse's 01169: each is in exactly one, at every CSN."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, Session
from chaos.record.history import Operation, ended, lines
from chaos.record.violation import Violation
from chaos.spark.changing import change
from chaos.spark.job import SparkJob, SparkSession
from chaos.spark.reading import Question, reading
from chaos.workloads.workload import SOME_HISTORY, Client, Workload
from tidelock.client import Database, Snapshot, Transaction
from tidelock.errors import UnavailableError

TABLES: Final = ("moves_here", "moves_there")
SCHEMA: Final = pa.schema([("p", pa.int64()), ("n", pa.int64())])
PARTITIONS, ROWS_OF_EACH = 6, 5
#: All rows, by n; row n is in partition n % PARTITIONS.
ALL: Final = tuple(range(PARTITIONS * ROWS_OF_EACH))
SQL: Final = " union all ".join(f"select '{table}' as t, n from {table}" for table in TABLES)
_VALUE: Final[list[Operation]] = [["r", table, None] for table in TABLES]
#: Share of the moves that take a whole partition.
_PARTITIONS_SHARE: Final = 0.5
_WRITERS, _WRITE_PAUSE_S, _READ_PAUSE_S = 3, 4.0, 3.0


class Moves(Workload):
    """Moves of single rows, of whole partitions, and by Spark of many rows at once."""

    name: ClassVar[str] = "moves"
    promise: ClassVar[str] = (
        "Every row is in exactly one of both tables at every CSN, however often it is moved."
    )

    def prepare(self, db: Database) -> None:
        """Create both tables; all rows are in the first one."""
        for table in TABLES:
            self.create(db, table, SCHEMA, partition_by=["p"], properties=SOME_HISTORY)
        rows = pa.table({"p": [n % PARTITIONS for n in ALL], "n": list(ALL)}, schema=SCHEMA)

        def work(tx: Transaction) -> None:
            tx.insert(TABLES[0], rows)

        session = self.session()
        if (
            session.write(lambda: Attempt([["add", TABLES[0], n] for n in ALL], work, f="add"), tries=1)
            is None
        ):
            raise UnavailableError("expected that a cluster that is well takes the first rows")
        session.close()

    def clients(self) -> Sequence[Client]:
        """Return movers, and readers of all kinds."""
        movers = [self.acting(self._move, _WRITE_PAUSE_S) for _ in range(_WRITERS)]
        return [*movers, *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of both tables at one CSN, and moves of many rows at once."""
        queries = {table: f"select n from {table}" for table in TABLES}
        read = Question(_VALUE, queries, lambda rows: found({t: [n for [n] in rows[t]] for t in TABLES}))
        return [*reading(self, lambda: read), SparkJob("moves, moved by Spark", self._move_by_spark)]

    def _move_by_spark(self, session: SparkSession) -> None:
        source, target = random.sample(TABLES, 2)
        where = f"n % {random.randint(2, ROWS_OF_EACH)} = 0"
        value: list[Operation] = [["move", f"{source} to {target}", where]]
        change(self, session, value, "move", source=source, target=target, where=where)

    def _move(self, session: Session) -> None:
        source, target = random.sample(TABLES, 2)
        n = random.choice(ALL)
        if random.random() < _PARTITIONS_SHARE:
            p = n % PARTITIONS

            def move_partition(tx: Transaction) -> None:
                tx.move_partition(source, {"p": p}, target)

            session.write(lambda: Attempt([["move", f"{source} to {target}", p]], move_partition, f="move"))
            return

        def move_row(tx: Transaction) -> None:
            # The delete takes the row's lock, so that no other mover can move it too.
            if tx.delete(source, "n = ?", [n]).rows_deleted:
                tx.insert(target, pa.table({"p": [n % PARTITIONS], "n": [n]}, schema=SCHEMA))

        session.write(lambda: Attempt([["move", f"{source} to {target}", n]], move_row, f="move"))

    def _read(self, session: Session, csn: int | None) -> int | None:
        return session.read(_VALUE, look, csn=csn, f="read")

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read both tables at each replica, and judge."""
        self.read_everywhere(db, _VALUE, lambda _, snap: look(snap), "read")
        return not_once(ended(lines(self.path)))


def look(snap: Snapshot) -> Found:
    """Return both tables."""
    there: dict[str, list[int]] = {table: [] for table in TABLES}
    for row in snap.sql(SQL).to_pylist():
        there[row["t"]].append(row["n"])
    return found(there)


def found(there: dict[str, list[int]]) -> Found:
    """Return what a read of both tables has found."""
    return Found([["r", table, sorted(there[table])] for table in TABLES])


def not_once(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the reads in which a row is not once in both tables together, and those that disagree."""
    wrong = []
    first_at: dict[int, dict[str, Any]] = {}
    for line in all_lines:
        if line["type"] != "ok" or line["f"] != "read":
            continue
        count = Counter(n for _, _, there in line["value"] for n in there)
        at = f"at CSN {line['snapshot']} of {line.get('replica')} (operation {line['index']})"
        lost = sorted(set(ALL) - count.keys())
        more = {n: times for n, times in sorted(count.items()) if times > 1 or n not in ALL}
        if lost or more:
            story = f"Expected each of {len(ALL)} rows in one table, found {lost} missing and {more} {at}."
            wrong.append(Violation(Moves.name, "each row once", story, line["time"]))
        first = first_at.setdefault(line["snapshot"], line)
        if first["value"] != line["value"]:
            story = f"Expected {first['value']} as in operation {first['index']}, found {line['value']} {at}."
            wrong.append(Violation(Moves.name, "replicas agree", story, line["time"]))
    return wrong
