"""Rows of two engines: what counts as equal, and how a difference is told."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from workloads.compare import first_difference, same_value


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1, True),
        (1, 2, False),
        ("a", "a", True),
        ("a", "b", False),
        (None, None, True),
        (None, 0, False),
        (None, 0.0, False),
        (dt.date(1995, 3, 15), dt.date(1995, 3, 15), True),
        (Decimal("1.10"), Decimal("1.1"), True),
        (Decimal("1.10"), Decimal("1.11"), False),
        (Decimal("123456789012345678.01"), Decimal("123456789012345678.02"), False),
        (0.1 + 0.2, 0.3, True),
        (1e9, 1e9 + 2, False),
        (25.537587116854997, Decimal("25.537587"), True),
        (25.53759, Decimal("25.537587"), False),
        (float("nan"), 1.0, False),
        ("1.0", 1.0, False),
    ],
)
def test_the_same_value_is_exact_but_for_doubles(one: object, other: object, same: bool) -> None:
    """Exact values must be equal; doubles nearly, and as near as a rounded decimal can be."""
    assert same_value(one, other) is same
    assert same_value(other, one) is same


def test_equal_rows_have_no_difference() -> None:
    """Nothing is told of rows that are equal."""
    assert first_difference([(1, "a"), (2, "b")], [(1, "a"), (2, "b")]) is None
    assert first_difference([], []) is None


def test_the_first_difference_is_shown() -> None:
    """Both versions of the first row that differs are told."""
    assert first_difference([(1, "a"), (2, "b")], [(1, "a"), (2, "c")]) == "row 2: (2, b) is not (2, c)"


@pytest.mark.parametrize(
    ("left", "right", "told"),
    [
        ([(1,)], [], "row 1 (1 and 0 rows): (1) is not no row"),
        ([(1,)], [(1,), (2,)], "row 2 (1 and 2 rows): no row is not (2)"),
        ([(1,)], [(1, 2)], "row 1: (1) is not (1, 2)"),
    ],
)
def test_missing_rows_and_columns_are_differences(
    left: list[tuple[int, ...]], right: list[tuple[int, ...]], told: str
) -> None:
    """Fewer rows are told with the numbers of rows, fewer columns by the row."""
    assert first_difference(left, right) == told


def test_the_order_of_rows_counts() -> None:
    """The same rows in another order are different: the queries say how to sort."""
    assert first_difference([(1,), (2,)], [(2,), (1,)]) is not None
