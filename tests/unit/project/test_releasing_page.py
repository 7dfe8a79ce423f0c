"""RELEASING.md tells the versions of the code as they are."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.support.project import pages
from tests.support.project.source import ROOT
from tidelock import cluster_layout
from tidelock.csnlog.cluster import start_check
from tidelock.csnlog.core import model
from tidelock.replica_agent.storage import catalog_schema

PAGE: Final = pages.text("RELEASING.md")


@pytest.mark.parametrize(
    ("place", "version"),
    [
        ("`csnlog/core/model.py`, `VERSION`", model.VERSION),
        ("`csnlog/cluster/start_check.py`", start_check.FORMAT_VERSION),
        ("`replica_agent/storage/catalog_schema.py`, `FORMAT`", catalog_schema.FORMAT),
        ("`tidelock/cluster_layout.py`", cluster_layout.FORMAT),
    ],
)
def test_the_page_tells_the_version_of_each_format(place: str, version: int) -> None:
    """The row that names the place in the code has its number in the column "now"."""
    [row] = [line for line in PAGE.splitlines() if line.startswith("|") and place in line]
    assert row.split(" | ")[2] == str(version)


def test_the_page_names_files_that_are_there() -> None:
    """Each path of the code that the page gives exists."""
    for path in re.findall(r"`([\w/]+\.py)`", PAGE):
        assert (ROOT / path).is_file()
