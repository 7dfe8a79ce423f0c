"""Consumers that go on from the progress of a label: what they have read is there once, without a gap.

The source is the integers from 0 on. Each consumer asks how far the last batch has come, and writes the next
integers in a batch of its own, which keeps how far it has come. Two that begin at the same place want the
same number of a batch, so one of them is refused.
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
from tidelock.errors import LabelExistsError, TidelockError

TABLE: Final = "offsets"
LABEL: Final = "offsets consumer"
SCHEMA: Final = pa.schema([pa.field("n", pa.int64(), nullable=False)])
_SQL: Final = (
    f"select min(n) as low, max(n) as high, count(*) as rows, count(distinct n) as different from {TABLE}"
)
_VALUE: Final[list[Operation]] = [["r", TABLE, None]]
_CONSUMERS, _PAUSE_S, _READ_PAUSE_S = 3, 1.0, 3.0
#: Integers of one batch at most; one that has none keeps progress alone.
_AT_ONCE: Final = 5


class Offsets(Workload):
    """Consumers of one stream, and readers."""

    name: ClassVar[str] = "offsets"
    promise: ClassVar[str] = (
        "Consumers that go on from the progress of their label take effect once, in the order of the source."
    )

    def prepare(self, db: Database) -> None:
        """Create the table."""
        self.create(db, TABLE, SCHEMA, properties=SOME_HISTORY)

    def clients(self) -> Sequence[Client]:
        """Return consumers, and readers of all kinds."""
        consumers = [self.acting(self._consume, _PAUSE_S) for _ in range(_CONSUMERS)]
        return [*consumers, *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of the whole table."""
        question = Question(_VALUE, {TABLE: _SQL}, lambda rows: Found([["r", TABLE, rows[TABLE][0]]]))
        return reading(self, lambda: question)

    def _consume(self, session: Session) -> None:
        """Write what follows the progress; without an answer it writes nothing."""
        try:
            status = session.database.label(LABEL)
        except TidelockError:
            return
        batch, begin = (0, 0) if status is None else (status.batch or 0, int(status.progress or ""))
        end = begin + random.randint(0, _AT_ONCE)
        rows = pa.table({"n": pa.array(range(begin, end), pa.int64())}, SCHEMA)

        def work(tx: Transaction) -> None:
            if rows.num_rows:
                tx.insert(TABLE, rows)

        named = {"label": LABEL, "batch": batch + 1, "progress": str(end)}
        value: list[Operation] = [["consume", batch + 1, [begin, end]]]
        with suppress(LabelExistsError):
            session.write(
                lambda: Attempt(value, work, named, f="consume", expected=(LabelExistsError,)), tries=3
            )

    def _read(self, session: Session, csn: int | None) -> int | None:
        return session.read(_VALUE, look, csn=csn, f="read")

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read the table at each replica, ask for the progress, and judge all reads."""
        end = self.read_everywhere(db, _VALUE, lambda _, snap: look(snap), "read")
        status = db.label(LABEL)
        return judged(ended(lines(self.path)), end, 0 if status is None else int(status.progress or ""))


def look(snap: Snapshot) -> Found:
    """Return the smallest and the largest integer, how many there are, and how many different ones."""
    [row] = snap.sql(_SQL).to_pylist()
    return Found([["r", TABLE, [row["low"], row["high"], row["rows"], row["different"]]]])


def judged(all_lines: Iterable[dict[str, Any]], end: int, progress: int) -> list[Violation]:
    """Return the reads that have found a gap or an integer twice, or at the end another number of them.

    Args:
        all_lines: The operations.
        end: The CSN of the last reads.
        progress: How far the newest batch had come then.
    """
    found = []
    for line in all_lines:
        if line["f"] != "read" or line["type"] != "ok":
            continue
        low, high, rows, different = line["value"][0][2]
        whole = (low, high, different) == ((0, rows - 1, rows) if rows else (None, None, 0))
        missing = line["snapshot"] == end and rows != progress
        if not whole or missing:
            story = (
                f"Expected the integers from 0 on, each once, at CSN {line['snapshot']} of "
                f"{line.get('replica')}, found {rows} rows with {different} integers from {low} to {high} "
                f"(operation {line['index']})."
            )
            story += f" The progress was {progress} at the end." if missing else ""
            found.append(Violation(Offsets.name, "each once, without a gap", story, line["time"]))
    return found
