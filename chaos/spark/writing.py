"""Jobs of Spark that write under a label, run again by any session until they are known to be done."""

from __future__ import annotations

import itertools
import threading
from functools import partial

from chaos.clients.session import Found, Session
from chaos.record.history import History, Process
from chaos.spark.bearing import require_bearable
from chaos.spark.job import SparkEndedError, SparkJobError, SparkSession
from chaos.world import World
from tidelock.client import Snapshot


class LabelledJobs:
    """Jobs that add one row each to a table; each is one operation, however often it is run.

    Args:
        world: The run.
        workload: The name of the workload.
        table: The table, with the columns ``job`` and ``stamp``.
        history: The history of the jobs.
    """

    def __init__(self, world: World, workload: str, table: str, history: History) -> None:
        self._world, self._workload, self._table, self._history = world, workload, table, history
        self._numbers = itertools.count(1)
        self._stamps = itertools.count(1)
        self._lock = threading.Lock()
        #: Jobs that were begun, and that nobody knows to be done.
        self._open: list[tuple[int, Process, int]] = []

    def run(self, session: SparkSession) -> None:
        """Run a job that is still open, or a new one."""
        with self._lock:
            number, process, began_ns = self._open.pop(0) if self._open else self._begun()
        value = [["add", self._table, number]]
        note = partial(
            self._world.journal.note,
            "call",
            workload=self._workload,
            process=process.number,
            f="write",
            began_ns=began_ns,
            spark=session.number,
        )
        try:
            csn = session.call(
                "save",
                table=self._table,
                number=number,
                stamp=next(self._stamps),
                label=f"{self._workload} spark job {number}",
                source=number % 2 == 0,
            )
        except (SparkJobError, SparkEndedError) as error:
            with self._lock:
                self._open.append((number, process, began_ns))
            note(end="fail", error=type(error).__name__, message=str(error)[:1000])
            require_bearable(error)
            raise
        process.ok(value, csn=csn, session=session.number)
        note(end="ok", csn=csn)

    def _begun(self) -> tuple[int, Process, int]:
        number = next(self._numbers)
        process = self._history.process()
        return number, process, process.invoke([["add", self._table, number]], "add")

    def finish(self, session: SparkSession) -> None:
        """Run the jobs that are still open."""
        while self._open:
            self.run(session)

    def read(self, replica: str, csn: int) -> None:
        """Read the table at a replica, when all is well."""
        session = Session(self._world, self._workload, self._history, replica=replica)
        session.must_read([["r", self._table, None]], self._look, csn=csn, f="read")
        session.close()

    def _look(self, snap: Snapshot) -> Found:
        return Found([["r", self._table, sorted(snap.read(self._table, ["job"])["job"].to_pylist())]])
