"""Draws one picture of a run's JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt


def draw(found: dict[str, Any], path: Path) -> None:
    """Write a PNG: commits per second beside raw creates, and Spark's seconds beside local files."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    runs = found["commits"]["runs"]
    names = [
        "raw ZooKeeper\ncreates, 1 client",
        *(f"two-table commits\n{run['clients']} client(s)" for run in runs),
    ]
    values = [found["commits"]["raw_zookeeper_creates"]["per_s"], *(run["per_s"] for run in runs)]
    bars = left.bar(names, values, color=["#b8b8b8", "#4c78a8", "#4c78a8"])
    left.bar_label(bars, fmt="%.0f")
    left.set_ylabel("per second")
    left.set_title("Durable commits (2 copies, visible at home)")
    queries = found["spark"]["queries"]
    places = range(len(queries))
    right.bar(
        [p - 0.2 for p in places], [q["local_s"] for q in queries], 0.4, label="local files", color="#b8b8b8"
    )
    bars = right.bar(
        [p + 0.2 for p in places], [q["tidelock_s"] for q in queries], 0.4, label="snapshot", color="#4c78a8"
    )
    right.bar_label(bars, [f"{q['ratio']:.2f}x" for q in queries])
    right.set_xticks(list(places), [q["query"] for q in queries])
    right.set_ylabel("seconds, median")
    right.set_title(f"Spark, TPC-H SF {found['spark']['scale_factor']:g}")
    right.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
