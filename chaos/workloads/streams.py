"""A streaming query of Spark that follows a table, and writes each batch into three tables by foreachBatch.

The query is run again and again up to what its source has then (`availableNow`), by whichever session has
time, and its driver is killed now and then. Every row comes into each of the three tables once.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Attempt, Found, Session
from chaos.record.history import Operation, ended, lines
from chaos.record.violation import Violation
from chaos.spark.bearing import require_bearable
from chaos.spark.job import SparkEndedError, SparkJob, SparkJobError, SparkSession
from chaos.spark.reading import Question, reading
from chaos.workloads.workload import SOME_HISTORY, Client, Workload
from tidelock.client import Database, Snapshot, Transaction

SOURCE: Final = "stream_source"
TARGETS: Final = ("stream_a", "stream_b", "stream_c")
SCHEMA: Final = pa.schema([("n", pa.int64())])
_ALL: Final = (SOURCE, *TARGETS)
_VALUE: Final[list[Operation]] = [["r", table, None] for table in _ALL]
#: Of each table: its rows, how many different ones, their sum, and those that the source does not have.
_SQL: Final = " union all ".join(
    f"select '{table}' as t, count(*) as rows, count(distinct n) as different, "
    f"cast(coalesce(sum(n), 0) as bigint) as total, "
    f"(select count(*) from {table} as x left anti join {SOURCE} as y on x.n = y.n) as strange from {table}"
    for table in _ALL
)
_WRITE_PAUSE_S, _READ_PAUSE_S = 2.0, 3.0


class Streams(Workload):
    """A source that grows, a query that follows it, and reads of all four tables."""

    name: ClassVar[str] = "streams"
    promise: ClassVar[str] = "Each row of the source comes into three tables once, in one transaction."
    spark: ClassVar[bool] = True

    def prepare(self, db: Database) -> None:
        """Create the source and the targets."""
        self._numbers = itertools.count(1)
        self._running = threading.Lock()
        # The query may be away for as long as it is run in vain.
        self.create(db, SOURCE, SCHEMA, properties={"retention_s": "86400"})
        for table in TARGETS:
            self.create(db, table, SCHEMA, properties=SOME_HISTORY)

    def clients(self) -> Sequence[Client]:
        """Return a writer of the source, and readers of all kinds."""
        return [self.acting(self._insert, _WRITE_PAUSE_S), *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return the query, and reads of all four tables at one CSN."""
        question = Question(_VALUE, {"sums": _SQL}, lambda rows: _found(rows["sums"]), tables=_ALL)
        return [SparkJob("streams, the query", self._follow), *reading(self, lambda: question)]

    def last_spark_jobs(self) -> Sequence[SparkJob]:
        """Return the query, up to the end of its source."""
        return [SparkJob("streams, the query to its end", self._follow)]

    def _insert(self, session: Session) -> None:
        count = random.randint(1, 4)

        def attempt() -> Attempt:
            numbers = [next(self._numbers) for _ in range(count)]

            def work(tx: Transaction) -> None:
                tx.insert(SOURCE, pa.table({"n": numbers}, schema=SCHEMA))

            return Attempt([["insert", SOURCE, n] for n in numbers], work, f="insert")

        session.write(attempt)

    def _follow(self, session: SparkSession) -> None:
        if not self._running.acquire(blocking=False):
            return  # another session runs it: two at once share a checkpoint, which Spark does not allow
        note = self.world.journal.note
        began_ns = note("note", text=f"Spark session {session.number} runs the query of {self.name}")
        call: dict[str, Any] = {"workload": self.name, "f": "stream", "began_ns": began_ns}
        # Each session works in a folder of its own: from a relative path it would begin the query again.
        checkpoint = str((self.world.folder / "checkpoint").absolute())
        try:
            rows = session.call("stream", source=SOURCE, targets=list(TARGETS), checkpoint=checkpoint)
        except (SparkJobError, SparkEndedError) as error:
            note("call", **call, end="fail", error=type(error).__name__, message=str(error)[:1000])
            require_bearable(error)
            raise
        finally:
            self._running.release()
        note("call", **call, end="ok", rows=rows, spark=session.number)

    def _read(self, session: Session, csn: int | None) -> int | None:
        return session.read(_VALUE, look, csn=csn, f="read")

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read all tables at each replica, and judge; the query has come to the end of its source."""
        self.read_everywhere(db, _VALUE, lambda _, snap: look(snap), "read")
        return torn(ended(lines(self.path)))


def look(snap: Snapshot) -> Found:
    """Return the sums of all four tables."""
    sql = _SQL.replace("left anti join", "anti join")
    return _found([list(row.values()) for row in snap.sql(sql).to_pylist()])


def _found(sums: Sequence[Sequence[Any]]) -> Found:
    of = {table: [int(number) for number in numbers] for table, *numbers in sums}
    return Found([["r", table, of[table]] for table in _ALL])


def torn(all_lines: Iterable[dict[str, Any]]) -> list[Violation]:
    """Return the reads in which the targets differ, have a row twice, or have one that the source has not.

    Of the last reads also those in which the targets are not the source, and those of the source that lack
    what was acknowledged, or have what nobody has inserted.
    """
    known: list[tuple[int, int]] = []
    doubtful = 0
    found = []
    reads = []
    for line in all_lines:
        if line["f"] == "read":
            reads += [line] if line["type"] == "ok" else []
        elif line["type"] == "ok":
            known.append((line["csn"], len(line["value"])))
        elif line["type"] == "info":
            doubtful += len(line["value"])
    for line in reads:
        sums = {table: numbers for _, table, numbers in line["value"]}
        source, targets = sums[SOURCE], [sums[table] for table in TARGETS]
        least = sum(count for csn, count in known if csn <= line["snapshot"])
        wrong = [
            *(["the targets differ"] if any(one != targets[0] for one in targets) else []),
            *(
                ["a row is there twice"]
                if any(rows != different for rows, different, _, _ in sums.values())
                else []
            ),
            *(["a target has a row that the source has not"] if any(one[3] for one in targets) else []),
            *(["the targets are not the source"] if line.get("last") and targets[0] != source else []),
            *(
                [f"the source has not {least} to {least + doubtful} rows"]
                if not least <= source[0] <= least + doubtful
                else []
            ),
        ]
        if wrong:
            story = (
                f"Expected each row once in all of {', '.join(TARGETS)} at CSN {line['snapshot']} of "
                f"{line.get('replica')} (operation {line['index']}), found that {', and '.join(wrong)}: "
                f"rows, different ones, sum, and rows without a source {sums}."
            )
            found.append(Violation(Streams.name, "exactly once", story, line["time"]))
    return found
