"""Cuts in the network of a cluster, and the packets that they have dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from chaos.faults.signs import Look
from chaos.watching.seeing import answering, silent, status, views
from chaos.world import World
from tidelock.testing import CLIENTS


class Dropped:
    """Counts the packets that the cuts of some nodes drop from now on.

    A packet is counted at the node that should have received it, so both sides of a cut are named.

    Args:
        world: The run.
        nodes: The names of the nodes; `CLIENTS` count nothing.
    """

    def __init__(self, world: World, nodes: Sequence[str]) -> None:
        self._world = world
        self._nodes = [name for name in nodes if name != CLIENTS]
        self._before = self._count()

    def look(self) -> str | None:
        """Return how many packets were dropped; None if none was."""
        count = self._count() - self._before
        return f"{count} packets dropped" if count > 0 else None

    def _count(self) -> int:
        return sum(self._world.cluster.network.dropped(name) for name in self._nodes)


@contextlib.contextmanager
def cut(world: World, pairs: Sequence[tuple[str, str]], *, one_way: bool = False) -> Iterator[None]:
    """Drop the packets between the two of each pair inside the block.

    Args:
        world: The run.
        pairs: Names of nodes, or `CLIENTS`.
        one_way: Only what the first one sends to the second one is dropped.
    """
    network = world.cluster.network
    try:
        for a, b in pairs:
            network.cut(a, b, one_way=one_way)
        yield
    finally:
        for a, b in pairs:
            network.join(a, b)


def without(world: World, replica: str, peers: Sequence[str]) -> Look:
    """Return what looks whether a replica, which answers itself, gets no answer of peers."""

    def look() -> str | None:
        found = answering(world, replica)
        if found is None or set(found) & set(peers):
            return None
        return f"{replica} gets no answer of {', '.join(peers)}"

    return look


def without_zookeeper(world: World, replica: str) -> Look:
    """Return what looks whether a replica has suspended itself, or has ended for the others."""

    def look() -> str | None:
        found = status(world, replica)
        if found is not None and found["state"] == "suspended":
            return f"{replica} has suspended itself: {found['reason']}"
        return silent(world, replica)

    return look


def without_clients(world: World, replica: str) -> Look:
    """Return what looks whether a replica gives its clients no answer although the others see it alive."""

    def look() -> str | None:
        if status(world, replica) is not None:
            return None
        seen = next((other for other, row in views(world, replica) if row["alive"]), None)
        return f"{replica} does not answer, and {seen} sees it alive" if seen else None

    return look
