"""README.md: its tour is run as one program, and prints what the page shows of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.project import pages
from tests.support.spark.process import run_program
from tidelock.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: What differs from run to run: queries, transactions, times.
VOLATILE: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+-r\d-\d+-\d+|\.\.\."


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Three replicas, as `tidelock up` starts them."""
    return module_cluster(settings={**QUICK, "reader_workers": 1, "compaction": "off"})


def shown() -> Iterator[str]:
    """Lines that the tour says are printed, in its order: comments after prints, and tables."""
    tour = pages.text("README.md").partition("\n## Five minutes\n")[2].partition("\n## ")[0]
    for line in tour.splitlines():
        if found := re.match(r"(?:print\(.*\)  )?# (\S.*)$|    (\|.*\|)$", line):
            yield found[1] or found[2]


def pattern(line: str) -> str:
    """Match the line, and all that may come behind an ellipsis."""
    fixed = re.split(VOLATILE, line)
    return "^" + r"\S.*?".join(map(re.escape, fixed)) + ("" if line.endswith("...") else "$")


def test_the_tour(local: LocalCluster, tmp_path: Path) -> None:
    """All of it runs, from the first table to the stream, and says what the page says."""
    printed = run_program(tmp_path, "tests.support.project.readme_tour", local.url("r1"), str(tmp_path))
    position = 0
    expected = list(shown())
    assert len(expected) >= 7
    for line in expected:
        found = re.compile(pattern(line), re.MULTILINE).search(printed, position)
        assert found, f"{line!r} is not in what follows:\n{printed[position:]}"
        position = found.end()
