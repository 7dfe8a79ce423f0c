"""Tables that are derived from others equal their SQL, at every CSN and every replica."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, Session
from chaos.judging import presence
from chaos.record.history import Operation, ended, lines
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import Question, Rows, reading
from chaos.workloads.workload import Client, Workload
from tidelock.client import Database, Snapshot, Transaction

SOURCE, TOTALS, COUNTS = "derived_source", "derived_totals", "derived_counts"
SCHEMA: Final = pa.schema([("k", pa.int64()), ("n", pa.int64())])
TOTALS_SCHEMA: Final = pa.schema([("k", pa.int64()), ("total", pa.int64()), ("rows", pa.int64())])
COUNTS_SCHEMA: Final = pa.schema([("rows", pa.int64()), ("inserts", pa.int64())])
_KEYS: Final = 4
_VALUE: Final[list[Operation]] = [["r", SOURCE, None], ["r", TOTALS, None], ["r", COUNTS, None]]
#: The rows that the definitions ask for, and those of the tables: table, k, total, rows.
_SQL: Final = f"""
    select '{SOURCE}' as t, k, sum(n)::bigint as total, count(*)::bigint as rows from {SOURCE} group by k
    union all select '{TOTALS}', k, sum(total)::bigint, sum(rows)::bigint from {TOTALS} group by k
    union all select '{COUNTS}', 0, coalesce(sum(inserts), 0)::bigint, coalesce(sum(rows), 0)::bigint
    from {COUNTS}
    union all select 'inserts', 0, count(*)::bigint, 0 from {TOTALS}
"""
#: The same for Spark, whose sums of integers are integers.
_QUERIES: Final = {
    SOURCE: f"select k, sum(n), count(*) from {SOURCE} group by k",
    TOTALS: f"select k, sum(total), sum(rows) from {TOTALS} group by k",
    COUNTS: f"select 0, coalesce(sum(inserts), 0), coalesce(sum(rows), 0) from {COUNTS}",
    "inserts": f"select 0, count(*), 0 from {TOTALS}",
}
_WRITERS, _WRITE_PAUSE_S, _READ_PAUSE_S = 2, 4.0, 3.0


class Derived(Workload):
    """Inserts into a table from which another is derived, and from that a third one."""

    name: ClassVar[str] = "derived"
    promise: ClassVar[str] = "What is derived from a table equals its SQL over that table, at every CSN."

    def prepare(self, db: Database) -> None:
        """Create the tables."""
        self._numbers = itertools.count(1)
        self.create(db, SOURCE, SCHEMA)
        totals = "select k, sum(n) as total, count(*) as rows from inserted group by k"
        self.create(db, TOTALS, TOTALS_SCHEMA, derived_from=SOURCE, derived_sql=totals)
        counts = "select sum(rows) as rows, count(*) as inserts from inserted"
        self.create(db, COUNTS, COUNTS_SCHEMA, derived_from=TOTALS, derived_sql=counts)

    def clients(self) -> Sequence[Client]:
        """Return writers, and readers of all kinds."""
        writers = [self.acting(self._insert, _WRITE_PAUSE_S) for _ in range(_WRITERS)]
        return [*writers, *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of all three tables at one CSN."""
        question = Question(_VALUE, _QUERIES, _found, tables=(SOURCE, TOTALS, COUNTS))
        return reading(self, lambda: question)

    def _insert(self, session: Session) -> None:
        count = random.choice([1, 2, 3])

        def attempt() -> Attempt:
            numbers = [next(self._numbers) for _ in range(count)]
            rows = pa.table({"k": [n % _KEYS for n in numbers], "n": numbers}, schema=SCHEMA)

            def work(tx: Transaction) -> None:
                tx.insert(SOURCE, rows)

            return Attempt([["insert", SOURCE, n] for n in numbers], work, f="insert")

        session.write(attempt)

    def _read(self, session: Session, csn: int | None) -> int | None:
        return session.read(_VALUE, look, csn=csn, f="read")

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read the tables at each replica, and judge all reads."""
        self.read_everywhere(db, _VALUE, lambda _, snap: look(snap), "read")
        all_lines = list(ended(lines(self.path)))
        return [*unequal(all_lines), *sums_lost(all_lines), *presence.sessions(self.name, all_lines)]


def look(snap: Snapshot) -> Found:
    """Return total and number of rows by key, of the source and of what is derived."""
    there: Rows = {name: [] for name in _QUERIES}
    for row in snap.sql(_SQL).to_pylist():
        there[row["t"]].append([row["k"], row["total"], row["rows"]])
    return _found(there)


def _found(there: Rows) -> Found:
    value = [["r", table, sorted(there[table])] for table in (SOURCE, TOTALS, COUNTS)]
    return Found(value, {"inserts": there["inserts"][0][1]})


def unequal(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the reads in which a derived table does not equal its SQL."""
    found = []
    for line in all_lines:
        if line["type"] != "ok" or line["f"] != "read":
            continue
        (_, _, source), (_, _, totals), (_, _, [counts]) = line["value"]
        derived = [0, line["inserts"], sum(rows for _, _, rows in totals)]
        at = f"at CSN {line['snapshot']} of {line.get('replica')} (operation {line['index']})"
        for table, wanted, there in ((TOTALS, source, totals), (COUNTS, derived, counts)):
            if wanted != there:
                story = f"Expected {wanted} in {table} by its SQL {at}, found {there}: key, total, rows."
                found.append(Violation(Derived.name, "derived", story, line["time"]))
    return found


def sums_lost(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the reads of the source whose sum lacks what was acknowledged, or has what nobody inserted."""
    known: list[tuple[int, int]] = []
    doubtful = 0
    reads = []
    for line in all_lines:
        if line["f"] == "read":
            reads += [line] if line["type"] == "ok" else []
        elif line["type"] == "ok":
            known.append((line["csn"], sum(n for _, _, n in line["value"])))
        elif line["type"] == "info":
            doubtful += sum(n for _, _, n in line["value"])
    found = []
    for line in reads:
        least = sum(n for csn, n in known if csn <= line["snapshot"])
        total = sum(total for _, total, _ in line["value"][0][2])
        if not least <= total <= least + doubtful:
            story = (
                f"Expected a sum of {least} that was acknowledged up to CSN {line['snapshot']}, and at most "
                f"{doubtful} of unknown end, found {total} at {line.get('replica')} "
                f"(operation {line['index']})."
            )
            found.append(Violation(Derived.name, "acknowledged rows", story, line["time"]))
    return found
