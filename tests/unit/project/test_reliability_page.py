"""docs/reliability.md and tests/scenarios.toml: every scenario has its test, and the page says which."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.project import pages, scenarios
from tests.support.project.scenarios import Cover, Scenario

FILE: Final = "tests/integration/test_x.py"


def scenario(code: str, *, kinds: str = "S", excused: str = "") -> Scenario:
    """Return a scenario with nothing in it that matters here."""
    return Scenario(code, "commit", kinds, "", "", "", ("I1",), excused)


def cover(*codes: str, runs: str = "process") -> Cover:
    """Return a test with these codes."""
    return Cover(FILE, "test_a", codes, runs, slow=False)


def test_the_page_has_the_present_scenarios_and_tests() -> None:
    """The table is the present one (python -m tests.support.project.scenarios)."""
    page = pages.text(scenarios.PAGE)
    assert scenarios.page_with_table(page) == page


def test_every_scenario_has_its_test() -> None:
    """Covered or excused, by processes where it must be; no mark has an unknown code."""
    assert scenarios.flaws(scenarios.scenarios(), scenarios.covers()) == []


def test_the_scenarios_are_whole() -> None:
    """S01 to S83, each in a group that has a heading and with invariants that exist."""
    found = scenarios.scenarios()
    assert [one.code for one in found] == [f"S{number:02}" for number in range(1, 84)]
    assert {one.group for one in found} == set(scenarios.groups())
    known = pages.anchors(pages.text("docs/design/invariants.md"))
    assert {code.lower() for one in found for code in one.invariants} <= known


@pytest.mark.parametrize(
    ("known", "marked", "flaw"),
    [
        ([scenario("S01")], [], "S01 has no test"),
        ([scenario("S01")], [cover("S01", "S999")], "S999 is no scenario"),
        ([scenario("S01", kinds="PS")], [cover("S01", runs="unit")], "S01 needs a test that runs processes"),
        ([scenario("S01", kinds="X")], [cover("S01")], "S01: kinds are letters"),
        ([scenario("S01", excused="why")], [cover("S01")], "S01 is excused, and test_a covers it"),
        (
            [scenario(f"S0{number}", excused="why") for number in range(7)],
            [],
            "7 scenarios are excused, 6 may",
        ),
    ],
)
def test_what_is_wrong_is_said(known: list[Scenario], marked: list[Cover], flaw: str) -> None:
    """Each kind of flaw has its sentence."""
    [found] = scenarios.flaws(known, marked)
    assert flaw in found


def test_what_is_right_is_no_flaw() -> None:
    """A container counts as processes do, and an excused scenario needs no test."""
    known = [scenario("S01", kinds="P"), scenario("S02", excused="why")]
    assert scenarios.flaws(known, [cover("S01", runs="container")]) == []


def test_marks_are_read_where_pytest_takes_them_from() -> None:
    """Of the module, of a class, also one that inherits its tests, of a test, and of a case."""
    text = """
pytestmark = pytest.mark.scenario("S01")

@pytest.mark.scenario("S02")
class TestA:
    @pytest.mark.slow
    @pytest.mark.scenario("S03", "S04")
    async def test_b(self): ...

@pytest.mark.docker
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.scenario("S05"))])
def test_c(x): ...

def helper(): ...
"""
    inherited = (
        text
        + """
@pytest.mark.scenario("S06")
class TestD(Suite):
    @pytest.fixture
    def world(self): ...
"""
    )
    assert scenarios.in_source(FILE, inherited)[2:] == [
        Cover(FILE, "TestD", ("S01", "S06"), "process", slow=False)
    ]
    assert scenarios.in_source(FILE, text) == [
        Cover(FILE, "test_b", ("S01", "S02", "S03", "S04"), "process", slow=True),
        Cover(FILE, "test_c", ("S01", "S05"), "container", slow=False),
    ]
