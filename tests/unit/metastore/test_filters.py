"""Filters of partitions: what Spark writes keeps what it means, and what is not understood keeps all."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.metastore.filters import filter_of

TYPES = {"p": "string", "o_year": "int", "d": "date", "flag": "boolean", "m": "decimal(9,2)"}


@pytest.mark.parametrize(
    ("text", "kept", "left"),
    [
        ('p = "007"', ["007"], ["7", "01", None]),
        ("p = '007'", ["007"], ["7", None]),
        ('(p) in ("7", "01")', ["7", "01"], ["007", None]),
        ('p != "7"', ["07"], ["7", None]),
        ('p <> "7"', ["07"], ["7", None]),
        ('p >= "b"', ["b", "ba", "ü"], ["a", "B", None]),
        ('P = "x"', ["x"], ["y"]),
        ('p = "and or ( )"', ["and or ( )"], ["x"]),
    ],
)
def test_texts_are_compared_as_texts(text: str, kept: list[str | None], left: list[str | None]) -> None:
    """By their characters; no comparison with null is true."""
    holds = filter_of(text, TYPES)
    assert all(holds({"p": value}) for value in kept)
    assert not any(holds({"p": value}) for value in left)


@pytest.mark.parametrize(
    ("text", "kept", "left"),
    [
        ("o_year = 1995", ["1995"], ["1996", None]),
        ("((o_year) in (1995, 1996) or o_year > 1997)", ["1995", "1996", "1998"], ["1994", "1997", None]),
        ("o_year >= -5 and o_year < 10", ["-5", "9"], ["-6", "10", "1000"]),
        ("(o_year = 1 or o_year = 2) and (o_year = 2 or o_year = 3)", ["2"], ["1", "3"]),
    ],
)
def test_numbers_are_compared_as_numbers(text: str, kept: list[str], left: list[str | None]) -> None:
    """Not by their digits."""
    holds = filter_of(text, TYPES)
    assert all(holds({"o_year": value}) for value in kept)
    assert not any(holds({"o_year": value}) for value in left)


def test_days_are_compared_where_their_texts_have_one_length() -> None:
    """A day beyond the year 9999 stays for Spark to judge."""
    holds = filter_of('d > "2024-01-31"', TYPES)
    assert [holds({"d": day}) for day in ("2024-02-01", "2024-01-31", "0999-12-31", "12024-01-01", None)] == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_values_without_an_order_of_texts_are_kept() -> None:
    """A decimal has several texts; only null is certainly not equal to one."""
    holds = filter_of('m = "1.50"', TYPES)
    assert [holds({"m": value}) for value in ("1.50", "2.00", None)] == [True, True, False]


@pytest.mark.parametrize(
    "text",
    [
        'p like "0.*"',
        "flag = true",
        "unknown = 1",
        "not o_year = 1",
        "1 = o_year",
        "o_year = ",
        "o_year = 1 and",
        "(o_year = 1",
        "o_year = 1)",
        "o_year between 1 and 2",
        "o_year = 1.5",
        "()",
        "",
        ";",
        '"',
    ],
)
def test_what_is_not_understood_keeps_all(text: str) -> None:
    """Spark filters again, so more partitions are no wrong answer."""
    holds = filter_of(text, TYPES)
    row = {"p": "x", "o_year": "7", "d": "2024-01-01", "flag": "false", "m": "2.00"}
    assert holds(row)
    assert holds(dict.fromkeys(row))


VALUES = {
    "p": st.none() | st.sampled_from(["", "0", "007", "7", "a", "b", "ü", "a b"]),
    "o_year": st.none() | st.integers(-3, 3),
    "d": st.none() | st.dates(dt.date(2024, 1, 1), dt.date(2024, 1, 4)),
}
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: left == right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
Row = dict[str, Any]
Condition = tuple[str, Callable[[Row], bool]]


@st.composite
def comparisons(draw: st.DrawFn) -> Condition:
    """A comparison as Spark writes it, and what it means."""
    column = draw(st.sampled_from(sorted(VALUES)))
    value = draw(VALUES[column].filter(lambda one: one is not None))
    sign = draw(st.sampled_from(sorted(COMPARED)))
    text = str(value) if column == "o_year" else f'"{value}"'
    compare = COMPARED[sign]
    return f"{column} {sign} {text}", lambda row: row[column] is not None and compare(row[column], value)


def joined(parts: list[Condition], word: str) -> Condition:
    """Conditions with a word between them, in brackets."""
    decide = all if word == "and" else any
    text = f" {word} ".join(f"({one})" for one, _ in parts)
    return text, lambda row: decide(holds(row) for _, holds in parts)


conditions = st.recursive(
    comparisons(),
    lambda inner: st.builds(joined, st.lists(inner, min_size=1, max_size=3), st.sampled_from(["and", "or"])),
    max_leaves=6,
)


@given(conditions, st.fixed_dictionaries(VALUES))
def test_any_filter_keeps_what_it_means(condition: Condition, row: Row) -> None:
    """Of texts, whole numbers and days, in any nesting."""
    text, means = condition
    texts = {column: None if value is None else str(value) for column, value in row.items()}
    assert filter_of(text, TYPES)(texts) == means(row)
