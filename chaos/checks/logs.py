"""No replica has logged what must never happen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from chaos.checks.check import Check
from chaos.journal import load
from chaos.violation import Violation
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
        members = {line["replica"] for line in load(world.journal.path) if line["what"] == "csn"}
        for replica in sorted(members):
            text = world.cluster.node(replica).log()
            found += [
                Violation(self.name, "I15: no unforeseen error", f"{replica}: {one}")
                for one in unforeseen(text.splitlines())[:SHOWN]
            ]
        return found


def unforeseen(lines: Iterable[str]) -> list[str]:
    """Return the lines of a log that tell of what must not happen. Pure."""
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
        if event.get("event") in BROKEN or "exception" in event or event.get("level") == "critical":
            found.append(line)
    return found
