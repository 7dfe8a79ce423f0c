"""What a workload is: tables, clients that use them as users do, and a judge of what they were told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from chaos.violation import Violation
from chaos.world import World
from tidelock.client import Database


class Client(ABC):
    """One client of a workload. A thread calls `step` until the run ends."""

    @abstractmethod
    def step(self) -> None:
        """Do one thing, and write it into the history and the journal.

        What a user may have to bear is caught and written down. Any other error ends the run as a violation.
        """

    def close(self) -> None:
        """Give back what it holds; called when it steps no more."""


class Workload(ABC):
    """One workload in one run.

    Args:
        world: The run.
    """

    #: Its name: of its tables, its history, and on the command line.
    name: ClassVar[str]
    #: One sentence: what it does, and what would be wrong.
    promise: ClassVar[str]
    #: Settings that agents need for it, by their names.
    settings: ClassVar[dict[str, object]] = {}
    #: Whether it needs Spark.
    spark: ClassVar[bool] = False

    def __init__(self, world: World) -> None:
        self.world = world

    @abstractmethod
    def prepare(self, db: Database) -> None:
        """Create its tables on a cluster that is well."""

    @abstractmethod
    def clients(self) -> Sequence[Client]:
        """Return its clients, writers and readers; each runs in a thread of its own."""

    @abstractmethod
    def judge(self, db: Database) -> Sequence[Violation]:
        """Read the final state, and judge the history; called once, when all is healed and clients ended."""
