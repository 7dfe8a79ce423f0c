"""The things that workloads, faults and checks of one run have in common."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from pathlib import Path

from chaos.record.journal import Journal
from chaos.spark.driver import Driver
from tidelock.testing import Cluster


@dataclass(frozen=True)
class World:
    """One run.

    Attributes:
        cluster: The cluster, which runs.
        folder: The folder of the run: the histories, the journal, the logs, the report.
        journal: The journal of the run.
        seed: The seed of the run.
        copies: Durable copies of a commit: as many replicas must stay well.
        stall_max_s: Longest time without an acknowledged commit while enough is well, in seconds.
        stopping: Set when clients have to end.
        drivers: The sessions of Spark that run, by their names.
    """

    cluster: Cluster
    folder: Path
    journal: Journal
    seed: int
    copies: int
    stall_max_s: float = 15.0
    stopping: threading.Event = field(default_factory=threading.Event)
    drivers: dict[str, Driver] = field(default_factory=dict)

    def chosen(self, name: str) -> random.Random:
        """Return a source of choices that depends on the seed and a name alone, not on the order of calls."""
        return random.Random(f"{self.seed}/{name}")

    def history(self, workload: str) -> Path:
        """Return the file of a workload's history."""
        return self.folder / "histories" / f"{workload}.jsonl"
