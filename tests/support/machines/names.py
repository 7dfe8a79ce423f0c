"""Short names in stories: `t1` is a tid, `p1` a part, `m1` a manifest."""

from __future__ import annotations

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, Tid

HOME = ReplicaId("r1")


def tid(name: str) -> Tid:
    """Return transaction `t<n>`."""
    return Tid(Csn(1), HOME, 1, int(name[1:]))


def part(name: str) -> PartId:
    """Return the id of part `p<n>` or manifest `m<n>`."""
    return PartId(f"r1-{1 if name[0] == 'p' else 2}-{name[1:]}")


def short(text: str) -> str:
    """Return the script's name of a tid or part."""
    kind, number = text.split("-")[1:3] if text[0] == "r" else ("t", text.rsplit("-", 1)[1])
    return {"1": "p", "2": "m"}.get(kind, "t") + number
