"""Figures of this run beside those of the state before, from the same run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.tools.ways import Way


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of both states.

    Attributes:
        what: The figure, with its unit.
        before: Its value in the state before.
        now: Its value in this state.
        clients: Of a figure of commits; 0 for others.
        key: Which figure of commits it is; "" for others.
    """

    what: str
    before: float
    now: float
    clients: int = 0
    key: str = ""

    @property
    def times(self) -> float:
        """The value of now as a multiple of that of before."""
        return round(self.now / self.before, 3)


_COMMITS = {
    "per_s": "commits/s",
    "p50_ms": "commit p50, ms",
    "agent_cpu_ms_per_commit": "agents' CPU ms per commit",
    "client_cpu_ms_per_commit": "clients' CPU ms per commit",
    "zookeeper_writes_per_commit": "ZooKeeper writes per commit",
}


def compared(figures: Mapping[str, Any]) -> Iterator[Compared]:
    """Yield what was measured in both states; nothing without a state before."""
    before = figures.get("before", {})
    yield from _commits(before.get("commits", ()), figures.get("commits", ()))
    then, now = before.get("lag"), figures.get("lag")
    if then and now:
        yield Compared("lag of the slowest replica p99, ms", then["lag"]["p99_ms"], now["lag"]["p99_ms"])
    then, now = before.get("load"), figures.get("load")
    if then and now:
        yield Compared("load of lineitem, s", then["lineitem_s"], now["lineitem_s"])
    then, now = before.get("spark"), figures.get("spark")
    if then and now:
        for way, name in (
            ("loopback", "loopback"),
            ("round_trip", "1 ms round trip"),
            ("small_parts", "small parts"),
        ):
            means = (state[way]["geometric_mean_ratio"] for state in (then, now))
            yield Compared(f"Spark, ratio to local files, {name}", *means)
    yield from _mutations(before.get("mutations", ()), figures.get("mutations", ()))


def _commits(before: Any, now: Any) -> Iterator[Compared]:
    """One request of now beside the way of before: statements, where it had no other."""
    ways = {run.get("way") for run in before}
    then = {run["clients"]: run for run in before if Way.WRITE not in ways or run["way"] == Way.WRITE}
    for run in now:
        if run["way"] == Way.WRITE and run["clients"] in then:
            earlier = then[run["clients"]]
            for key, what in _COMMITS.items():
                values = (earlier | earlier["latency"])[key], (run | run["latency"])[key]
                yield Compared(f"{what}, {run['clients']} client(s)", *values, run["clients"], key)


def _mutations(before: Any, now: Any) -> Iterator[Compared]:
    """The first way of now; earlier states had one only."""
    then: dict[str, Any] = {}
    for run in before:
        then.setdefault(run["statement"], run)
    for run in now:
        if (other := then.pop(run["statement"], None)) is not None:
            yield Compared(f"{run['statement']}, ratio to deltalake", other["ratio"], run["ratio"])
