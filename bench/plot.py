"""Draws one picture of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

_OURS: Final = "#4c78a8"
_OTHERS: Final = "#b8b8b8"


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write a PNG with a panel for each part that was measured and has a picture; none without any."""
    panels: dict[str, Callable[[Any, Mapping[str, Any]], None]] = {
        "commits": _commits,
        "spark": _spark,
        "start": _start,
    }
    drawn = [panel for part, panel in panels.items() if part in found]
    if not drawn:
        return
    figure, axes = plt.subplots(
        1, len(drawn), figsize=(5.5 * len(drawn), 4.2), constrained_layout=True, squeeze=False
    )
    for panel, axis in zip(drawn, axes[0], strict=True):
        panel(axis, found)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _commits(axis: Any, found: Mapping[str, Any]) -> None:
    """Commits per second over clients, beside the other formats."""
    for peer in found.get("peers", ()):
        if runs := peer.get("runs"):
            tables = "two tables" if peer["tables"] > 1 else "one table"
            _line(axis, runs, label=f"{peer['peer']}, {tables}")
    _line(axis, found["commits"], label="tidelock, two tables", color=_OURS, linewidth=2.5)
    axis.set_xscale("log", base=2)
    counts = [run["clients"] for run in found["commits"]]
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.set_xlabel("client processes")
    axis.set_ylabel("commits/s")
    axis.set_ylim(bottom=0)
    axis.set_title("Commits of 100 rows for each table")
    axis.legend()


def _line(axis: Any, runs: Any, **style: Any) -> None:
    axis.plot([run["clients"] for run in runs], [run["per_s"] for run in runs], marker="o", **style)


def _spark(axis: Any, found: Mapping[str, Any]) -> None:
    """Spark's seconds over a snapshot and over local files."""
    queries = found["spark"]["loopback"]["queries"]
    places = range(len(queries))
    local, snapshot = ([query[key] for query in queries] for key in ("local_s", "tidelock_s"))
    axis.bar([place - 0.2 for place in places], local, 0.4, label="local files", color=_OTHERS)
    bars = axis.bar([place + 0.2 for place in places], snapshot, 0.4, label="snapshot", color=_OURS)
    axis.bar_label(bars, [f"{q['ratio']:.2f}x" for q in queries])
    axis.set_xticks(list(places), [q["query"] for q in queries])
    axis.set_ylabel("seconds, median")
    axis.set_title(f"Spark, TPC-H SF {found['spark']['scale_factor']:g}, loopback")
    axis.legend()


def _start(axis: Any, found: Mapping[str, Any]) -> None:
    """Seconds until an agent is ready."""
    runs = found["start"]
    names = [f"{run['part_files']:,}" for run in runs]
    bars = axis.bar(names, [run["ready_s"] for run in runs], 0.5, color=_OURS)
    axis.bar_label(bars, fmt="%.1f")
    axis.set_xlabel("part files on disk")
    axis.set_ylabel("seconds until ready")
    axis.set_title("Start of an agent")
