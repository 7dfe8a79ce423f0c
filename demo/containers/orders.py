"""What the demo in the driver's container asks of the machine, as values of JSON. Pure.

The machine sends a `Setup`, as the first line. Then the driver sends orders, and the machine answers each one
when it is done; the last order is the report, which is not answered.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

#: The words of an order.
SIGNAL: Final = "signal"
START: Final = "start"
REPORT: Final = "report"
#: The signals that a container takes as a whole, all of its processes at once.
SIGNALS: Final = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)


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
        kept: Whether the containers stay.
    """

    places: Sequence[Place]
    scale_factor: float
    seconds: float
    spark: Mapping[str, str]
    folder: str
    kept: bool

    def as_json(self) -> dict[str, Any]:
        """Return the settings as values of JSON."""
        return asdict(self)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Setup:
        """Return the settings that `as_json` has written."""
        return cls(**{**values, "places": [Place(**place) for place in values["places"]]})


def signal_order(replica: str, signum: signal.Signals) -> dict[str, Any]:
    """Return the order to send a signal to all processes of a replica; ValueError if no container takes it."""
    if signum not in SIGNALS:
        names = ", ".join(known.name for known in SIGNALS)
        raise ValueError(f"expected one of {names} for the container of {replica}, found {signum!r}")
    return {"do": SIGNAL, "replica": replica, "signum": int(signum)}


def start_order(replica: str) -> dict[str, Any]:
    """Return the order to start the container of a replica that was killed."""
    return {"do": START, "replica": replica}


def engine_command(order: Mapping[str, Any], container: str) -> list[str]:
    """Return the words for the container engine that carry out an order.

    A freeze is the engine's `pause`: a signal would reach the first process of the container only, and that one
    may not be stopped.
    """
    if order["do"] == START:
        return ["start", container]
    by_signal = {
        signal.SIGKILL: ["kill", "--signal", "KILL", container],
        signal.SIGSTOP: ["pause", container],
        signal.SIGCONT: ["unpause", container],
    }
    return by_signal[signal.Signals(order["signum"])]
