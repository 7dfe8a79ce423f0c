"""README.md: the commands and programs that it shows exist, and are run by a test or checked here."""

from __future__ import annotations

import ast
import re
import shlex
from typing import Final

import pytest
import typer

from tests.support.project import pages, readme_page
from tests.support.project.source import ROOT
from tidelock.cli import app as cli

PAGE: Final = pages.text("README.md")
TARGETS: Final = set(
    re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)
PUBLIC: Final = {"tidelock", "tidelock.cluster", "tidelock.spark", "pyspark_tidelock"}
#: Languages of blocks; the Python and the commands are run by tests/integration/test_readme.py.
RUN: Final = {"python", "console"}


def test_every_command_of_the_page_exists() -> None:
    """A command is a target of the Makefile, a command of tidelock, or makes the environment active."""
    group = typer.main.get_command(cli.app)
    known = set(getattr(group, "commands", {}))
    for one in readme_page.commands():
        program, *arguments = shlex.split(one.command)
        match program:
            case "make":
                assert set(arguments) <= TARGETS
            case "tidelock":
                assert arguments[0] in known
            case _:
                assert one.command == "source .venv/bin/activate"


def test_make_targets_named_in_the_prose_exist() -> None:
    """`make x` in a sentence is a target of the Makefile, and the two of a stranger are shown first."""
    named = re.findall(r"`make ([a-z-]+)", PAGE)
    assert set(named) <= TARGETS
    assert [one.command for one in readme_page.commands()][:2] == ["make demo", "make test"]


def test_every_block_of_the_page_is_one_that_a_test_runs() -> None:
    """The page has no block of a language that no test runs."""
    assert set(re.findall(r"^```(\w*)$", PAGE, re.MULTILINE)) - {""} == RUN


@pytest.mark.parametrize("block", pages.blocks("README.md", "python"))
def test_python_of_the_page_uses_public_names_only(block: str) -> None:
    """A module of Tidelock that the page imports is one that users may import."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        ours = {name for name in modules if "tidelock" in name}
        assert ours <= PUBLIC


def test_the_page_has_its_limits_and_its_readers() -> None:
    """The limits are a table with a row for each question of a team, and the links are grouped by reader."""
    limits = PAGE.partition("\n## Limits\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([A-Z][\w ]*) \|", limits, re.MULTILINE)
    must = (
        "Tables",
        "Types",
        "Size",
        "History",
        "Replicas",
        "A lost disk",
        "ZooKeeper",
        "Backup",
        "Security",
    )
    assert set(must) <= set(rows)
    for reader in ("a user", "an operator", "a contributor"):
        assert f"| {reader} | [" in PAGE


def test_the_page_begins_with_three_sentences_and_the_picture() -> None:
    """A stranger reads what it is before any code."""
    first, picture = PAGE.split("\n\n")[1:3]
    assert len(re.findall(r"\.(?:\s|$)", first)) == 3
    assert picture.startswith("![")
