"""The results of the demo, as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demo.failure import Findings
from demo.rounds import FaultKind, Round


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCounts:
    """The commits of the demo.

    Attributes:
        writers: Threads that wrote.
        full_pace_s: How long they wrote at full pace; they went on, calmly, as long as Spark read.
        at_full_pace: Commits in that time.
        total: Commits of the writers in all.
        per_csn: Of those, how many share a CSN on average.
        burst: Commits of the closing burst.
        burst_threads: Threads that made them.
        burst_s: How long that took.
        burst_per_csn: How many of the burst share a CSN on average.
        sent_again: Batches sent more than once, since the first time they were certainly not committed.
        asked: Commits whose answer was lost, and whose outcome was asked for.
    """

    writers: int
    full_pace_s: float
    at_full_pace: int
    total: int
    per_csn: float
    burst: int
    burst_threads: int
    burst_s: float
    burst_per_csn: float
    sent_again: int
    asked: int


@dataclass(frozen=True, slots=True)
class Disturbance:
    """The cost of one strike for the reader.

    Attributes:
        kind: What was done.
        csn: The CSN at which the query read, before and after the strike.
        query: Its name.
        duration_s: How long it took.
        undisturbed_s: How long the same query took at the same CSN before the strike.
        done: Tasks of its stage that were finished before the strike.
        tasks: Tasks of its stage.
        from_victim: Bytes that the struck replica served for it, as far as it reported before the strike.
        from_others: Bytes that the others served for it.
        catch_up_s: How long the replica then took to be where the others were.
    """

    kind: FaultKind
    csn: int
    query: str
    duration_s: float
    undisturbed_s: float
    done: int
    tasks: int
    from_victim: int
    from_others: int
    catch_up_s: float

    @property
    def stall_s(self) -> float:
        """The additional duration of the query due to the strike."""
        return max(0.0, self.duration_s - self.undisturbed_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """All results of the demo.

    Attributes:
        victim: The replica that Spark was pinned to, and that was struck.
        rows: Rows by table at the end.
        rounds: Of Spark.
        disturbances: One for each kind of strike.
        duration_s: Of the whole demo.
    """

    scale_factor: float
    victim: str
    commits: CommitCounts
    rows: Mapping[str, int]
    rounds: Sequence[Round]
    disturbances: Sequence[Disturbance]
    findings: Findings
    duration_s: float


def disturbance(struck: Round, victim: str) -> Disturbance:
    """Return the cost of the strike of a round."""
    assert struck.strike is not None
    assert struck.calm is not None
    assert struck.catch_up_s is not None
    others = [served.byte_count for replica, served in struck.served.items() if replica != victim]
    return Disturbance(
        kind=struck.kind,
        csn=struck.csn,
        query=struck.target.query.name,
        duration_s=struck.target.duration_s,
        undisturbed_s=struck.calm.duration_s,
        done=struck.strike.done,
        tasks=struck.strike.tasks,
        from_victim=struck.served[victim].byte_count,
        from_others=sum(others),
        catch_up_s=struck.catch_up_s,
    )


def print_report(console: Console, report: DemoReport, steps: Sequence[str]) -> None:
    """Print the final table."""
    table = Table(title="What the demo has shown", title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _lines(report):
        table.add_row(name, escape(value))
    count = len(report.findings.violations)
    table.add_row(
        "violations", f"[{'red' if count else 'green'}]{count}[/] of {report.findings.checks} checks"
    )
    for index, step in enumerate(steps):
        table.add_row("" if index else "where to look next", escape(step))
    console.print(table)


def as_json(report: DemoReport) -> dict[str, Any]:
    """The report as JSON values."""
    commits = report.commits
    return {
        "scale_factor": report.scale_factor,
        "duration_s": round(report.duration_s, 3),
        "commits": {name: getattr(commits, name) for name in commits.__slots__},
        "rows": dict(report.rows),
        "rounds": [
            {
                "number": item.number,
                "kind": item.kind.value,
                "csn": item.csn,
                "durations_s": {answer.query.name: round(answer.duration_s, 3) for answer in item.answers},
            }
            for item in report.rounds
        ],
        "disturbances": [
            {
                "kind": item.kind.value,
                "csn": item.csn,
                "query": item.query,
                "duration_s": round(item.duration_s, 3),
                "undisturbed_s": round(item.undisturbed_s, 3),
                "stall_s": round(item.stall_s, 3),
                "tasks": item.tasks,
                "tasks_done_before": item.done,
                "bytes_from_victim": item.from_victim,
                "bytes_from_others": item.from_others,
                "catch_up_s": round(item.catch_up_s, 3),
            }
            for item in report.disturbances
        ],
        "checks": report.findings.checks,
        "violations": [{"check": item.check, "finding": item.finding} for item in report.findings.violations],
    }


def megabytes(count: int) -> str:
    """Return a number of bytes as text for people."""
    return f"{count / 1e6:.2f} MB"


def next_steps(folder: Path, *, kept: bool) -> list[str]:
    """Return the next step for a user: the cluster, if it still runs, or how to keep it."""
    docs = "docs/architecture.md: how it works; docs/protocol.md: every byte and route"
    if not kept:
        return [
            docs,
            "python -m demo --keep --data-dir DIR: the same, and the cluster stays for you to look at",
        ]
    return [
        docs,
        f"tidelock status --data-dir {folder}: the cluster, which still runs",
        f"tidelock tables --data-dir {folder}; tidelock log --data-dir {folder}",
        f"{folder}/*/agent.log: what the agents say; {folder}/demo/spark.log: what Spark says",
        f"tidelock down --data-dir {folder}: end it",
    ]


def _lines(report: DemoReport) -> Iterator[tuple[str, str]]:
    """The rows of the table."""
    yield "commits", _commits(report.commits)
    yield "tids per CSN", _tids_per_csn(report.commits)
    yield "rows", _rows(report.rows)
    yield "rounds of Spark", _rounds(report.rounds)
    for item in report.disturbances:
        yield f"{report.victim} {item.kind.value}", _struck(item, report.victim)
    yield "clients", _lost(report.commits)
    yield "duration", f"{report.duration_s:.0f} s"


def _commits(commits: CommitCounts) -> str:
    return (
        f"{commits.total:,} of two tables each, by {commits.writers} writers on 3 replicas "
        f"({commits.at_full_pace:,} in the first {commits.full_pace_s:g} s); "
        f"{commits.burst} more in the closing burst ({commits.burst / commits.burst_s:.0f}/s)"
    )


def _tids_per_csn(commits: CommitCounts) -> str:
    return (
        f"{commits.burst_per_csn:.1f} in the burst of {commits.burst_threads} threads, "
        f"{commits.per_csn:.1f} before"
    )


def _rows(rows: Mapping[str, int]) -> str:
    return (
        f"orders {rows['orders']:,}, lineitem {rows['lineitem']:,}, "
        f"all {len(rows)} tables {sum(rows.values()):,}"
    )


def _rounds(rounds: Sequence[Round]) -> str:
    csns = ", ".join(str(item.csn) for item in rounds)
    return f"{len(rounds)}, at CSN {csns}; all rows compared with DuckDB's over the parts of another replica"


def _struck(item: Disturbance, victim: str) -> str:
    return (
        f"in {item.query} at CSN {item.csn} with {item.done} of {item.tasks} tasks of a stage done: "
        f"stall of the reader {item.stall_s:.1f} s ({item.duration_s:.1f} s, "
        f"{item.undisturbed_s:.1f} s undisturbed); {megabytes(item.from_victim)} or more from {victim}, "
        f"{megabytes(item.from_others)} from the others; back and caught up in {item.catch_up_s:.1f} s"
    )


def _lost(commits: CommitCounts) -> str:
    return f"{commits.sent_again} batches sent more than once, {commits.asked} outcomes asked for"
