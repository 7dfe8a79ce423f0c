"""Casts lose nothing: what is taken equals what was given, and what has no equal is refused with its row.

The model compares Python values, which are exact: numbers as fractions, moments as nanoseconds.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import types

from tests.support.rows import ALL_TYPES
from tidelock.casts import LossyCastError, cast, may_fit
from tidelock.column_types import to_arrow, to_text
from tidelock.errors import UnsupportedTypeError

BERLIN = "Europe/Berlin"
#: Every type that rows may come with, those of the columns first.
FOUND: list[pa.DataType] = [
    *ALL_TYPES.values(),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.date64()),
    *(pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view(), pa.binary(2)),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", BERLIN)),
    *(pa.decimal32(5, 2), pa.decimal64(12, 4), pa.decimal128(30, 5), pa.decimal256(60, 10)),
    pa.null(),
]
#: Types of which no column has the values.
NOWHERE: list[pa.DataType] = [
    *(pa.duration("us"), pa.month_day_nano_interval()),
    *(pa.list_(pa.duration("us")), pa.struct([]), pa.dense_union([pa.field("a", pa.int32())])),
]
#: They fit columns, but no column is made for them: one has too many digits, one has no values.
NO_COLUMN = [pa.decimal256(60, 10), pa.null()]
NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY_NS = 86_400 * 10**9
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
#: Whole days, whole seconds, odd nanoseconds, and the ends of 64 bits.
MOMENTS = INT64 | st.integers(-99, 99) | st.integers(-9, 9).map(lambda days: days * 86_400)


def values_of(arrow: pa.DataType) -> st.SearchStrategy[pa.Array]:
    """Arrays of a numeric type or of a type of time, with nulls, ends, and values near zero."""
    return st.lists(st.none() | _value(arrow), min_size=1, max_size=6).map(lambda found: _array(found, arrow))


def _value(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    if types.is_integer(arrow):
        signed = types.is_signed_integer(arrow)
        low = -(1 << (arrow.bit_width - 1)) if signed else 0
        high = (1 << (arrow.bit_width - signed)) - 1
        return st.integers(low, high) | st.integers(max(low, -9), 9) | st.sampled_from([low, high])
    if types.is_floating(arrow):
        whole = st.integers(-1000, 1000).map(float)
        return whole | st.floats(width=arrow.bit_width) | st.sampled_from([math.nan, math.inf, -0.0])
    if types.is_decimal(arrow):
        top = 10**arrow.precision - 1
        whole = st.integers(-9, 9).map(lambda n: max(-top, min(n * 10**arrow.scale, top)))
        digits = st.integers(-top, top) | whole
        return digits.map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -arrow.scale)))
    if arrow == pa.date32():
        return st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-9, 9)
    if arrow == pa.date64():
        return MOMENTS | st.integers(-9, 9).map(lambda days: days * 86_400_000)
    per_second = 10**9 // NS[arrow.unit]
    if types.is_time(arrow):
        last = 86_400 * per_second - 1
        return st.integers(0, last) | st.integers(0, 86_399).map(lambda n: n * per_second) | st.just(last)
    return MOMENTS | st.integers(-9, 9).map(lambda days: days * 86_400 * per_second)


def _array(found: list[Any], arrow: pa.DataType) -> pa.Array:
    if types.is_float16(arrow):
        return pa.array([None if one is None else np.float16(one) for one in found], arrow)
    if types.is_timestamp(arrow) or arrow == pa.date64():
        return pa.array(found, pa.int64()).cast(arrow, safe=False)
    if arrow == pa.date32() or types.is_time32(arrow):
        return pa.array(found, pa.int32()).cast(arrow)
    if types.is_time64(arrow):
        return pa.array(found, pa.int64()).cast(arrow)
    return pa.array(found, arrow)


def meaning(values: pa.Array) -> list[Any]:
    """Return exact values: fractions, NaN and infinities as text, moments in nanoseconds."""
    arrow = values.type
    if types.is_timestamp(arrow):
        return [None if one is None else one * NS[arrow.unit] for one in _numbers(values, pa.int64())]
    if types.is_time(arrow):
        bits = pa.int32() if types.is_time32(arrow) else pa.int64()
        return [None if one is None else one * NS[arrow.unit] for one in _numbers(values, bits)]
    if arrow == pa.date32():
        return [None if one is None else one * DAY_NS for one in _numbers(values, pa.int32())]
    if arrow == pa.date64():
        return [None if one is None else one * 10**6 for one in _numbers(values, pa.int64())]
    return [None if one is None else _exact(_plain(one)) for one in values.to_pylist()]


def _exact(one: Any) -> Fraction | str:
    return str(one) if isinstance(one, float) and not math.isfinite(one) else Fraction(one)


def _numbers(values: pa.Array, arrow: pa.DataType) -> list[int | None]:
    return list(values.view(arrow).to_pylist())


def _plain(one: Any) -> Any:
    return float(one) if isinstance(one, np.floating) else one


COMPARABLE = [
    arrow
    for arrow in FOUND
    if any(
        of_kind(arrow)
        for of_kind in (
            *(types.is_integer, types.is_floating, types.is_decimal),
            *(types.is_date, types.is_time, types.is_timestamp),
        )
    )
]
#: By the name of a column type the other types that it may have values of.
SOURCES = {
    name: [found for found in COMPARABLE if found != expected and may_fit(expected, found)]
    for name, expected in ALL_TYPES.items()
}


@pytest.mark.parametrize("name", [name for name, sources in SOURCES.items() if sources])
@settings(max_examples=250)
@given(data=st.data())
def test_what_has_an_equal_is_taken_and_the_rest_is_named(name: str, data: st.DataObject) -> None:
    """Taken values are equal, and the first value that has no equal in the column type is the one named."""
    expected = ALL_TYPES[name]
    values = data.draw(st.sampled_from(SOURCES[name]).flatmap(values_of))
    before = meaning(values)
    whole = types.is_integer(values.type)
    lost = [
        index
        for index, value in enumerate(before)
        if not (value is None or has_equal(value, expected, whole=whole))
    ]
    if lost:
        with pytest.raises(LossyCastError) as caught:
            cast(values, expected)
        assert caught.value.index == lost[0]
    good = [index for index in range(len(before)) if index not in lost]
    after = cast(values.take(pa.array(good, pa.int64())), expected)
    assert after.type == expected
    assert meaning(after) == [before[index] for index in good]


def has_equal(value: Any, expected: pa.DataType, *, whole: bool) -> bool:
    """Return whether a type has this value, by arithmetic; `whole`: it comes from a type of integers."""
    if types.is_integer(expected):
        bound = 1 << (expected.bit_width - 1)
        return isinstance(value, Fraction) and value.denominator == 1 and -bound <= value < bound
    if types.is_decimal(expected):
        digits = value * 10**expected.scale
        return bool(digits.denominator == 1 and abs(digits) < 10**expected.precision)
    if types.is_floating(expected):
        if isinstance(value, str):
            return True
        if whole and abs(value) > 1 << {32: 24, 64: 53}[expected.bit_width]:
            return False  # Arrow takes no larger integer for a float, also one that it has
        exact = np.float32 if expected == pa.float32() else np.float64
        with np.errstate(over="ignore"):
            near = float(exact(float(value)))
        return math.isfinite(near) and Fraction(near) == value
    per = DAY_NS if expected == pa.date32() else 1000
    bits = 31 if expected == pa.date32() else 63
    return bool(value % per == 0 and -(1 << bits) <= value // per < 1 << bits)


@pytest.mark.parametrize(
    ("values", "expected", "rows"),
    [
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"]),
        (pa.array([7, None, 7], pa.uint16()).dictionary_encode(), pa.int64(), [7, None, 7]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([1, 2])), pa.int8(), [1, 1, 2]),
        (pa.array(["{}"], pa.json_()), pa.string(), ["{}"]),
        (pa.array(["a"], pa.string_view()), pa.string(), ["a"]),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
        (pa.nulls(2), pa.int8(), [None, None]),
    ],
    ids=str,
)
def test_encodings_are_taken_as_their_values(
    values: pa.Array, expected: pa.DataType, rows: list[Any]
) -> None:
    """Dictionaries, runs and JSON are what they stand for, and so are other layouts."""
    assert may_fit(expected, values.type)
    assert cast(values, expected).to_pylist() == rows
    assert cast(values[:0], expected).type == expected


def test_the_first_value_without_an_equal_is_named() -> None:
    """The error has the position and the value as text, also behind nulls and in a category."""
    values = pa.array([1.0, None, math.nan, 2.5])
    with pytest.raises(LossyCastError) as caught:
        cast(values, pa.int64())
    assert (caught.value.index, caught.value.text) == (2, "nan")
    with pytest.raises(LossyCastError) as caught:
        cast(pa.array([1, 300, 1]).dictionary_encode(), pa.int8())
    assert (caught.value.index, caught.value.text) == (1, "300")
    with pytest.raises(LossyCastError) as caught:
        cast(pa.array([0, 1001], pa.timestamp("ns", BERLIN)), pa.timestamp("us", "UTC"))
    assert (caught.value.index, caught.value.text) == (1, "1970-01-01 01:00:00.000001001+0100")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pa.string(), pa.int64()),
        (pa.int64(), pa.string()),
        (pa.string(), pa.binary()),
        (pa.int8(), pa.bool_()),
        (pa.bool_(), pa.int8()),
        (pa.float64(), pa.decimal128(9, 2)),
        (pa.decimal128(9, 2), pa.float64()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", BERLIN), pa.timestamp("us")),
        (pa.timestamp("us", "UTC"), pa.date32()),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.int64(), pa.timestamp("us")),
        (pa.dictionary(pa.int8(), pa.int64()), pa.string()),
        (pa.list_(pa.int64()), pa.int64()),
    ],
    ids=str,
)
def test_other_meanings_are_not_taken(found: pa.DataType, expected: pa.DataType) -> None:
    """Text is no number, a moment is no wall clock, and tenths of a float are no decimals."""
    assert not may_fit(expected, found)


@pytest.mark.parametrize("found", [one for one in FOUND if one not in NO_COLUMN], ids=str)
def test_a_table_that_is_made_for_a_type_takes_it(found: pa.DataType) -> None:
    """The column that is made for a type takes rows of it."""
    column = to_arrow(to_text("c", found))
    assert may_fit(column, found)
    assert cast(pa.nulls(1, found), column).null_count == 1


@pytest.mark.parametrize("found", [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()], ids=str)
def test_a_column_for_a_type_without_a_sign_has_room_for_all_of_it(found: pa.DataType) -> None:
    """The largest value fits."""
    top = (1 << found.bit_width) - 1
    assert int(cast(pa.array([top], found), to_arrow(to_text("c", found)))[0].as_py()) == top


@pytest.mark.parametrize("found", NOWHERE, ids=str)
def test_a_type_whose_values_no_column_has_is_refused(found: pa.DataType) -> None:
    """No column is made for it, and no column takes it."""
    with pytest.raises(UnsupportedTypeError):
        to_text("c", found)
    assert not any(may_fit(column, found) for column in ALL_TYPES.values())
