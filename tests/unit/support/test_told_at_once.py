"""A failure of a test is printed before the tests that follow."""

from __future__ import annotations

import pytest

from tests.support.project.source import ROOT

_TESTS = """
import pytest

@pytest.fixture
def broken():
    yield
    raise RuntimeError("the end of the first")

def test_first(broken):
    assert "found" == "expected"

def test_second():
    print("the second runs")
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["in one process", "with workers"])
def test_a_failure_is_printed_before_the_next_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    """Both the failure of the test and that of its end come before the next test's result."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(_TESTS)
    result = pytester.runpytest_subprocess("-p", "tests.support.runs.told_at_once", "-v", *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED

    def place(*words: str) -> int:
        return next(n for n, line in enumerate(result.outlines) if all(word in line for word in words))

    second = place("test_second", "PASSED")
    assert place("assert 'found' == 'expected'") < second
    assert place("RuntimeError: the end of the first") < second
