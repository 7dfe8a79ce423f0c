"""No replica showed other rows than the others, unless its bytes were damaged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from chaos import faults
from chaos.checks.check import Check
from chaos.faults.fault import Fault
from chaos.reading.bands import Band, bands
from chaos.record.journal import load
from chaos.record.violation import Violation
from chaos.world import World


class Outvoted(Check):
    """The replicas compare digests of what they show; all agree (I6)."""

    name: ClassVar[str] = "digests"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        lines = list(load(world.journal.path))
        damaged = flipped(bands(lines), faults.ALL)
        found: list[Violation] = []
        for replica in sorted({line["replica"] for line in lines if line["what"] == "csn"}):
            text = world.cluster.node(replica).log()
            found += disagreements(replica, text.splitlines(), damaged)
        return found


def flipped(moments: Iterable[Band], kinds: Iterable[type[Fault]]) -> set[str]:
    """Return the replicas of whose files bytes have become others. Pure."""
    flipping = {kind.kind for kind in kinds if kind.flips_bits}
    return {target for band in moments if band.kind in flipping for target in band.targets}


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
