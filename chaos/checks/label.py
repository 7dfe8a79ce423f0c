"""A label that was committed once stays taken, whatever clocks said meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import pyarrow as pa

from chaos.checks.check import Check
from chaos.record.violation import Violation
from chaos.world import World
from tidelock.client import Database
from tidelock.errors import LabelExistsError

LABEL: Final = "once"
TABLE: Final = "once"
_ROWS: Final = pa.table({"job": [1]})


class Label(Check):
    """Runs a job that counts once before the load, and again behind it (I10)."""

    name: ClassVar[str] = "label"

    def __init__(self) -> None:
        self._csn: int | None = None

    def prepare(self, world: World) -> None:  # noqa: D102
        with world.cluster.connect() as db:
            db.create_table(TABLE, _ROWS.schema)
            self._csn = run(db)

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        with world.cluster.connect() as db:
            try:
                story = f"the label was free again: its job ran once more, at CSN {run(db)}"
            except LabelExistsError as error:
                if error.details.get("csn") in {self._csn, None} and db.read(TABLE).num_rows == 1:
                    return []
                story = f"{error}, and its first run was at CSN {self._csn}; {db.read(TABLE).num_rows} rows"
        return [Violation(self.name, "a label commits once", story)]


def run(db: Database) -> int | None:
    """Run the job; return its CSN."""
    with db.begin(label=LABEL) as tx:
        tx.insert(TABLE, _ROWS)
    return tx.csn
