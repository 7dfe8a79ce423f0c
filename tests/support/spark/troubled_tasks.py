"""Rows that the Python workers of Spark's tasks make, and faults that are injected into some of the attempts.

The driver and its workers load this module. The fault of an attempt depends only on its numbers, so a run can
be repeated. Every fault first leaves a mark: a file `<fault>-<task>-<attempt>`.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from tests.support.spark.rows import rows

#: Rows of a batch, and the number of batches that an attempt yields before its fault; a task has more
#: batches. Python sends the rows in pieces of 64 KiB, so files are begun by then.
_BATCH_ROWS: Final = 50
_GIVEN_BATCHES: Final = 3
#: While this file exists in the folder of marks, attempts are held.
HOLD: Final = "hold"
#: Longest time that an attempt is held, in seconds; it also ends if the test has died.
_HELD_S_MAX: Final = 120.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Trouble:
    """The faults in the attempts of a job, each in the middle of an attempt's files.

    Attributes:
        marks: Folder of the marks.
        held: Attempts wait while the file `hold` is in the folder of marks.
        failing_percent: Percentage of failing attempts; about half of these are killed, the others raise.
        seed: Seed of the choice of failing attempts.
        broken: Number of a task whose attempts all raise.
        slow: The first attempt of the first task waits until its second attempt is under way.
    """

    marks: str
    held: bool = False
    failing_percent: int = 0
    seed: int = 0
    broken: int | None = None
    slow: bool = False

    def meet(self, task: int, attempt: int) -> None:
        """Inject the planned faults into an attempt."""
        folder, name = Path(self.marks), f"{task}-{attempt}"
        if self.held:
            folder.joinpath(f"held-{name}").touch()
            hold = folder / HOLD
            _wait(lambda: not hold.exists(), f"held by {hold}")
        if self.slow and task == 0:
            folder.joinpath(f"{'twice' if attempt else 'slow'}-{name}").touch()
            _wait(lambda: any(folder.glob(f"twice-{task}-*")), "no second attempt began")
        if task == self.broken:
            folder.joinpath(f"broken-{name}").touch()
            raise RuntimeError(f"task {task} cannot succeed")
        chance = random.Random(f"{self.seed} {name}")
        if chance.uniform(0, 100) < self.failing_percent:
            killed = chance.random() < 0.5
            folder.joinpath(f"{'killed' if killed else 'raised'}-{name}").touch()
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(f"attempt {attempt} of task {task} fails")


def maker(trouble: dict[str, Any] | None) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` of a DataFrame of ids; `trouble` has the arguments of Trouble."""

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        planned = Trouble(**trouble) if trouble else None
        ids = [number for batch in batches for number in batch.column(0).to_pylist()]
        for given, first in enumerate(range(0, len(ids), _BATCH_ROWS)):
            if planned is not None and given == _GIVEN_BATCHES:
                planned.meet(context.partitionId(), context.attemptNumber())
            yield rows(ids[first : first + _BATCH_ROWS])

    return make


def passer(trouble: dict[str, Any] | None) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` that passes rows on and meets the faults behind its first batch."""

    def give(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and trouble is not None:
                Trouble(**trouble).meet(context.partitionId(), context.attemptNumber())

    return give


def _wait(over: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + _HELD_S_MAX
    while not over():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{why} for {_HELD_S_MAX:.0f} s")
        time.sleep(_POLL_S)
