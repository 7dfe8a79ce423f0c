"""The word list of docs/glossary.md: it is read as written, sees what it forbids, and the tree keeps it."""

from __future__ import annotations

import pytest

from tests.support.project import prose, source

OFFENDERS = (
    '"""Who asks is told."""',
    '"""What the log says."""',
    'def f():\n    """Nobody is left."""',
    "#: What it holds.\nX = 1",
    "# All tables that there are.\nX = 1",
    '"""The value.\n\nA column is none of the table.\n"""',
    "x = 1  # whoever it was",
    "# It is kept for\n# a while, in the place of the other.\nX = 1",
)
HARMLESS = (
    '"""The replica that asks is answered."""',
    '"""Return `whoever`, the value."""',
    "x = 'whoever is text of the program'",
    "# noqa: what tools read\nX = 1",
)


@pytest.mark.parametrize("text", OFFENDERS)
def test_a_phrase_of_the_list_is_seen_in_a_module(text: str) -> None:
    """Each way to write a listed phrase into a docstring or a comment is found once."""
    assert len(prose.violations(prose.of_python("x.py", text), prose.phrases())) == 1


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_of_a_module_is_let_through(text: str) -> None:
    """Code spans, strings of the program and other words are no violations."""
    assert prose.violations(prose.of_python("x.py", text), prose.phrases()) == []


def test_a_phrase_is_seen_in_a_page_outside_its_code() -> None:
    """Prose of a page counts, blocks of code and code spans do not."""
    page = (
        "Whoever asks.\n\n```\nwhoever\n```\n\n    whoever\n\nThe word `whoever` in [a page](whoever.md).\n"
    )
    assert [one.split(" ")[0] for one in prose.violations(prose.of_page("x.md", page), prose.phrases())] == [
        "x.md:1"
    ]


def test_every_row_of_the_list_is_read() -> None:
    """The table of phrases is read whole, so that a row with a slip in it cannot be lost."""
    page = (source.ROOT / prose.GLOSSARY).read_text(encoding="utf-8").partition("## Phrases")[2]
    assert len(prose.phrases()) == page.count("\n| `") > 5


def test_no_file_of_the_tree_has_a_listed_phrase() -> None:
    """Each docstring, comment and page keeps to the word list; the failure says what to write instead."""
    found = prose.in_tree()
    assert not found, "\n".join(["phrases of docs/glossary.md:", *found])
