"""The pure parts of the benchmark: statistics, lags, aims and tables. Measurements are not tested here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

from bench.output.aims import Aim, aims
from bench.output.compared import compared
from bench.output.plot import draw
from bench.output.report import Sheet, sheets
from bench.parts.endurance import ratios
from bench.parts.lag import lags
from bench.peers.peer import retrying
from bench.spark_peers import run as spark_peers
from bench.tools import before
from bench.tools.statements import statements
from bench.tools.ways import Way
from bench.tools.workload import ROWS, SCHEMA, ClientPace, CommitTiming, batch
from workloads.stats import Latencies, geometric_mean, percentile, reached

LATENCY = {"p50_ms": 10.0, "p99_ms": 20.0, "max_ms": 30.0}
RUN = {
    "way": Way.WRITE,
    "clients": 32,
    "per_s": 149.9,
    "latency": LATENCY,
    "tids_per_csn": 3.0,
    "agent_cpu_ms_per_commit": 10.0,
    "client_cpu_ms_per_commit": 4.0,
    "zookeeper_cpu_ms_per_commit": 0.3,
    "zookeeper_writes_per_commit": 0.5,
    "rows": 800,
}
MEMORY = {"r1": {"protocol": 200.0, "peak": 501.0, "whole": 400.0}}
WAY = {
    "queries": [{"query": "Q1", "tidelock_s": 1.1, "local_s": 1.0, "ratio": 1.1}],
    "geometric_mean_ratio": 1.1,
    "worst_ratio": 1.1,
}
WRITES = [
    {"way": way, "whole_s": whole, "end_s": 0.1, "spark_cpu_s": 9.0, "agents_cpu_s": 1.0, **ratios}
    for way, whole, ratios in (
        ("plain", 10.0, {"to_plain": 1.0, "to_forced": 0.99}),
        ("path", 14.0, {"to_plain": 1.4, "to_forced": 1.39}),
        ("keyed", 15.0, {"to_plain": 1.5, "to_forced": 1.49}),
        ("source", 22.0, {"to_plain": 2.2, "to_forced": 2.18}),
    )
]
FOUND: dict[str, Any] = {
    "commits": [RUN, RUN | {"way": Way.STATEMENTS, "per_s": 501.0}],
    "raw_zookeeper": [{"clients": 1, "per_s": 700.0, "latency": LATENCY}],
    "peers": [
        {
            "peer": "deltalake",
            "tables": 1,
            "note": "does not fsync",
            "runs": [{"clients": 8, "per_s": 30.0, "latency": None, "failed_attempts": 7, "rows_missing": 0}],
        },
        {"peer": "ducklake", "left_out": "not installed"},
    ],
    "lag": {"clients": 32, "per_s": 100.0, "commits": 1500, "latency": LATENCY, "lag": LATENCY},
    "forced": [
        {"write_behind": behind, "clients": 1, "slower_ms": 5, "per_s": 20.0, "p50_ms": 50.0}
        | {"tids_per_csn": 1.0, "forced_per_commit": forced}
        for behind, forced in ((False, 9.1), (True, 3.1))
    ],
    "spark": {"scale_factor": 1.0, "small_parts_count": 500, "loopback": WAY},
    "stalls": [
        {"event": event, "scale_factor": 1.0, "times": 15, "met": 14, "usual_s": 2.5, "longer_s": 0.3}
        | {"usual_stall_s": 0.2, "stall_s": 0.5, "stall_max_s": largest_s}
        for event, largest_s in (("frozen", 2.9), ("killed", 1.1))
    ],
    "client_stalls": [
        {"event": event, "who": who, "times": 15, "usual_s": 0.1, "stall_s": 0.5, "stall_max_s": largest_s}
        for event, who, largest_s in (
            ("frozen", "reader, newest rows", 3.1),
            ("frozen", "writer, home is hit, inserts", 30.0),
            ("killed", "writer, a peer is hit, inserts", 1.9),
        )
    ],
    "load": {
        "scale_factor": 1.0,
        "lineitem_mb": 200.0,
        "lineitem_parts": 7,
        "lineitem_s": 8.0,
        "three_copies_s": 2.0,
        "ratio": 4.0,
        "write_table_s": 3.0,
        "ratio_to_encoding": 1.6,
        "memory_before_mb": MEMORY,
        "memory_after_mb": MEMORY,
    },
    "compaction": {
        "rate": {
            "mb": 200.0,
            "parts_before": 140,
            "parts_after": 7,
            "merge_s": 20.0,
            "everywhere_s": 22.0,
            "mb_per_s": 10.0,
            "copy_s": 10.0,
            "copy_mb_per_s": 20.0,
        },
        "inserts": 2000,
        "inserted_s": 20.0,
        "settled_s": 12.0,
        "parts_left": 40,
        "loaded_parts": 7,
        "scans": [{"query": "Q6", "inserted_s": 1.3, "loaded_s": 1.0, "ratio": 1.3}],
        "worst_ratio": 1.3,
    },
    "spark_writes": {
        "scale_factor": 1.0,
        "runs": [{"replicas": replicas, "mb": 180.0, "files": 8, "ways": WRITES} for replicas in (1, 3)],
    },
    "streams": {
        "rates": [
            {"sink": sink, "batches": 60, "per_s": per_s, "whole_ms": 500.0, "write_ms": 300.0}
            for sink, per_s in (("parquet", 3.0), ("tidelock", 1.9))
        ],
        "visible": LATENCY,
    },
    "write_memory": {
        "files": [{"file_mb": 64.0, "rest_mb": {"r1": 120.0}, "peak_mb": {"r1": 130.0}}],
        "size_ratio": 16.0,
        "peak_ratio": 1.1,
    },
    "spark_peers": {
        "spark": "3.5.9",
        "packages": ["a:b:1"],
        "scale_factor": 1.0,
        "notes": {"plain Parquet": "nothing is forced", "Delta": "one copy"},
        "reads": [
            {"format": name, "s": {"Q1": 2.5}, "to_plain": {"Q1": ratio}, "geometric_mean_ratio": ratio}
            for name, ratio in (("plain Parquet", 1.0), ("Delta", 1.25))
        ],
        "writes": [
            {"format": "Delta", "s": 9.0, "everywhere_s": None, "fsync_s": 0.7, "to_plain": 1.2},
        ],
        "mutations": [
            {"statement": "delete, range", "format": "Delta", "s": 3.0, "everywhere_s": None},
        ],
        "merges": [{"percent": 10, "format": "Iceberg", "s": 9.5, "everywhere_s": None}],
        "small": [{"rows": 10, "way": "Delta", "per_s": 1.75, "latency": LATENCY}],
    },
    "pauses": [
        {"what": "status", "answer_ms": 1.5, "pause_ms": 8.1},
        {"what": "commits at once", "answer_ms": 900.0, "pause_ms": 50.1},
    ],
    "growth": {
        "tables": 1_000,
        "parts": 1_000_000,
        "listed": 100_000,
        "records": 100_000,
        "small_p50_ms": 10.0,
        "large_p50_ms": 10.9,
        "ratio": 1.09,
        "listing_s": 0.31,
        "listing_by_part_s": 0.37,
    },
    "definitions": {
        "tables": 1_000,
        "few_per_s": 90.0,
        "many_per_s": 81.0,
        "ratio": 1.11,
        "to_commit": 1.2,
        "versions": 1_000,
        "commit_once_ms": 10.0,
        "commit_often_ms": 10.5,
        "commit_ratio": 1.05,
        "listing_once_ms": 4.0,
        "listing_often_ms": 4.2,
        "listing_ratio": 1.05,
    },
    "imports": {
        "files": 40,
        "mb": 10_240,
        "hash_s": 1.0,
        "copy_s": 20.0,
        "copy_ratio": 20.0,
        "alone_s": 2.0,
        "alone_ratio": 2.0,
        "linked_s": 50.0,
        "linked_ratio": 50.0,
        "sent_s": 70.0,
        "sent_ratio": 70.0,
    },
    "mutations": [
        {"way": "row groups", "statement": statement, "rows": 9, "tidelock_s": seconds, "everywhere_s": 9.9}
        | {"deltalake_s": 2.0, "ratio": seconds / 2.0}
        for statement, seconds in (("delete, spread", 3.6), ("delete, range", 2.2))
    ],
    "landing": [
        {"clients": 8, "kind": kind, "per_s": 64.0, "p50_ms": 10.0, "p99_ms": 20.0, "agent_cpu_ms": 3.0}
        | {"client_cpu_ms": 0.5, "zookeeper_cpu_ms": 0.1, "zookeeper_writes": 0.25, "rows": 500}
        for kind in ("land", "insert")
    ],
    "start": [{"part_files": 20_000, "ready_s": 2.1, "status_ms": 3.2, "memory_mb": MEMORY["r1"]}],
    "clone": {
        "parts": 20_000,
        "mb": 10_000.0,
        "copy_s": 20.0,
        "copy_mb_per_s": 500.0,
        "clone_s": 40.0,
        "clone_mb_per_s": 250.0,
        "ratio": 2.0,
        "busy_clone_s": 61.7,
        "clients": 8,
        "commits_per_s": 90.0,
        "commits_per_s_meanwhile": 62.1,
        "commits_ratio": 0.69,
        "lasted": True,
    },
    "clone_small": {
        "parts": 32_000,
        "bytes_per_part": 341,
        "bare_s": 8.0,
        "clone_s": 24.0,
        "parts_per_s": 2_001.0,
        "cpu_ms_per_part": 0.4,
    },
}


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.5, 5.0), (0.51, 6.0), (0.9, 9.0), (0.91, 10.0), (1.0, 10.0)]
)
def test_percentile_is_a_measured_value(share: float, expected: float) -> None:
    """A percentile is the smallest measured value that this share of unsorted values does not exceed."""
    assert percentile([10.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0], share) == expected


def test_nothing_has_no_statistics() -> None:
    """Without values no percentile and no mean is given."""
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 0.5)
    with pytest.raises(ValueError, match="no geometric mean"):
        geometric_mean([])
    with pytest.raises(ValueError, match="no geometric mean"):
        geometric_mean([1.0, 0.0])


def test_geometric_mean_of_opposite_ratios_is_one() -> None:
    """Twice as slow and twice as fast cancel each other."""
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)


def test_latencies_are_in_milliseconds() -> None:
    """Latencies are given in seconds and shown in milliseconds."""
    assert Latencies.of([0.001, 0.002, 0.1]) == Latencies(2.0, 100.0, 100.0)


@pytest.mark.parametrize(("csn", "expected"), [(1, 1.0), (5, 1.0), (6, 2.0), (9, 3.0), (10, None)])
def test_a_csn_is_reached_by_the_first_moment_that_contains_it(csn: int, expected: float | None) -> None:
    """A replica reaches a CSN at the first moment at which its CSN is as large."""
    assert reached([(1.0, 5), (2.0, 7), (3.0, 9)], csn) == expected


def test_lag_is_that_of_the_slowest_replica_and_never_negative() -> None:
    """A commit that all had applied before its acknowledgement has no lag."""
    replicas = [[(0.0, 1), (1.0, 2)], [(0.0, 1), (3.0, 2)]]
    assert lags([CommitTiming(5.0, 0.1, csn=1), CommitTiming(2.5, 0.1, csn=2)], replicas) == [0.0, 0.5]


def test_a_replica_that_stays_behind_is_an_error() -> None:
    """The lag of a commit that never arrived is not left out of the figures."""
    with pytest.raises(RuntimeError, match="CSN 2"):
        lags([CommitTiming(1.0, 0.1, csn=2)], [[(0.0, 1)]])


def test_batches_have_the_schema_and_no_key_in_common() -> None:
    """Rows are as the tables want them, so a count at the end counts every batch once."""
    keys = set()
    for client, number in ((0, 0), (0, 1), (1, 0)):
        rows = batch(client, number)
        assert rows.schema == SCHEMA
        keys.update(rows["key"].to_pylist())
    assert len(keys) == 3 * ROWS


def test_failed_attempts_are_repeated_and_counted() -> None:
    """A peer's commit is tried until it succeeds; other errors end the run."""
    errors: list[Exception] = [ValueError(), ValueError()]

    def attempt(_: int) -> None:
        if errors:
            raise errors.pop()

    assert retrying(attempt, (ValueError,))(0) == (0, 2)
    errors.append(KeyError())
    with pytest.raises(KeyError):
        retrying(attempt, (ValueError,))(0)


@pytest.mark.parametrize(
    ("aim", "kept", "asked"),
    [
        (Aim("rate", 150, 150.0, least=True), True, ">= 150"),
        (Aim("rate", 150, 149.9, least=True), False, ">= 150"),
        (Aim("time", 0.5, 0.5), True, "<= 0.5"),
        (Aim("time", 0.5, 0.51), False, "<= 0.5"),
    ],
)
def test_an_aim_has_a_direction(aim: Aim, kept: bool, asked: str) -> None:
    """A rate must be at least its bound, a time at most its bound."""
    assert aim.reached is kept
    assert aim.asked == asked


def test_aims_of_what_was_measured() -> None:
    """Each figure meets its own bound; parts that were not measured have none."""
    assert list(aims({})) == []
    missed = {aim.what for aim in aims(FOUND) if not aim.reached}
    assert missed == {
        "commits/s, 32 clients",
        "definitions with 1,000 tables, time beside few",
        "agents' CPU ms per commit, 32 clients",
        "ZooKeeper writes per commit, 32 clients",
        "Spark, geometric mean of the ratios, loopback",
        "delete, range, row groups, ratio to deltalake",
        "load, ratio to encoding once, three copies and fsync",
        "longest pause, commits at once, ms",
        "cold listing of 100,000 parts, s",
        "agent's peak memory, MB",
        "stall of a Spark job, replica killed, s, largest",
        "stall of a reader, newest rows, replica frozen, s, largest",
        "forced writes per commit, all replicas, 1 client",
        "Spark scan after 2,000 small inserts, ratio to one load",
        "Spark write, 1 replica(s), ratio to plain Parquet",
        "data source, ratio to the path write",
        "micro-batches/s through the sink",
        "ready with 20,000 part files, s",
        "commits/s during a clone, ratio to before",
    }


def test_figures_of_both_states_are_compared() -> None:
    """One request stands beside the only way of the state before, as its multiple."""
    earlier = RUN | {"per_s": 49.9, "agent_cpu_ms_per_commit": 40.0}
    del earlier["way"]
    before = {"machine": {"git": "v0-1-gabc"}, "commits": [earlier], "mutations": FOUND["mutations"][:1]}
    figures = FOUND | {"before": before}
    found = {item.what: item.times for item in compared(figures)}
    assert found == {
        "commits/s, 32 client(s)": 3.004,
        "commit p50, ms, 32 client(s)": 1.0,
        "agents' CPU ms per commit, 32 client(s)": 0.25,
        "clients' CPU ms per commit, 32 client(s)": 1.0,
        "ZooKeeper writes per commit, 32 client(s)": 1.0,
        "delete, spread, ratio to deltalake": 1.0,
    }
    missed = {aim.what for aim in aims(figures) if not aim.reached} - {
        aim.what for aim in aims(FOUND) if not aim.reached
    }
    assert missed == {
        "commits/s, 32 client(s): times the state before",
        "agents' CPU ms per commit, 32 client(s): times the state before",
        "clients' CPU ms per commit, 32 client(s): times the state before",
        "ZooKeeper writes per commit, 32 client(s): times the state before",
    }
    assert "v0-1-gabc" in "".join(sheet.title for sheet in sheets(figures))


def test_a_folder_without_a_benchmark_is_no_state_before(tmp_path: Path) -> None:
    """The error has the folder, since figures without the state before would pass for whole ones."""
    with pytest.raises(RuntimeError, match=re.escape(str(tmp_path))):
        before.run(tmp_path, ["commits"], quick=True, scale_factor=None)


def test_each_question_has_its_picture(tmp_path: Path) -> None:
    """A part that was measured and has a picture is drawn into a file of its own."""
    draw(FOUND, tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {
        *("commits", "cost", "landing", "spark_reads", "mutations", "spark_writes", "spark_peers", "start"),
        *("pauses", "clone", "imports"),
    }


def _minute(commits: int, size: float) -> dict[str, float]:
    sizes = dict.fromkeys(("znodes", "catalog_mb", "memory_mb", "memory_max_mb"), size)
    return {"commits": commits, "parts": 9, **sizes}


def test_the_last_minute_is_compared_with_the_second_and_the_fifth() -> None:
    """The comparison shows a rate that falls and sizes that grow after the fifth minute."""
    minutes = [
        _minute(count, size) for count, size in [(9, 1), (100, 2), (90, 4), (90, 8), (90, 10), (80, 15)]
    ]
    found = ratios(minutes)
    assert found == {"rate_ratio": 0.8, "znodes_ratio": 1.5, "catalog_mb_ratio": 1.5, "memory_mb_ratio": 1.5}
    run = {"clients": 8, "minute_s": 60.0, "minutes": minutes, **found}
    assert [aim.reached for aim in aims({"endurance": run})] == [False] * 4
    sheet = next(iter(sheets({"endurance": run})))
    assert len(sheet.rows) == len(minutes)
    assert all(len(row) == len(sheet.header) for row in sheet.rows)


def test_every_part_has_its_tables() -> None:
    """All measurements are shown, and a peer that was left out has its reason."""
    shown = list(sheets(FOUND))
    assert all(len(row) == len(sheet.header) for sheet in shown for row in sheet.rows)
    text = "\n".join(sheet.markdown() for sheet in shown)
    for figure in (
        "149.9",
        "700.0",
        "left out: not installed",
        "geometric mean",
        "20,000",
        "61.7",
        "2001.0",
        "does not fsync",
        "2.5 (1.25)",
        "1.75",
    ):
        assert figure in text


def test_a_sheet_as_markdown() -> None:
    """Header, rule and rows have the same number of columns."""
    sheet = Sheet("Title", ("a", "b"), [("1", "2")])
    assert sheet.markdown() == "**Title**\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n"


def test_each_statement_changes_one_row_in_a_hundred() -> None:
    """Spread ones and ranges are equally many, so that their times tell what their places cost."""
    keys = "select l_orderkey from range(100_000) numbers(l_orderkey)"
    found: set[int] = set()
    for statement in statements(100_000):
        rows = {key for (key,) in duckdb.execute(f"{keys} where {statement.where}").fetchall()}
        assert len(rows) == 1_000, statement.name
        found |= rows
    spread_in_ranges = 2 * 2 * 10
    assert len(found) == 4 * 1_000 - spread_in_ranges


def test_a_lack_of_the_older_spark_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    """Figures without the peers would pass for whole ones, so the part fails, and says what installs it."""
    with pytest.raises(RuntimeError, match="`make bench` installs it"):
        spark_peers.run(tmp_path, repeats=1, pace=ClientPace(0.1, 0.1), spark=tmp_path / "spark35")
