"""Draws one picture of a run."""

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


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Write a PNG with a panel for each part that was measured and has a picture; none without any."""
    panels: dict[str, Callable[[Any, Mapping[str, Any]], None]] = {
        "commits": _commits,
        "spark": _spark,
        "mutations": _mutations,
        "spark_writes": _writes,
        "start": _start,
        "clone": _clone,
        "endurance": _endurance,
    }
    drawn = [panel for part, panel in panels.items() if part in figures]
    if not drawn:
        return
    figure, axes = plt.subplots(
        1, len(drawn), figsize=(5.5 * len(drawn), 4.2), constrained_layout=True, squeeze=False
    )
    for panel, axis in zip(drawn, axes[0], strict=True):
        panel(axis, figures)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _commits(axis: Any, figures: Mapping[str, Any]) -> None:
    """Commits per second over clients, beside the other formats."""
    for peer in figures.get("peers", ()):
        if runs := peer.get("runs"):
            tables = "two tables" if peer["tables"] > 1 else "one table"
            _line(axis, runs, label=f"{peer['peer']}, {tables}")
    for way, style in ((Way.WRITE, "-"), (Way.STATEMENTS, ":")):
        runs = [run for run in figures["commits"] if run["way"] == way]
        _line(axis, runs, label=f"tidelock, two tables, {way}", color=_OURS, linewidth=2.5, linestyle=style)
    axis.set_xscale("log", base=2)
    counts = sorted({run["clients"] for run in figures["commits"]})
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.set_xlabel("client processes")
    axis.set_ylabel("commits/s")
    axis.set_ylim(bottom=0)
    axis.set_title("Commits of 100 rows for each table")
    axis.legend()


def _line(axis: Any, runs: Any, **style: Any) -> None:
    axis.plot([run["clients"] for run in runs], [run["per_s"] for run in runs], marker="o", **style)


def _spark(axis: Any, figures: Mapping[str, Any]) -> None:
    """Spark's seconds over a snapshot and over local files."""
    queries = figures["spark"]["loopback"]["queries"]
    places = range(len(queries))
    local, snapshot = ([query[key] for query in queries] for key in ("local_s", "tidelock_s"))
    axis.bar([place - 0.2 for place in places], local, 0.4, label="local files", color=_OTHERS)
    bars = axis.bar([place + 0.2 for place in places], snapshot, 0.4, label="snapshot", color=_OURS)
    axis.bar_label(bars, [f"{q['ratio']:.2f}x" for q in queries])
    axis.set_xticks(list(places), [q["query"] for q in queries])
    axis.set_ylabel("seconds, median")
    axis.set_title(f"Spark, TPC-H SF {figures['spark']['scale_factor']:g}, loopback")
    axis.legend()


def _writes(axis: Any, figures: Mapping[str, Any]) -> None:
    """Spark's seconds for writing lineitem, beside plain Parquet."""
    bars = [(run["replicas"], way) for run in figures["spark_writes"]["runs"] for way in run["ways"]]
    places = range(len(bars))
    colours = [_OTHERS if way["way"] == "plain" else _OURS for _, way in bars]
    drawn = axis.bar(places, [way["whole_s"] for _, way in bars], 0.6, color=colours)
    axis.bar_label(drawn, ["" if way["way"] == "plain" else f"{way['to_plain']:.2f}x" for _, way in bars])
    names = {"plain": "plain\n{} times", "path": "tl.write\n{} replicas", "source": "source\n{} replicas"}
    axis.set_xticks(list(places), [names[way["way"]].format(replicas) for replicas, way in bars])
    axis.set_ylabel("seconds, median")
    axis.set_title(f"Spark writes lineitem, SF {figures['spark_writes']['scale_factor']:g}")


def _start(axis: Any, figures: Mapping[str, Any]) -> None:
    """Seconds until an agent is ready."""
    runs = figures["start"]
    names = [f"{run['part_files']:,}" for run in runs]
    bars = axis.bar(names, [run["ready_s"] for run in runs], 0.5, color=_OURS)
    axis.bar_label(bars, fmt="%.1f")
    axis.set_xlabel("part files on disk")
    axis.set_ylabel("seconds until ready")
    axis.set_title("Start of an agent")


def _clone(axis: Any, figures: Mapping[str, Any]) -> None:
    """MB/s of a clone, beside a plain copy."""
    clone = figures["clone"]
    names = ["cp and sync", "clone", "clone beside commits"]
    seconds = [clone["copy_s"], clone["clone_s"], clone["busy_clone_s"]]
    bars = axis.bar(names, [clone["mb"] / taken for taken in seconds], 0.5, color=[_OTHERS, _OURS, _OURS])
    axis.bar_label(bars, fmt="%.0f")
    axis.set_ylabel("MB/s")
    axis.set_title(f"{clone['parts']:,} parts onto an empty disk")


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
    axis.set_ylabel("seconds")
    axis.set_title("One row in a hundred of lineitem")
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
    axis.set_title("Inserts without pause")
    axis.legend()
