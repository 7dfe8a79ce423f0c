"""Every page of Markdown keeps the form of the house: prose of 100 columns, links with a target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.project import pages
from tests.support.project.source import ROOT

COLUMNS: Final = 100
#: Written by programs of the project, which say so in the page.
GENERATED: Final = frozenset(("docs/configuration.md",))


@pytest.mark.parametrize("page", pages.all_pages())
def test_prose_is_wrapped_at_a_hundred_columns(page: str) -> None:
    """No line of prose is longer; tables, code, pictures and what has no space to break at are exempt."""
    if page not in GENERATED:
        assert [f"{page}:{line}" for line in pages.long_lines(pages.text(page), COLUMNS)] == []


LONG: Final = "word " * 30


@pytest.mark.parametrize(
    "text",
    [LONG, f"- {LONG}", f"> {LONG}", f"    - {LONG}", f"1. point\n   {LONG}", f"word {'x' * 50} {LONG}"],
)
def test_the_rule_of_columns_sees_an_offender(text: str) -> None:
    """A long line of a paragraph, a list or a quotation is found."""
    assert len(pages.long_lines(text, COLUMNS)) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"| {LONG} |",
        f"```\n{LONG}\n```",
        f"\n    {LONG}",
        f"# {LONG}",
        f"![{LONG}](picture.png)",
        f"- <https://example.org/{'x' * 100}>",
    ],
)
def test_what_cannot_be_wrapped_may_be_longer_than_the_rule(text: str) -> None:
    """Tables, blocks of code, headings, pictures and long addresses are let through."""
    assert pages.long_lines(text, COLUMNS) == []


@pytest.mark.parametrize("page", pages.all_pages())
def test_every_relative_link_leads_to_a_file_and_a_heading(page: str) -> None:
    """The target of a link is in the repository, and so is the heading that it names."""
    assert list(_dead_links(page)) == []


def _dead_links(page: str) -> Iterator[str]:
    for target in pages.links(pages.text(page)):
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        if not found.exists():
            yield f"{target}: no such file"
        elif anchor and anchor not in pages.anchors(found.read_text(encoding="utf-8")):
            yield f"{target}: no such heading"


def test_the_rule_of_links_sees_a_dead_one(tmp_path: Path) -> None:
    """A link to a missing file and a link to a missing heading are both found."""
    (tmp_path / "a.md").write_text("# One\n\n[b](b.md) [c](#two) [d](#one) [e](https://example.org)\n")
    page = str(tmp_path / "a.md")  # an absolute path stays what it is below ROOT
    assert list(_dead_links(page)) == ["b.md: no such file", "#two: no such heading"]


def test_anchors_of_headings_are_those_of_github() -> None:
    """A heading is reached by its words in small letters, without punctuation, joined by dashes."""
    assert pages.anchors("# What for, and when not\n## `make demo`: 2 min.\n") == {
        "what-for-and-when-not",
        "make-demo-2-min",
    }


def test_links_in_code_are_no_links() -> None:
    """Text that looks like a link inside a block or a span of code is not followed."""
    assert pages.links("`[a](b.md)`\n```\n[c](d.md)\n```\n[e](f.md)") == ["f.md"]


def test_generated_pages_say_which_program_writes_them() -> None:
    """A page is exempt from the columns only if it names its generator."""
    for page in GENERATED:
        assert re.search(r"Generated from .* by `python -m ", pages.text(page).replace("\n", " "))
