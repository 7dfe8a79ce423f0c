"""All replicas came back in a bounded time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from chaos.checks.check import Check
from chaos.record.journal import load
from chaos.record.violation import Violation
from chaos.world import World


class Convergence(Check):
    """Behind the heal every replica serves and reaches the end of the log within the bound (I14)."""

    name: ClassVar[str] = "convergence"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        return lacking(load(world.journal.path))


def lacking(lines: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Return what the last line `converged` of a journal says; one is missing if nobody waited. Pure."""
    ends = [line for line in lines if line["what"] == "converged"]
    if not ends:
        return [Violation(Convergence.name, "I14 LIVE", "nobody has waited until all replicas were well")]
    last = ends[-1]
    if not last.get("lacking"):
        return []
    told = "\n".join(f"{replica} {what}" for replica, what in sorted(last["lacking"].items()))
    return [
        Violation(Convergence.name, "I14 LIVE", f"{last['seconds']} s after the heal:\n{told}", last["ns"])
    ]
