"""The checker by timestamps sees each violation, and lets through what only looks like one."""

from __future__ import annotations

import pytest

from tests.checkers import by_timestamps
from tests.checkers.conflicts import ALL_CHANGES
from tests.checkers.operations import History
from tests.unit.checkers.histories import a, fail, history, info, ok, r, w


def _names(judged: History, *, strict: bool = False) -> list[str]:
    return [one.name for one in by_timestamps.check(judged, strict=strict)]


BASE = (ok(a("x", 1), snapshot=0, csn=1), ok(a("x", 2), snapshot=0, csn=2))


@pytest.mark.parametrize(
    ("read", "names"),
    [
        (ok(r("x", 1, 2), snapshot=2), []),
        (ok(r("x", 1), snapshot=1), []),
        (ok(r("x"), snapshot=0), []),
        (ok(r("x", 1), snapshot=2), ["EXT"]),
        (ok(r("x", 1, 2), snapshot=1), ["EXT"]),
        (ok(r("x", 2, 1), snapshot=2), ["EXT"]),
        (ok(r("x", 1), a("x", 3), r("x", 1, 3), snapshot=1, csn=3), []),
        (ok(r("x", 1), r("x", 1, 2), snapshot=1), ["INT"]),
        (ok(a("x", 3), r("x", 1), snapshot=1, csn=3), ["INT"]),
        (ok(w("x", 3), r("x", 1, 3), snapshot=2, csn=3), ["INT"]),
        (ok(w("x", 3), a("x", 4), r("x", 3, 4), snapshot=2, csn=3), []),
        (ok(a("x", 3), snapshot=2), ["CSN"]),
        (ok(a("x", 3), snapshot=2, csn=2), ["CSN"]),
        (ok(r("x", 1, 2)), ["CSN"]),
        (ok(r("y"), process=1, snapshot=1), ["SESSION"]),
    ],
)
def test_a_read_is_compared_with_all_commits_up_to_its_snapshot(
    read: dict[str, object], names: list[str]
) -> None:
    """A transaction sees its snapshot and its own changes, all of both and nothing else."""
    assert _names(history(*BASE, read)) == names


def test_a_violation_names_expectation_finding_and_proof() -> None:
    """The reader of a report can look up the operations that prove it."""
    (violation,) = by_timestamps.check(history(*BASE, ok(r("x", 1), snapshot=2)))
    assert violation.operations == (2, 1)
    assert "expected, behind the first 1 elements, [2], found []" in violation.what


@pytest.mark.parametrize(("second", "names"), [((1, 2), []), ((2, 1), ["EXT"])])
def test_elements_of_one_csn_may_have_any_order_that_stays(second: tuple[int, ...], names: list[str]) -> None:
    """Group commit leaves the order within a CSN open, but not open to change."""
    group = (ok(a("x", 1), snapshot=0, csn=1), ok(a("x", 2), snapshot=0, csn=1))
    reads = (ok(r("x", *second), snapshot=1), ok(r("x", 1, 2, 3), snapshot=2))
    assert _names(history(*group, ok(a("x", 3), snapshot=1, csn=2), *reads)) == names


@pytest.mark.parametrize(
    ("reads", "names"),
    [
        ((), []),
        ((ok(r("x"), snapshot=4), ok(r("x", 7), snapshot=5)), []),
        ((ok(r("x", 7), snapshot=4), ok(r("x"), snapshot=5)), ["EXT"]),
        ((ok(r("x", 7), snapshot=4), ok(r("y", 7), snapshot=4)), []),
        ((ok(r("x", 7), snapshot=4), ok(r("y"), snapshot=4)), ["EXT"]),
        ((ok(r("x", 7), snapshot=2),), ["EXT"]),
        ((ok(a("x", 8), snapshot=3, csn=4), ok(r("x", 7, 8), snapshot=5), ok(r("y"), snapshot=4)), ["EXT"]),
        (
            (ok(a("x", 8), snapshot=3, csn=4), ok(r("x", 8, 7), snapshot=5), ok(r("y", 7), snapshot=3)),
            ["EXT"],
        ),
    ],
)
def test_an_unknown_end_is_seen_whole_and_forever_or_not(
    reads: tuple[dict[str, object], ...], names: list[str]
) -> None:
    """Reads bound the CSN of a transaction whose answer was lost; no CSN may satisfy them all."""
    assert _names(history(info(a("x", 7), a("y", 7), snapshot=2), *reads)) == names


def test_a_failed_transaction_is_reported_as_such_only() -> None:
    """An element that must not exist is ABORT, and does not count as a wrong list as well."""
    (violation,) = by_timestamps.check(history(*BASE, fail(a("x", 9)), ok(r("x", 1, 2, 9), snapshot=2)))
    assert (violation.name, violation.operations) == ("ABORT", (3, 2))


@pytest.mark.parametrize(("second", "names"), [(1, []), (0, ["NOCONFLICT"])])
@pytest.mark.parametrize("change", [a, w])
def test_the_conflicting_operations_are_chosen_by_the_caller(
    change: type, second: int, names: list[str]
) -> None:
    """Appends conflict only where a caller says so, replacements always."""
    judged = history(ok(change("x", 1), snapshot=0, csn=1), ok(change("x", 2), snapshot=second, csn=2))
    assert [one.name for one in by_timestamps.check(judged, conflicting=ALL_CHANGES)] == names
    assert _names(judged) == (names if change is w else [])


def test_two_replacements_at_one_csn_are_a_conflict() -> None:
    """The transactions of one record must not conflict with each other."""
    assert _names(history(ok(w("x", 1), snapshot=0, csn=1), ok(w("x", 2), snapshot=0, csn=1))) == [
        "NOCONFLICT"
    ]


def test_a_replaced_list_begins_with_the_replacement() -> None:
    """A replacement hides what was there before it, and only from its CSN on."""
    changes = (*BASE, ok(w("x", 3), snapshot=2, csn=3), ok(a("x", 4), snapshot=3, csn=4))
    good = (ok(r("x", 1, 2), snapshot=2), ok(r("x", 3), snapshot=3), ok(r("x", 3, 4), snapshot=4))
    assert _names(history(*changes, *good)) == []
    assert _names(history(*changes, ok(r("x", 1, 2, 3), snapshot=3))) == ["EXT"]


def test_an_append_of_the_csn_of_a_replacement_may_be_hidden_or_not() -> None:
    """Reads tell in which order a replacement and an append of one CSN have taken place."""
    group = (ok(w("x", 1), snapshot=0, csn=1), ok(a("x", 2), snapshot=0, csn=1))
    later = ok(w("x", 3), snapshot=1, csn=2)
    for shown in ((1,), (1, 2)):
        assert _names(history(*group, later, ok(r("x", *shown), snapshot=1), ok(r("x", 3), snapshot=2))) == []


@pytest.mark.parametrize(
    ("second", "names"),
    [
        (ok(r("x"), snapshot=0), ["REALTIME"]),
        (ok(r("x"), snapshot=0, fresh=False), []),
        (ok(r("x", 1), snapshot=1), []),
        (ok(a("y", 1), snapshot=0, csn=1, fresh=False), ["REALTIME"]),
    ],
)
def test_real_time_binds_fresh_readers_and_commits(second: dict[str, object], names: list[str]) -> None:
    """A reader sees all that was acknowledged before, unless it has accepted an old snapshot."""
    judged = history(ok(a("x", 1), snapshot=0, csn=1), second, sequential=True)
    assert _names(judged, strict=True) == names
    assert _names(judged) == []


def test_csns_of_a_process_follow_its_order() -> None:
    """A later commit of a process has the higher CSN."""
    judged = history(ok(a("x", 1), csn=5, snapshot=4, process=1), ok(a("x", 2), csn=3, snapshot=2, process=1))
    assert _names(judged) == ["SESSION", "CSN"]


def test_at_most_five_violations_of_a_kind_are_shown() -> None:
    """A broken run has thousands of them, which nobody reads."""
    assert _names(history(*(ok(r("x", 1), snapshot=0) for _ in range(9)))) == ["EXT"] * 5


def test_a_history_without_snapshots_is_known_as_such() -> None:
    """Without the numbers of the store this checker has nothing to compare."""
    assert not by_timestamps.has_timestamps(history(ok(r("x"))))
    assert by_timestamps.has_timestamps(history(ok(r("x"), snapshot=0)))
