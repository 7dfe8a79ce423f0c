"""docs/track-record.md: each bug has a command, and each command names tests that exist."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from tests.support.project import pages
from tests.support.project.source import ROOT

ID_LENGTH_MAX: Final = 60
PAGE: Final = pages.text("docs/track-record.md")
BUGS: Final = re.findall(r"^- \*\*.*?(?=\n\n|\Z)", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS: Final = [
    " ".join(code.split())
    for code in re.findall(r"`([^`]+)`", PAGE)
    if re.match(r"(pytest |tests/|python -m )", code)
]


def flaws(command: str) -> list[str]:
    """Return what a command names that does not exist: files, modules, and words behind `-k`."""
    words = shlex.split(command)
    if words[:2] == ["python", "-m"]:
        package = ROOT.joinpath(*words[2].split("."))
        return [] if (package / "__main__.py").exists() or package.with_suffix(".py").exists() else [words[2]]
    paths = [ROOT / word for word in words if word.startswith("tests/")]
    found = [f"{path}" for path in paths if not path.exists()]
    if found or "-k" not in words:
        return found
    chosen = re.findall(r"\w+", words[words.index("-k") + 1])
    known = "\n".join(_names(path) for path in paths)
    return [f"-k {word}" for word in chosen if word not in {"and", "or", "not"} and word not in known]


@functools.cache
def _names(path: Path) -> str:
    """Return what `-k` can look at below a path: names of files, classes and functions, ids of parameters.

    Ids are taken to be short texts of the file: `ast` does not tell which of them become one.
    """
    files = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
    found = [file.name for file in files]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.append(name)
                case ast.Constant(value=str(text)) if len(text) <= ID_LENGTH_MAX and not text.endswith("."):
                    found.append(text)
    return "\n".join(found)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_names_tests_that_exist(command: str) -> None:
    """The paths of a command are there, and each word of its `-k` is in the name of a test in them."""
    assert flaws(command) == []


@pytest.mark.parametrize(
    "command",
    [
        "pytest tests/unit/test_nowhere.py",
        "pytest tests/unit/project/test_pages.py -k 'sees or nothing_of_the_kind'",
        "python -m tests.nowhere --seed 1",
    ],
)
def test_the_rule_of_commands_sees_an_offender(command: str) -> None:
    """A file, a name and a module that do not exist are each found."""
    assert len(flaws(command)) == 1


def test_every_bug_has_a_command_and_its_finder() -> None:
    """An entry says how the bug was found, and ends with what repeats it."""
    assert len(BUGS) == PAGE.count("\n- ")
    for bug in BUGS:
        assert " Found by " in " ".join(bug.split())
        assert re.search(r"`(pytest|tests/|python -m) ?[^`]+`", bug)


def test_the_table_counts_the_bugs_of_each_area() -> None:
    """The numbers of the table are those of the entries below each heading."""
    counted = {
        re.sub(r"[^\w ]", "", section.partition("\n")[0]): section.count("\n- **")
        for section in PAGE.split("\n## ")[1:]
    }
    rows = re.findall(r"^\| \[([^\]]+)\]\(#[^)]+\) \| (\d+) \|", PAGE, re.MULTILINE)
    assert {re.sub(r"[^\w ]", "", area): int(number) for area, number in rows} == counted
    assert f"| all | {len(BUGS)} |" in PAGE
