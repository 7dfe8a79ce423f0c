"""The aims of the figures, and whether a run reaches them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.tools.ways import Way


@dataclass(frozen=True, slots=True)
class Aim:
    """One figure and its bound.

    Attributes:
        what: The figure, with its unit.
        bound: What it should be.
        found: What it is.
        least: Whether it should be at least the bound; otherwise at most.
    """

    what: str
    bound: float
    found: float
    least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the figure keeps its bound."""
        return self.found >= self.bound if self.least else self.found <= self.bound

    @property
    def asked(self) -> str:
        """The bound as people write it."""
        return f"{'>=' if self.least else '<='} {self.bound:g}"


def aims(figures: Mapping[str, Any]) -> Iterator[Aim]:
    """Yield the aims whose figures are among what was measured."""
    runs = {run["clients"]: run for run in figures.get("commits", ()) if run["way"] == Way.WRITE}
    for clients, per_s, cpu_ms, requests in ((32, 500, 2.5, 0.15), (128, 1_000, 1.2, 0.05)):
        if run := runs.get(clients):
            yield Aim(f"commits/s, {clients} clients", per_s, run["per_s"], least=True)
            yield Aim(f"agents' CPU ms per commit, {clients} clients", cpu_ms, run["agent_cpu_ms_per_commit"])
            yield Aim(
                f"ZooKeeper writes per commit, {clients} clients",
                requests,
                run["zookeeper_writes_per_commit"],
            )
    if run := runs.get(1):
        yield Aim("commits/s, 1 client", 130, run["per_s"], least=True)
        yield Aim("client's CPU ms per commit, 1 client", 0.5, run["client_cpu_ms_per_commit"])
        yield Aim("idle commit p50, ms", 8, run["latency"]["p50_ms"])
    if lag := figures.get("lag"):
        yield Aim("snapshot lag p99, ms", 60, lag["lag"]["p99_ms"])
    for run in figures.get("forced", ()):
        if run["write_behind"] and run["clients"] == 1:
            yield Aim("forced writes per commit, all replicas, 1 client", 3, run["forced_per_commit"])
    if spark := figures.get("spark"):
        yield Aim(
            "Spark, geometric mean of the ratios, loopback", 1.15, spark["loopback"]["geometric_mean_ratio"]
        )
        yield Aim("Spark, worst ratio of a query, loopback", 1.5, spark["loopback"]["worst_ratio"])
    for run in figures.get("stalls", ()):
        longest_s = {"frozen": 3.0, "killed": 1.0}[run["event"]]
        yield Aim(f"stall of a Spark job, replica {run['event']}, s", longest_s, run["stall_s"])
    if load := figures.get("load"):
        memory = load["memory_after_mb"].values()
        yield Aim("agent's memory after the load, MB", 250, max(item["protocol"] for item in memory))
        yield Aim("agent's peak memory, MB", 500, max(item["peak"] for item in memory))
    if clone := figures.get("clone"):
        yield Aim("commits/s during a clone, ratio to before", 0.7, clone["commits_ratio"], least=True)
    if writes := figures.get("spark_writes"):
        yield from _writes({run["replicas"]: run["ways"] for run in writes["runs"]})
    if streams := figures.get("streams"):
        rates = {rate["sink"]: rate["per_s"] for rate in streams["rates"]}
        yield Aim("micro-batches/s through the sink", 2, rates["tidelock"], least=True)
        yield Aim("commit to visible in a stream, p50 ms", 1000, streams["visible"]["p50_ms"])
    if memory := figures.get("write_memory"):
        yield Aim(
            f"agents' peak memory, a file {memory['size_ratio']:g} times as large, ratio",
            1.25,
            memory["peak_ratio"],
        )
    bounds = {20_000: 2.0, 100_000: 4.0}
    for run in figures.get("start", ()):
        if bound := bounds.get(run["part_files"]):
            yield Aim(f"ready with {run['part_files']:,} part files, s", bound, run["ready_s"])
    if compaction := figures.get("compaction"):
        yield Aim(
            f"Spark scan after {compaction['inserts']:,} small inserts, ratio to one load",
            1.2,
            compaction["worst_ratio"],
        )
    if endurance := figures.get("endurance"):
        yield Aim("inserts: last minute's rate / second's", 0.9, endurance["rate_ratio"], least=True)
        yield Aim("inserts: ZooKeeper nodes, last minute / fifth", 1.2, endurance["znodes_ratio"])
        yield Aim("inserts: catalog, last minute / fifth", 1.2, endurance["catalog_mb_ratio"])
        yield Aim("inserts: memory, last minute / fifth", 1.2, endurance["memory_mb_ratio"])


def _writes(runs: Mapping[int, Sequence[Mapping[str, Any]]]) -> Iterator[Aim]:
    """Spark's writes, by the number of replicas."""
    for replicas, bound, beside in ((1, 1.3, "plain Parquet"), (3, 2.0, "three times plain Parquet")):
        for way in runs.get(replicas, ()):
            if way["way"] == "path":
                yield Aim(f"Spark write, {replicas} replica(s), ratio to {beside}", bound, way["to_plain"])
        seconds = {way["way"]: way["whole_s"] for way in runs.get(replicas, ())}
        if replicas == 1 and "source" in seconds:
            yield Aim("data source, ratio to the path write", 1.5, seconds["source"] / seconds["path"])
