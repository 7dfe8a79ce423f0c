"""Tables that are created, renamed, dropped and brought back under a few names, while rows go into them.

Each table has a number of its own, in its comment, and each row the number of the table that its writer saw.
So a row that is in another table than that one shows itself, whatever names both have had. Columns come and
go meanwhile. Each has a number in its name, which is its default, and no writer sends one: so each row of any
age has that number there. Tables are restored to CSNs of before, with the columns of then.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, RolledBack, Session
from chaos.record.history import Operation, ended, lines
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import Question, reading
from chaos.workloads.workload import SOME_HISTORY, Client, Workload
from tidelock.client import Database, Snapshot, Transaction
from tidelock.errors import (
    BadRequestError,
    SerializationConflictError,
    SnapshotTooOldError,
    TableChangedError,
    TableExistsError,
    UnknownTableError,
)

NAMES: Final = ("lives_a", "lives_b", "lives_c")
#: The name of a column with a default begins with it; the default follows.
COLUMN: Final = "d"
#: A name that no reader ever sees.
_BETWEEN: Final = "lives_between"
SCHEMA: Final = pa.schema([("g", pa.int64()), ("n", pa.int64())])
_VALUE: Final[list[Operation]] = [["r", "tables", None]]
#: Refusals that are an answer to a change: another client was first, or history is gone.
_ANSWERS: Final = (TableExistsError, UnknownTableError, BadRequestError, SnapshotTooOldError)
#: The same of a change of columns or rows.
_ANSWERS_TO_ROWS: Final = (*_ANSWERS, TableChangedError, SerializationConflictError)
#: Most CSNs by which a table is set back.
_BACK: Final = 60
_WRITERS, _WRITE_PAUSE_S, _CHANGE_PAUSE_S, _READ_PAUSE_S = 3, 1.0, 3.0, 3.0

#: The tables of a read: the name of each, its number, the pairs (number, n) of its rows, and the different
#: values of each column with a default.
Tables = list[tuple[str, int, list[list[int]], list[tuple[str, list[int | None]]]]]

#: A restore: the table, the CSN that it was set back to, and that of its commit, infinite if that is unknown.
#: Rows of in between may have left.
_Restored = tuple[int | None, int, float]


class TableLives(Workload):
    """Clients that change tables, clients that insert into those that are there, and readers."""

    name: ClassVar[str] = "table_lives"
    promise: ClassVar[str] = (
        "A row is in the table for which it was inserted, as long as that lives and no restore takes it, and "
        "in no other one; it has the defaults of all columns."
    )

    def prepare(self, db: Database) -> None:
        """Create nothing: clients do."""
        del db
        self._numbers = itertools.count(1)
        self._tables = itertools.count(1)

    def clients(self) -> Sequence[Client]:
        """Return clients that change tables, alone or with rows, writers, and readers of all kinds."""
        writers = [self.acting(self._insert, _WRITE_PAUSE_S) for _ in range(_WRITERS)]
        changers = [self.acting(self._change, _CHANGE_PAUSE_S) for _ in range(2)]
        others = (self._refill, self._exchange, self._change_columns, self._restore)
        changers += [self.acting(one, _CHANGE_PAUSE_S) for one in others]
        return [*changers, *writers, *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of all tables that are there at one CSN."""
        question = Question(_VALUE, {}, _found_by_spark, tables=(*NAMES, _BETWEEN), job="tables")
        return reading(self, lambda: question)

    def _change(self, session: Session) -> None:
        name, other = random.sample(NAMES, 2)
        what = random.choice(("create", "create", "replace", "rename", "drop", "undrop"))
        properties = {"comment": str(next(self._tables)), **SOME_HISTORY}

        def change(db: Database) -> int | None:
            if what == "rename":
                return int(db.rename_table(name, other)["csn"])
            if what == "drop":
                return db.drop_table(name)
            if what == "undrop":
                return int(db.undrop_table(name, to=random.choice((None, other)))["csn"])
            replaces = what == "replace"
            return int(db.create_table(name, SCHEMA, properties=properties, or_replace=replaces)["csn"])

        session.define(change, [[what, name, other]], expected=_ANSWERS)

    def _refill(self, session: Session) -> None:
        """Create a table with a row, in place of the one that has its name."""
        name = random.choice(NAMES)

        def attempt() -> Attempt:
            table, n = next(self._tables), next(self._numbers)

            def work(tx: Transaction) -> None:
                properties = {"comment": str(table), **SOME_HISTORY}
                tx.create_table(name, SCHEMA, properties=properties, or_replace=True)
                tx.insert(name, pa.table({"g": [table], "n": [n]}, schema=SCHEMA))

            return Attempt([["add", table, n]], work, f="add", expected=_ANSWERS)

        with suppress(*_ANSWERS):
            session.write(attempt)

    def _exchange(self, session: Session) -> None:
        """Exchange the names of two tables."""
        name, other = random.sample(NAMES, 2)

        def work(tx: Transaction) -> None:
            for before, after in ((name, _BETWEEN), (other, name), (_BETWEEN, other)):
                tx.rename_table(before, after)

        with suppress(*_ANSWERS):
            session.write(lambda: Attempt([["exchange", name, other]], work, f="define", expected=_ANSWERS))

    def _change_columns(self, session: Session) -> None:
        """Add a column with a default, drop one, let one be null, or widen one, which rewrites rows."""
        name, column = random.choice(NAMES), f"{COLUMN}{next(self._numbers)}"
        what = random.choice(("add", "add", "drop", "let null", "widen"))

        def change(db: Database) -> int | None:
            number = column.removeprefix(COLUMN)
            there = [one for one in db.table(name).columns if one.name.startswith(COLUMN)]
            if what == "add" or not there:
                return db.alter_table(name, add=f"{column} int not null default {number}").csn
            old = random.choice(there)
            if what == "widen" and old.type == "int":
                return db.alter_table(name, types={old.name: "bigint"}).csn
            if what == "drop" or old.nullable:
                return db.alter_table(name, drop=[old.name]).csn
            return db.alter_table(name, nullable=[old.name]).csn

        session.define(change, [[what, name, column]], expected=_ANSWERS_TO_ROWS)

    def _restore(self, session: Session) -> None:
        """Set a table back by some CSNs."""
        name, back = random.choice(NAMES), random.randint(1, _BACK)

        def attempt() -> Attempt:
            value: list[Operation] = [["restore", None, 0]]

            def work(tx: Transaction) -> None:
                to = max(1, tx.snapshot_csn - back)
                try:
                    # The note of an unknown outcome says as much as that of a known one.
                    value[:] = [["restore", int(tx.definition(name)["properties"]["comment"]), to]]
                    tx.restore_table(name, to)
                except UnknownTableError:
                    raise RolledBack from None

            return Attempt(value, work, f="restore", expected=_ANSWERS_TO_ROWS)

        with suppress(*_ANSWERS_TO_ROWS):
            session.write(attempt)

    def _insert(self, session: Session) -> None:
        name = random.choice(NAMES)

        def attempt() -> Attempt:
            n = next(self._numbers)

            def work(tx: Transaction) -> Found:
                try:
                    table = int(tx.definition(name)["properties"]["comment"])
                    tx.insert(name, pa.table({"g": [table], "n": [n]}, schema=SCHEMA))
                except UnknownTableError:
                    raise RolledBack from None
                return Found([["add", table, n]])

            return Attempt([["add", name, n]], work, f="add")

        session.write(attempt)

    def _read(self, session: Session, csn: int | None) -> int | None:
        return session.read(_VALUE, look, csn=csn, f="read")

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read all tables at each replica, and judge all reads."""
        self.read_everywhere(db, _VALUE, lambda _, snap: look(snap), "read")
        return judged(ended(lines(self.path)))


def look(snap: Snapshot) -> Found:
    """Return the tables of this workload, with all their rows."""
    there = []
    for row in snap.tables():
        name = row["name"].removeprefix("default.")
        if name in (*NAMES, _BETWEEN):
            rows = snap.read(name).to_pydict()
            there.append(_table(name, row["properties"]["comment"], rows))
    return Found([["r", "tables", sorted(there)]])


def _found_by_spark(tables: Mapping[str, tuple[str, list[str], list[list[Any]]]]) -> Found:
    there = []
    for name, (comment, columns, rows) in tables.items():
        values = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in columns]
        there.append(_table(name, comment, dict(zip(columns, values, strict=True))))
    return Found([["r", "tables", sorted(there)]])


def _table(name: str, comment: str, rows: Mapping[str, list[Any]]) -> list[Any]:
    """Return a table of a read by its comment and the values of its columns."""
    pairs = zip(rows["g"], rows["n"], strict=True)
    columns = [
        [column, sorted(set(rows[column]), key=str)] for column in sorted(rows) if column.startswith(COLUMN)
    ]
    return [name, int(comment), sorted(map(list, pairs)), columns]


def judged(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return what is wrong in a history."""
    reads: list[dict[str, Any]] = []
    undropped = 0
    added: dict[int, dict[int, int]] = defaultdict(dict)
    restored: list[_Restored] = []
    for line in all_lines:
        if line["f"] == "read" and line["type"] == "ok":
            reads.append(line)
        elif line["f"] == "define" and line["type"] in {"ok", "info"}:
            undropped += line["value"][0][0] == "undrop"
        elif line["f"] == "add" and line["type"] == "ok":
            for _, table, n in line["value"]:
                added[table][n] = line["csn"]
        elif line["f"] == "restore" and line["type"] in {"ok", "info"}:
            restored.append(_restored(line))
    found = [
        Violation(TableLives.name, rule, f"{story} at CSN {line['snapshot']} of {line.get('replica')} "
                  f"(operation {line['index']}).", line["time"])
        for line in reads
        for rule, story in _wrong(line["value"][0][2], line["snapshot"], added, restored)
    ]  # fmt: skip
    return [*found, *_disagreeing(reads), *_back_from_the_dead(reads, undropped)]


def _restored(line: dict[str, Any]) -> _Restored:
    _, table, to = line["value"][0]
    return table, to, math.inf if line["type"] == "info" else line.get("csn") or 0


def _wrong(
    there: Tables, csn: int, added: Mapping[int, Mapping[int, int]], restored: Sequence[_Restored]
) -> Iterable[tuple[str, str]]:
    if any(name == _BETWEEN for name, *_ in there):
        yield "no state in between", f"Expected no table {_BETWEEN}, found one"
    for name, tables in Counter(name for name, *_ in there).items():
        if tables > 1:
            yield "one table", f"Expected one table {name}, found {tables}"
    for table, names in Counter(table for _, table, *_ in there).items():
        if names > 1:
            yield "one name", f"Expected table {table} under one name, found {names}"
    for name, table, rows, columns in there:
        if strange := [n for of, n in rows if of != table]:
            yield "rows of their table", f"Expected rows of table {table} in {name}, found also {strange}"
        count = Counter(n for _, n in rows)
        if doubled := sorted(n for n, times in count.items() if times > 1):
            yield "each row once", f"Expected each row of table {table} once in {name}, found {doubled} twice"
        left = [(to, end) for of, to, end in restored if of == table]
        due = {
            n for n, at in added[table].items() if at <= csn and not any(to < at <= end for to, end in left)
        }
        if lost := sorted(due - count.keys()):
            yield "acknowledged rows", f"Expected rows {lost} of table {table} in {name}, found none of these"
        for column, values in columns:
            if values not in ([], [int(column.removeprefix(COLUMN))]):
                yield "defaults", f"Expected the default of {column} in each row of {name}, found {values}"


def _disagreeing(reads: Iterable[dict[str, Any]]) -> Iterable[Violation]:
    first_at: dict[int, dict[str, Any]] = {}
    for line in reads:
        first = first_at.setdefault(line["snapshot"], line)
        if first["value"] != line["value"]:
            story = (
                f"Expected {first['value']} as in operation {first['index']}, found {line['value']} at CSN "
                f"{line['snapshot']} of {line.get('replica')} (operation {line['index']})."
            )
            yield Violation(TableLives.name, "replicas agree", story, line["time"])


def _back_from_the_dead(reads: Iterable[dict[str, Any]], undropped: int) -> Iterable[Violation]:
    """Tell of tables that come back more often than somebody may have brought one back."""
    alive: set[int] = set()
    dead: dict[int, int] = {}
    for line in sorted(reads, key=lambda line: line["snapshot"]):
        now = {table for _, table, *_ in line["value"][0][2]}
        for table in sorted(now & dead.keys()):
            if undropped:
                undropped -= 1
                del dead[table]
                continue
            story = (
                f"Expected no table {table}, which was dropped at CSN {dead[table]} or before, found it at "
                f"CSN {line['snapshot']} of {line.get('replica')} (operation {line['index']})."
            )
            yield Violation(TableLives.name, "dropped for ever", story, line["time"])
        dead |= dict.fromkeys(alive - now, line["snapshot"])
        alive = now
