"""docs/transactions.md: its Python and its commands run, and print what the page shows."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.clusters.cluster import ClusterFactory
from tests.support.project import pages
from tidelock.cli import app as cli
from tidelock.cluster import LocalCluster

TID = r"\d+-r\d-\d+-\d+"
PAGE = "docs/transactions.md"


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """A cluster in which nothing has happened yet."""
    return module_cluster(replicas=1, settings={"reader_workers": 1})


@pytest.fixture(scope="module")
def names(local: LocalCluster) -> dict[str, Any]:
    """The variables of the page's Python after its blocks have run, in order, as one program."""
    found: dict[str, Any] = {"url": local.url("r1")}
    assert len(pages.blocks(PAGE, "python")) > 5
    pages.run(PAGE, found)
    return found


def test_the_python_of_the_page(names: dict[str, Any]) -> None:
    """The Python of the page has run; its own asserts check its results."""
    names["db"].close()


def test_the_commands_of_the_page(
    local: LocalCluster, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command prints the lines of the page, in order, except ids and times, and may print more."""
    monkeypatch.setenv("TIDELOCK_URL", local.url("r1"))
    (console,) = pages.blocks(PAGE, "console")
    shown = re.split(r"^\$ tidelock ", console, flags=re.MULTILINE)[1:]
    committed, still_open = (
        re.findall(rf"^({TID}) {word}", console, re.MULTILINE)[0] for word in ("committed", "running")
    )
    with local.connect("r1") as db:
        tx = db.begin("an import")
        tx.insert("orders", names["rows"])
        real = {committed: names["result"].tid, still_open: tx.tid}
        for text in shown:
            command, _, expected = text.partition("\n")
            printed = CliRunner().invoke(cli.app, [real.get(word, word) for word in shlex.split(command)])
            assert printed.exit_code == 0, printed.output
            left = iter(_form(printed.stdout))
            for line in _form(expected):
                assert line in left, printed.stdout  # `left` is past this line and all before it


def _form(text: str) -> list[list[str]]:
    """Return the lines of a text, the cells of a table, without ids, CSNs, times and widths."""
    for pattern, word in (
        (TID, "TID"),
        (r"CSN \d+", "CSN"),
        (r"\d{4}-\d\d-\d\dT\S+", "TIME"),
        (r"\d+\.\d+", "S"),
    ):
        text = re.sub(pattern, word, text)
    lines = [line for line in text.splitlines() if line and line[0] not in "┏┡└"]
    return [[cell.strip() for cell in re.split("[│┃]", line)] for line in lines]
