"""I16: every queue, cache and other container of an agent has its bound in docs/design/invariants.md."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.project.containers import PACKAGES, containers, in_source
from tidelock.replica_agent.config.settings import AgentSettings

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/design/invariants.md"
_ROW = re.compile(r"^\| `([\w/]+\.py)`: ((?:`\w+`(?:, )?)+) \| (.+) \| (.+) \|$", re.MULTILINE)
_CONSTANT = re.compile(r"^(_?[A-Z][A-Z_]+)(?:: \S+)? = ", re.MULTILINE)
#: Bounds that no setting and no constant gives; the page says what each word means.
_WORDS = frozenset(
    {"replicas", "tables", "partitions", "requests", "step", "statement", "parts", "damage", "files"}
)


def section() -> str:
    """Return the section about I16."""
    return PAGE.read_text(encoding="utf-8").partition("## I16 BOUNDED")[2].partition("\n## ")[0]


def rows() -> list[tuple[str, list[str], str]]:
    """Return (path, names, bound) of each row of the table."""
    return [(path, re.findall(r"\w+", names), bound) for path, names, _, bound in _ROW.findall(section())]


def test_every_container_is_in_the_table_once() -> None:
    """A new queue needs a row, thus a bound; a row of something that is gone goes too."""
    told = Counter((path, name) for path, names, _ in rows() for name in names)
    found = containers(ROOT)
    assert sorted(found - told.keys()) == [], "give each of these a row with its bound, or a bound"
    assert sorted(told.keys() - found) == [], "these rows name nothing that grows"
    assert [one for one, count in told.items() if count > 1] == []


def test_every_bound_is_a_setting_a_constant_or_a_word_that_is_explained() -> None:
    """A bound that nobody can look up is none."""
    constants = {
        name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in _CONSTANT.findall(path.read_text(encoding="utf-8"))
    }
    explained = set(re.findall(r"\*(\w+)\*", section()))
    assert explained == _WORDS
    for path, names, bound in rows():
        quoted = set(re.findall(r"`(\w+)`", bound))
        unknown = quoted - AgentSettings.model_fields.keys() - constants
        assert not unknown, f"{path}, {names}: {unknown} is neither a setting nor a constant"
        assert quoted or _WORDS & set(re.findall(r"\w+", bound)), f"{path}, {names}: {bound!r} bounds nothing"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("class A:\n    def __init__(self):\n        self._waiting = {}", "_waiting"),
        ("class A:\n    def __init__(self):\n        self.a, self._waiting = 1, []", "_waiting"),
        (
            "class A:\n    def __init__(self):\n        self._waiting: deque[int] = deque(maxlen=3)",
            "_waiting",
        ),
        ("class A:\n    def __init__(self):\n        self._jobs = queue.SimpleQueue()", "_jobs"),
        (
            "class A:\n    def __init__(self):\n        self._jobs: asyncio.Queue[int] = asyncio.Queue()",
            "_jobs",
        ),
        ("@dataclass\nclass A:\n    seen: set[int] = field(default_factory=set, init=False)", "seen"),
        ("@functools.lru_cache(maxsize=None)\ndef schema(name): ...", "schema"),
    ],
)
def test_a_container_is_found_however_it_is_made(source: str, name: str) -> None:
    """An offender of each form that the product uses."""
    assert in_source(source) == {name}


def test_what_does_not_grow_is_not_found() -> None:
    """Filled values, arguments and local variables are no queues."""
    source = (
        "class A:\n    def __init__(self, given):\n        self.a, self.b = given, {1: 2}\n        c = []"
    )
    assert in_source(source) == set()
