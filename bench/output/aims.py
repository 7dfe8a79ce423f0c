"""The aims of the figures, and whether a run reaches them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.output.compared import compared
from bench.tools.ways import Way

#: Multiples of the state before that commits in one request should reach, by figure and clients. Machines
#: differ by a factor of two and more, so these count, and the absolute figures only tell the size.
_TIMES: Final[Mapping[tuple[str, int], float]] = {
    ("per_s", 1): 1.9,
    ("per_s", 32): 4.3,
    ("per_s", 128): 6.0,
    ("agent_cpu_ms_per_commit", 32): 0.2,
    ("agent_cpu_ms_per_commit", 128): 0.14,
    ("client_cpu_ms_per_commit", 32): 0.14,
    ("zookeeper_writes_per_commit", 32): 0.38,
    ("zookeeper_writes_per_commit", 128): 0.32,
    ("p50_ms", 1): 0.62,
}

#: How long a reader may be without an answer when its replica is hit, in seconds.
_READER_STALLS_S: Final[Mapping[str, float]] = {"frozen": 3.0, "killed": 1.0}
#: The same of writers, by the event and the client.
_WRITER_STALLS_S: Final[Mapping[tuple[str, str], float]] = {
    ("killed", "writer, a peer is hit, inserts"): 2.0,
    ("killed", "writer, home is hit, documented loop"): 10.0,
}


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
    yield from _commits(figures)
    yield from _reads(figures)
    yield from _changes(figures)
    if writes := figures.get("spark_writes"):
        yield from _writes({run["replicas"]: run["ways"] for run in writes["runs"]})
    yield from _streams(figures)
    yield from _agents(figures)
    yield from _long_runs(figures)


def _commits(figures: Mapping[str, Any]) -> Iterator[Aim]:
    """Commits, and what follows them."""
    for item in compared(figures):
        if bound := _TIMES.get((item.key, item.clients)):
            yield Aim(f"{item.what}: times the state before", bound, item.times, least=item.key == "per_s")
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
    if found := figures.get("definitions"):
        yield Aim(f"definitions with {found['tables']:,} tables, time beside few", 1.1, found["ratio"])
        yield Aim(f"commit with {found['versions']:,} definitions, beside one", 1.1, found["commit_ratio"])
        yield Aim(f"listing with {found['versions']:,} definitions, beside one", 1.1, found["listing_ratio"])
    if growth := figures.get("growth"):
        yield Aim("commit p50 with a large catalog / with a small one", 1.1, growth["ratio"])


def _reads(figures: Mapping[str, Any]) -> Iterator[Aim]:
    """Spark over a snapshot, and listings."""
    if spark := figures.get("spark"):
        for way, bound in (
            ("loopback", 1.08),
            ("round_trip", 1.3),
            ("small_parts", 1.25),
            ("small_round_trip", 1.4),
        ):
            if way in spark:
                mean = spark[way]["geometric_mean_ratio"]
                yield Aim(f"Spark, geometric mean of the ratios, {way.replace('_', ' ')}", bound, mean)
        yield Aim("Spark, worst ratio of a query, loopback", 1.5, spark["loopback"]["worst_ratio"])
    for run in figures.get("stalls", ()):
        longest_s = _READER_STALLS_S[run["event"]]
        yield Aim(f"stall of a Spark job, replica {run['event']}, s, largest", longest_s, run["stall_max_s"])
    for run in figures.get("client_stalls", ()):
        event, who = run["event"], run["who"]
        bound_s = _WRITER_STALLS_S.get((event, who))
        if who.startswith("reader"):
            bound_s = _READER_STALLS_S[event]
        if bound_s is not None:
            yield Aim(f"stall of a {who}, replica {event}, s, largest", bound_s, run["stall_max_s"])
    if growth := figures.get("growth"):
        yield Aim(f"cold listing of {growth['listed']:,} parts, s", 0.3, growth["listing_s"])
    if compaction := figures.get("compaction"):
        yield Aim(
            f"Spark scan after {compaction['inserts']:,} small inserts, ratio to one load",
            1.2,
            compaction["worst_ratio"],
        )


def _changes(figures: Mapping[str, Any]) -> Iterator[Aim]:
    """Loads, deletes and updates."""
    for run in figures.get("mutations", ()):
        bound = 1.8 if "spread" in run["statement"] else 1.0
        yield Aim(f"{run['statement']}, {run['way']}, ratio to deltalake", bound, run["ratio"])
    if load := figures.get("load"):
        yield Aim("load, ratio to encoding once, three copies and fsync", 1.2, load["ratio_to_encoding"])
        memory = load["memory_after_mb"].values()
        yield Aim("agent's memory after the load, MB", 250, max(item["protocol"] for item in memory))
        yield Aim("agent's peak memory, MB", 500, max(item["peak"] for item in memory))


def _writes(runs: Mapping[int, Sequence[Mapping[str, Any]]]) -> Iterator[Aim]:
    """Spark's writes, by the number of replicas."""
    for replicas, bound, beside in ((1, 1.3, "plain Parquet"), (3, 2.0, "three times plain Parquet")):
        for way in runs.get(replicas, ()):
            if way["way"] == "path":
                yield Aim(f"Spark write, {replicas} replica(s), ratio to {beside}", bound, way["to_plain"])
        seconds = {way["way"]: way["whole_s"] for way in runs.get(replicas, ())}
        if "keyed" in seconds:
            ratio = seconds["keyed"] / seconds["path"]
            yield Aim(
                f"Spark write into a table with a key, {replicas} replica(s), ratio to one without",
                1.5,
                ratio,
            )
        if replicas == 1 and "source" in seconds:
            yield Aim("data source, ratio to the path write", 1.5, seconds["source"] / seconds["path"])


def _streams(figures: Mapping[str, Any]) -> Iterator[Aim]:
    """Streams, and files that Spark writes."""
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


def _agents(figures: Mapping[str, Any]) -> Iterator[Aim]:
    """Starts and pauses of an agent."""
    bounds = {20_000: 2.0, 100_000: 4.0}
    for run in figures.get("start", ()):
        if bound := bounds.get(run["part_files"]):
            yield Aim(f"ready with {run['part_files']:,} part files, s", bound, run["ready_s"])
    for run in figures.get("pauses", ()):
        yield Aim(f"longest pause, {run['what']}, ms", 50, run["pause_ms"])


def _long_runs(figures: Mapping[str, Any]) -> Iterator[Aim]:
    """Clones, and minutes of inserts."""
    if clone := figures.get("clone"):
        yield Aim("commits/s during a clone, ratio to before", 0.7, clone["commits_ratio"], least=True)
    if endurance := figures.get("endurance"):
        yield Aim("inserts: last minute's rate / second's", 0.9, endurance["rate_ratio"], least=True)
        yield Aim("inserts: ZooKeeper nodes, last minute / fifth", 1.2, endurance["znodes_ratio"])
        yield Aim("inserts: catalog, last minute / fifth", 1.2, endurance["catalog_mb_ratio"])
        yield Aim("inserts: memory, last minute / fifth", 1.2, endurance["memory_mb_ratio"])
