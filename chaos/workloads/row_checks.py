"""A table whose check comes and goes, while rows are written that keep it, and rows that break it.

A reader looks at the definition and at the rows of one CSN. So it sees whether a check and a row that breaks
it were ever there together, whichever of both came first. The table also has a generated column, which no
writer writes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, Session
from chaos.record.history import Operation, ended, lines
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import Question, reading
from chaos.workloads.workload import SOME_HISTORY, Client, Workload
from tidelock.client import Database, Snapshot, Transaction
from tidelock.errors import (
    BadRequestError,
    CheckViolationError,
    SerializationConflictError,
    TableChangedError,
)

TABLE, CHECK = "checked", "ordered"
SCHEMA: Final = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("low", pa.int64()), ("high", pa.int64())]
)
_SQL: Final = "low <= high"
_MADE: Final = "high - low"
_GAP: Final = pa.field("gap", pa.int64(), metadata={"generated": _MADE})
_VALUE: Final[list[Operation]] = [["r", TABLE, None]]
#: Refusals that are an answer: the row breaks the check, or another client was first.
_ANSWERS: Final = (CheckViolationError, TableChangedError, SerializationConflictError)
_KEYS: Final = 40
_WRITERS, _WRITE_PAUSE_S, _CHANGE_PAUSE_S, _READ_PAUSE_S = 3, 1.5, 4.0, 3.0


class RowChecks(Workload):
    """Clients that write rows, clients that change the check, and readers."""

    name: ClassVar[str] = "row_checks"
    promise: ClassVar[str] = (
        "No row that breaks a check is there at a CSN at which the table has the check, and generated "
        "columns have the values that their SQL makes."
    )

    def prepare(self, db: Database) -> None:
        """Create the table, without its check."""
        self.create(db, TABLE, SCHEMA.append(_GAP), properties=SOME_HISTORY)

    def clients(self) -> Sequence[Client]:
        """Return writers, clients that change the check, and readers of all kinds."""
        writers = [self.acting(self._write, _WRITE_PAUSE_S) for _ in range(_WRITERS)]
        changers = [self.acting(one, _CHANGE_PAUSE_S) for one in (self._add, self._add, self._take_away)]
        return [*writers, *changers, *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of the generated column; Spark is told nothing of checks."""
        sql = f"select k, low, high, gap from {TABLE} where not (gap <=> {_MADE})"
        question = Question(
            _VALUE, {TABLE: sql}, lambda rows: Found([["r", TABLE, [False, [], rows[TABLE]]]])
        )
        return reading(self, lambda: question)

    def _write(self, session: Session) -> None:
        """Insert, upsert or update rows, about half of which break the check."""
        how = random.choice(("insert", "upsert", "update", "sql"))
        key, low, high = random.randrange(_KEYS), random.randint(0, 9), random.randint(0, 9)
        rows = pa.table({"k": [key], "low": [low], "high": [high]}, SCHEMA)

        def work(tx: Transaction) -> None:
            if how == "insert":
                tx.insert(TABLE, rows)
            elif how == "upsert":
                tx.delete(TABLE, "k = ?", [key])
                tx.insert(TABLE, rows)
            elif how == "update":
                tx.update(TABLE, {"low": str(low)}, where="k = ?", params=[key])
            else:
                tx.sql(
                    f"insert into {TABLE} (k, low, high) select k, high, low from {TABLE} where k = ?", [key]
                )

        with suppress(*_ANSWERS):
            session.write(lambda: Attempt([[how, key, [low, high]]], work, f="change", expected=_ANSWERS))

    def _add(self, session: Session) -> None:
        """Add the check; sometimes with a statement before that takes away what breaks it."""
        cleans = random.random() < 0.7  # noqa: PLR2004 - else it has to be refused while such rows are there

        def work(tx: Transaction) -> None:
            if cleans:
                tx.delete(TABLE, f"not ({_SQL})")
            tx.alter_table(TABLE, checks={CHECK: _SQL})

        answers = (*_ANSWERS, BadRequestError)  # it is there already
        with suppress(*answers):
            session.write(lambda: Attempt([["add", CHECK, cleans]], work, f="define", expected=answers))

    def _take_away(self, session: Session) -> None:
        def change(db: Database) -> int:
            return db.alter_table(TABLE, checks={CHECK: None}).csn

        session.define(change, [["take away", CHECK, None]], expected=(*_ANSWERS, BadRequestError))

    def _read(self, session: Session, csn: int | None) -> int | None:
        return session.read(_VALUE, look, csn=csn, f="read")

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read the table at each replica, and judge all reads."""
        self.read_everywhere(db, _VALUE, lambda _, snap: look(snap), "read")
        return judged(ended(lines(self.path)))


def look(snap: Snapshot) -> Found:
    """Return whether the table has the check, the rows that break it, and those with another gap."""
    [table] = [row for row in snap.tables() if row.name == f"default.{TABLE}"]
    broken, wrong = (
        [
            list(row.values())
            for row in snap.sql(f"select * from {TABLE} where {condition} order by all").to_pylist()
        ]
        for condition in (f"not ({_SQL})", f"gap is distinct from {_MADE}")
    )
    return Found([["r", TABLE, [CHECK in table.checks, broken, wrong]]])


def judged(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the reads that have found a check and rows that break it, or wrong generated columns."""
    found = []
    for line in all_lines:
        if line["f"] != "read" or line["type"] != "ok":
            continue
        checked, broken, wrong = line["value"][0][2]
        where = f"at CSN {line['snapshot']} of {line.get('replica')}"
        for claim, rows, expected in (
            ("checks", broken if checked else [], f"no row that breaks {_SQL} {where}, which has the check"),
            ("generated columns", wrong, f"that gap is {_MADE} {where}"),
        ):
            if rows:
                story = f"Expected {expected}, found {rows} (operation {line['index']})."
                found.append(Violation(RowChecks.name, claim, story, line["time"]))
    return found
