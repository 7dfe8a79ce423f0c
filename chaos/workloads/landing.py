"""Rows that land: each acknowledged one is there once, when all is well again; none is there twice."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Session
from chaos.judging import presence
from chaos.record.history import ended, lines
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.spark.reading import reading
from chaos.workloads.set_full import PLAIN, SIZE, look, question, reads, some_set
from chaos.workloads.workload import Client, Workload
from tests.support.waiting import eventually
from tidelock.client import Database

TABLE: Final = "landed"
_LANDERS, _PAUSE_S, _READ_PAUSE_S = 3, 0.6, 3.0


class Landing(Workload):
    """Clients that land rows, and readers."""

    name: ClassVar[str] = "landing"
    promise: ClassVar[str] = "Every row that has landed becomes visible once, also if its home dies."

    def prepare(self, db: Database) -> None:
        """Create the landing table."""
        self._elements = itertools.count()
        self._newest = 0
        self._acknowledged: set[int] = set()
        self.create(db, TABLE, PLAIN, properties={"landing": "on"})

    def clients(self) -> Sequence[Client]:
        """Return landers, and readers of all kinds."""
        landers = [self.acting(self._land, _PAUSE_S) for _ in range(_LANDERS)]
        return [*landers, *self.readers(self._read, _READ_PAUSE_S)]

    def _land(self, session: Session) -> None:
        element = next(self._elements)
        number = self._newest = element // SIZE
        row = pa.table({"s": [number], "e": [element]}, schema=PLAIN)
        if session.land(TABLE, row, [["add", f"{TABLE}/{number}", element]]):
            self._acknowledged.add(element)

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return reads of one set of landed rows."""
        return reading(self, lambda: question(TABLE, some_set(self._newest)))

    def _read(self, session: Session, csn: int | None) -> int | None:
        number = some_set(self._newest)
        return session.read(reads(TABLE, [number]), partial(look, TABLE, [number]), csn=csn, f="read")

    def judge(self, db: Database) -> Sequence[Violation]:
        """Wait until what has landed is visible, read it at each replica, and judge."""
        with contextlib.suppress(AssertionError):  # then the judge says what is missing
            eventually(
                lambda: self._acknowledged <= set(db.read(TABLE, ["e"])["e"].to_pylist()), what="landed rows"
            )
        numbers = range(self._newest + 1)
        self.read_everywhere(db, reads(TABLE, numbers), lambda _, snap: look(TABLE, numbers, snap), "read")
        return presence.judged(self.name, ended(lines(self.path)))
