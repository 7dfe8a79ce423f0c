"""The project's pages of Markdown: their text, their programs (which tests run), their form, their links."""

from __future__ import annotations

import re
from typing import Any

from tests.support.project.source import ROOT

#: Folders with pages; the root's own pages come on top.
_FOLDERS = (".github", "docker", "docs", "examples")


def text(page: str) -> str:
    """Return a page, by its path from the root of the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def all_pages() -> list[str]:
    """Return the paths of all pages, from the root of the repository, in order."""
    found = [*ROOT.glob("*.md"), *(path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a language, in the order of the page; AssertionError if there are none."""
    found = re.findall(rf"^```{language}\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no {language}"
    return found


def run(page: str, names: dict[str, Any]) -> None:
    """Run the Python of a page as one program, with and into these names."""
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)  # noqa: S102 - it is our own page


def long_lines(page_text: str, columns: int) -> list[int]:
    """Return the numbers (from 1) of the lines of prose that are longer than `columns` and could be broken.

    Exempt are tables, headings, pictures, blocks of code (fenced, or four spaces behind an empty line outside
    of a list), and lines without a space between their indent or list mark and column `columns`.
    """
    found = []
    fenced = in_list = in_code = False
    before = ""
    for number, line in enumerate(page_text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and line.strip():
            mark = re.match(r" *(?:(?:[-*+>]|\d+[.)]) +)?", line)
            width = mark.end() if mark else 0
            in_list = bool(line[:width].strip()) or (in_list and line.startswith(" "))
            in_code = not in_list and line.startswith("    ") and (in_code or not before.strip())
            exempt = in_code or line.startswith(("|", "#", "![", "<!--"))
            if len(line) > columns and not exempt and " " in line[width : columns + 1]:
                found.append(number)
        before = line
    return found


def links(page_text: str) -> list[str]:
    """Return the targets of the relative links and pictures of a page, without those in code."""
    prose = re.sub(r"^ *```.*?^ *```", "", page_text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "", prose)
    targets = re.findall(r"\]\(([^()\s]+)\)", prose)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page_text: str) -> set[str]:
    """Return the anchors of a page: its headings as GitHub and mkdocs write them, and explicit ids."""
    prose = re.sub(r"^ *```.*?^ *```", "", page_text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    named = re.findall(r"(?:id=\"|\{ *#)([\w.-]+)", prose)
    return {_anchor(heading) for heading in headings} | set(named)


def _anchor(heading: str) -> str:
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())
