"""The result of a run, for people and for files."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Final

import pytest

from chaos.__main__ import options_of, parser, plans_of, summary
from chaos.planning.plan import Plan
from chaos.record.violation import Violation
from chaos.result import command, result_of, told
from chaos.setup.options import BUILT_TAG, Options
from tests.unit.chaos.lines import call, fault, phase, run

PLAN: Final = Plan(7, 3.0, workloads=("bank", "list_append"), kinds=("killed", "clock wrong"))
USUAL: Final = Options()
LINES: Final = [
    run(),
    call(1),
    call(2, "read"),
    *fault(1, "killed", ["r1"], 2, 3, 4),
    call(5, end="fail", error="NoAnswerError"),
    {"ns": 6, "what": "spared", "fault": 2, "kind": "frozen", "why": "time"},
]


def test_a_result_counts_what_the_journal_has() -> None:
    """It passes without a violation; a fault without proof is named."""
    found = result_of(PLAN, LINES, [], seconds=9.0, interrupted=False, options=USUAL)
    assert (found.commits, found.reads, found.spared, found.passed) == (1, 1, 1, True)
    assert (found.faults, found.errors, found.unproven) == ({"killed": 1}, {"NoAnswerError": 1}, [])
    assert result_of(PLAN, [run(), LINES[3]], [], seconds=9.0, interrupted=False, options=USUAL).unproven == [
        1
    ]
    assert json.loads(json.dumps(found.to_json()))["availability"][0]["kind"] == "killed"
    assert told(found, "runs/x").startswith("seed 7: passed, 3 minutes")


def test_sessions_of_spark_are_counted_while_faults_come() -> None:
    """Sessions before and after the faults do not count; jobs that failed are not done."""
    counts = [("load", 1), ("faults", 4), ("faults", 3), ("faults", 4), ("heal", 0)]
    lines = [
        line
        for at_s, (name, sessions) in enumerate(counts)
        for line in (phase(at_s, name), {"ns": at_s, "what": "spark", "sessions": sessions, "jobs": []})
    ]
    jobs = [call(5, "read", spark=1), call(6, "read", "fail", spark=2), call(7, spark=2), call(8)]
    found = result_of(
        replace(PLAN, sessions=4), [run(), *lines, *jobs], [], seconds=9.0, interrupted=False, options=USUAL
    )
    assert (found.sessions, found.jobs) == (3, {"bank": 2})
    assert "2 jobs of Spark in at least 3 sessions at a time" in told(found, "runs/x")
    assert result_of(PLAN, LINES, [], seconds=9.0, interrupted=False, options=USUAL).sessions == 0


def test_a_failed_run_is_told_with_what_repeats_it() -> None:
    """Seed, folder, transaction, claim and command; violations of one claim are not repeated for pages."""
    several = [Violation("bank", "total constant", f"story {n}", 5, (f"9-r1-1-{n}",)) for n in range(5)]
    text = told(result_of(PLAN, LINES, several, seconds=9.0, interrupted=False, options=USUAL), "runs/x")
    for part in (
        "seed 7: FAILED",
        "total constant [9-r1-1-0]",
        "story 2",
        "2 more of the same",
        "runs/x/plan.json",
    ):
        assert part in text
    assert "story 3" not in text
    assert command(PLAN, USUAL) in text


def test_the_middle_of_a_long_story_is_left_out() -> None:
    """Its begin and its end say most; the files have all of it."""
    long = Violation("bank", "users need not bear this", "\n".join(f"line {n}" for n in range(30)))
    text = told(result_of(PLAN, LINES, [long], seconds=9.0, interrupted=False, options=USUAL), "runs/x")
    assert "line 5\n" in text
    assert "18 lines" in text
    assert "line 24" in text
    assert "line 15" not in text


def test_an_interrupted_run_has_not_passed() -> None:
    """Nothing was checked."""
    found = result_of(PLAN, LINES, [], seconds=9.0, interrupted=True, options=USUAL)
    assert not found.passed
    assert "| 7 | interrupted |" in summary([found])


def test_the_command_of_a_plan_draws_it_again() -> None:
    """The command line of a result is understood, and gives the same plan."""
    words = ["--seed", "7", "--minutes", "2", "--replicas", "4", "--only", "killed,clock wrong"]
    [plan] = plans_of(parser().parse_args([*words, "--workloads", "bank", "--plant", "torn-snapshot"]))
    assert plans_of(parser().parse_args(shlex.split(command(plan, USUAL))[3:])) == [plan]
    assert {step.kind for step in plan.steps} == {"killed", "clock wrong"}


@pytest.mark.parametrize(
    "options",
    [
        USUAL,
        Options(stall_max_s=60.5, converge_s=240.0, disk_bytes=700 << 20, image_tag="of a branch"),
        Options(converge_s=1.0),
    ],
)
def test_the_commands_of_a_failed_run_have_all_its_settings(options: Options) -> None:
    """A run with other bounds or disks is another run, drawn again or by its plan."""
    bad = [Violation("bank", "total constant", "story", 5)]
    run_of = result_of(PLAN, LINES, bad, seconds=9.0, interrupted=False, options=options)
    *_, drawn, exactly = told(run_of, "runs/x").splitlines()
    for line in (drawn, exactly):
        given = parser().parse_args(shlex.split(line.partition("python -m chaos ")[2]))
        assert options_of(given, given.image_tag) == options


def test_images_that_a_run_has_built_are_built_again() -> None:
    """They may not be there any more, and they are those of the checkout."""
    assert Options(image_tag=BUILT_TAG).words() == []


def test_the_command_of_every_other_choice_draws_the_same_plan() -> None:
    """An option that is left out would be the default when the run is repeated."""
    words = [
        *("--seed", "9", "--minutes", "0.5", "--replicas", "5", "--copies", "3", "--zookeepers", "1"),
        *("--workloads", "bank,pairs", "--pace", "0.5", "--sessions", "2", "--spark-workers", "1"),
        *("--without", "killed", "--containers"),
    ]
    [plan] = plans_of(parser().parse_args(words))
    repeated = shlex.split(command(plan, USUAL))[3:]
    assert plans_of(parser().parse_args(repeated)) == [plan]


def test_several_seeds_are_several_plans() -> None:
    """One after the other, from the first one on."""
    plans = plans_of(parser().parse_args(["--seed", "7", "--seeds", "3", "--minutes", "1"]))
    assert [plan.seed for plan in plans] == [7, 8, 9]
