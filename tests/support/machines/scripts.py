"""Scripts that tests follow: each line is an event and, behind the arrow, all that must follow from it.

`t1` is a tid, `p1` a part, `m1` a manifest, `r2` a replica, `d2` its disk, a bare number a CSN.
"""

from __future__ import annotations

from collections.abc import Callable

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


def follow(script: str, step: Callable[[str, list[str]], str]) -> None:
    """Check every line of a script; `step` takes a command and its words and returns what followed."""
    for line in script.strip().splitlines():
        event, _, expected = (piece.strip() for piece in line.partition("->"))
        words = event.split()
        assert step(words[0], words[1:]) == expected, line
