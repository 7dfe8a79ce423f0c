"""The classes of anomalies, and which of them a level of isolation forbids. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Level(StrEnum):
    """The levels of isolation, each of which forbids more than the one before."""

    READ_COMMITTED = "read-committed"
    SNAPSHOT = "snapshot"
    SERIALIZABLE = "serializable"


class Order(StrEnum):
    """Orders that a store must keep beside the dependencies, each of which includes the one before."""

    NONE = "none"
    #: A process sees its own past: strong session levels.
    PROCESS = "process"
    #: A transaction sees all that ended before it was begun: strict levels.
    REALTIME = "realtime"


_DIRECT: Final = ("garbage-read", "duplicate-elements", "incompatible-order", "G1a", "G1b")
_CYCLES: Final = {
    Level.READ_COMMITTED: ("G0", "G1c"),
    Level.SNAPSHOT: ("G-single", "G-nonadjacent"),
    Level.SERIALIZABLE: ("G2-item",),
}
_SUFFIXES: Final = {Order.NONE: "", Order.PROCESS: "-process", Order.REALTIME: "-realtime"}


def forbidden(level: Level, order: Order = Order.PROCESS) -> frozenset[str]:
    """Return the names of the anomalies that a level forbids.

    Args:
        level: The level.
        order: The order that the store keeps. A cycle that needs an edge of it has its name behind the class:
            ``G-single-process``.
    """
    levels, orders = list(Level), list(Order)
    names = set(_DIRECT)
    if level is not Level.READ_COMMITTED:
        names |= {"internal", "lost-update"}
    for cycles_of in levels[: levels.index(level) + 1]:
        for kept in orders[: orders.index(order) + 1]:
            names |= {f"{name}{_SUFFIXES[kept]}" for name in _CYCLES[cycles_of]}
    return frozenset(names)
