"""The mark `few`: which cases of a test are left to the long runs."""

from __future__ import annotations

import pytest

from tests.support.project.source import ROOT
from tests.support.runs.few import chosen


@pytest.mark.parametrize(
    ("cases", "few", "kept"),
    [(5, 1, {0}), (5, 2, {0, 4}), (9, 3, {0, 4, 8}), (3, 3, {0, 1, 2}), (2, 7, {0, 1})],
)
def test_chosen_cases_are_spread_evenly(cases: int, few: int, kept: set[int]) -> None:
    """The first and the last are among them, and never more than there are."""
    assert chosen(cases, few) == kept


def test_cases_that_are_not_chosen_are_slow(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case that is slow by itself is not counted; without a choice of marks all run."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\nmarkers =\n  slow: long\n  few(n): some\n")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.parametrize("n", [0, 1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
        @pytest.mark.few(2)
        def test_many(n):
            pass

        def test_another():
            pass
        """)
    plugin = ("-p", "tests.support.runs.few")
    some = pytester.runpytest_subprocess(*plugin, "-v", "-m", "not slow")
    some.assert_outcomes(passed=3, deselected=3)
    some.stdout.fnmatch_lines(["*test_many[[]0]*", "*test_many[[]3]*"])
    pytester.runpytest_subprocess(*plugin).assert_outcomes(passed=6)
