"""The scenarios of tests/scenarios.toml, the tests that are marked as covering them, and the table of both.

    python -m tests.support.project.scenarios

writes the table into docs/reliability.md. Marks are read from the source of the tests; no test is imported.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.project import source

FILE: Final = "tests/scenarios.toml"
PAGE: Final = "docs/reliability.md"
#: The name of the marker, which is registered in pyproject.toml.
MARK: Final = "scenario"
#: The letters of `kinds`.
KINDS: Final = "PSCM"
EXCUSED_MAX: Final = 6

#: How the tests of a folder run; the first prefix that fits. A mark says that it is a container.
_RUNS: Final = {
    "tests/chaos/test_power_cuts": "crash image",
    "tests/chaos/test_crashes": "crash image",
    "tests/chaos/": "process",
    "tests/integration/": "process",
    "tests/sim/test_explore": "model",
    "tests/sim/": "simulation",
    "tests/unit/": "unit",
}
#: The ways to run that a scenario of kind P needs one of.
PROCESSES: Final = frozenset({"process", "container", "crash image"})
_BEGIN: Final = "<!-- scenarios: written by python -m tests.support.project.scenarios -->\n"
_END: Final = "<!-- end of scenarios -->\n"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A way to fail: its code, heading, kinds, fault, what must hold, and why no test covers it, if so."""

    code: str
    group: str
    kinds: str
    title: str
    fault: str
    holds: str
    invariants: tuple[str, ...]
    excused: str = ""


@dataclass(frozen=True, slots=True)
class Cover:
    """A test that carries the mark: its file, its name, the codes, how it runs, whether it is a long run."""

    path: str
    name: str
    codes: tuple[str, ...]
    runs: str
    slow: bool


@functools.cache
def groups() -> dict[str, str]:
    """Return the headings, by the names that scenarios use."""
    return dict(_file()["groups"])


@functools.cache
def scenarios() -> tuple[Scenario, ...]:
    """Return all scenarios in the order of their codes."""
    found = [
        Scenario(code=code, **{**fields, "invariants": tuple(fields["invariants"])})
        for code, fields in _file().items()
        if code != "groups"
    ]
    return tuple(sorted(found, key=lambda scenario: scenario.code))


@functools.cache
def covers() -> tuple[Cover, ...]:
    """Return all marked tests of the repository, ordered by file and place."""
    paths = sorted((source.ROOT / "tests").rglob("test_*.py"))
    return tuple(
        cover
        for path in paths
        for cover in in_source(path.relative_to(source.ROOT).as_posix(), path.read_text(encoding="utf-8"))
    )


def in_source(path: str, text: str) -> list[Cover]:
    """Return the marked tests of one file.

    A mark counts where pytest takes it from: the test, its class, the module's `pytestmark`, and a case of
    `parametrize`.
    """
    if f"mark.{MARK}(" not in text:
        return []
    tree = ast.parse(text)
    of_module = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return list(_tests(path, tree.body, of_module))


def _tests(path: str, body: Iterable[ast.stmt], marks: list[ast.expr]) -> Iterator[Cover]:
    for node in body:
        match node:
            case ast.ClassDef():
                inside = [*marks, *node.decorator_list]
                own = list(_tests(path, node.body, inside))
                yield from own or _covers(path, node.name, inside)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test_"):
                yield from _covers(path, node.name, [*marks, *node.decorator_list])


def _covers(path: str, name: str, marks: list[ast.expr]) -> Iterator[Cover]:
    """Yield a test, or a class that inherits its tests, if it has the mark."""
    codes = tuple(dict.fromkeys(code for mark, texts in _marks(marks) if mark == MARK for code in texts))
    # Of a mark inside of another one, e.g. on a single case, it is not said that it is on the whole test.
    whole = {
        ast.unparse(one) for mark in marks for one in (mark.elts if isinstance(mark, ast.List) else [mark])
    }
    if codes:
        yield Cover(path, name, codes, _run(path, whole), "pytest.mark.slow" in whole)


def _marks(expressions: Iterable[ast.expr]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the texts of each mark with arguments in these expressions."""
    for expression in expressions:
        for node in ast.walk(expression):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr=name), args=args):
                    yield name, [str(one.value) for one in args if isinstance(one, ast.Constant)]


def _run(path: str, marks: set[str]) -> str:
    if "pytest.mark.docker" in marks:
        return "container"
    return next(runs for prefix, runs in _RUNS.items() if path.startswith(prefix))


def flaws(known: Iterable[Scenario], marked: Iterable[Cover]) -> list[str]:
    """Return what is wrong with scenarios and marks, in sentences."""
    by_code = {scenario.code: scenario for scenario in known}
    tests: dict[str, list[Cover]] = {code: [] for code in by_code}
    found = []
    for cover in marked:
        for code in cover.codes:
            if code in tests:
                tests[code].append(cover)
            else:
                found.append(f"{cover.path}, {cover.name}: {code} is no scenario of {FILE}")
    for code, scenario in by_code.items():
        if not scenario.kinds or set(scenario.kinds) - set(KINDS):
            found.append(f"{code}: kinds are letters of {KINDS}")
        if scenario.excused and tests[code]:
            found.append(f"{code} is excused, and {tests[code][0].name} covers it")
        if scenario.excused:
            continue
        if not tests[code]:
            found.append(f"{code} has no test and no excuse")
        elif "P" in scenario.kinds and not any(cover.runs in PROCESSES for cover in tests[code]):
            found.append(f"{code} needs a test that runs processes or containers")
    excused = [scenario.code for scenario in by_code.values() if scenario.excused]
    if len(excused) > EXCUSED_MAX:
        found.append(f"{len(excused)} scenarios are excused, {EXCUSED_MAX} may be: {', '.join(excused)}")
    return found


def page_with_table(page: str) -> str:
    """Return docs/reliability.md with the present scenarios and tests."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{PAGE} has lost one of the two comments between which the table stands")
    return before + _BEGIN + "\n" + _tables() + _END + after


def _tables() -> str:
    lines = []
    for group, heading in groups().items():
        lines += [f"### {heading}", "", "| code | fault | what must hold | shown by |", "|---|---|---|---|"]
        lines += [_row(scenario) for scenario in scenarios() if scenario.group == group]
        lines.append("")
    return "\n".join(lines)


def _row(scenario: Scenario) -> str:
    code = f'<a id="{scenario.code.lower()}"></a>{scenario.code}'
    fault = f"**{scenario.title}.** {scenario.fault}"
    holds = f"{scenario.holds} ({', '.join(scenario.invariants)})"
    return f"| {code} | {fault} | {holds} | {_shown(scenario)} |"


def _shown(scenario: Scenario) -> str:
    """Return the tests of a scenario, by the way they run and by file, those with processes first."""
    if scenario.excused:
        return f"No test: {scenario.excused}"
    by_run: dict[str, dict[str, list[str]]] = {runs: {} for runs in (*sorted(PROCESSES), *_RUNS.values())}
    for cover in covers():
        if scenario.code in cover.codes:
            name = f"`{cover.name}`" + (" (slow)" if cover.slow else "")
            by_run[cover.runs].setdefault(cover.path, []).append(name)
    found = []
    for runs, files in by_run.items():
        if files:
            texts = (f"`{path}`: {', '.join(names)}" for path, names in files.items())
            found.append(f"{runs}: {'; '.join(texts)}")
    return "<br>".join(found)


def _file() -> dict[str, Any]:
    path = source.ROOT / FILE
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    stray = [code for code in found if code != "groups" and not re.fullmatch(r"S\d{2}", code)]
    if stray:
        raise ValueError(f"{FILE}: {', '.join(stray)} is no code of a scenario")
    return found


def main() -> int:
    """Write the table into docs/reliability.md, and print what is wrong with marks and scenarios."""
    page: Path = source.ROOT / PAGE
    page.write_text(page_with_table(page.read_text(encoding="utf-8")), encoding="utf-8")
    wrong = flaws(scenarios(), covers())
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
