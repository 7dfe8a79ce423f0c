"""docs/style.md quotes the code as it is."""

from __future__ import annotations

import pytest

from tests.support.project import pages
from tests.support.project.source import ROOT


@pytest.mark.parametrize("block", pages.blocks("docs/style.md", "python"))
def test_each_quotation_is_what_its_file_says(block: str) -> None:
    """The first line of a block names a file, and the rest of it is found there, line by line."""
    first, _, quoted = block.partition("\n")
    assert first.startswith("# ")
    assert quoted.rstrip("\n") in (ROOT / first.removeprefix("# ")).read_text(encoding="utf-8")
