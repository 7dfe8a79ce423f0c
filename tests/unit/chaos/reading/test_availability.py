"""The availability that a chaos run tells: gaps, failures, and the way back."""

from __future__ import annotations

from chaos.reading.availability import by_kind, errors_by_kind, noticed, table, undisturbed_per_s
from chaos.reading.bands import bands
from tests.unit.chaos.lines import call, fault, run

KILLED = fault(1, "killed", ["r2"], 10, 18, 20)


def test_the_longest_gap_lies_within_the_fault() -> None:
    """Its begin and its end count like answers; what is before and behind does not."""
    lines = [run(), *KILLED, *(call(second) for second in (1, 11, 12, 18, 40))]
    lines += [call(13, "read"), call(14, "read", "fail", error="NoAnswerError")]
    [found] = noticed(lines, bands(lines))
    assert (found.writers_s, found.readers_s, found.failed, found.commits) == (6.0, 7.0, 1, 3)
    assert found.recovery_s == 2.0


def test_a_fault_that_was_never_healed_ends_with_the_calls() -> None:
    """It has no time of recovery."""
    lines = [run(), *KILLED[:3], call(15), call(30)]
    [found] = noticed(lines, bands(lines))
    assert (found.writers_s, found.commits, found.recovery_s) == (15.0, 2, None)


def test_the_table_has_a_line_for_each_kind() -> None:
    """Median and maximum over all faults of a kind."""
    lines = [run(), *KILLED, *fault(2, "killed", ["r1"], 20, 22, 26), *fault(3, "frozen", ["r3"], 0, 4, 4)]
    lines += [call(second) for second in (1, 2, 3, 11, 19, 21, 40)]
    kinds = by_kind(noticed(lines, bands(lines)))
    assert [(one.kind, one.times, one.writers_p50_s, one.writers_max_s) for one in kinds] == [
        ("frozen", 1, 1.0, 1.0),
        ("killed", 2, 6.5, 8.0),
    ]
    *_, frozen, killed = table(kinds, 0.75).splitlines()
    assert frozen.startswith("| frozen | 1 | 1.00 | 1.00 |")
    assert killed.endswith("| 0 | 3 | 25% | 3.00 | 4.00 |"), "3 commits in 10 s and 6 s"
    assert table(kinds, None).splitlines()[-1].endswith("| 3 | not known | 3.00 | 4.00 |")


def test_the_undisturbed_rate_is_that_between_the_faults() -> None:
    """Faults may overlap, and the last may never end; what lies before the first commit does not count."""
    first, second = fault(1, "killed", ["r2"], 4, 6, 8), fault(2, "frozen", ["r3"], 5, 6, 7)
    lines = [*first, *second, *(call(moment) for moment in (2, 3, 5.5, 6.5, 9, 9.5, 10, 12))]
    assert undisturbed_per_s(lines, bands(lines)) == 1.0, "6 commits in 2 s and 4 s"
    lines += fault(3, "killed", ["r1"], 10.5, 30, 40)[:2]
    assert undisturbed_per_s(lines, bands(lines)) == 5 / 4.5


def test_without_a_calm_moment_there_is_no_undisturbed_rate() -> None:
    """A run without commits has none either."""
    lines = [*fault(1, "killed", ["r2"], 0, 50, 60), call(1), call(9)]
    assert undisturbed_per_s(lines, bands(lines)) is None
    assert undisturbed_per_s([run()], []) is None


def test_calls_that_did_not_end_well_are_counted_by_error() -> None:
    """A call without an error is counted too."""
    lines = [call(1, end="fail", error="NoAnswerError"), call(2, end="info"), call(3), run()]
    assert errors_by_kind(lines) == {"NoAnswerError": 1, "without an error": 1}
