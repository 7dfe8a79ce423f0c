"""The orders of the demo in the driver's container to the machine, as values of JSON. Pure.

The machine sends a `Setup`, as the first line. Then the driver sends orders, and the machine answers each one
when it is done: with an empty object, or with the text of an error. The last line of the driver is its
`Result`, which is not answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Fault(Enum):
    """An action of the machine on the container of a replica, on all of its processes at once."""

    KILL = "kill"
    FREEZE = "freeze"
    THAW = "thaw"
    START = "start"


#: The words of each fault for the container engine. A freeze is no signal: that would reach only the first
#: process of the container, the init, which hands a stop on to nobody.
_ENGINE: Mapping[Fault, tuple[str, ...]] = {
    Fault.KILL: ("kill", "--signal", "KILL"),
    Fault.FREEZE: ("pause",),
    Fault.THAW: ("unpause",),
    Fault.START: ("start",),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A replica, as the driver reaches it: its id, its advertised name, and the ports of API and data."""

    id: str
    host: str
    api: int
    data: int


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of the demo in the driver's container.

    Attributes:
        places: Of all replicas.
        scale_factor: Of TPC-H.
        seconds: How long the writers write at full pace.
        spark: Settings that bring Spark to its master.
        folder: For the files of the demo, in the container.
        elapsed_s: How long ago the demo has begun.
        steps: What the report tells to do next.
    """

    places: Sequence[Place]
    scale_factor: float
    seconds: float
    spark: Mapping[str, str]
    folder: str
    elapsed_s: float
    steps: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return the settings as values of JSON."""
        return asdict(self)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Setup:
        """Return the settings that `as_json` has written."""
        return cls(**{**values, "places": [Place(**place) for place in values["places"]]})


@dataclass(frozen=True, slots=True)
class Order:
    """An order: a fault of a replica."""

    fault: Fault
    replica: str

    def as_json(self) -> dict[str, Any]:
        """Return the order as values of JSON."""
        return {"fault": self.fault.value, "replica": self.replica}

    def engine_words(self, container: str) -> list[str]:
        """Return the words for the container engine, with the id of the replica's container."""
        return [*_ENGINE[self.fault], container]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of the demo.

    Attributes:
        text: The report for people.
        report: The report for programs.
        violations: The checks that did not hold, as lines.
    """

    text: str
    report: Mapping[str, Any]
    violations: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return the result as values of JSON."""
        return {"result": asdict(self)}


def of_driver(values: Mapping[str, Any]) -> Order | Result:
    """Return what the driver has sent; ValueError, KeyError or TypeError if it is neither of the two."""
    if "result" in values:
        return Result(**values["result"])
    return Order(Fault(values["fault"]), values["replica"])
