"""No replica showed other rows than the others, unless its bytes were damaged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from chaos.bands import bands
from chaos.checks.check import Check
from chaos.journal import load
from chaos.violation import Violation
from chaos.world import World


class Outvoted(Check):
    """The replicas compare digests of what they show; all agree (I6)."""

    name: ClassVar[str] = "digests"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        lines = list(load(world.journal.path))
        damaged = {target for band in bands(lines) if "flip" in band.kind for target in band.targets}
        found: list[Violation] = []
        for replica in sorted({line["replica"] for line in lines if line["what"] == "csn"}):
            text = world.cluster.node(replica).log()
            found += disagreements(replica, text.splitlines(), damaged)
        return found


def disagreements(replica: str, lines: Iterable[str], damaged: Iterable[str]) -> list[Violation]:
    """Return the disagreements that a replica has logged, those with damaged replicas left out. Pure."""
    spared = {*damaged}
    found = []
    for line in lines:
        if "states_disagree" not in line or not line.startswith("{"):
            continue
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if event.get("event") != "states_disagree" or spared & {replica, *event.get("others", ())}:
            continue
        found.append(Violation(Outvoted.name, "I6 SNAPSHOT: replicas show the same", f"{replica}: {line}"))
    return found
