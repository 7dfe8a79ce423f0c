"""``python -m bench [--quick] [--scale-factor SF] [--out DIR]``.

Runs everything, prints, writes bench.json and bench.png.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import commits, machine, spark_reads
from bench.plot import draw
from tidelock.cluster import LocalCluster


def main() -> None:
    """Run the benchmarks on a cluster of their own, which is gone afterwards."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="short windows and a small scale factor: does it run at all?"
    )
    parser.add_argument(
        "--scale-factor",
        type=float,
        default=None,
        help="TPC-H scale factor of the Spark part (1; quick: 0.05)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("bench/results"), help="folder for bench.json and bench.png"
    )
    args = parser.parse_args()
    scale_factor = args.scale_factor or (0.05 if args.quick else 1.0)
    found: dict[str, object] = {"machine": machine.facts()}
    folder = Path(tempfile.mkdtemp(prefix="tidelock-bench-"))
    try:
        with LocalCluster.create(folder / "commits") as cluster:
            found["commits"] = commits.run(cluster, quick=args.quick)
        with LocalCluster.create(folder / "spark") as cluster:
            repeats = 2 if args.quick else 5
            found["spark"] = spark_reads.run(cluster, folder, scale_factor=scale_factor, repeats=repeats)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "bench.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    draw(found, args.out / "bench.png")
    show(found)


def show(found: dict[str, object]) -> None:
    """Print the figures as tables."""
    console = Console()
    section = found["commits"]
    assert isinstance(section, dict)
    table = Table(
        "clients", "commits/s", "p50 ms", "p99 ms", "tids/CSN", "agent CPU ms", "ZK writes", "x raw creates"
    )
    for run in section["runs"]:
        names = ("clients", "per_s", "p50_ms", "p99_ms", "tids_per_csn", "agent_cpu_ms_per_commit")
        more = ("zookeeper_writes_per_commit", "ratio_to_raw_creates")
        table.add_row(*(str(run[name]) for name in (*names, *more)))
    raw = section["raw_zookeeper_creates"]
    console.print(f"machine: {found['machine']}")
    console.print(f"raw ZooKeeper creates, one client: {raw['per_s']}/s, p50 {raw['p50_ms']} ms")
    console.print(table)
    spark = found["spark"]
    assert isinstance(spark, dict)
    table = Table("query", "snapshot s", "local files s", "ratio")
    for item in spark["queries"]:
        table.add_row(item["query"], str(item["tidelock_s"]), str(item["local_s"]), str(item["ratio"]))
    console.print(f"TPC-H SF {spark['scale_factor']:g}, loaded in {spark['load_s']} s")
    console.print(table)
    console.print(f"geometric mean of the ratios: {spark['geometric_mean_ratio']}")


if __name__ == "__main__":
    main()
