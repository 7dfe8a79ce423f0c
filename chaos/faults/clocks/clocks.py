"""The wall clock of a replica, as the other replicas see it."""

from __future__ import annotations

from typing import Final

from chaos.watching.seeing import others, status
from chaos.world import World

#: Seconds by which a clock that is seen over the network may seem off, on a busy machine.
DOUBT_S: Final = 3.0


def ahead(world: World, replica: str) -> float | None:
    """Return how far a clock is ahead, in seconds, as the first other replica that answers has heard."""
    for other in others(world, replica):
        clock = (status(world, other) or {}).get("clock") or {}
        if (found := clock.get("ahead_s", {}).get(replica)) is not None:
            return -float(found)  # an agent says how far it is ahead itself
    return None


def right(found_s: float, wanted_s: float) -> bool:
    """Return whether a clock shows what it was put to."""
    return abs(found_s - wanted_s) <= DOUBT_S
