"""`python -m bench [PART ...] [--quick] [--scale-factor SF] [--before CHECKOUT] [--out DIR]`: measures.

Parts: commits, landing, raw, peers, lag, forced, load, spark, stalls, client_stalls, compaction, mutations,
spark_writes, write_memory, streams, start, pauses, growth, definitions, imports, clone, clone_small,
endurance, spark_peers; all of them without a name. A run appends one line of JSON to DIR/runs.jsonl, and
writes its tables to DIR/report.md and a picture for each question to DIR. With --before, commits, lag,
load, spark and mutations are measured in a checkout of an earlier commit, too, each group right before that
of this state.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.output import report
from bench.output.plot import draw
from bench.parts import (
    client_stalls,
    clone,
    commits,
    compaction,
    definitions,
    endurance,
    forced_writes,
    growth,
    imports,
    lag,
    landing,
    load,
    mutations,
    pauses,
    raw_zookeeper,
    spark_reads,
    spark_writes,
    stalls,
    start,
    streams,
    write_memory,
)
from bench.peers import run as peers
from bench.spark_peers import run as spark_peers
from bench.tools import before, machine, tpch
from bench.tools.ending import ended_by_signals
from bench.tools.ways import Way
from bench.tools.workload import ClientPace
from tidelock.cluster import LocalCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchScale:
    """How much is measured."""

    clients: tuple[int, ...]
    peer_clients: tuple[int, ...]
    pace: ClientPace
    peer_pace: ClientPace
    spark_pace: ClientPace
    scale_factor: float
    repeats: int
    hits: int
    small_parts: int
    merged_parts: int
    inserts: int
    file_mb: tuple[int, ...]
    batches: int
    commits: int
    part_files: tuple[int, ...]
    tables: int
    versions: int
    imported: tuple[int, int]
    crowd: int
    parts: int
    records: int
    cloned_parts: int
    cloned_mb: int
    cloned_small_parts: int
    minutes: int
    minute_s: float


FULL: Final = BenchScale(
    clients=(1, 8, 32, 128),
    peer_clients=(1, 8, 32),
    pace=ClientPace(3.0, 15.0),
    peer_pace=ClientPace(2.0, 6.0),
    spark_pace=ClientPace(2.0, 10.0),
    scale_factor=1.0,
    repeats=5,
    hits=15,
    small_parts=500,
    merged_parts=140,
    inserts=2000,
    file_mb=(64, 256, 1024),
    batches=60,
    commits=60,
    part_files=(20_000, 100_000),
    tables=1_000,
    versions=1_000,
    imported=(40, 256),
    crowd=10_000,
    parts=1_000_000,
    records=100_000,
    cloned_parts=20_000,
    cloned_mb=10_000,
    cloned_small_parts=32_000,
    minutes=10,
    minute_s=60.0,
)
QUICK: Final = BenchScale(
    clients=(1, 8),
    peer_clients=(1, 4),
    pace=ClientPace(1.0, 3.0),
    peer_pace=ClientPace(0.5, 2.0),
    spark_pace=ClientPace(0.2, 0.5),
    scale_factor=0.05,
    repeats=1,
    hits=1,
    small_parts=20,
    merged_parts=21,
    inserts=100,
    file_mb=(4, 16, 64),
    batches=8,
    commits=6,
    part_files=(500,),
    tables=50,
    versions=50,
    imported=(4, 16),
    crowd=200,
    parts=5_000,
    records=1_000,
    cloned_parts=500,
    cloned_mb=250,
    cloned_small_parts=2_000,
    minutes=3,
    minute_s=3.0,
)
#: Most clients of the lag's run, and of the one whose rate it takes as the peak.
_LAG_CLIENTS: Final = 32

Figures = dict[str, Any]


def _commits(scale: BenchScale, folder: Path, wanted: set[str]) -> Figures:
    """Measure what needs a cluster with the two tables: commits, raw creates, lag."""
    figures: Figures = {}
    with LocalCluster.create(folder / "commits") as cluster:
        if "raw" in wanted:
            figures["raw_zookeeper"] = raw_zookeeper.run(cluster, scale.peer_clients, scale.peer_pace)
        measured = (tuple(Way), scale.clients) if "commits" in wanted else ((Way.WRITE,), (_LAG_CLIENTS,))
        runs = commits.run(cluster, *measured, scale.pace) if wanted & {"commits", "lag"} else []
        if "commits" in wanted:
            figures["commits"] = runs
        if "lag" in wanted:
            written = [run for run in runs if run["way"] == Way.WRITE and run["clients"] <= _LAG_CLIENTS]
            peak = max(written, key=lambda run: run["per_s"])
            figures["lag"] = lag.run(cluster, peak["clients"], peak["per_s"], scale.pace)
    return figures


def _forced(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    return {"forced": forced_writes.run(folder / "forced", scale.clients[:2], scale.peer_pace)}


def _landing(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    return {"landing": landing.run(folder / "landing", scale.clients, scale.pace)}


def _peers(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    return {"peers": peers.run(folder / "peers", scale.peer_clients, scale.peer_pace)}


def _tables(scale: BenchScale, folder: Path, wanted: set[str]) -> Figures:
    """Measure what needs TPC-H: the load, and Spark over it."""
    tpch.generate(folder, scale.scale_factor)
    figures: Figures = {}
    with LocalCluster.create(folder / "tables") as cluster:
        loaded = load.run(cluster, folder)
        if "load" in wanted:
            figures["load"] = loaded
        if "spark" in wanted:
            figures["spark"] = spark_reads.run(
                cluster, folder, repeats=scale.repeats, small_parts=scale.small_parts
            )
        if "stalls" in wanted:
            figures["stalls"] = stalls.run(cluster, folder, repeats=scale.repeats, hits=scale.hits)
        if "compaction" in wanted:
            figures["compaction"] = compaction.run(
                cluster, folder, parts=scale.merged_parts, inserts=scale.inserts, repeats=scale.repeats
            )
    return figures


def _client_stalls(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    return {"client_stalls": client_stalls.run(folder, repeats=scale.hits)}


def _mutations(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    tpch.generate(folder, scale.scale_factor)
    return {"mutations": mutations.run(folder)}


def _writes(scale: BenchScale, folder: Path, wanted: set[str]) -> Figures:
    """Measure what Spark writes, and streams."""
    figures: Figures = {}
    if "spark_writes" in wanted:
        tpch.generate(folder, scale.scale_factor)
        figures["spark_writes"] = spark_writes.run(folder, repeats=scale.repeats)
    if "write_memory" in wanted:
        figures["write_memory"] = write_memory.run(folder, scale.file_mb)
    if "streams" in wanted:
        figures["streams"] = streams.run(folder, batches=scale.batches, commits=scale.commits)
    return figures


def _start(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    return {"start": start.run(folder / "start", scale.part_files)}


def _pauses(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    found = pauses.run(
        folder / "pauses", parts=max(scale.part_files), tables=scale.tables, commits=scale.crowd
    )
    return {"pauses": found}


def _growth(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    found = growth.run(
        folder,
        tables=scale.tables,
        parts=scale.parts,
        listed=max(scale.part_files),
        records=scale.records,
    )
    return {"growth": found}


def _definitions(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    return {"definitions": definitions.run(folder, tables=scale.tables, versions=scale.versions)}


def _imports(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    files, file_mb = scale.imported
    return {"imports": imports.run(folder / "imports", files=files, file_mb=file_mb)}


def _clone(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    return {"clone": clone.run(folder, scale.cloned_parts, scale.cloned_mb, scale.pace)}


def _clone_small(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    return {"clone_small": clone.run_small(folder, scale.cloned_small_parts)}


def _endurance(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    with LocalCluster.create(folder / "endurance", environment=endurance.SETTINGS) as cluster:
        return {"endurance": endurance.run(cluster, scale.minutes, scale.minute_s)}


def _spark_peers(scale: BenchScale, folder: Path, _: set[str]) -> Figures:
    tpch.generate(folder, scale.scale_factor)
    return {"spark_peers": spark_peers.run(folder, repeats=scale.repeats, pace=scale.spark_pace)}


#: Parts that are measured together, since they share what they need.
_GROUPS: Final[tuple[tuple[set[str], Callable[[BenchScale, Path, set[str]], Figures]], ...]] = (
    ({"commits", "raw", "lag"}, _commits),
    ({"landing"}, _landing),
    ({"peers"}, _peers),
    ({"forced"}, _forced),
    ({"load", "spark", "stalls", "compaction"}, _tables),
    ({"client_stalls"}, _client_stalls),
    ({"mutations"}, _mutations),
    ({"spark_writes", "write_memory", "streams"}, _writes),
    ({"start"}, _start),
    ({"pauses"}, _pauses),
    ({"growth"}, _growth),
    ({"definitions"}, _definitions),
    ({"imports"}, _imports),
    ({"clone"}, _clone),
    ({"clone_small"}, _clone_small),
    ({"endurance"}, _endurance),
    ({"spark_peers"}, _spark_peers),
)
_PARTS: Final = sorted(set().union(*(parts for parts, _ in _GROUPS)))


def main() -> None:
    """Measure the requested parts, on clusters that are deleted afterwards."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(_PARTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="short and small: does it run at all?")
    parser.add_argument("--scale-factor", type=float, help="of TPC-H (1; quick: 0.05)")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="a clone at an earlier commit")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the results")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(_PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; parts are {', '.join(_PARTS)}")
    scale = QUICK if args.quick else FULL
    if args.scale_factor:
        scale = dataclasses.replace(scale, scale_factor=args.scale_factor)
    earlier = None
    if args.before is not None:
        earlier = functools.partial(before.run, args.before, quick=args.quick, scale_factor=args.scale_factor)
    with ended_by_signals():
        _run(scale, set(args.parts) or set(_PARTS), args.out, earlier, quick=args.quick)


def _run(
    scale: BenchScale,
    wanted: set[str],
    out: Path,
    earlier: Callable[[Collection[str]], Figures] | None,
    *,
    quick: bool,
) -> None:
    console = Console(width=160)
    figures: Figures = {"machine": machine.facts(), "quick": quick}
    console.print(figures["machine"])
    for parts, measure in _GROUPS:
        if parts & wanted:
            if earlier is not None and (both := parts & wanted & before.COMPARED):
                figures["before"] = figures.get("before", {}) | earlier(both)
            figures |= _in_a_folder(functools.partial(measure, scale), wanted)
            show(figures, out)  # what is measured is kept, whatever becomes of the rest
    keep(figures, out)
    for sheet in report.sheets(figures):
        console.print(_table(sheet))


def _in_a_folder(measure: Callable[[Path, set[str]], Figures], wanted: set[str]) -> Figures:
    folder = Path(tempfile.mkdtemp(prefix="tidelock-bench-"))
    try:
        return measure(folder, wanted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep(figures: Mapping[str, Any], out: Path) -> None:
    """Append the run to the results."""
    with (out / "runs.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(figures) + "\n")


def show(figures: Mapping[str, Any], out: Path) -> None:
    """Write the run's figures, tables and pictures, over those of the run before."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "last.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    tables: Iterable[str] = (sheet.markdown() for sheet in report.sheets(figures))
    (out / "report.md").write_text("\n".join(tables), encoding="utf-8")
    draw(figures, out)


def _table(sheet: report.Sheet) -> Table:
    table = Table(*sheet.header, title=sheet.title, title_justify="left")
    for row in sheet.rows:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    main()
