"""Lines of a journal that tests make by hand: times in seconds after the begin of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

S: Final = 1_000_000_000


def run(at_s: float = 0.0, replicas: Sequence[str] = ("r1", "r2", "r3"), copies: int = 2) -> dict[str, Any]:
    """Return the first line of a run of three servers of ZooKeeper."""
    zookeepers = ["z1", "z2", "z3"]
    return _line(at_s, "run", replicas=[*replicas], zookeepers=zookeepers, copies=copies)


def phase(at_s: float, name: str) -> dict[str, Any]:
    """Return the begin of a phase."""
    return _line(at_s, "phase", name=name)


def call(at_s: float, f: str = "write", end: str = "ok", **facts: Any) -> dict[str, Any]:
    """Return a call that took a tenth of a second."""
    return _line(at_s, "call", f=f, end=end, began_ns=int((at_s - 0.1) * S), workload="bank", **facts)


def fault(
    number: int, kind: str, targets: Sequence[str], begin_s: float, end_s: float, well_s: float
) -> list[dict[str, Any]]:
    """Return the lines of a fault whose effect was seen."""
    return [
        _line(begin_s, "begin", fault=number, kind=kind, targets=[*targets]),
        _line(begin_s, "acting", fault=number),
        _line(begin_s, "proof", fault=number, proof="it was seen"),
        _line(end_s, "end", fault=number),
        _line(well_s, "well", fault=number),
    ]


def _line(at_s: float, what: str, **facts: Any) -> dict[str, Any]:
    return {"ns": int(at_s * S), "what": what, **facts}
