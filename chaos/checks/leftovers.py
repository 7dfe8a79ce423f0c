"""Nothing is left on any disk that no commit needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from chaos.checks.check import Check
from chaos.faults.waiting import comes_true
from chaos.violation import Violation
from chaos.world import World
from tests.support.histories.evidence import leftovers

#: How long replicas may need to clear away, in seconds: leases run out, undecided transactions are decided.
_CLEARED_S: Final = 120.0


class Leftovers(Check):
    """Every replica holds what the log needs and nothing else (I13)."""

    name: ClassVar[str] = "leftovers"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        found = []
        for replica in world.cluster.replicas:
            folder = world.cluster.node(replica).data_dir
            left: list[str] = []

            def cleared(folder=folder, left=left) -> bool:  # type: ignore[no-untyped-def]
                left[:] = leftovers(folder)
                return not left

            if not comes_true(cleared, _CLEARED_S):
                found += [Violation(self.name, "I13 CLEAN", f"{replica}: {one}") for one in left]
        return found
