"""README.md: the commands and the Python of its tour run as typed, and print what the page shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.project import pages, readme_page
from tests.support.project.source import ROOT
from tests.support.spark.process import environment, run_program
from tidelock.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

#: Text that differs from run to run: ids of queries and transactions, times.
VOLATILE: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+-r\d-\d+-\d+|\.\.\."
#: Where a step takes longer than the interval of a tick, that one takes a CSN which the page shows.
TICKS: Final = {"TIDELOCK_TICK_INTERVAL_S": "86400"}
#: Cells of tables that differ from run to run: addresses, process ids, sizes.
CELLS: Final = r"127\.0\.0\.1:\d+|^\d{3,}$|^[\d.]+ (?=[KM]?i?B$)|\.\.\."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which the tour runs; the cluster that it starts ends after the tests."""
    path = tmp_path_factory.mktemp("tour")
    yield path
    if (path / "my-cluster").exists():
        _tidelock(path, "tidelock down --data-dir my-cluster")


def _tidelock(folder: Path, command: str) -> str:
    program, *arguments = shlex.split(command)
    assert program == "tidelock"
    done = subprocess.run(
        [sys.executable, "-m", "tidelock.cli", *arguments],
        cwd=folder,
        env=environment(folder) | TICKS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cells(line: str) -> list[str]:
    """Return the cells of a line of a table, without the text that differs from run to run."""
    return [re.sub(CELLS, "?", cell.strip()) for cell in re.split("[│┃]", line)[1:-1]]


def assert_shown(expected: str, printed: str) -> None:
    """Require that each row that the page shows is printed, in this order."""
    left = iter([cells(line) for line in printed.splitlines() if line.startswith(("│", "┃"))])
    for line in expected.splitlines():
        if line.startswith(("│", "┃")):
            assert cells(line) in left, f"{line}\nis not in its turn in\n{printed}"


def shown_by_python() -> Iterator[str]:
    """Yield the lines that the page shows, in order: comments after prints, and tables of Spark."""
    tour = pages.text("README.md").partition("\n## A tour\n")[2].partition("\n## ")[0]
    for line in tour.splitlines():
        if found := re.match(r"(?:print\(.*\)  )?# (\S.*)$|    (\|.*\|)$", line):
            yield found[1] or found[2]


def pattern(line: str) -> str:
    """Return a pattern of the line; an ellipsis matches any text."""
    fixed = re.split(VOLATILE, line)
    return "^" + r"\S.*?".join(map(re.escape, fixed)) + ("" if line.endswith("...") else "$")


def test_the_tour_runs_as_typed_and_prints_what_the_page_shows(folder: Path) -> None:
    """The tour runs in the order of the page, from the start of the cluster to its end."""
    commands = readme_page.tidelock_commands()
    up, *others = commands
    assert_shown(up.shown, _tidelock(folder, up.command))
    printed = run_program(folder, "tests.support.project.readme_tour", str(folder))
    position = 0
    expected = list(shown_by_python())
    assert len(expected) >= 9
    for line in expected:
        found = re.compile(pattern(line), re.MULTILINE).search(printed, position)
        assert found, f"{line!r} is not in what follows:\n{printed[position:]}"
        position = found.end()
    assert [one.command.split()[1] for one in others] == ["tables", "sql", "log", "status", "down"]
    for one in others[:-1]:
        assert_shown(one.shown, _tidelock(folder, one.command))
    with LocalCluster.open(folder / "my-cluster").connect() as db:
        rows = {f"new_{table}": db.read(table).slice(0, 1) for table in ("orders", "lines")}
        exec(pages.blocks("README.md", "python")[0], {"db": db, **rows})  # noqa: S102 - our own page
    _tidelock(folder, others[-1].command)


def test_the_first_picture_of_the_page_is_in_the_repository() -> None:
    """The picture above the first code is a file of docs/."""
    [picture] = re.findall(r"^!\[[^\]]+\]\(([^)]+)\)$", pages.text("README.md"), re.MULTILINE)
    assert (ROOT / picture).is_file()
