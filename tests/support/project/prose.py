"""The word list of docs/glossary.md, applied to docstrings, comments and pages.

    python -m tests.support.project.prose [FOLDER...]

prints each phrase of the word list that occurs in the tree, or in some folders of it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.project import source

GLOSSARY: Final = "docs/glossary.md"
#: Files that are not prose of this project, or that show the phrases on purpose.
EXEMPT: Final = ("LICENSE", GLOSSARY, "requirements.lock")
#: Code spans, and the targets of links: names, not prose.
_CODE = re.compile(r"``.*?``|`[^`]*`|(?<=\])\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Phrase:
    """A forbidden phrase: its pattern, whether it concerns the first word only, and the words to write."""

    pattern: re.Pattern[str]
    at_start: bool
    instead: str


@dataclass(frozen=True, slots=True)
class Prose:
    """A docstring, a comment, or a line of a page: its file, its line, its text."""

    path: str
    line: int
    text: str


def phrases() -> tuple[Phrase, ...]:
    """Return the rows of the table of phrases in docs/glossary.md."""
    page = (source.ROOT / GLOSSARY).read_text(encoding="utf-8").partition("## Phrases")[2]
    found = []
    for line in page.splitlines():
        if not line.startswith("| `"):
            continue
        cells = re.split(r"(?<!\\) \| ", line.strip("| "))
        pattern = cells[0].partition("`")[2].partition("`")[0].replace("\\|", "|")
        found.append(Phrase(re.compile(pattern), pattern.startswith("^"), cells[-1]))
    return tuple(found)


def of_python(path: str, text: str) -> Iterator[Prose]:
    """Return the docstrings and comments of a module; a block of comment lines is one text."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node)
            if doc:
                first = node.body[0].lineno
                yield Prose(path, first, doc)
    for line, words in source.comments(text):
        yield Prose(path, line, words)


def of_page(path: str, text: str) -> Iterator[Prose]:
    """Return the lines of a page outside its blocks of code."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith("    "):
            yield Prose(path, number, line)


def violations(texts: Iterator[Prose], listed: tuple[Phrase, ...]) -> list[str]:
    """Return a line for each phrase of the list that occurs in a text outside its code spans."""
    found = []
    for prose in texts:
        text = _CODE.sub("``", prose.text)
        for phrase in listed:
            if phrase.at_start and prose.path.endswith(".md"):
                continue
            for match in phrase.pattern.finditer(text):
                line = prose.line + text.count("\n", 0, match.start())
                found.append(f"{prose.path}:{line} {match[0]!r}: write {phrase.instead}")
    return found


def in_tree(folders: tuple[str, ...] = ()) -> list[str]:
    """Return the violations in all files of the project, or in those below some folders."""
    listed = phrases()
    found = []
    for path in _files():
        if not path.endswith((".py", ".md")) or (folders and not path.startswith(folders)):
            continue
        text = (source.ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".py"):
            found += violations(of_python(path, text), listed)
        else:
            found += violations(of_page(path, text), listed)
    return found


def _files() -> list[str]:
    """Return the paths of all files that git would commit, links and exempt files left out."""
    run = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    paths = subprocess.run(run, cwd=source.ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [path for path in paths if path not in EXEMPT and _is_plain(source.ROOT / path)]


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


if __name__ == "__main__":
    wrong = in_tree(tuple(sys.argv[1:]))
    sys.stdout.write("\n".join([*wrong, f"{len(wrong)} phrases\n"]))
    sys.exit(bool(wrong))
