"""Citations: each leads to an anchor in the repository, in the forms of docs/design/README.md.

The rule is applied to the repository, where it must find nothing, and to small offenders, one for each kind
of dangling citation.
"""

from __future__ import annotations

import pytest

from tests.support.project import citations
from tests.support.project.citations import Kind, dangling
from tests.support.project.source import ROOT

RULES = citations.RULES_PAGE
#: A small repository: one page of each kind, with one anchor each.
PAGES = {
    RULES: "# Rules\n\n## Commit\n\n## Lock deletion\n",
    f"{citations.DESIGN}/invariants.md": '<a id="i9"></a>\n## I9 HONEST\n',
    f"{citations.DESIGN}/failure-scenarios.md": '<a id="f5"></a>\n<a id="m1"></a>\n',
    "docs/reliability.md": '<a id="s53"></a>\n',
    f"{citations.DESIGN}/zookeeper-facts.md": '<a id="z7"></a>\n',
    "docs/protocol.md": '<a id="bytes"></a>\n## 2. Bytes\n\n### 4.3 POST /peer/v1/stage\n',
    "docs/adr/0007-lock-levels.md": "# 0007. Levels\n",
}


def module(words: str) -> str:
    """Return a module that says so in its docstring."""
    return f'"""Says it.\n\n{words}\n"""\n'


def test_every_citation_of_the_repository_leads_to_an_anchor() -> None:
    """All citations in docstrings, comments, strings and pages have a target in the repository."""
    texts, paths = citations.repository()
    assert [str(one) for one in dangling(texts, paths)] == []


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("A rule that is none (rule comit).", Kind.RULE),
        ("The second of two rules (rules commit, locks).", Kind.RULE),
        ("A rule behind a code (I9; rule comit).", Kind.RULE),
        ("A rule (rule\ncomit) over the end of a line.", Kind.RULE),
        ("A counter-example too many (F22).", Kind.CODE),
        ("A case of it (F22c).", Kind.CODE),
        ("A scenario that nobody has written down (S84).", Kind.CODE),
        ("I18: an invariant too many.", Kind.CODE),
        ("A fact (Z99).", Kind.CODE),
        ("A model (M9).", Kind.CODE),
        ("A decision that was not taken (ADR 0099).", Kind.DECISION),
        ("A page that is gone (docs/gone.md).", Kind.PAGE),
        ("A page that is gone, by its name alone (gone.md).", Kind.PAGE),
        ("An anchor that is gone (docs/protocol.md#bites).", Kind.PAGE),
        ("A decision without its page (docs/adr/0007).", Kind.OUTSIDE),
        ("A document outside (protocol review).", Kind.OUTSIDE),
        ("A document outside (security-review).", Kind.OUTSIDE),
        ("A section of the design (design section 4).", Kind.SECTION),
        ("A section of the design (design\nsection 4, Commit).", Kind.SECTION),
        ("Design 5.4: a section of the design.", Kind.SECTION),
        ("A section of a page (docs/protocol.md, section 2).", Kind.SECTION),
        ("A section of a page (protocol.md 4.3).", Kind.SECTION),
        ("Sections of whatever (see sections 3 and 4).", Kind.SECTION),
        ("A finding (reliability finding 1).", Kind.SECTION),
    ],
)
def test_a_citation_that_dangles_in_code_is_seen(words: str, kind: Kind) -> None:
    """A dangling citation in a docstring or a comment is found, with its kind and its line."""
    comment = "x = 1\n" + "".join(f"#: {line}\n" for line in words.split("\n"))
    for text, first in ((module(words), 1), (comment, 2)):
        (found,) = dangling({**PAGES, "csnlog/x.py": text})
        assert (found.path, found.kind) == ("csnlog/x.py", kind)
        assert first <= found.line <= first + 4


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("[A page](gone.md) that is gone.", Kind.LINK),
        ("[An anchor](../protocol.md#bites) that is gone.", Kind.LINK),
        ("[A heading](protocol-rules.md#merges) that is gone.", Kind.LINK),
        ("[An anchor](#nowhere) of this page.", Kind.LINK),
        ("[A file](../../Makefile2) that is gone.", Kind.LINK),
        ("Enforced: `csnlog/gone.py`.", Kind.PATH),
        ("A rule (rule comit), and none in a link.", Kind.RULE),
        ("A counter-example (F22).", Kind.CODE),
        ("A number of a section: see section 9.", Kind.SECTION),
    ],
)
def test_a_citation_that_dangles_on_a_page_is_seen(words: str, kind: Kind) -> None:
    """Links between pages, paths on the pages of the design, and the short forms in prose."""
    (found,) = dangling({**PAGES, f"{citations.DESIGN}/x.md": f"# X\n\n{words}\n"})
    assert (found.kind, found.line) == (kind, 3)


@pytest.mark.parametrize(
    "words",
    [
        "All forms that lead somewhere (rule commit; F5).",
        "Two rules (rules commit, lock-deletion; I9, S53).",
        "F5: an interleaving; F5c is a case of it; M1 and M1b; Z7.",
        "Decisions: ADR 0007, docs/adr/0007-lock-levels.md.",
        "Places: docs/protocol.md#bytes, docs/protocol.md#2-bytes, docs/protocol.md#43-post-peerv1stage.",
        "A published document has sections (RFC 9110, section 14), and so has a specification (section 1.4).",
        "A rule of thumb is no citation (a rule that holds), nor is S3, I/O, RF1 or part-F22.",
    ],
)
def test_a_citation_that_leads_somewhere_is_let_through(words: str) -> None:
    """Each form of docs/design/README.md, and words that only look like one."""
    assert dangling({**PAGES, "csnlog/x.py": module(words)}) == []


def test_strings_of_a_program_are_read_and_values_are_not() -> None:
    """A string in words cites; a string without a space is a value."""
    assert len(dangling({**PAGES, "tests/x.py": "case('what is short stays short (F22)')"})) == 1
    assert dangling({**PAGES, "tests/x.py": "case('F22', 'gone.md', 'writes gone.md into a folder')"}) == []


def test_code_on_a_page_is_not_read() -> None:
    """Examples in fences and spans cite nothing."""
    page = "# X\n\n`(rule comit)`\n\n```\n# I99\n[a](gone.md)\n```\n"
    assert dangling({**PAGES, "docs/x.md": page}) == []


def test_anchors_are_those_that_code_hosts_make() -> None:
    """Headings lose punctuation and case; the second of a name gets a number; explicit anchors stay."""
    page = '<a id="bytes"></a>\n## 2. Bytes\n\n## Why?\n\n## Why?\n\n```\n# no heading\n```\n'
    assert citations.anchors(page) == {"bytes", "2-bytes", "why", "why-1"}


@pytest.mark.parametrize(
    ("page", "codes"),
    [
        ("invariants", [f"i{number}" for number in range(1, 18)]),
        ("failure-scenarios", [f"f{number}" for number in range(1, 22)]),
        ("zookeeper-facts", [f"z{number}" for number in range(1, 19)]),
    ],
)
def test_every_code_has_its_anchor(page: str, codes: list[str]) -> None:
    """Anchors are stable: a code that was given once is never taken away."""
    text = (ROOT / citations.DESIGN / f"{page}.md").read_text(encoding="utf-8")
    assert citations.anchors(text) >= set(codes)


def test_every_decision_is_in_the_index() -> None:
    """docs/design/decisions.md links each page of docs/adr/."""
    index = (ROOT / citations.DESIGN / "decisions.md").read_text(encoding="utf-8")
    pages = [page.name for page in (ROOT / "docs/adr").glob("[0-9]*.md")]
    assert pages
    assert [name for name in pages if f"(../adr/{name})" not in index] == []


def test_every_rule_says_why_it_exists_and_where_it_is_enforced() -> None:
    """Each rule has its reason, and its place in the code or the mark that it has none yet."""
    text = (ROOT / RULES).read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        name = section.split("\n", maxsplit=1)[0]
        assert "\nEnforced" in section or "\nDecided, not built" in section, name
        assert "\nWhy: " in section or name == "Change feed", name


def test_the_count_names_each_kind() -> None:
    """The program prints a line for each kind of citation, and the sum."""
    lines = citations.main().split("\n")
    assert [line.split(":")[0] for line in lines] == [*(kind.value for kind in Kind), "all"]
    assert lines[-1].endswith(", 0 dangling in 0 files")
