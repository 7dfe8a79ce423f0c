"""A run of the workload `pairs` meets what that workload is for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from chaos.checks.check import Check
from chaos.record.journal import load
from chaos.record.violation import Violation
from chaos.workloads.pairs import MET, Pairs
from chaos.world import World


class Quiet(Check):
    """Parts were merged and collected under the load; else its reads show nothing of both."""

    name: ClassVar[str] = "quiet"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        return unmet(load(world.journal.path))


def unmet(lines: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Return what clients of `pairs` have not met, if there were any. Pure."""
    there, met = False, set[str]()
    for line in lines:
        if line.get("workload") != Pairs.name:
            continue
        there = there or line["what"] == "call"
        if line["what"] == "met":
            met.add(line["met"])
    return [
        Violation(Quiet.name, "the load meets merges and collections", f"Expected {one}, found none.")
        for one in sorted(MET - met)
        if there
    ]
