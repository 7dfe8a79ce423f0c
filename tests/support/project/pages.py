"""The project's pages of Markdown, whose programs are run."""

from __future__ import annotations

import re
from typing import Any

from tests.support.project.source import ROOT


def text(page: str) -> str:
    """Return a page, by its path from the root of the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a language, in the order of the page; AssertionError if there are none."""
    found = re.findall(rf"^```{language}\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no {language}"
    return found


def run(page: str, names: dict[str, Any]) -> None:
    """Run the Python of a page as one program, with and into these names."""
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)  # noqa: S102 - it is our own page
