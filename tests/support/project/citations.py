"""Citations of rules, invariants, scenarios, facts, decisions and pages, and the check of their targets.

The forms are those of docs/design/README.md. Every docstring, comment, string and page is read. A citation
dangles when its target has no anchor in the repository. `python -m tests.support.project.citations` prints
the number of citations, and the dangling ones.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import enum
import functools
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.project.source import BESIDE, ENTRIES, PACKAGES, ROOT, comments

DESIGN = "docs/design"
#: The page that holds the anchors of each kind of code, by its letter.
CODE_PAGES = {
    "F": f"{DESIGN}/failure-scenarios.md",
    "I": f"{DESIGN}/invariants.md",
    "M": f"{DESIGN}/failure-scenarios.md",
    "S": "docs/reliability.md",
    "Z": f"{DESIGN}/zookeeper-facts.md",
}
RULES_PAGE = f"{DESIGN}/protocol-rules.md"
FOLDERS = (*PACKAGES, *ENTRIES, *BESIDE, "tests", "docker", "docs")
#: Files that show what a dangling citation is.
OFFENDERS = frozenset(("tests/unit/project/test_citations.py",))
SUFFIXES = (".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".Dockerfile")

_CODE = re.compile(r"(?<![\w./#-])(F\d{1,2}|I\d{1,2}|S\d{2}|M[1-9]|Z\d{1,2})[a-d]?\b(?![-/]\w)")
_PARENTHESES = re.compile(r"\(([^()]*)\)")
_RULE = re.compile(r"\s*rules?\s+([a-z-]+(?:,\s+[a-z-]+)*)\s*")
_ADR = re.compile(r"\bADR\s+(\d+)\b")
_BARE_ADR = re.compile(r"\bdocs/adr/\d{4}(?![\w-])")
_PAGE = re.compile(r"(?<![\w./<*-])((?:[\w.-]+/)*[\w-]+\.md)\b(?:#([\w-]+))?")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
#: The number of a section of any document: numbers move, anchors stay.
_SECTION = re.compile(
    r"\b(?:[Dd]esign(?:\.md)?,?\s+(?:sections?\s+)?\d[\d.]*|(?:[\w-]+\.md\)?,?\s+)?[Ss]ections?\s+\d[\d.]*"
    r"|[\w-]+\.md\)?,?\s+\d[\d.]*|[Rr]eliability\s+(?:finding\s+)?\d[\d.]*)"
)
#: Documents that are not in the repository.
_OUTSIDE = re.compile(r"\b(?:protocol|edges|security|performance|newcomer|architecture)[ -]review\b")
#: A published document, whose sections may be cited by their numbers.
_PUBLISHED = re.compile(r"(?:RFC \d+|specification)[^.;]{0,30}$")
_PATH = re.compile(rf"`((?:{'|'.join((*PACKAGES, 'tests', 'docs'))})/[\w./-]*)`")
_HEADING = re.compile(r"^#{1,6}\s+(.*)$", re.MULTILINE)
_ANCHOR = re.compile(r"<a id=\"([\w-]+)\"></a>")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`[^`\n]*`")


class Kind(enum.Enum):
    """The kinds of citations."""

    RULE = "rule"
    CODE = "code of an invariant, a scenario or a fact"
    DECISION = "decision"
    PAGE = "page"
    LINK = "link between pages"
    PATH = "path on a page of the design"
    SECTION = "number of a section"
    OUTSIDE = "document outside the repository"


@dataclasses.dataclass(frozen=True)
class Citation:
    """One citation: its place, its text, and the anchor or path that it needs.

    Attributes:
        path: The file, from the root of the repository.
        line: Its line there, from 1.
        kind: The kind of its target.
        text: The citation as it is written.
        target: The path of a page, with the anchor if one is cited; ``""`` if no target is possible.
    """

    path: str
    line: int
    kind: Kind
    text: str
    target: str

    def __str__(self) -> str:
        needs = f"needs {self.target}" if self.target else f"is a {self.kind.value}; cite an anchor"
        return f"{self.path}:{self.line}: {self.text!r} {needs}"


def anchors(text: str) -> frozenset[str]:
    """Return the anchors of a page: its explicit ones, and those of its headings as code hosts make them."""
    found = list(_ANCHOR.findall(text))
    seen: collections.Counter[str] = collections.Counter()
    for heading in _HEADING.findall(_blanked(_FENCED, text)):
        slug = re.sub(r"[^\w\s-]", "", heading.strip().lower()).replace(" ", "-")
        found.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)


@functools.cache
def citations(path: str, text: str) -> tuple[Citation, ...]:
    """Return all citations in one file, dangling or not."""
    if path.endswith(".md"):
        return tuple(_of_page(path, text))
    units = _units(text) if path.endswith(".py") else [(1, text, False)]
    return tuple(
        cited
        for line, unit, prose in units
        for cited in (*_short(path, line, unit), *_pages(path, line, unit, by_name=prose))
    )


def dangling(texts: Mapping[str, str], paths: frozenset[str] = frozenset()) -> list[Citation]:
    """Return the citations without a target, in files given by their path and text.

    Args:
        texts: The files that are read; their pages hold the anchors.
        paths: Further paths that exist: other files, and folders.
    """
    pages = {path: anchors(text) for path, text in texts.items() if path.endswith(".md")}
    there = frozenset(texts) | paths
    names = frozenset(posixpath.basename(page) for page in pages)

    def leads(cited: Citation) -> bool:
        page, _, anchor = cited.target.partition("#")
        if cited.kind is Kind.DECISION:
            return any(path.startswith(cited.target) for path in pages)
        if cited.kind is Kind.PAGE and "/" not in page:
            return page in names
        return page in there and (not anchor or page not in pages or anchor in pages[page])

    return [cited for path, text in texts.items() for cited in citations(path, text) if not leads(cited)]


@functools.cache
def repository(root: Path = ROOT) -> tuple[Mapping[str, str], frozenset[str]]:
    """Return the texts that may cite, by path, and all paths of files and folders."""
    files = [path for path in root.iterdir() if path.is_file()]
    for folder in FOLDERS:
        files += [path for path in (root / folder).rglob("*") if path.resolve() == path and path.is_file()]
    texts = {}
    paths = {"."}
    for file in sorted(files):
        name = file.relative_to(root).as_posix()
        paths |= {name, *(parent.as_posix() for parent in Path(name).parents)}
        if name not in OFFENDERS and (file.suffix in SUFFIXES or file.name in ("Makefile", "Dockerfile")):
            texts[name] = file.read_text(encoding="utf-8")
    return texts, frozenset(paths)


# ---------------------------------------------------------------------------------------------- the forms


def _short(path: str, line: int, text: str) -> Iterator[Citation]:
    """Yield rules, codes and decisions by their short forms, and old forms, which have no targets."""
    for found in _PARENTHESES.finditer(text):
        for item in found[1].split(";"):
            if rule := _RULE.fullmatch(item):
                for name in re.split(r",\s+", rule[1]):
                    yield Citation(
                        path, _line(line, text, found), Kind.RULE, f"rule {name}", f"{RULES_PAGE}#{name}"
                    )
    for found in _CODE.finditer(text):
        code = found[1]
        target = f"{CODE_PAGES[code[0]]}#{code.lower()}"
        yield Citation(path, _line(line, text, found), Kind.CODE, found[0], target)
    for found in _ADR.finditer(text):
        yield Citation(path, _line(line, text, found), Kind.DECISION, found[0], f"docs/adr/{found[1]}-")
    for pattern, kind in ((_SECTION, Kind.SECTION), (_OUTSIDE, Kind.OUTSIDE), (_BARE_ADR, Kind.OUTSIDE)):
        for found in pattern.finditer(text):
            if not _PUBLISHED.search(text[: found.start()].rsplit("\n\n", maxsplit=1)[-1]):
                yield Citation(path, _line(line, text, found), kind, " ".join(found[0].split()), "")


def _pages(path: str, line: int, text: str, *, by_name: bool) -> Iterator[Citation]:
    """Yield pages by their path from the root, in prose also by their name alone."""
    for found in _PAGE.finditer(text):
        if found[1].startswith("docs/") or (by_name and "/" not in found[1]):
            yield Citation(path, _line(line, text, found), Kind.PAGE, found[0], found[0])


def _of_page(path: str, text: str) -> Iterator[Citation]:
    """Yield the citations of a page of Markdown: short forms in its prose, its links, and design paths."""
    if path.startswith(f"{DESIGN}/"):
        for found in _PATH.finditer(text):
            yield Citation(path, _line(1, text, found), Kind.PATH, found[0], found[1].rstrip("/"))
    prose = _blanked(_SPAN, _blanked(_FENCED, text))
    for found in _LINK.finditer(prose):
        if "://" in found[1] or found[1].startswith("mailto:"):
            continue
        page, _, anchor = found[1].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), page)) if page else path
        yield Citation(
            path, _line(1, text, found), Kind.LINK, found[1], f"{target}#{anchor}" if anchor else target
        )
    bare = _blanked(_LINK, prose)
    yield from _short(path, 1, bare)
    yield from _pages(path, 1, bare, by_name=True)


def _line(first: int, text: str, found: re.Match[str]) -> int:
    return first + text.count("\n", 0, found.start())


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    """Return the text with each match of the pattern replaced by spaces, line by line."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _units(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield strings and comments of a module: first line, text, and whether it is a docstring or a comment.

    A string without a space is a value, and cites nothing.
    """
    alone = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr):
            alone.add(node.value)  # parents come before their children
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value, node in alone
    for line, words in comments(text):
        yield line, words, True


def main(root: Path = ROOT) -> str:
    """Return the number of citations of each kind, the number of dangling ones, their files, and a list."""
    texts, paths = repository(root)
    cited = collections.Counter(one.kind for path, text in texts.items() for one in citations(path, text))
    lost = dangling(texts, paths)
    lines = [str(one) for one in lost]
    for name, count, some in (
        *((kind.value, cited[kind], [one for one in lost if one.kind is kind]) for kind in Kind),
        ("all", cited.total(), lost),
    ):
        files = len({one.path for one in some})
        lines.append(f"{name}: {count} cited, {len(some)} dangling in {files} files")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT) + "\n")
