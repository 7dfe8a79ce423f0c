"""The demo's report: figures of the strikes, the table, the JSON."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path

import pytest
from rich.console import Console

from demo.failure import Findings
from demo.nemesis import Strike
from demo.report import Commits, Report, as_json, disturbance, next_steps, print_report
from demo.rounds import Answer, Kind, Round
from workloads.agents import Served
from workloads.tpch.queries import Q3, Q18


def a_round(number: int, kind: Kind = Kind.UNDISTURBED, duration_s: float = 2.0) -> Round:
    """Return a round whose last query took this time."""
    answers = [Answer(Q3, [], 1.0), Answer(Q18, [], duration_s)]
    served = {"r1": Served(10, 1_000), "r2": Served(0, 0), "r3": Served(0, 0)}
    return Round(number, kind, 100 * number, answers, served)


def struck(number: int, kind: Kind, *, left: int = 8, from_others: int = 5_000) -> Round:
    """A round with a strike."""
    item = a_round(number, kind, duration_s=11.5)
    item.served |= {"r2": Served(3, from_others)}
    item.strike = Strike(stage=4, tasks=12, done=3, left=left, opens=7, served=Served(10, 1_000))
    item.calm = Answer(Q18, [], 2.5)
    item.catch_up_s = 1.25
    return item


def a_report(findings: Findings) -> Report:
    """A whole report of five rounds."""
    rounds = [
        a_round(0),
        struck(1, Kind.KILLED),
        a_round(2, duration_s=4.0),
        struck(3, Kind.FROZEN),
        a_round(4, duration_s=2.5),
    ]
    return Report(
        scale_factor=0.1,
        victim="r1",
        commits=Commits(
            writers=12,
            full_pace_s=20.0,
            at_full_pace=470,
            total=650,
            per_csn=1.1,
            burst=300,
            burst_threads=64,
            burst_s=3.0,
            burst_per_csn=12.5,
            sent_again=4,
            asked=1,
        ),
        rows={"orders": 159_500, "lineitem": 638_000, "region": 5},
        rounds=rounds,
        disturbances=[disturbance(rounds[1], "r1"), disturbance(rounds[3], "r1")],
        findings=findings,
        duration_s=123.0,
    )


def printed(report: Report, steps: list[str]) -> str:
    """The table as text, its line breaks inside cells mended."""
    text = io.StringIO()
    print_report(Console(file=text, width=400), report, steps)
    return text.getvalue()


def test_the_stall_is_measured_against_the_same_query_before() -> None:
    """The stall is the time beyond the same query without a strike; bytes are of victim and others."""
    killed = a_report(Findings()).disturbances[0]
    assert killed.undisturbed_s == pytest.approx(2.5)
    assert killed.stall_s == pytest.approx(9.0)
    assert (killed.from_victim, killed.from_others, killed.catch_up_s) == (1_000, 5_000, 1.25)


def test_a_query_that_was_faster_has_no_negative_stall() -> None:
    """A struck query that was fast has the stall 0, not a negative one."""
    quick = struck(1, Kind.KILLED)
    quick.answers[-1] = Answer(Q18, [], 1.0)
    assert disturbance(quick, "r1").stall_s == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("item", "hit"),
    [
        (struck(1, Kind.KILLED), True),
        (struck(1, Kind.KILLED, left=0), False),
        (struck(1, Kind.KILLED, from_others=0), False),
        (a_round(1), False),
    ],
    ids=["tasks left", "no task left", "nobody else served", "no strike"],
)
def test_what_counts_as_a_hit(item: Round, hit: bool) -> None:
    """A strike counts when tasks were left, and when bytes of the query came from both sides."""
    assert item.hit("r1") is hit


def test_signals_of_the_kinds() -> None:
    """A kill is SIGKILL, a freeze SIGSTOP."""
    assert Kind.KILLED.signum is signal.SIGKILL
    assert Kind.FROZEN.signum is signal.SIGSTOP
    assert Kind.UNDISTURBED.signum is None


def test_the_table_has_the_figures() -> None:
    """The table has commits, tids per CSN, rows, stalls, catch-up, violations and next steps."""
    findings = Findings()
    findings.check("x", None)
    text = printed(a_report(findings), ["look here", "and [there]"])
    for figure in (
        "650 of two tables each, by 12 writers on 3 replicas (470 in the first 20 s)",
        "12.5 in the burst of 64 threads, 1.1 before",
        "orders 159,500, lineitem 638,000, all 3 tables 797,505",
        "at CSN 0, 100, 200, 300, 400",
        "r1 killed",
        "r1 frozen",
        "stall of the reader 9.0 s (11.5 s, 2.5 s undisturbed)",
        "caught up in 1.2 s",
        "4 batches sent more than once, 1 outcomes asked for",
        "0 of 1 checks",
        "look here",
        "and [there]",
    ):
        assert figure in text


def test_violations_are_counted_in_the_table_and_listed_in_json() -> None:
    """A failed check is in both forms of the report."""
    findings = Findings()
    findings.check("every order is whole", "order 7 is not")
    report = a_report(findings)
    assert "1 of 1 checks" in printed(report, [])
    fields = json.loads(json.dumps(as_json(report)))
    assert fields["violations"] == [{"check": "every order is whole", "finding": "order 7 is not"}]
    assert fields["disturbances"][0]["stall_s"] == pytest.approx(9.0)
    assert fields["commits"]["burst_per_csn"] == pytest.approx(12.5)
    assert [item["kind"] for item in fields["rounds"]] == [
        *("undisturbed", "killed", "undisturbed", "frozen", "undisturbed")
    ]


def test_next_steps_depend_on_whether_the_cluster_still_runs() -> None:
    """Commands are shown only for a cluster that still runs."""
    folder = Path("somewhere")
    assert any("tidelock down --data-dir somewhere" in step for step in next_steps(folder, kept=True))
    gone = next_steps(folder, kept=False)
    assert not any("somewhere" in step for step in gone)
    assert any("--keep" in step for step in gone)
