"""The result of a run, as it is kept beside its journal and shown at its end. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from chaos.planning.plan import Plan
from chaos.reading.availability import by_kind, errors_by_kind, noticed
from chaos.reading.bands import bands
from chaos.record.violation import Violation
from chaos.setup.options import Options

#: Violations of one claim that are printed; all of them are in the files.
_SHOWN: Final = 3
#: Lines of a story that are printed at its begin and at its end.
_LINES: Final = 6


@dataclass(frozen=True, slots=True)
class Result:
    """A run that is over.

    Attributes:
        plan: Its plan.
        command: Repeats it.
        options: The words of the command that are in no plan.
        seconds: How long it took with its checks.
        interrupted: Whether somebody ended it: then nothing was checked.
        commits: Acknowledged commits.
        reads: Answered reads.
        faults: How often each kind of fault acted.
        spared: How many faults were left out.
        unproven: Faults whose effect nothing has shown, by number.
        sessions: The least number of sessions of Spark that ran at any moment at which faults came.
        jobs: How many jobs of Spark ended well, by workload.
        errors: How many calls did not end well, by error.
        availability: What clients noticed of each kind of fault (`availability.KindNoticed`).
        violations: All violations.
    """

    plan: Plan
    command: str
    options: str
    seconds: float
    interrupted: bool
    commits: int
    reads: int
    faults: Mapping[str, int]
    spared: int
    unproven: Sequence[int]
    sessions: int
    jobs: Mapping[str, int]
    errors: Mapping[str, int]
    availability: Sequence[Mapping[str, Any]]
    violations: Sequence[Violation]

    @property
    def passed(self) -> bool:
        """Whether it went to its end and no promise was broken."""
        return not (self.violations or self.interrupted)

    def to_json(self) -> dict[str, Any]:
        """Return it for a file; of the plan all but the steps."""
        plan = {name: value for name, value in asdict(self.plan).items() if name != "steps"}
        return {**asdict(self), "plan": plan, "passed": self.passed}


def result_of(
    plan: Plan,
    lines: Sequence[Mapping[str, Any]],
    violations: Sequence[Violation],
    *,
    seconds: float,
    interrupted: bool,
    options: Options,
) -> Result:
    """Return what a run has come to.

    Args:
        plan: Its plan.
        lines: Its journal.
        violations: What was found.
        seconds: How long it took.
        interrupted: Whether somebody ended it.
        options: Its settings besides the plan.
    """
    moments = bands(lines)
    ended = Counter((line["f"], line["end"]) for line in lines if line["what"] == "call")
    return Result(
        plan,
        command(plan, options),
        shlex.join(options.words()),
        round(seconds, 1),
        interrupted,
        ended["write", "ok"],
        ended["read", "ok"],
        dict(sorted(Counter(band.kind for band in moments).items())),
        sum(line["what"] == "spared" for line in lines),
        [band.fault for band in moments if band.proof is None],
        _sessions(lines),
        dict(sorted(Counter(line["workload"] for line in lines if _is_done_job(line)).items())),
        dict(errors_by_kind(lines).most_common()),
        [asdict(one) for one in by_kind(noticed(lines, moments))],
        violations,
    )


def _sessions(lines: Sequence[Mapping[str, Any]]) -> int:
    least, phase = None, ""
    for line in lines:
        if line["what"] == "phase":
            phase = line["name"]
        elif line["what"] == "spark" and phase == "faults":
            least = line["sessions"] if least is None else min(least, line["sessions"])
    return least or 0


def _is_done_job(line: Mapping[str, Any]) -> bool:
    return line["what"] == "call" and line["end"] == "ok" and "spark" in line


def command(plan: Plan, options: Options) -> str:
    """Return the command that draws the same plan again, with the kinds and settings that it had."""
    words = ["python", "-m", "chaos", "--seed", str(plan.seed), "--minutes", f"{plan.minutes:g}"]
    if plan.place == "containers":
        words.append("--containers")
    for name in ("replicas", "copies", "zookeepers"):
        words += [f"--{name}", str(getattr(plan, name))]
    if plan.workloads:
        words += ["--workloads", ",".join(plan.workloads)]
    if plan.pace != 1.0:
        words += ["--pace", f"{plan.pace:g}"]
    words += ["--sessions", str(plan.sessions), "--spark-workers", str(plan.spark_workers)]
    if plan.kinds:
        words += ["--only", ",".join(plan.kinds)]
    if plan.plant is not None:
        words += ["--plant", plan.plant]
    return shlex.join([*words, *options.words()])


def told(result: Result, folder: str) -> str:
    """Return a result as text: one line, and with violations what is needed to look into them."""
    plan = result.plan
    end = "passed" if result.passed else "interrupted" if result.interrupted else "FAILED"
    head = (
        f"seed {plan.seed}: {end}, "
        f"{plan.minutes:g} minutes of faults ({result.seconds:.0f} s in all), {result.commits} commits, "
        f"{result.reads} reads, {sum(result.faults.values())} faults of {len(result.faults)} kinds, "
        f"{result.spared} left out"
    )
    if plan.sessions:
        head += (
            f", {sum(result.jobs.values())} jobs of Spark in at least {result.sessions} sessions at a time"
        )
    if not result.violations:
        return f"{head}\n  {folder}"
    lines = [head]
    shown: Counter[tuple[str, str]] = Counter()
    for one in result.violations:
        shown[one.check, one.claim] += 1
        if shown[one.check, one.claim] <= _SHOWN:
            whose = f" [{', '.join(one.tids)}]" if one.tids else ""
            story = "\n      ".join(_shortened(one.story.strip().splitlines()))
            lines.append(f"  {one.check}: {one.claim}{whose}\n      {story}")
    more = sum(count - _SHOWN for count in shown.values() if count > _SHOWN)
    if more:
        lines.append(f"  and {more} more of the same claims")
    lines.append(f"  the plan, the journal, the histories, the logs and the report: {folder}")
    lines.append(f"  to repeat it: {result.command}")
    exactly = f"python -m chaos --plan {shlex.quote(f'{folder}/plan.json')} {result.options}".rstrip()
    lines.append(f"  or exactly these faults: {exactly}")
    return "\n".join(lines)


def _shortened(lines: Sequence[str]) -> Sequence[str]:
    """Leave out the middle of a long story: of a traceback that is where the libraries are."""
    if len(lines) <= 2 * _LINES + 1:
        return lines
    return [*lines[:_LINES], f"... {len(lines) - 2 * _LINES} lines, see the report ...", *lines[-_LINES:]]
