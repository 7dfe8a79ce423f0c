"""Pairs: +n in one table and -n in another, in one transaction, while compaction and collection are quick.

After ClickHouse's 01174: pairs are inserted and deleted by transactions, parts are merged and old ones thrown
away all the time, and whoever looks sees the whole of each pair or nothing of it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos import presence
from chaos.history import Operation, ended, lines
from chaos.session import Attempt, Found, Session
from chaos.spark.job import SparkJob
from chaos.spark.reading import query_job
from chaos.violation import Violation
from chaos.workloads.workload import Client, Workload
from tidelock.client import Database, Snapshot, Transaction
from tidelock.errors import BadRequestError

PLUS, MINUS = "pairs_plus", "pairs_minus"
SCHEMA: Final = pa.schema([("n", pa.int64())])
SQL: Final = f"select n from {PLUS} union all select n from {MINUS}"
_VALUE: Final[list[Operation]] = [["r", PLUS, None], ["r", MINUS, None]]
_WRITERS, _WRITE_PAUSE_S, _READ_PAUSE_S = 3, 0.7, 1.0
#: Pairs that stay; the oldest beyond them are deleted.
_KEPT: Final = 60
#: Share of the inserts that end with a rollback, and of the steps that ask for a merge of a table.
_ROLLBACKS, _MERGES = 0.1, 0.05


class _RollbackError(Exception):
    """This transaction is to be rolled back."""


class Pairs(Workload):
    """Inserts, deletes and reads of pairs."""

    name: ClassVar[str] = "pairs"
    promise: ClassVar[str] = "The sum over both tables is 0 at every CSN, while parts are merged and collected."
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
        for table in (PLUS, MINUS):
            self.create(db, table, SCHEMA)

    def clients(self) -> Sequence[Client]:
        """Return writers, and readers of all kinds."""
        writers = [self.acting(self._change, _WRITE_PAUSE_S) for _ in range(_WRITERS)]
        return [*writers, *self.readers(self._read, _READ_PAUSE_S)]

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of both tables at one CSN."""
        return [
            query_job(self, f"pairs, {way}", _VALUE, {PLUS: SQL_OF[PLUS], MINUS: SQL_OF[MINUS]}, found, way=way)
            for way in ("default", "pinned", "failover")
        ]

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

    def _merge(self, session: Session) -> None:
        session.ask(lambda db: db.optimize(random.choice([PLUS, MINUS]), timeout_s=1))

    def _read(self, session: Session, csn: int | None) -> int | None:
        return session.read(_VALUE, look, csn=csn, f="read")

    def judge(self, db: Database) -> Sequence[Violation]:
        """Read both tables at each replica, and judge."""
        self.read_everywhere(db, _VALUE, lambda _, snap: look(snap), "read")
        all_lines = list(ended(lines(self.path)))
        return [*unpaired(all_lines), *presence.judged(self.name, all_lines)]
