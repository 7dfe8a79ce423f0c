"""The figures of a run as tables: for people on a terminal, and as Markdown for docs/performance.md. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.output.aims import aims
from bench.output.compared import compared


@dataclass(frozen=True, slots=True)
class Sheet:
    """One table of figures."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """Return it as Markdown."""
        lines = [self.header, tuple("---" for _ in self.header), *self.rows]
        return f"**{self.title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def sheets(figures: Mapping[str, Any]) -> Iterator[Sheet]:
    """Yield the tables of all parts that were measured."""
    if "commits" in figures:
        yield _commits(figures["commits"])
    if "landing" in figures:
        yield _landing(figures["landing"])
    if "raw_zookeeper" in figures or "peers" in figures:
        yield _peers(figures.get("raw_zookeeper", ()), figures.get("peers", ()))
    if "lag" in figures:
        yield _lag(figures["lag"])
    if "forced" in figures:
        yield _forced(figures["forced"])
    if "spark" in figures:
        yield _spark(figures["spark"])
    if "stalls" in figures:
        yield _stalls(figures["stalls"])
    if "client_stalls" in figures:
        yield _client_stalls(figures["client_stalls"])
    if "load" in figures:
        yield _load(figures["load"])
        yield _memory(figures["load"])
    if "compaction" in figures:
        yield _merge_rate(figures["compaction"]["rate"])
        yield _scans(figures["compaction"])
    if "mutations" in figures:
        yield _mutations(figures["mutations"])
    if "spark_writes" in figures:
        yield _writes(figures["spark_writes"])
    if "write_memory" in figures:
        yield _write_memory(figures["write_memory"])
    if "streams" in figures:
        yield _rates(figures["streams"])
        yield _visible(figures["streams"]["visible"])
    if "start" in figures:
        yield _start(figures["start"])
    if "pauses" in figures:
        yield _pauses(figures["pauses"])
    if "growth" in figures:
        yield from _growth(figures["growth"])
    if "definitions" in figures:
        yield from _definitions(figures["definitions"])
    if "imports" in figures:
        yield _imports(figures["imports"])
    if "clone" in figures:
        yield _clone(figures["clone"])
    if "clone_small" in figures:
        yield _clone_small(figures["clone_small"])
    if "endurance" in figures:
        yield _endurance(figures["endurance"])
    if "spark_peers" in figures:
        yield from _spark_peers(figures["spark_peers"])
    if "before" in figures:
        yield _compared(figures)
    yield _aims(figures)


def _texts(*values: object) -> tuple[str, ...]:
    return tuple("-" if value is None else str(value) for value in values)


def _commits(runs: Sequence[Mapping[str, Any]]) -> Sheet:
    return Sheet(
        "Durable commits: 100 rows into each of two tables, 2 of 3 copies fsynced, visible at home",
        (
            *("clients", "way", "commits/s", "p50 ms", "p99 ms", "tids per CSN"),
            *("agents' CPU ms per commit", "clients' CPU ms", "ZooKeeper's CPU ms"),
            *("ZooKeeper writes per commit", "rows counted"),
        ),
        [
            _texts(
                *(run["clients"], run["way"], run["per_s"]),
                *(run["latency"]["p50_ms"], run["latency"]["p99_ms"]),
                *(run["tids_per_csn"], run["agent_cpu_ms_per_commit"], run["client_cpu_ms_per_commit"]),
                *(run["zookeeper_cpu_ms_per_commit"], run["zookeeper_writes_per_commit"], run["rows"]),
            )
            for run in runs
        ],
    )


def _landing(runs: Sequence[Mapping[str, Any]]) -> Sheet:
    return Sheet(
        "Landings beside inserts: 100 rows into one table, 2 of 3 copies fsynced",
        (
            *("clients", "kind", "per s", "p50 ms", "p99 ms", "agents' CPU ms each", "client's CPU ms"),
            *("ZooKeeper's CPU ms", "ZooKeeper writes each", "rows counted"),
        ),
        [
            _texts(
                *(run["clients"], run["kind"], run["per_s"], run["p50_ms"], run["p99_ms"]),
                *(run["agent_cpu_ms"], run["client_cpu_ms"], run["zookeeper_cpu_ms"]),
                *(run["zookeeper_writes"], run["rows"]),
            )
            for run in runs
        ],
    )


def _peers(raw: Sequence[Mapping[str, Any]], peers: Sequence[Mapping[str, Any]]) -> Sheet:
    rows = [
        _texts(
            "ZooKeeper, one create at a time", "-", run["clients"], run["per_s"], *_latency(run), "-", "-", ""
        )
        for run in raw
    ]
    for peer in peers:
        if "left_out" in peer:
            rows.append(_texts(peer["peer"], *["-"] * 7, f"left out: {peer['left_out']}"))
        for number, run in enumerate(peer.get("runs", ())):
            counts = (run["failed_attempts"], run["rows_missing"])
            note = peer["note"] if number == 0 else ""
            rows.append(
                _texts(
                    peer["peer"], peer["tables"], run["clients"], run["per_s"], *_latency(run), *counts, note
                )
            )
    return Sheet(
        "Beside it: the same 100 rows for each table",
        (
            *("system", "tables", "clients", "commits/s", "p50 ms", "p99 ms"),
            *("failed attempts", "rows missing", "note"),
        ),
        rows,
    )


def _latency(run: Mapping[str, Any]) -> tuple[object, object]:
    latency = run["latency"]
    return (latency["p50_ms"], latency["p99_ms"]) if latency else (None, None)


def _lag(lag: Mapping[str, Any]) -> Sheet:
    of = lag["lag"]
    return Sheet(
        "Snapshot lag of the slowest replica behind the acknowledgement, at 70 % of the peak",
        ("clients", "commits/s", "commits", "commit p50 ms", "lag p50 ms", "lag p99 ms", "lag max ms"),
        [
            _texts(
                *(lag["clients"], lag["per_s"], lag["commits"], lag["latency"]["p50_ms"]),
                *(of["p50_ms"], of["p99_ms"], of["max_ms"]),
            )
        ],
    )


def _spark(spark: Mapping[str, Any]) -> Sheet:
    ways = {
        "loopback": "loopback",
        "round_trip": "1 ms round trip",
        "small_parts": f"lineitem in {spark['small_parts_count']} parts",
        "small_round_trip": f"lineitem in {spark['small_parts_count']} parts, 1 ms round trip",
        "each_part": f"lineitem in {spark['small_parts_count']} parts, each a file",
    }
    rows = []
    for key, name in ways.items():
        if key not in spark:
            continue
        rows += [
            _texts(name, item["query"], item["tidelock_s"], item["local_s"], item["ratio"])
            for item in spark[key]["queries"]
        ]
        rows.append(_texts(name, "geometric mean", "", "", spark[key]["geometric_mean_ratio"]))
    return Sheet(
        f"Spark, TPC-H SF {spark['scale_factor']:g}: a snapshot beside the same bytes as local files",
        ("way", "query", "snapshot s", "local s", "ratio"),
        rows,
    )


def _forced(runs: Sequence[Mapping[str, Any]]) -> Sheet:
    return Sheet(
        f"Commits where each forced write takes {runs[0]['slower_ms']} ms longer",
        (
            "clients",
            "catalogs",
            "commits/s",
            "p50 ms",
            "tids per CSN",
            "forced writes per commit, all replicas",
        ),
        [
            _texts(
                *(run["clients"], "written behind" if run["write_behind"] else "forced", run["per_s"]),
                *(run["p50_ms"], run["tids_per_csn"], run["forced_per_commit"]),
            )
            for run in runs
        ],
    )


def _stalls(runs: Sequence[Mapping[str, Any]]) -> Sheet:
    return Sheet(
        f"Spark, Q6 of TPC-H SF {runs[0]['scale_factor']:g}: the replica that it reads is hit",
        (
            *("event", "times", "read after it", "undisturbed job, s", "job longer by, s, median"),
            *("longest time without a byte, undisturbed, s", "hit, median", "largest"),
        ),
        [
            _texts(
                *(run["event"], run["times"], run["met"], run["usual_s"], run["longer_s"]),
                *(run["usual_stall_s"], run["stall_s"], run["stall_max_s"]),
            )
            for run in runs
        ],
    )


def _client_stalls(runs: Sequence[Mapping[str, Any]]) -> Sheet:
    return Sheet(
        "Python clients: longest time without an answer, s, while a replica is hit",
        ("event", "client", "times", "nothing happens", "hit, median", "largest"),
        [
            _texts(run["event"], run["who"], run["times"], run["usual_s"], run["stall_s"], run["stall_max_s"])
            for run in runs
        ],
    )


def _load(load: Mapping[str, Any]) -> Sheet:
    return Sheet(
        "Load of lineitem into three replicas",
        (
            *("MB", "parts", "rows in memory to all replicas, s", "three times cp and fsync, s", "ratio"),
            *("pyarrow's write_table once, s", "ratio to both"),
        ),
        [
            _texts(
                *(load["lineitem_mb"], load["lineitem_parts"], load["lineitem_s"]),
                *(load["three_copies_s"], load["ratio"], load["write_table_s"], load["ratio_to_encoding"]),
            )
        ],
    )


def _memory(load: Mapping[str, Any]) -> Sheet:
    return Sheet(
        f"Memory of the agents, MB, before and after the load of SF {load['scale_factor']:g}",
        ("replica", "protocol process before", "after", "its peak", "with all workers after"),
        [
            _texts(
                *(replica, load["memory_before_mb"][replica]["protocol"], after["protocol"]),
                *(after["peak"], after["whole"]),
            )
            for replica, after in load["memory_after_mb"].items()
        ],
    )


def _writes(writes: Mapping[str, Any]) -> Sheet:
    names = {
        "plain": "plain Parquet",
        "path": "`tl.write`, then commit",
        "keyed": "`tl.write`, then commit, table with a unique key",
        "source": "data source",
    }
    rows = []
    for run in writes["runs"]:
        replicas = run["replicas"]
        for way in run["ways"]:
            plain = way["way"] == "plain"
            name = f"{names[way['way']]}, {replicas} times" if plain and replicas > 1 else names[way["way"]]
            fsync, commit = (way["end_s"], None) if plain else (None, way["end_s"])
            rows.append(
                _texts(
                    *(replicas, name, way["whole_s"], commit, fsync, way["spark_cpu_s"], way["agents_cpu_s"]),
                    *(way["to_plain"], way["to_forced"]),
                )
            )
    return Sheet(
        f"Spark writes lineitem of TPC-H SF {writes['scale_factor']:g} ({writes['runs'][0]['mb']:g} MB in "
        f"{writes['runs'][0]['files']} files); all replicas on one disk",
        (
            *("replicas", "way", "s", "of that after the write", "fsync, s", "CPU s of Spark"),
            *("of the agents", "ratio to plain", "ratio to plain with fsync"),
        ),
        rows,
    )


def _write_memory(memory: Mapping[str, Any]) -> Sheet:
    rows = [
        _texts(file["file_mb"], replica, rest, file["peak_mb"][replica])
        for file in memory["files"]
        for replica, rest in file["rest_mb"].items()
    ]
    return Sheet(
        "Memory of the agents' protocol processes while Spark writes one file, MB",
        ("file", "replica", "before", "peak"),
        rows,
    )


def _rates(streams: Mapping[str, Any]) -> Sheet:
    names = {"parquet": "Spark's Parquet sink, one copy", "tidelock": "data source, three replicas"}
    return Sheet(
        "Small micro-batches, as fast as Spark can",
        ("sink", "batches", "batches/s", "ms, median", "of that the write and its commit"),
        [
            _texts(*(names[rate["sink"]], rate["batches"], rate["per_s"], rate["whole_ms"], rate["write_ms"]))
            for rate in streams["rates"]
        ],
    )


def _visible(visible: Mapping[str, Any]) -> Sheet:
    return Sheet(
        "From a commit's acknowledgement to its rows in a streaming reader at another replica",
        ("p50 ms", "p99 ms", "max ms"),
        [_texts(visible["p50_ms"], visible["p99_ms"], visible["max_ms"])],
    )


def _start(runs: Sequence[Mapping[str, Any]]) -> Sheet:
    return Sheet(
        "Start of an agent, from the start of the process until it is ready, and its status after it",
        ("part files", "s", "status p50, ms", "protocol process, MB"),
        [
            _texts(f"{run['part_files']:,}", run["ready_s"], run["status_ms"], run["memory_mb"]["protocol"])
            for run in runs
        ],
    )


def _pauses(runs: Sequence[Mapping[str, Any]]) -> Sheet:
    return Sheet(
        "Largest pause of an agent with many parts and tables, while it answers",
        ("work", "answer, ms", "largest pause, ms"),
        [_texts(run["what"], run["answer_ms"], run["pause_ms"]) for run in runs],
    )


def _growth(growth: Mapping[str, Any]) -> Iterator[Sheet]:
    yield Sheet(
        "Commits of one client, at a cluster that has only begun and at one with large catalogs, in turn",
        ("tables", "parts", "records", "p50 ms, small", "p50 ms, large", "ratio"),
        [
            _texts(
                *(f"{growth[key]:,}" for key in ("tables", "parts", "records")),
                *(growth["small_p50_ms"], growth["large_p50_ms"], growth["ratio"]),
            )
        ],
    )
    yield Sheet(
        "Cold listing of one of 30 folders of a table, at a new CSN",
        ("parts of the table", "small parts as combined files, s", "each part a file, s"),
        [_texts(f"{growth['listed']:,}", growth["listing_s"], growth["listing_by_part_s"])],
    )


def _definitions(found: Mapping[str, Any]) -> Iterator[Sheet]:
    yield Sheet(
        "Definitions of one client, at a cluster without tables and at one with many, in turn",
        (
            "tables",
            "per second, few tables",
            "per second, many",
            "time, ratio",
            "time, ratio to a commit of rows",
        ),
        [
            _texts(
                f"{found['tables']:,}",
                *(found[key] for key in ("few_per_s", "many_per_s", "ratio", "to_commit")),
            )
        ],
    )
    yield Sheet(
        "A table of many definitions beside one of one definition, in turn: commits, and cold listings",
        ("definitions", "work", "p50 ms, one definition", "p50 ms, many", "ratio"),
        [
            _texts(
                f"{found['versions']:,}",
                work,
                *(found[f"{work}_{key}"] for key in ("once_ms", "often_ms", "ratio")),
            )
            for work in ("commit", "listing")
        ],
    )


def _imports(found: Mapping[str, Any]) -> Sheet:
    ways = {
        "hash the files": "hash",
        "cp and fsync": "copy",
        "linked, one replica": "alone",
        "linked, three replicas": "linked",
        "sent, three replicas": "sent",
    }
    return Sheet(
        f"Import of {found['files']} Parquet files of {found['mb']:,} MB, until it is committed",
        ("way", "seconds", "MB/s", "ratio to hashing"),
        [
            _texts(
                name, found[f"{way}_s"], round(found["mb"] / found[f"{way}_s"]), found.get(f"{way}_ratio", 1)
            )
            for name, way in ways.items()
        ],
    )


def _clone(clone: Mapping[str, Any]) -> Sheet:
    during = "" if clone["lasted"] else " (the clone ended before)"
    return Sheet(
        f"A lost disk: {clone['parts']:,} parts come back, and {clone['clients']} clients commit meanwhile",
        (
            *("MB", "cp and sync, s", "MB/s", "clone, s", "MB/s", "ratio", "clone beside commits, s"),
            *("commits/s before", "meanwhile", "ratio"),
        ),
        [
            _texts(
                *(clone["mb"], clone["copy_s"], clone["copy_mb_per_s"]),
                *(clone["clone_s"], clone["clone_mb_per_s"], clone["ratio"], clone["busy_clone_s"]),
                *(clone["commits_per_s"], f"{clone['commits_per_s_meanwhile']}{during}"),
                clone["commits_ratio"],
            )
        ],
    )


def _clone_small(clone: Mapping[str, Any]) -> Sheet:
    return Sheet(
        f"A lost disk: {clone['parts']:,} parts of {clone['bytes_per_part']} bytes come back",
        ("clone of one part, s", "clone of all, s", "parts/s", "agents' CPU ms per part"),
        [_texts(clone["bare_s"], clone["clone_s"], clone["parts_per_s"], clone["cpu_ms_per_part"])],
    )


def _merge_rate(rate: Mapping[str, Any]) -> Sheet:
    return Sheet(
        "Compaction of lineitem: sorted, stored on three replicas; DuckDB's COPY of the same files in order",
        (
            *("MB", "parts before", "after", "s", "s, on all replicas", "MB/s"),
            *("DuckDB, one copy, s", "MB/s"),
        ),
        [
            _texts(
                *(rate["mb"], rate["parts_before"], rate["parts_after"], rate["merge_s"]),
                *(rate["everywhere_s"], rate["mb_per_s"], rate["copy_s"], rate["copy_mb_per_s"]),
            )
        ],
    )


def _scans(compaction: Mapping[str, Any]) -> Sheet:
    return Sheet(
        f"Spark over lineitem after {compaction['inserts']:,} inserts in {compaction['inserted_s']:g} s and "
        f"compaction ({compaction['parts_left']} parts, settled {compaction['settled_s']:g} s later), beside "
        f"one load ({compaction['loaded_parts']} parts)",
        ("query", "inserted, s", "loaded, s", "ratio"),
        [
            _texts(scan["query"], scan["inserted_s"], scan["loaded_s"], scan["ratio"])
            for scan in compaction["scans"]
        ],
    )


def _mutations(runs: Sequence[Mapping[str, Any]]) -> Sheet:
    return Sheet(
        "One row in a hundred of lineitem is deleted or updated",
        ("way", "statement", "rows", "s, durable on 2", "s, on all replicas", "deltalake s", "ratio"),
        [
            _texts(
                *(run["way"], run["statement"], run["rows"], run["tidelock_s"], run["everywhere_s"]),
                *(run["deltalake_s"], run["ratio"]),
            )
            for run in runs
        ],
    )


def _endurance(endurance: Mapping[str, Any]) -> Sheet:
    keys = ("commits", "parts", "znodes", "catalog_mb", "memory_mb", "memory_max_mb")
    return Sheet(
        f"Inserts without pause by {endurance['clients']} clients, in intervals of "
        f"{endurance['minute_s']:g} s (parts: at the end; sizes: means)",
        (
            "interval",
            "commits",
            "parts",
            "ZooKeeper nodes",
            "catalog, MB",
            "protocol process, MB",
            "its most",
        ),
        [
            _texts(number, *(minute[key] for key in keys))
            for number, minute in enumerate(endurance["minutes"], 1)
        ],
    )


def _spark_peers(peers: Mapping[str, Any]) -> Iterator[Sheet]:
    """The formats through one Spark; what each forces to disk stands beside its writes."""
    title = f"Spark {peers['spark']}, TPC-H SF {peers['scale_factor']:g}"
    queries = list(peers["reads"][0]["s"])
    yield Sheet(
        f"{title}: warm queries, s (ratio to plain Parquet)",
        ("format", *queries, "geometric mean of the ratios"),
        [
            _texts(
                run["format"],
                *(f"{run['s'][query]} ({run['to_plain'][query]})" for query in queries),
                run["geometric_mean_ratio"],
            )
            for run in peers["reads"]
        ],
    )
    yield Sheet(
        f"{title}: lineitem is written; the fsync is not part of the write",
        ("format", "s, committed", "s, on all replicas", "ratio to plain Parquet", "fsync, s", "note"),
        [
            _texts(
                *(run["format"], run["s"], run["everywhere_s"], run["to_plain"], run["fsync_s"]),
                peers["notes"][run["format"]],
            )
            for run in peers["writes"]
        ],
    )
    yield Sheet(
        f"{title}: one row in a hundred of lineitem is deleted or updated",
        ("statement", "format", "s, committed", "s, on all replicas"),
        [
            _texts(run["statement"], run["format"], run["s"], run["everywhere_s"])
            for run in peers["mutations"]
        ],
    )
    yield Sheet(
        f"{title}: rows are merged into lineitem by Spark, one in ten of them is new",
        ("share of the table, %", "format", "s, committed", "s, on all replicas"),
        [_texts(run["percent"], run["format"], run["s"], run["everywhere_s"]) for run in peers["merges"]],
    )
    yield Sheet(
        f"{title}: small batches of one writer",
        ("rows of a batch", "way", "commits/s", "p50 ms", "p99 ms"),
        [_texts(run["rows"], run["way"], run["per_s"], *_latency(run)) for run in peers["small"]],
    )


def _compared(figures: Mapping[str, Any]) -> Sheet:
    machine = figures["before"]["machine"]
    return Sheet(
        f"Beside the state before ({machine['git']}), in the same run",
        ("figure", "before", "now", "times"),
        [_texts(item.what, item.before, item.now, item.times) for item in compared(figures)],
    )


def _aims(figures: Mapping[str, Any]) -> Sheet:
    rows = [
        _texts(aim.what, aim.asked, f"{aim.found:g}", "yes" if aim.reached else "no") for aim in aims(figures)
    ]
    return Sheet("Aims", ("figure", "aim", "found", "reached"), rows)
