"""The interface of a check: a judge of a whole run, when all is healed and all clients have ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from chaos.record.violation import Violation
from chaos.world import World


class Check(ABC):
    """One kind of judgement over a run. What concerns one workload alone is in its `judge`."""

    #: Its name, in reports.
    name: ClassVar[str]

    def prepare(self, world: World) -> None:  # noqa: B027 - most checks need nothing
        """Do what it needs to be done before the load, on a cluster that is well."""

    @abstractmethod
    def judge(self, world: World) -> Sequence[Violation]:
        """Return what is wrong; the journal is whole but for what checks write."""
