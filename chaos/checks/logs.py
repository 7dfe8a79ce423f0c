"""No replica has logged what must never happen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from chaos import faults
from chaos.checks.check import Check
from chaos.faults.fault import Fault
from chaos.reading.bands import Band, bands
from chaos.record.journal import load
from chaos.record.violation import Violation
from chaos.world import World

#: Events that say that an agent met what nobody has foreseen, besides those with a traceback.
BROKEN: Final = frozenset({"machine_broken", "request_failed", "write_failed", "catalog_ended"})
#: Lines that tell of the same are shown so often.
SHOWN: Final = 5


class Logs(Check):
    """The logs hold no traceback, no broken invariant and no unforeseen error (I15)."""

    name: ClassVar[str] = "logs"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        found: list[Violation] = []
        lines = list(load(world.journal.path))
        members = {line["replica"] for line in lines if line["what"] == "csn"}
        hurt = disks_hurt(bands(lines), faults.ALL)
        for replica in sorted(members):
            text = world.cluster.node(replica).log()
            found += [
                Violation(self.name, "I15: no unforeseen error", f"{replica}: {one}")
                for one in unforeseen(text.splitlines(), disk_hurt=replica in hurt)[:SHOWN]
            ]
        return found


def disks_hurt(moments: Iterable[Band], kinds: Iterable[type[Fault]]) -> set[str]:
    """Return the replicas whose disk was lost, damaged, full or failing: they may stop for it. Pure."""
    of_disks = {kind.kind for kind in kinds if kind.loses_disk or kind.hurts_disk}
    return {target for band in moments if band.kind in of_disks for target in band.targets}


def unforeseen(lines: Iterable[str], *, disk_hurt: bool = False) -> list[str]:
    """Return the lines of a log that tell of what must not happen. Pure.

    Args:
        lines: The log.
        disk_hurt: Whether the replica's disk was harmed: then it is right to stop.
    """
    found = []
    for line in lines:
        if not line.startswith("{"):
            if line.startswith("Traceback"):
                found.append(line)  # of a process that could not even log
            continue
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # the process was killed while it wrote
        if disk_hurt and event.get("event") == "stopped":
            continue
        if event.get("event") in BROKEN or "exception" in event or event.get("level") == "critical":
            found.append(line)
    return found
