"""Rows that are made in the Python workers of Spark's tasks, and what goes wrong in some of the attempts.

Loaded by the driver and by its workers. What happens to an attempt follows from its numbers alone, so a run
can be repeated. Whatever happens leaves a mark first: a file `<what>-<task>-<attempt>`.
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

#: Rows of a batch; a task has more than the batches that its attempts have given when something happens to
#: them. Python sends what it has given in pieces of 64 KiB, so that by then files are begun.
_BATCH_ROWS: Final = 50
_GIVEN_BATCHES: Final = 3
#: The file in the folder of marks while which is there attempts are held.
HOLD: Final = "hold"
#: A test that has died does not hold an attempt for ever.
_HELD_S_MAX: Final = 120.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong in the attempts of a job, each in the middle of its files.

    Attributes:
        marks: A folder.
        held: Attempts wait while there is a file `hold` among the marks.
        failing_percent: Of all attempts; about half of these are killed, the others raise.
        seed: Decides which these are.
        broken: A task whose attempts all raise.
        slow_s: How long the first attempt of every third task takes; of a second one there is a mark.
    """

    marks: str
    held: bool = False
    failing_percent: int = 0
    seed: int = 0
    broken: int | None = None
    slow_s: float = 0.0

    def meet(self, task: int, attempt: int) -> None:
        """Do to an attempt what is planned for it."""
        folder, name = Path(self.marks), f"{task}-{attempt}"
        if self.held:
            folder.joinpath(f"held-{name}").touch()
            _wait(folder / HOLD)
        if self.slow_s and task % 3 == 0:
            folder.joinpath(f"{'twice' if attempt else 'slow'}-{name}").touch()
            time.sleep(0 if attempt else self.slow_s)
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
    """Return a function for `mapInArrow` of a DataFrame of ids; `trouble` are arguments of Trouble."""

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


def _wait(hold: Path) -> None:
    deadline = time.monotonic() + _HELD_S_MAX
    while hold.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"held for {_HELD_S_MAX:.0f} s by {hold}")
        time.sleep(_POLL_S)
