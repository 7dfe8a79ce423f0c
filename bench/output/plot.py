"""Draws a run: one picture for each question that its figures answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from bench.tools.ways import Way

_OURS: Final = "#4c78a8"
_OTHERS: Final = "#b8b8b8"
_BOUND: Final = "#c44e52"
#: A pause of the event loop should not be longer.
_PAUSE_MS: Final = 50


def draw(figures: Mapping[str, Any], folder: Path) -> None:
    """Write a PNG for each part that was measured and has a picture."""
    pictures: dict[str, tuple[str, Callable[[Any, Mapping[str, Any]], None]]] = {
        "commits": ("commits", _commits),
        "cost": ("commits", _cost),
        "landing": ("landing", _landing),
        "spark_reads": ("spark", _spark),
        "mutations": ("mutations", _mutations),
        "spark_writes": ("spark_writes", _writes),
        "spark_peers": ("spark_peers", _spark_peers),
        "start": ("start", _start),
        "pauses": ("pauses", _pauses),
        "imports": ("imports", _imports),
        "clone": ("clone", _clone),
        "endurance": ("endurance", _endurance),
    }
    for name, (part, picture) in pictures.items():
        if part in figures:
            figure, axis = plt.subplots(figsize=(7.5, 4.2), constrained_layout=True)
            picture(axis, figures)
            figure.savefig(folder / f"{name}.png", dpi=110)
            plt.close(figure)


def _commits(axis: Any, figures: Mapping[str, Any]) -> None:
    """Commits per second over clients, beside the other formats and the state before."""
    for peer in figures.get("peers", ()):
        if runs := peer.get("runs"):
            tables = "two tables" if peer["tables"] > 1 else "one table"
            _line(axis, runs, "per_s", label=f"{peer['peer']}, {tables}")
    _states(axis, figures, "per_s")
    axis.set_ylabel("commits/s")
    axis.set_title("How many commits a second, of 100 rows for each table?")
    axis.legend()


def _cost(axis: Any, figures: Mapping[str, Any]) -> None:
    """CPU of all agents for a commit, over clients."""
    _states(axis, figures, "agent_cpu_ms_per_commit")
    axis.set_ylabel("CPU ms of all agents")
    axis.set_title("What does a commit cost three replicas?")
    axis.legend()


def _states(axis: Any, figures: Mapping[str, Any], key: str) -> None:
    """Draw a figure of Tidelock's commits over clients: both ways, and the state before."""
    for way, style in ((Way.WRITE, "-"), (Way.STATEMENTS, ":")):
        runs = [run for run in figures["commits"] if run["way"] == way]
        _line(
            axis, runs, key, label=f"tidelock, two tables, {way}", color=_OURS, linewidth=2.5, linestyle=style
        )
    if runs := figures.get("before", {}).get("commits"):
        _line(axis, runs, key, label="tidelock, the state before", color="black", linestyle="--")
    _clients(axis, figures["commits"])


def _clients(axis: Any, runs: Any) -> None:
    axis.set_xscale("log", base=2)
    counts = sorted({run["clients"] for run in runs})
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.set_xlabel("client processes")
    axis.set_ylim(bottom=0)


def _landing(axis: Any, figures: Mapping[str, Any]) -> None:
    """Landings per second over clients, beside inserts."""
    for kind, colour in (("land", _OURS), ("insert", "black")):
        runs = [run for run in figures["landing"] if run["kind"] == kind]
        _line(axis, runs, "per_s", label=kind, color=colour)
    _clients(axis, figures["landing"])
    axis.set_ylabel("per second")
    axis.set_title("How many landings a second, of 100 rows?")
    axis.legend()


def _line(axis: Any, runs: Any, key: str, **style: Any) -> None:
    axis.plot([run["clients"] for run in runs], [run[key] for run in runs], marker="o", **style)


def _spark(axis: Any, figures: Mapping[str, Any]) -> None:
    """Spark's seconds over a snapshot as a multiple of those over local files, for each way."""
    names = {
        "loopback": "large parts",
        "round_trip": "large parts, 1 ms round trip",
        "small_parts": "small parts",
        "small_round_trip": "small parts, 1 ms round trip",
    }
    ways = [way for way in names if way in figures["spark"]]
    queries = [item["query"] for item in figures["spark"]["loopback"]["queries"]]
    width = 0.8 / len(ways)
    for number, way in enumerate(ways):
        ratios = [item["ratio"] for item in figures["spark"][way]["queries"]]
        at = [place + width * number for place in range(len(queries))]
        axis.bar(at, ratios, width, label=names[way])
    axis.axhline(1.0, color=_OTHERS, linestyle="--", label="local files")
    axis.set_xticks([place + 0.4 - width / 2 for place in range(len(queries))], queries)
    axis.set_ylabel("times the seconds over local files")
    axis.set_title(f"What does Spark pay for a snapshot? TPC-H SF {figures['spark']['scale_factor']:g}")
    axis.legend()


def _writes(axis: Any, figures: Mapping[str, Any]) -> None:
    """Spark's seconds for writing lineitem, beside plain Parquet."""
    bars = [(run["replicas"], way) for run in figures["spark_writes"]["runs"] for way in run["ways"]]
    places = range(len(bars))
    colours = [_OTHERS if way["way"] == "plain" else _OURS for _, way in bars]
    drawn = axis.bar(places, [way["whole_s"] for _, way in bars], 0.6, color=colours)
    axis.bar_label(drawn, ["" if way["way"] == "plain" else f"{way['to_plain']:.2f}x" for _, way in bars])
    names = {
        "plain": "plain\n{} times",
        "path": "tl.write\n{} replicas",
        "keyed": "with a key\n{} replicas",
        "source": "source\n{} replicas",
    }
    axis.set_xticks(list(places), [names[way["way"]].format(replicas) for replicas, way in bars])
    axis.set_ylabel("seconds, median")
    axis.set_title(f"How long does Spark write lineitem? SF {figures['spark_writes']['scale_factor']:g}")


def _spark_peers(axis: Any, figures: Mapping[str, Any]) -> None:
    """Reads and writes of each format as multiples of plain Parquet."""
    peers = figures["spark_peers"]
    reads = {run["format"]: run["geometric_mean_ratio"] for run in peers["reads"]}
    writes = {run["format"]: run["to_plain"] for run in peers["writes"]}
    names = list(dict.fromkeys([*reads, *writes]))
    for shift, label, ratios in ((-0.2, "four queries", reads), (0.2, "lineitem is written", writes)):
        at = [place + shift for place, name in enumerate(names) if name in ratios]
        bars = axis.bar(at, [ratios[name] for name in names if name in ratios], 0.4, label=label)
        axis.bar_label(bars, fmt="%.2f")
    axis.set_xticks(range(len(names)), [name.replace(", ", "\n") for name in names])
    axis.set_ylabel("times plain Parquet")
    axis.set_title(f"How do formats compare through Spark {peers['spark']}?")
    axis.legend()


def _pauses(axis: Any, figures: Mapping[str, Any]) -> None:
    """The longest wait for an answer of an agent, for each of its works."""
    runs = figures["pauses"][::-1]
    bars = axis.barh([run["what"] for run in runs], [run["pause_ms"] for run in runs], color=_OURS)
    axis.bar_label(bars, fmt="%.1f")
    axis.axvline(_PAUSE_MS, color=_BOUND, linestyle="--", label=f"{_PAUSE_MS} ms")
    axis.set_xscale("log")
    axis.margins(x=0.15)  # room for the figures
    axis.set_xlabel("longest wait for /healthz, ms")
    axis.set_title("How long does an agent keep others waiting?")
    axis.legend()


def _start(axis: Any, figures: Mapping[str, Any]) -> None:
    """Seconds until an agent is ready."""
    runs = figures["start"]
    names = [f"{run['part_files']:,}" for run in runs]
    bars = axis.bar(names, [run["ready_s"] for run in runs], 0.5, color=_OURS)
    axis.bar_label(bars, fmt="%.1f")
    axis.set_xlabel("part files on disk")
    axis.set_ylabel("seconds until ready")
    axis.set_title("How long does an agent start?")


def _clone(axis: Any, figures: Mapping[str, Any]) -> None:
    """MB/s of a clone, beside a plain copy."""
    clone = figures["clone"]
    names = ["cp and sync", "clone", "clone beside commits"]
    seconds = [clone["copy_s"], clone["clone_s"], clone["busy_clone_s"]]
    bars = axis.bar(names, [clone["mb"] / taken for taken in seconds], 0.5, color=[_OTHERS, _OURS, _OURS])
    axis.bar_label(bars, fmt="%.0f")
    axis.set_ylabel("MB/s")
    axis.set_title(f"How fast do {clone['parts']:,} parts come back onto an empty disk?")


def _imports(axis: Any, figures: Mapping[str, Any]) -> None:
    """Seconds of imports, beside hashing and copying the files."""
    found = figures["imports"]
    ways = ("hash", "copy", "alone", "linked", "sent")
    names = ["hash", "cp and fsync", "linked,\n1 replica", "linked,\n3 replicas", "sent,\n3 replicas"]
    colors = [_OTHERS, _OTHERS, _OURS, _OURS, _OURS]
    bars = axis.bar(names, [found[f"{way}_s"] for way in ways], 0.5, color=colors)
    axis.bar_label(bars, fmt="%.1f")
    axis.set_ylabel("seconds")
    axis.set_title(f"How long does the import of {found['mb'] / 1024:.1f} GB of Parquet files take?")


def _mutations(axis: Any, figures: Mapping[str, Any]) -> None:
    """Seconds of deletes and updates, beside deltalake."""
    runs = figures["mutations"]
    ways = list(dict.fromkeys(run["way"] for run in runs))
    names = list(dict.fromkeys(run["statement"] for run in runs))
    for number, way in enumerate(ways):
        chosen = [run for run in runs if run["way"] == way]
        at = [place + 0.4 * number for place in range(len(names))]
        theirs, ours = ([run[key] for run in chosen] for key in ("deltalake_s", "tidelock_s"))
        label = "deltalake, one copy" if not number else None
        axis.bar([place - 0.1 for place in at], theirs, 0.18, label=label, color=_OTHERS)
        bars = axis.bar(
            [place + 0.1 for place in at], ours, 0.18, label=f"tidelock, durable on two: {way}", color=_OURS,
            alpha=1 - 0.4 * number,
        )  # fmt: skip
        axis.bar_label(bars, [f"{run['ratio']:.2f}x" for run in chosen])
    axis.set_xticks(
        [place + 0.2 for place in range(len(names))], [name.replace(", ", "\n") for name in names]
    )
    axis.margins(y=0.4)  # room for the legend
    axis.set_ylabel("seconds")
    axis.set_title("How long does a change of one row in a hundred take?")
    axis.legend()


def _endurance(axis: Any, figures: Mapping[str, Any]) -> None:
    """Commits of each interval, and what grows, over the run; all relative to the second interval."""
    minutes = figures["endurance"]["minutes"]
    numbers = range(1, len(minutes) + 1)
    for key in ("commits", "znodes", "catalog_mb", "memory_mb"):
        axis.plot(numbers, [minute[key] / minutes[1][key] for minute in minutes], marker="o", label=key)
    axis.set_xlabel(f"interval of {figures['endurance']['minute_s']:g} s")
    axis.set_ylabel("relative to the second")
    axis.set_ylim(bottom=0)
    axis.set_title("Does anything grow under inserts without pause?")
    axis.legend()
