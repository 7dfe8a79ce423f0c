"""Nothing is left on any disk that no commit needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from chaos.checks.check import Check
from chaos.record.violation import Violation
from chaos.watching.waiting import comes_true
from chaos.world import World
from tests.support.histories.evidence import leftovers

#: How long replicas may need to clear away, in seconds: leases run out, undecided transactions are decided.
_CLEARED_S: Final = 120.0


class Leftovers(Check):
    """Every replica holds what the log needs and nothing else (I13)."""

    name: ClassVar[str] = "leftovers"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        found: list[Violation] = []
        for replica in world.cluster.replicas:
            found += _left(replica, world.cluster.node(replica).data_dir)
        return found


def _left(replica: str, folder: Path) -> list[Violation]:
    """Wait until a replica has cleared away; return what is left then."""
    left: list[str] = []

    def cleared() -> bool:
        left[:] = leftovers(folder)
        return not left

    if comes_true(cleared, _CLEARED_S):
        return []
    return [Violation(Leftovers.name, "I13 NOLEAK", f"{replica}: {one}") for one in left]
